"""Every field of the reference trainer exists under its section and name, with its default or a named deviation."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from llmtrain.config import field_kinds, reference_page
from llmtrain.config.schema import FIELDS
from llmtrain.config.section import default_of, traits_of

# Field -> default of the reference trainer; "required" where it has none.
REFERENCE: dict[str, dict[str, Any]] = yaml.safe_load("""
model:
  model_name_or_path: required
  model_id: null
  init_model_with_meta_device: false
  trust_remote_code: false
  train_from_scratch: false
  tokenizer_name_or_path: null
  cache_dir: null
  use_fast_tokenizer: true
  resize_vocab: false
  split_special_tokens: false
  add_tokens: null
  add_special_tokens: null
  new_special_tokens_config: null
  init_special_tokens: noise_init
  model_revision: main
  hf_hub_token: null
  ms_hub_token: null
  om_hub_token: null
  quant_recipe_name: null
  quant_apply_modules: ['model.layers.{*}']
  quant_ignored_modules: ['*lm_head', '*gate']
  quant_converters: [quantize.linear.mx]
  enable_fsdp_low_precision_all_gather: true
  fsdp_low_precision_all_gather_mode: on-demand
data:
  template: null
  dataset: required
  eval_dataset: null
  dataset_dir: ./configs/fsdp2/data
  cutoff_len: 2048
  train_on_prompt: false
  mask_history: false
  streaming: false
  buffer_size: 16384
  mix_strategy: concat
  interleave_probs: null
  overwrite_cache: false
  preprocessing_batch_size: 1000
  preprocessing_num_workers: null
  max_samples: null
  eval_num_beams: null
  ignore_pad_token_for_loss: true
  val_size: 0.0
  eval_on_each_dataset: false
  packing: false
  neat_packing: false
  tool_format: null
  default_system: null
  enable_thinking: true
  tokenized_path: null
  data_shared_file_system: false
  data_manager_type: lf
  split: 100,0,0
  create_attention_mask_in_dataloader: false
  no_shared_storage: false
  dataloader_type: single
  reset_attention_mask: false
  append_eod: false
parallel:
  tp_size: 1
  fsdp_size: 1
  recompute: false
  ep_size: 1
  ep_fsdp_size: 1
  cp_size: 1
  cp_type: ulysses
  fsdp_modules: ['model.layers.{*}', model.embed_tokens, lm_head]
  ignored_modules: null
  reshard_after_forward: true
  shard_placement_fn: null
  efsdp_shard_placement_fn: shard_by_dim_1
  hook_modules: ['model.layers.{*}']
  fsdp_implementation: native
  tp_colwise: ['*.q_proj', '*.k_proj', '*.v_proj', '*.gate_proj', '*.up_proj']
  tp_rowwise: ['*.o_proj', '*.down_proj']
  ep_modules: ['model.layers.{*}.mlp.experts']
  ep_fsdp_modules: ['model.layers.{*}.mlp.experts']
  ep_dispatcher: eager
  recompute_modules: ['model.layers.{*}']
  param_dtype: bf16
  reduce_dtype: fp32
  num_to_forward_prefetch: 1
  num_to_backward_prefetch: 1
  enable_chunk_batch: false
  chunk_mbs: 1
  chunk_mbs_batch_dim: 0
  chunk_mbs_modules: ['model.layers.{*}']
  chunk_mbs_arg_indexs: [0]
  chunk_mbs_kwarg_names: [position_embeddings, position_ids, attention_mask, input_ids]
training:
  output_dir: required
  deterministic: true
  optimizer: adamw
  lr: 0.00001
  weight_decay: 0.01
  adam_beta1: 0.9
  adam_beta2: 0.95
  adam_epsilon: 0.00000001
  max_grad_norm: 1.0
  lr_scheduler_type: cosine
  warmup_ratio: 0.03
  min_lr: 0.000001
  num_train_epochs: 3.0
  max_steps: -1
  gradient_accumulation_steps: 1
  disable_shuffling: false
  seed: 42
  indexer_loss_coeff: 1.0
  router_aux_loss_coef: 0.0
  save_steps: 500
  save_epochs: 1
  save_total_limit: 3
  save_only_model: false
  save_async: false
  save_hf_weights: true
  resume_from_checkpoint: null
  logging_steps: 1
  log_throughput: false
  log_cpu_memory: false
  mtp_loss_scaling_factor: 0.3
  stage: sft
  calculate_per_token_loss: false
  dataloader_num_workers: 0
  dataloader_prefetch_factor: null
  dataloader_pin_memory: true
  dataloader_persistent_workers: false
  dataloader_drop_last: false
  per_device_train_batch_size: 8
  profile: false
  profile_step_start: 0
  profile_step_end: -1
  profile_ranks: [-1]
  profile_level: level0
  profile_export_type: text
  profile_data_simplification: false
  profile_with_cpu: false
  profile_with_stack: false
  profile_with_memory: false
  profile_record_shapes: false
  profile_save_path: ./profile
inference:
  infer_backend: huggingface
  max_new_tokens: 512
  do_sample: false
optimization:
  use_fused_rmsnorm: false
  moe_grouped_gemm: false
  use_fused_rotary_pos_emb: false
  use_flash_attn: false
  use_sparse_flash_attn: false
  use_fused_lightning_indexer: false
  use_fused_lightning_indexer_loss: false
  use_ascend_mhc: false
  use_triton_swiglu_limit: false
  pre_tokens: 1048576
  next_tokens: 0
  use_triton_gdn: false
  use_flash_gdn: false
  gdn_chunk_size: 64
  chunk_loss_size: null
  use_triton_rmsnormgated: false
  fix_router: false
""")
DEVIATIONS: dict[str, Any] = {
    "model.model_name_or_path": None,
    "data.append_eod": True,
    "parallel.fsdp_size": None,
    "parallel.fsdp_modules": None,
    "parallel.recompute_modules": None,
    "training.gradient_accumulation_steps": None,
    "training.calculate_per_token_loss": True,
    **{f"optimization.{name}": "auto" for name in REFERENCE["optimization"] if "use_" in name or "gemm" in name},
}
OURS = {
    "model": {"model_type", "config_overrides", "attn_implementation"},
    "data": {"on_bad_row", "padding_free"},
    "parallel": {"cpu_offload", "defer_gradient_sync"},
    "training": {
        "warmup_steps", "decay_ratio", "global_batch_size", "per_device_eval_batch_size", "momentum", "muon_momentum",
        "master_dtype", "report_to", "run_name", "eval_steps", "max_skipped_steps", "hf_weights_dtype",
    },
}  # fmt: skip
PATHS = [f"{section}.{name}" for section, fields in REFERENCE.items() for name in fields]


@pytest.mark.parametrize("path", PATHS)
def test_a_field_of_the_reference_trainer(path: str) -> None:
    section, _, name = path.partition(".")
    field, theirs = FIELDS[path], REFERENCE[section][name]
    if path in DEVIATIONS:
        assert default_of(field) == DEVIATIONS[path] != theirs
        assert traits_of(field).differs
    elif theirs == "required":
        assert traits_of(field).required
    else:
        assert default_of(field) == theirs and type(default_of(field)) is type(theirs)
        assert not traits_of(field).differs


def test_what_is_ours_on_top() -> None:
    ours = {f"{section}.{name}" for section, names in OURS.items() for name in names}
    assert set(FIELDS) - set(PATHS) == ours
    assert {field_kinds()[path] for path in ours} == {"live"}


def test_every_field_that_is_not_live_says_why() -> None:
    for path, kind in field_kinds().items():
        assert bool(traits_of(FIELDS[path]).reason) == (kind != "live"), path


def test_the_page_explains_each_deviation() -> None:
    rows = [line for line in reference_page().split("\n") if "*Reference trainer*: " in line]
    assert len(rows) == len(DEVIATIONS)
