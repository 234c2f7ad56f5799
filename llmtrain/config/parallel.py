"""Section `parallel`: how the model is laid over the ranks."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from llmtrain.config.section import Section, setting

_EP = "expert parallelism is not available in this version"
_TP = "tensor parallelism is not available in this version"
_CP = "context parallelism is not available in this version"
_CHUNK = "splitting a batch inside the layers is not available in this version"
_EP_ONLY = "it is read when parallel.ep_size is above 1 only"
_TP_ONLY = "it is read when parallel.tp_size is above 1 only"
_CP_ONLY = "it is read when parallel.cp_size is above 1 only"
_CHUNK_ONLY = "it is read with parallel.enable_chunk_batch only"
_FROM_MODEL = "a fixed list; taken from the model, it fits every architecture"

Dtype = Literal["bf16", "fp16", "fp32"]


class ParallelConfig(Section):
    """How the model is laid over the ranks."""

    fsdp_size: int | None = setting(
        None,
        "ranks that share one copy of the model; null: all. Smaller than the run: the rest are replicas (HSDP)",
        ge=1,
        differs="1, which fits a run of one rank only",
    )
    fsdp_modules: list[str] | None = setting(
        None,
        "patterns of the FSDP units; null: each decoder layer, the input embedding, the output head",
        differs=_FROM_MODEL,
    )
    ignored_modules: list[str] | None = setting(None, "patterns of the modules that every rank keeps whole")
    reshard_after_forward: bool = setting(True, "free gathered parameters between forward and backward")
    num_to_forward_prefetch: int = setting(1, "units gathered ahead in the forward pass", ge=0)
    num_to_backward_prefetch: int = setting(1, "units gathered ahead in the backward pass", ge=0)
    param_dtype: Dtype = setting("bf16", "dtype of computation (bf16 or fp32)")
    reduce_dtype: Dtype = setting("fp32", "dtype of gradient reduction (bf16 or fp32)")
    cpu_offload: bool = setting(False, "keep parameters, gradients and optimizer state in host memory")
    defer_gradient_sync: bool = setting(
        False,
        "reduce gradients once a step, not every micro-batch: less communication, unsharded gradients in memory",
    )
    recompute: bool = setting(False, "recompute activations in the backward pass")
    recompute_modules: list[str] | None = setting(
        None, "patterns of the recomputed modules; null: each decoder layer", differs=_FROM_MODEL
    )

    fsdp_implementation: Literal["native", "custom"] = setting(
        "native", "FSDP library", later="PyTorch's own FSDP2 is the one there is"
    )
    hook_modules: list[str] = setting(
        ["model.layers.{*}"], "hooked modules", moot="it belongs to another FSDP implementation"
    )
    shard_placement_fn: str | None = setting(
        None, "dimension to shard", later="parameters are sharded on dimension 0 in this version"
    )
    efsdp_shard_placement_fn: str = setting("shard_by_dim_1", "dimension to shard experts on", moot=_EP_ONLY)
    tp_size: int = setting(1, "tensor-parallel ranks", later=_TP, ge=1)
    tp_colwise: list[str] = setting(
        ["*.q_proj", "*.k_proj", "*.v_proj", "*.gate_proj", "*.up_proj"], "modules split by column", moot=_TP_ONLY
    )
    tp_rowwise: list[str] = setting(["*.o_proj", "*.down_proj"], "modules split by row", moot=_TP_ONLY)
    ep_size: int = setting(1, "expert-parallel ranks", later=_EP, ge=1)
    ep_fsdp_size: int = setting(1, "ranks that shard the experts of one group", moot=_EP_ONLY, ge=1)
    ep_modules: list[str] = setting(["model.layers.{*}.mlp.experts"], "expert modules", moot=_EP_ONLY)
    ep_fsdp_modules: list[str] = setting(["model.layers.{*}.mlp.experts"], "expert modules to shard", moot=_EP_ONLY)
    ep_dispatcher: Literal["eager", "fused", "mc2"] = setting("eager", "transport of tokens to experts", moot=_EP_ONLY)
    cp_size: int = setting(1, "context-parallel ranks", later=_CP, ge=1)
    cp_type: Literal["ulysses", "ring", "kvallgather"] = setting("ulysses", "context parallelism", moot=_CP_ONLY)
    enable_chunk_batch: bool = setting(False, "split a batch inside the layers", later=_CHUNK)
    chunk_mbs: int = setting(1, "samples of a chunk", moot=_CHUNK_ONLY, ge=1)
    chunk_mbs_batch_dim: int = setting(0, "batch dimension", moot=_CHUNK_ONLY)
    chunk_mbs_modules: list[str] = setting(["model.layers.{*}"], "modules that split", moot=_CHUNK_ONLY)
    chunk_mbs_arg_indexs: list[int] = setting([0], "positional arguments to split", moot=_CHUNK_ONLY)
    chunk_mbs_kwarg_names: list[str] = setting(
        ["position_embeddings", "position_ids", "attention_mask", "input_ids"],
        "keyword arguments to split",
        moot=_CHUNK_ONLY,
    )

    @field_validator("param_dtype", "reduce_dtype")
    @classmethod
    def _no_half(cls, value: Dtype) -> Dtype:
        if value == "fp16":
            raise ValueError("fp16 needs a loss scaler, which is not available in this version; use bf16 or fp32")
        return value
