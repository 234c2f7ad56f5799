"""Causal attention through transformers' registry, without a mask and without a question to the device.

Before it makes a mask, transformers looks whether the positions of a batch start anew within a row, which reads one
value back from the device for every forward pass. An attention function that is registered without a mask function is
left alone. Rows here are one sequence each, padded on the right, so causality is all that is needed.
"""

from __future__ import annotations

from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

CAUSAL_SDPA = "causal_sdpa"
AttentionInterface.register(CAUSAL_SDPA, sdpa_attention_forward)


def choose_attention(hf_config: PreTrainedConfig, asked: str | None) -> str | None:
    """`causal_sdpa` where scaled dot product attention is asked for (or nothing is) and every layer sees all that came
    before it; else what was asked."""
    config = hf_config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    plain = kinds == {"full_attention"} and window is None and getattr(config, "attention_chunk_size", None) is None
    return CAUSAL_SDPA if asked in (None, "sdpa") and plain and getattr(config, "is_causal", True) else asked
