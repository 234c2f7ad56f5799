"""The schema holds the reference trainer's fields, and its own documents are fresh."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llmtrain.config import ConfigError, field_kinds, json_schema, load_config
from llmtrain.config.reference import reference_page
from llmtrain.config.schema import SECTIONS
from llmtrain.config.section import default_of, extras

REPOSITORY = Path(__file__).parents[2]
YAMLS = sorted((Path(__file__).parent / "reference_yamls").glob("*.yaml"))

# Every field of the reference trainer, by section, with its default.
REFERENCE = {
    "model": "model_name_or_path=null model_id=null init_model_with_meta_device=false trust_remote_code=false "
    "train_from_scratch=false tokenizer_name_or_path=null cache_dir=null use_fast_tokenizer=true resize_vocab=false "
    "split_special_tokens=false add_tokens=null add_special_tokens=null new_special_tokens_config=null "
    'init_special_tokens="noise_init" model_revision="main" hf_hub_token=null ms_hub_token=null om_hub_token=null '
    'quant_recipe_name=null quant_apply_modules=["model.layers.{*}"] quant_ignored_modules=["*lm_head","*gate"] '
    'quant_converters=["quantize.linear.mx"] enable_fsdp_low_precision_all_gather=true '
    'fsdp_low_precision_all_gather_mode="on-demand"',
    "data": 'template=null dataset=null eval_dataset=null dataset_dir="./configs/fsdp2/data" cutoff_len=2048 '
    'train_on_prompt=false mask_history=false streaming=false buffer_size=16384 mix_strategy="concat" '
    "interleave_probs=null overwrite_cache=false preprocessing_batch_size=1000 preprocessing_num_workers=null "
    "max_samples=null eval_num_beams=null ignore_pad_token_for_loss=true val_size=0.0 eval_on_each_dataset=false "
    "packing=false neat_packing=false tool_format=null default_system=null enable_thinking=true tokenized_path=null "
    'data_shared_file_system=false data_manager_type="lf" split="100,0,0" create_attention_mask_in_dataloader=false '
    'no_shared_storage=false dataloader_type="single" reset_attention_mask=false append_eod=false',
    "parallel": 'tp_size=1 fsdp_size=1 recompute=false ep_size=1 ep_fsdp_size=1 cp_size=1 cp_type="ulysses" '
    'fsdp_modules=["model.layers.{*}","model.embed_tokens","lm_head"] ignored_modules=null reshard_after_forward=true '
    'shard_placement_fn=null efsdp_shard_placement_fn="shard_by_dim_1" hook_modules=["model.layers.{*}"] '
    'fsdp_implementation="native" tp_colwise=["*.q_proj","*.k_proj","*.v_proj","*.gate_proj","*.up_proj"] '
    'tp_rowwise=["*.o_proj","*.down_proj"] ep_modules=["model.layers.{*}.mlp.experts"] '
    'ep_fsdp_modules=["model.layers.{*}.mlp.experts"] ep_dispatcher="eager" recompute_modules=["model.layers.{*}"] '
    'param_dtype="bf16" reduce_dtype="fp32" num_to_forward_prefetch=1 num_to_backward_prefetch=1 enable_chunk_batch=false '
    'chunk_mbs=1 chunk_mbs_batch_dim=0 chunk_mbs_modules=["model.layers.{*}"] chunk_mbs_arg_indexs=[0] '
    'chunk_mbs_kwarg_names=["position_embeddings","position_ids","attention_mask","input_ids"]',
    "training": 'output_dir=null deterministic=true optimizer="adamw" lr=1e-05 weight_decay=0.01 adam_beta1=0.9 '
    'adam_beta2=0.95 adam_epsilon=1e-08 max_grad_norm=1.0 lr_scheduler_type="cosine" warmup_ratio=0.03 min_lr=1e-06 '
    "num_train_epochs=3.0 max_steps=-1 gradient_accumulation_steps=1 disable_shuffling=false seed=42 "
    "indexer_loss_coeff=1.0 router_aux_loss_coef=0.0 save_steps=500 save_epochs=1 save_total_limit=3 "
    "save_only_model=false save_async=false save_hf_weights=true resume_from_checkpoint=null logging_steps=1 "
    'log_throughput=false log_cpu_memory=false mtp_loss_scaling_factor=0.3 stage="sft" calculate_per_token_loss=false '
    "dataloader_num_workers=0 dataloader_prefetch_factor=null dataloader_pin_memory=true "
    "dataloader_persistent_workers=false dataloader_drop_last=false per_device_train_batch_size=8 profile=false "
    'profile_step_start=0 profile_step_end=-1 profile_ranks=[-1] profile_level="level0" profile_export_type="text" '
    "profile_data_simplification=false profile_with_cpu=false profile_with_stack=false profile_with_memory=false "
    'profile_record_shapes=false profile_save_path="./profile"',
    "inference": 'infer_backend="huggingface" max_new_tokens=512 do_sample=false',
    "optimization": "use_fused_rmsnorm=false moe_grouped_gemm=false use_fused_rotary_pos_emb=false use_flash_attn=false "
    "use_sparse_flash_attn=false use_fused_lightning_indexer=false use_fused_lightning_indexer_loss=false "
    "use_ascend_mhc=false use_triton_swiglu_limit=false pre_tokens=1048576 next_tokens=0 use_triton_gdn=false "
    "use_flash_gdn=false gdn_chunk_size=64 chunk_loss_size=null use_triton_rmsnormgated=false fix_router=false",
}


@pytest.mark.parametrize("section", REFERENCE)
def test_every_field_of_the_reference_is_there_with_its_default(section: str) -> None:
    ours = SECTIONS[section].model_fields
    for entry in re.findall(r"(\w+)=(\S+)", REFERENCE[section]):
        name, default = entry[0], json.loads(entry[1])
        assert name in ours, f"{section}.{name}"
        if default_of(ours[name]) != default:
            kernel_switch = default is False and default_of(ours[name]) == "auto"
            assert kernel_switch or extras(ours[name])["differs"], f"{section}.{name} differs and does not say why"


def test_every_field_has_a_kind_and_a_reason_where_it_needs_one() -> None:
    for section, kind in SECTIONS.items():
        for name, field in kind.model_fields.items():
            assert field.description, f"{section}.{name}"
            assert extras(field)["kind"] == "live" or extras(field)["reason"], f"{section}.{name}"
    assert set(field_kinds().values()) == {"live", "later", "moot"}


def test_the_generated_documents_are_fresh() -> None:
    """`python -m llmtrain.config.reference` writes them."""
    assert (REPOSITORY / "docs" / "configuration.md").read_text() == reference_page()
    assert json.loads((REPOSITORY / "docs" / "config.schema.json").read_text()) == json_schema()


# File -> what stops it; all others load as they are.
STOPPED = {
    "glm52_744b_4k_fsdp2_A3.yaml": {"optimization.indexer_loss_coeff", "parallel.ep_size", *(
        f"optimization.{n}" for n in ("use_fused_rmsnorm", "moe_grouped_gemm", "use_fused_rotary_pos_emb", "use_sparse_flash_attn", "use_fused_lightning_indexer")
    )},
    "pretrain_deepseek4_flash_284b_4k_fsdp2_A3.yaml": {"parallel.fsdp_implementation", "parallel.enable_chunk_batch", "training.router_aux_loss_coef"},
    "tune_gpt_oss_20b_128k_fsdp2_A3.yaml": {"data.packing", "data.template", "parallel.cp_size"},
    "tune_gpt_oss_20b_varlen_fsdp2_A3.yaml": {"data.template"},
    "tune_qwen3_8b_4k_fsdp2_A2.yaml": {"data.template"},
}  # fmt: skip


@pytest.mark.parametrize("path", YAMLS, ids=lambda p: p.stem)
def test_the_reference_trainers_files_load_or_stop_with_a_line_for_each_key(path: Path) -> None:
    words = [str(path), "--model.model_name_or_path", "m", "--data.dataset", "d", "--training.output_dir", "o"]
    found: set[str] = set()
    try:
        load_config(words)
    except ConfigError as error:
        found = {problem.path for problem in error.problems}
    # A rule between sections is looked at once every section is right in itself.
    assert found == STOPPED.get(path.name, set()) or found == STOPPED[path.name] - {"data.template"}


def test_every_config_of_the_repository_loads() -> None:
    files = [p for p in (REPOSITORY / "configs").rglob("*.yaml")]
    assert files
    for file in files:
        assert load_config([str(file)]).config
