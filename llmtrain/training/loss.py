"""Next-token cross entropy, as a sum: the caller divides by the tokens of the whole global batch."""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from llmtrain.data.sample import IGNORED, MicroBatch
from llmtrain.models.attention import packed_inputs


def batch_loss(model: PreTrainedModel, batch: MicroBatch) -> torch.Tensor:
    """Sum of the token losses of a micro-batch that lies on the model's device."""
    inputs = {"input_ids": batch.input_ids, "use_cache": False}
    if batch.documents is not None:
        inputs["position_ids"] = batch.position_ids
        inputs |= packed_inputs(model.config._attn_implementation, batch.documents, batch.input_ids.device)
    return summed_loss(model(**inputs).logits, batch.targets)


def summed_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum of the token losses in float32.

    Args:
        logits: [batch, seq, vocab], any float dtype.
        targets: [batch, seq], the token each position must predict; -100 does not count.

    Returns:
        A zero-dimensional tensor; exactly 0, with zero gradients, where no target counts.
    """
    return functional.cross_entropy(
        logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
