"""Sections `optimization` and `inference`: fused kernels and generation; known by name, not here yet."""

from __future__ import annotations

from typing import Literal

from llmtrain.config.section import Section, setting

_FUSED = "fused kernels are not available in this version; auto (or false) runs plain PyTorch"
_SPARSE = "sparse attention kernels are not available in this version; auto (or false) runs plain PyTorch"
_BAND = "attention bands are not available in this version"

Switch = bool | Literal["auto"]


class OptimizationConfig(Section):
    """Fused kernels: true, false or auto."""

    use_fused_rmsnorm: Switch = setting("auto", "fused RMSNorm", later=_FUSED, accept=(False,))
    moe_grouped_gemm: Switch = setting("auto", "grouped matrix product of experts", later=_FUSED, accept=(False,))
    use_fused_rotary_pos_emb: Switch = setting("auto", "fused rotary embedding", later=_FUSED, accept=(False,))
    use_flash_attn: Switch = setting("auto", "fused attention", later=_FUSED, accept=(False,))
    use_sparse_flash_attn: Switch = setting("auto", "sparse attention", later=_SPARSE, accept=(False,))
    use_fused_lightning_indexer: Switch = setting("auto", "fused indexer", later=_SPARSE, accept=(False,))
    use_fused_lightning_indexer_loss: Switch = setting("auto", "fused indexer loss", later=_SPARSE, accept=(False,))
    use_ascend_mhc: Switch = setting("auto", "fused hyper-connections", later=_FUSED, accept=(False,))
    use_triton_swiglu_limit: Switch = setting("auto", "clamped SwiGLU", later=_FUSED, accept=(False,))
    use_triton_gdn: Switch = setting("auto", "gated delta rule (Triton)", later=_FUSED, accept=(False,))
    use_flash_gdn: Switch = setting("auto", "gated delta rule (AscendC)", later=_FUSED, accept=(False,))
    use_triton_rmsnormgated: Switch = setting("auto", "gated RMSNorm", later=_FUSED, accept=(False,))
    pre_tokens: int = setting(1048576, "attention band, tokens before", later=_BAND)
    next_tokens: int = setting(0, "attention band, tokens after", later=_BAND)
    gdn_chunk_size: int = setting(64, "chunk of the gated delta rule", later=_FUSED)
    chunk_loss_size: int | None = setting(
        None, "tokens per chunk of the loss", later="the chunked loss is not available in this version"
    )
    fix_router: bool = setting(
        False, "forced balanced routing", later="forced routing is not available in this version"
    )


class InferenceConfig(Section):
    """Chat with a model; not part of training."""

    infer_backend: Literal["huggingface"] = setting(
        "huggingface", "generation library", moot="training does not generate"
    )
    max_new_tokens: int = setting(512, "most tokens of an answer", moot="training does not generate", ge=1)
    do_sample: bool = setting(False, "draw in place of taking the likeliest token", moot="training does not generate")
