"""Sections `optimization` and `inference`: fused kernels and generation; known by name, not here yet."""

from __future__ import annotations

from typing import Any, Literal

from llmtrain.config.section import Section, setting

_FUSED = "fused kernels are not available in this version; auto runs plain PyTorch"
_SPARSE = "sparse attention kernels are not available in this version; auto runs plain PyTorch"
_BAND = "attention bands are not available in this version"
_GENERATION = "generation is not available in this version"

Switch = bool | Literal["auto"]


def _switch(description: str, missing: str = _FUSED) -> Any:
    return setting(
        "auto", description, later=missing, accept=(False,), differs="false; auto leaves the choice to the machine"
    )


class OptimizationConfig(Section):
    """Fused kernels: true, false or auto."""

    use_fused_rmsnorm: Switch = _switch("fused RMSNorm")
    moe_grouped_gemm: Switch = _switch("grouped matrix product of experts")
    use_fused_rotary_pos_emb: Switch = _switch("fused rotary embedding")
    use_flash_attn: Switch = _switch("fused attention")
    use_sparse_flash_attn: Switch = _switch("sparse attention", _SPARSE)
    use_fused_lightning_indexer: Switch = _switch("fused indexer of sparse attention", _SPARSE)
    use_fused_lightning_indexer_loss: Switch = _switch("fused loss of that indexer", _SPARSE)
    use_ascend_mhc: Switch = _switch("fused hyper-connections")
    use_triton_swiglu_limit: Switch = _switch("clamped SwiGLU in Triton")
    use_triton_gdn: Switch = _switch("gated delta rule in Triton")
    use_flash_gdn: Switch = _switch("gated delta rule in AscendC")
    use_triton_rmsnormgated: Switch = _switch("gated RMSNorm in Triton")
    gdn_chunk_size: int = setting(64, "chunk of the gated delta rule", later=_FUSED, ge=1)
    pre_tokens: int = setting(1048576, "tokens before that attention sees", later=_BAND)
    next_tokens: int = setting(0, "tokens after that attention sees", later=_BAND)
    chunk_loss_size: int | None = setting(
        None, "tokens per chunk of the loss", later="the chunked loss is not available in this version", ge=1
    )
    fix_router: bool = setting(
        False, "balanced routing by force", later="forced routing is not available in this version"
    )


class InferenceConfig(Section):
    """Generation; not part of training."""

    infer_backend: Literal["huggingface"] = setting("huggingface", "generation library", later=_GENERATION)
    max_new_tokens: int = setting(512, "most tokens of an answer", later=_GENERATION, ge=1)
    do_sample: bool = setting(False, "draw tokens in place of taking the likeliest", later=_GENERATION)
