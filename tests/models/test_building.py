"""Building: buffers, overrides, folders that do not fit, and other stock families."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from llmtrain.config import ModelConfig
from llmtrain.errors import UserError
from llmtrain.models.hf_config import read_hf_config
from llmtrain.training import loop
from tests.distributed.launch import losses
from tests.tiny import SIZES, tiny_config

Run = Callable[[dict[str, Any]], Any]


@pytest.fixture
def source(files: Path) -> Path:
    """A folder as transformers saves it."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(files / "source")
    return files / "source"


def from_folder(files: Path, source: Path, **training: Any) -> dict[str, Any]:
    config = tiny_config(files, "out", training={"max_steps": 1, **training})
    config["model"] = {"model_name_or_path": str(source), "tokenizer_name_or_path": str(files / "tokenizer")}
    return config


def test_buffers_are_those_of_a_plain_build(run: Run, files: Path, source: Path) -> None:
    seen: dict[str, torch.Tensor] = {}
    original = loop._step

    def step(run_: loop.Run, *args: Any) -> None:
        seen.update({name: buffer.clone() for name, buffer in run_.model.named_buffers()})
        original(run_, *args)

    with mock.patch.object(loop, "_step", step):
        run(from_folder(files, source))
    plain = dict(AutoModelForCausalLM.from_pretrained(source).named_buffers())
    assert set(seen) == set(plain)
    assert all(torch.equal(seen[name], plain[name]) for name in plain)
    assert len(plain) >= 1


def test_an_override_of_the_scaling_keeps_theta(source: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    for spelling in ("rope_scaling", "rope_parameters"):
        settings = ModelConfig(
            model_name_or_path=str(source), config_overrides={spelling: yarn, "num_hidden_layers": 1}
        )
        config = read_hf_config(settings)
        assert config.rope_parameters["rope_theta"] == 1e6
        assert config.rope_parameters["factor"] == 4.0
        assert config.num_hidden_layers == 1
        assert config.hidden_size == SIZES["hidden_size"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_type": "qwen33", "tokenizer_name_or_path": "t"}, "did you mean qwen3"),
        ({"model_type": "qwen3", "config_overrides": {"hiden_size": 3}}, "did you mean hidden_size"),
        ({"model_name_or_path": "/nowhere"}, "no Hugging Face config could be read"),
        ({"model_name_or_path": "SOURCE", "model_id": "gpt_oss"}, "says qwen3"),
        ({"model_name_or_path": "SOURCE", "config_overrides": {"rope": 1}}, "has no such field"),
    ],
)
def test_a_config_that_cannot_be(source: Path, settings: dict[str, Any], said: str) -> None:
    filled = {k: str(source) if v == "SOURCE" else v for k, v in settings.items()}
    with pytest.raises(UserError, match=said):
        read_hf_config(ModelConfig(**filled))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_missing_tensor_is_named(run: Run, files: Path, source: Path) -> None:
    edit_weights(source, lambda w: w.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(UserError, match=r"lacks 1 of .* tensors: model\.layers\.1\.mlp\.up_proj\.weight"):
        run(from_folder(files, source))


def test_a_tensor_of_another_shape_is_named(run: Run, files: Path, source: Path) -> None:
    edit_weights(source, lambda w: w.update({"model.norm.weight": torch.ones(7)}))
    with pytest.raises(UserError, match=r"another shape.*model\.norm\.weight"):
        run(from_folder(files, source))


def test_a_tensor_too_many_is_told(run: Run, files: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_weights(source, lambda w: w.update({"model.mtp.weight": torch.ones(7)}))
    run(from_folder(files, source))
    assert "no place for" in capsys.readouterr().out


def test_damaged_and_absent_weights(run: Run, files: Path, source: Path) -> None:
    (source / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match="damaged"):
        run(from_folder(files, source))
    (source / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"holds no model\.safetensors"):
        run(from_folder(files, source))


def test_a_vocabulary_beyond_the_embedding_is_refused(run: Run, files: Path, source: Path) -> None:
    config = from_folder(files, source)
    config["model"]["add_tokens"] = ["<new>"]
    with pytest.raises(UserError, match="ids up to 128, but the model's embedding has 128 rows"):
        run(config)


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 16},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 16},
    "phi3": {"head_dim": None, "pad_token_id": 2},
    "qwen2": {"head_dim": None},
    "olmo2": {"head_dim": None},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": 128},
    "mamba2": {"hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "vocab_size": 128},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_stock_families_train_and_export(run: Run, files: Path, family: str) -> None:
    special = FAMILIES[family]
    sizes = special if family in ("gpt2", "mamba2") else {**SIZES, **special}
    overrides = {k: v for k, v in sizes.items() if v is not None}
    config = tiny_config(files, "out", training={"max_steps": 3, "save_hf_weights": True, "lr": 0.003, "min_lr": 0.0})
    config["model"] = {
        "model_type": family,
        "tokenizer_name_or_path": str(files / "tokenizer"),
        "config_overrides": overrides,
    }
    run(config)
    found = losses(files / "out")
    assert found[-1] < found[0]
    model = AutoModelForCausalLM.from_pretrained(files / "out" / "hf")
    assert model.config.model_type == family
    assert json.loads((files / "out" / "hf" / "config.json").read_text())["vocab_size"] == 128
