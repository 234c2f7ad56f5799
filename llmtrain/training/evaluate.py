"""Held-out loss: one token-weighted mean, whatever the batch size and the number of ranks."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from llmtrain.data.loader import Loader
from llmtrain.runtime.world import World
from llmtrain.training.loss import batch_loss
from llmtrain.training.metrics import sum_over_ranks


@torch.no_grad()
def evaluate(model: PreTrainedModel, loaders: dict[str, Loader], world: World) -> dict[str, Any]:
    """Loss over the whole held-out set, and over each of its datasets that has a name.

    Every rank runs the same number of batches, empty ones included, so that none waits for another; only real
    tokens are counted.

    Returns:
        eval_loss (nats per supervised token, of all datasets), eval_perplexity, eval_tokens, eval_seconds, and
        eval_loss_NAME for each dataset.
    """
    start = time.perf_counter()
    was_training = model.training
    model.eval()
    losses, tokens = zip(*(_sums(model, loader, world) for loader in loaders.values()), strict=True)
    model.train(was_training)
    mean = sum(losses) / max(1, sum(tokens))
    return {
        "eval_loss": mean,
        "eval_perplexity": math.exp(min(mean, 700.0)),
        "eval_tokens": sum(tokens),
        "eval_seconds": time.perf_counter() - start,
        **{f"eval_loss_{n}": s / max(1, t) for n, s, t in zip(loaders, losses, tokens, strict=True) if n},
    }


def _sums(model: PreTrainedModel, loader: Loader, world: World) -> tuple[float, int]:
    """Sum of the token losses and number of supervised tokens, over all ranks."""
    device = world.device.torch_device
    loss = torch.zeros((), device=device)
    supervised = 0
    for batch in loader.evaluation_batches():
        supervised += batch.supervised
        loss += batch_loss(model, batch.to(device))
    dist.all_reduce(loss)
    (tokens,) = sum_over_ranks(world, [supervised])
    return loss.item(), int(tokens)
