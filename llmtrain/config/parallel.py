"""Section `parallel`: how the model is laid over the ranks."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from llmtrain.config.section import Section, setting

_EP = "expert parallelism is not available in this version"
_TP = "tensor parallelism is not available in this version"
_CP = "context parallelism is not available in this version"
_CHUNK = "splitting a batch inside the layers is not available in this version"
_CUSTOM = "only torch's own FSDP2 is used"
_PLACE = "shards are cut along dimension 0"

Dtype = Literal["bf16", "fp16", "fp32"]


class ParallelConfig(Section):
    """How the model is laid over the ranks."""

    fsdp_size: int | None = setting(
        None,
        "ranks that share one copy of the model; null: all. Smaller than the run: the rest are replicas (HSDP)",
        ge=1,
        differs="1 there, which is refused for any run of more ranks",
    )
    fsdp_modules: list[str] | None = setting(
        None,
        "patterns of the FSDP units; null: each decoder layer, the input embedding, the output head",
        differs="taken from the model, so that it fits every architecture",
    )
    ignored_modules: list[str] | None = setting(None, "patterns of modules kept whole on every rank")
    reshard_after_forward: bool = setting(True, "free gathered parameters between forward and backward")
    num_to_forward_prefetch: int = setting(1, "units gathered ahead in forward", ge=0)
    num_to_backward_prefetch: int = setting(1, "units gathered ahead in backward", ge=0)
    param_dtype: Dtype = setting("bf16", "dtype of computation")
    reduce_dtype: Dtype = setting("fp32", "dtype of gradient reduction")
    cpu_offload: bool = setting(False, "keep parameters, gradients and optimizer state in host memory")
    defer_gradient_sync: bool = setting(
        False, "reduce gradients once a step, not every micro-batch: less communication, unsharded gradients in memory"
    )
    recompute: bool = setting(False, "recompute activations in the backward pass")
    recompute_modules: list[str] | None = setting(
        None,
        "patterns of the recomputed modules; null: each decoder layer",
        differs="taken from the model, so that it fits every architecture",
    )
    fsdp_implementation: Literal["native", "custom"] = setting("native", "FSDP library", later=_CUSTOM)
    hook_modules: list[str] = setting(["model.layers.{*}"], "modules of the custom implementation", moot=_CUSTOM)
    shard_placement_fn: str | None = setting(None, "dimension to shard", later=_PLACE)
    efsdp_shard_placement_fn: str = setting("shard_by_dim_1", "dimension to shard experts on", moot=_EP)
    tp_size: int = setting(1, "tensor parallel ranks", later=_TP)
    tp_colwise: list[str] = setting(
        ["*.q_proj", "*.k_proj", "*.v_proj", "*.gate_proj", "*.up_proj"], "column-wise modules", moot=_TP
    )
    tp_rowwise: list[str] = setting(["*.o_proj", "*.down_proj"], "row-wise modules", moot=_TP)
    ep_size: int = setting(1, "expert parallel ranks", later=_EP)
    ep_fsdp_size: int = setting(1, "ranks that shard the experts of one group", moot=_EP)
    ep_modules: list[str] = setting(["model.layers.{*}.mlp.experts"], "expert modules", moot=_EP)
    ep_fsdp_modules: list[str] = setting(["model.layers.{*}.mlp.experts"], "expert modules to shard", moot=_EP)
    ep_dispatcher: Literal["eager", "fused", "mc2"] = setting("eager", "token exchange", moot=_EP)
    cp_size: int = setting(1, "context parallel ranks", later=_CP)
    cp_type: Literal["ulysses", "ring", "kvallgather"] = setting("ulysses", "kind of context parallelism", moot=_CP)
    enable_chunk_batch: bool = setting(False, "split a batch inside the layers", later=_CHUNK)
    chunk_mbs: int = setting(1, "samples a chunk", moot=_CHUNK)
    chunk_mbs_batch_dim: int = setting(0, "batch dimension", moot=_CHUNK)
    chunk_mbs_modules: list[str] = setting(["model.layers.{*}"], "modules that split", moot=_CHUNK)
    chunk_mbs_arg_indexs: list[int] = setting([0], "positional arguments to split", moot=_CHUNK)
    chunk_mbs_kwarg_names: list[str] = setting(
        ["position_embeddings", "position_ids", "attention_mask", "input_ids"],
        "keyword arguments to split",
        moot=_CHUNK,
    )

    @field_validator("param_dtype", "reduce_dtype")
    @classmethod
    def _no_half(cls, value: str) -> str:
        if value == "fp16":
            raise ValueError("fp16 needs a loss scaler, which is not available in this version; use bf16 or fp32")
        return value
