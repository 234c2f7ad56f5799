"""Attention functions of transformers' registry for the two ways in which a batch is laid out.

`causal_sdpa`: each row is one sequence, padded on the right, so causality is all that is needed. Before it makes a
mask, transformers looks whether the positions of a batch start anew within a row, which reads one value back from the
device for every forward pass. An attention function that is registered without a mask function is left alone.

`packed`, `packed_eager`, `packed_flex`: one row of many documents, end to end, with their lengths. Documents are kept
apart by these lengths alone: transformers' own way, masks from positions that start anew, depends on each class handing
its positions on, and some do not. `packed` (scaled dot product attention) and `packed_eager` attend each document by
itself, so that the cost is the sum of their squared lengths and no mask of the whole row is ever made; `packed_flex`
skips the blocks in which no pair of tokens meets. In place of a mask they are given transformers' rule for a pair of
tokens, and ask it, about places within a document, where the document is longer than a layer's window or chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface

from llmtrain.errors import UserError

CAUSAL_SDPA = "causal_sdpa"
PACKED = "packed"  # a name with "sdpa" in it is refused by the classes that need capped scores or sinks
PACKED_EAGER = "packed_eager"
PACKED_FLEX = "packed_flex"
_PACKED = {None: PACKED, "sdpa": PACKED, "eager": PACKED_EAGER, "flex_attention": PACKED_FLEX}
# Documents run together with others that are at least this share of the longest.
_ALIKE = 0.8
# Kinds of layers whose tokens meet others through the attention function alone, or meet none.
_KEPT_APART = {"full_attention", "sliding_attention", "chunked_attention", "dense", "sparse", "moe"}


def choose_attention(hf_config: PreTrainedConfig, asked: str | None, *, packed: bool = False) -> str | None:
    """The attention function for a model: ours where it does the same as what was asked for; else what was asked.

    packed: rows hold documents that must not see each other.
    """
    if packed:
        return _PACKED.get(asked, asked)
    config = hf_config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    plain = kinds == {"full_attention"} and window is None and getattr(config, "attention_chunk_size", None) is None
    return CAUSAL_SDPA if asked in (None, "sdpa") and plain and getattr(config, "is_causal", True) else asked


def why_not_packed(model: PreTrainedModel) -> str | None:
    """Why the documents of a row cannot be kept apart in this model; None where they can."""
    config = model.config.get_text_config()
    other = sorted(set(getattr(config, "layer_types", None) or []) - _KEPT_APART)
    if model._is_stateful or other:
        kinds = f"layers of kind {', '.join(other)}" if other else "recurrent layers"
        return f"it has {kinds}, which carry something along the row from one document into the next"
    if getattr(config, "index_topk", None):
        return "its indexer chooses tokens out of the whole row"
    if not getattr(config, "is_causal", True):
        return "its attention is not causal"
    name = model.config._attn_implementation
    if not model._supports_attention_backend:
        return "its class does not use transformers' attention functions"
    if name not in _PACKED.values() and not name.startswith("flash_attention"):
        return f"attention {name} is not told where documents end"
    return None


def packed_inputs(attention: str | None, documents: tuple[int, ...], device: torch.device) -> dict[str, Any]:
    """What a model is given beside ids and positions for a row of documents of these lengths."""
    if attention in _PACKED.values():
        # A mask of padding that masks nothing keeps transformers from looking at the positions, see above.
        return {
            "documents": documents,
            "attention_mask": torch.ones(1, sum(documents), dtype=torch.bool, device=device),
        }
    # The names by which transformers hands lengths to flash attention.
    ends = torch.tensor((0, *documents), device=device).cumsum(0).to(torch.int32)
    longest = max(documents)
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


@dataclass
class _Rule:
    """In place of a mask: which tokens of a document see each other; made once for each forward pass and kind of layer.

    sees: (batch, head, query, key) -> bool, for places in a document that broadcast.
    plain_up_to: documents of so many tokens see all before them (None: all documents do).
    blocks: what flex attention has made of it.
    """

    sees: Callable[..., torch.Tensor]
    plain_up_to: int | None
    blocks: Any = None

    def mask(self, length: int, device: torch.device) -> torch.Tensor | None:
        """For documents of so many tokens: bool [1, 1, length, length]; None where causality says it all."""
        if self.plain_up_to is None or length <= self.plain_up_to:
            return None
        zero, places = torch.zeros((), dtype=torch.long, device=device), torch.arange(length, device=device)
        return self.sees(zero, zero, places[None, None, :, None], places[None, None, None, :])


def _keep_rule(
    *, mask_function: Callable[..., torch.Tensor], local_size: int | None = None, use_vmap: bool = False, **_: Any
) -> _Rule:
    """Called where transformers makes a mask. `use_vmap` stands for a rule of the model's own, of which nothing is
    known."""
    return _Rule(mask_function, 0 if use_vmap else local_size)


@dataclass(frozen=True)
class _Group:
    """Documents that run as one batch. index: their tokens' places in the row, [documents, length], each padded with
    its last; real: which of the flattened index are no padding (None: all)."""

    index: torch.Tensor
    real: torch.Tensor | None


@lru_cache(maxsize=64)
def _group(documents: tuple[int, ...], device: torch.device) -> tuple[list[_Group], torch.Tensor]:
    """Documents of like lengths together, and where each token of the row stands among the groups' tokens."""

    def on_device(numbers: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(numbers).to(device, non_blocking=True)

    lengths = np.array(documents)
    starts = lengths.cumsum() - lengths
    by_length = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    groups, places, first = [], [], 0
    while first < len(by_length):
        longest = int(lengths[by_length[first]])
        last = first + int((lengths[by_length[first:]] >= _ALIKE * longest).sum())
        members, offsets = by_length[first:last, None], np.arange(longest)
        index = starts[members] + np.minimum(offsets, lengths[members] - 1)
        real = offsets < lengths[members]
        groups.append(_Group(on_device(index), None if real.all() else on_device(np.flatnonzero(real))))
        places.append(index[real])
        first = last
    return groups, on_device(np.concatenate(places).argsort())


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    documents: tuple[int, ...] | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    *,
    fused: bool = True,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each document of a row.

    Args:
        query: [1, heads, tokens, head_dim]; key, value: [1, kv_heads, tokens, head_dim].
        documents: lengths of the documents, in order; their sum is `tokens`.
        softcap: scores are c tanh(score / c). s_aux: one logit a head that takes weight and gives nothing (a sink).
        fused: through scaled_dot_product_attention where it knows all that is asked for.

    Returns:
        [1, tokens, heads, head_dim], None.

    Raises:
        UserError: the model does not hand on what attention needs to keep documents apart.
    """
    documents, rule = _checked(documents, attention_mask, module, query, kwargs)
    groups, places = _group(documents, query.device)
    outputs = []
    for group in groups:
        q, k, v = (tensor[0][:, group.index].transpose(0, 1) for tensor in (query, key, value))
        mask = rule.mask(group.index.shape[1], query.device)
        if fused and softcap is None and s_aux is None:
            out, _ = sdpa_attention_forward(module, q, k, v, mask, dropout=dropout, scaling=scaling, is_causal=True)
        else:
            out = _explicit(q, k, v, mask, dropout, scaling, softcap, s_aux)
        flat = out.flatten(0, 1)
        outputs.append(flat if group.real is None else flat[group.real])
    return torch.cat(outputs)[places].unsqueeze(0), None


def packed_flex(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    documents: tuple[int, ...] | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`packed_attention` by flex attention; returns as transformers' own function does."""
    documents, rule = _checked(documents, attention_mask, module, query, kwargs)
    if rule.blocks is None:
        lengths = torch.tensor(documents)
        numbers = torch.arange(len(documents)).repeat_interleave(lengths).to(query.device)
        starts = (lengths.cumsum(0) - lengths).to(query.device)

        def within(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            start = starts[numbers[q]]
            return (numbers[q] == numbers[k]) & rule.sees(b, h, q - start, k - start)

        tokens = query.shape[2]
        rule.blocks = create_block_mask(within, None, None, tokens, tokens, device=query.device)
    return flex_attention_forward(module, query, key, value, rule.blocks, **kwargs)


def _checked(
    documents: tuple[int, ...] | None, mask: Any, module: nn.Module, query: torch.Tensor, kwargs: dict[str, Any]
) -> tuple[tuple[int, ...], _Rule]:
    if documents is None or not isinstance(mask, _Rule) or kwargs.get("position_bias") is not None:
        raise UserError(
            f"{type(module).__name__} does not hand the lengths of the documents on to its attention, or has a mask or "
            f"a bias of its own, so the documents of a row cannot be kept apart. Turn off data.neat_packing, "
            f"data.reset_attention_mask and data.padding_free for this model."
        )
    if query.shape[0] != 1 or query.shape[2] != sum(documents):
        raise RuntimeError(f"documents of {sum(documents)} tokens for a query of shape {tuple(query.shape)}")
    return documents, mask


def _explicit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    scaling: float | None,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    """What fused kernels do not know: capped scores and sinks. Shapes as in `packed_attention`, with a batch of
    documents; returns [documents, tokens, heads, head_dim]."""
    heads, length = query.shape[1], query.shape[2]
    key, value = (repeat_kv(tensor, heads // tensor.shape[1]) for tensor in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if s_aux is not None:
        sinks = s_aux.to(scores.dtype).view(1, -1, 1, 1).expand(scores.shape[0], -1, length, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32)[..., :length].to(query.dtype)
    return (functional.dropout(weights, p=dropout) @ value).transpose(1, 2)


AttentionInterface.register(CAUSAL_SDPA, sdpa_attention_forward)
AttentionInterface.register(PACKED, packed_attention)
AttentionInterface.register(PACKED_EAGER, partial(packed_attention, fused=False))
AttentionInterface.register(PACKED_FLEX, packed_flex)
for _name in (PACKED, PACKED_EAGER, PACKED_FLEX):
    AttentionMaskInterface.register(_name, _keep_rule)
