"""Next-token cross entropy, as a sum: the caller divides by the tokens of the whole global batch."""

from __future__ import annotations

import torch
from torch.nn import functional

from llmtrain.data.sample import IGNORED


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
