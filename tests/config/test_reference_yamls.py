"""YAML files written for the reference trainer load, or stop with exactly these lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.samples import load, problems

FOLDER = Path(__file__).parent / "reference_yamls"
NO_FUSED = "only auto or false can be used: fused kernels are not available in this version; auto runs plain PyTorch"
NO_SPARSE = NO_FUSED.replace("fused", "sparse attention")
META = (
    "model.init_model_with_meta_device changes nothing here: "
    "every model is built on the meta device and filled shard by shard"
)
TEMPLATE = "data.template changes nothing here: pretraining uses no chat template"

LOADED = {
    "pretrain_mamba3_demo_1b_2K_fsdp2_A2": [META, TEMPLATE],
    "pretrain_minimax_m2p7_229b_8K_fsdp2_A3": [META, TEMPLATE],
    "pretrain_qwen3_14b_4k_fsdp2_A3": [META, TEMPLATE],
    "pretrain_qwen3_1point7b_4k_fsdp2_A2": [TEMPLATE],
    "pretrain_qwen3_235b_4k_fsdp2_A3": [META, TEMPLATE],
    "pretrain_qwen3_30b_4k_fsdp2_A5": [META, TEMPLATE],
    "pretrain_qwen3_8b_4k_fsdp2_A2": [TEMPLATE],
    "pretrain_qwen3_8b_4k_fsdp2_A3": [TEMPLATE],
    "pretrain_qwen3_next_16k_fsdp2_A3": [META, TEMPLATE],
    "pretrain_step_3p5_flash_196b_4K_fsdp2_A3": [META, TEMPLATE],
    "tune_gpt_oss_20b_varlen_fsdp2_A3": [],
    "tune_qwen3_8b_4k_fsdp2_A2": [],
}
REFUSED = {
    "glm52_744b_4k_fsdp2_A3": [
        "67: optimization.indexer_loss_coeff is no known field; did you mean training.indexer_loss_coeff?",
        "25: parallel.ep_size is 128, but only 1 can be used: expert parallelism is not available in this version",
        f"62: optimization.use_fused_rmsnorm is true, but {NO_FUSED}",
        f"63: optimization.moe_grouped_gemm is true, but {NO_FUSED}",
        f"64: optimization.use_fused_rotary_pos_emb is true, but {NO_FUSED}",
        f"65: optimization.use_sparse_flash_attn is true, but {NO_SPARSE}",
        f"66: optimization.use_fused_lightning_indexer is true, but {NO_SPARSE}",
    ],
    "pretrain_deepseek4_flash_284b_4k_fsdp2_A3": [
        "41: parallel.fsdp_implementation is 'custom', but only native can be used: "
        "PyTorch's own FSDP2 is the one there is",
        "42: parallel.enable_chunk_batch is true, but only false can be used: "
        "splitting a batch inside the layers is not available in this version",
        "78: training.router_aux_loss_coef is 0.001, but only 0.0 can be used: "
        "router losses are not available in this version",
    ],
    "tune_gpt_oss_20b_128k_fsdp2_A3": [
        "27: parallel.cp_size is 32, but only 1 can be used: context parallelism is not available in this version",
    ],
}


def test_every_file_is_expected() -> None:
    assert {file.stem for file in FOLDER.glob("*.yaml")} == set(LOADED) | set(REFUSED)


@pytest.mark.parametrize("name", LOADED)
def test_files_that_load(name: str) -> None:
    resolved = load(str(FOLDER / f"{name}.yaml"))
    assert resolved.notices == LOADED[name]
    assert resolved.config.training.lr == (1.25e-6 if name == "tune_gpt_oss_20b_varlen_fsdp2_A3" else 1e-5)
    assert resolved.config.model.model_name_or_path == "m"


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_stop_with_a_line_for_each_key(name: str) -> None:
    file = FOLDER / f"{name}.yaml"
    assert problems(str(file)) == [f"{file}:{line}" for line in REFUSED[name]]


def test_the_word_none_in_a_file_is_null() -> None:
    file = str(FOLDER / "glm52_744b_4k_fsdp2_A3.yaml")
    off = ["--parallel.ep_size", "1", *(f"--optimization.{name}=auto" for name in KERNELS)]
    assert problems(file, *off) == [f"{file}:{REFUSED['glm52_744b_4k_fsdp2_A3'][0]}"]


KERNELS = [
    "use_fused_rmsnorm",
    "moe_grouped_gemm",
    "use_fused_rotary_pos_emb",
    "use_sparse_flash_attn",
    "use_fused_lightning_indexer",
]
