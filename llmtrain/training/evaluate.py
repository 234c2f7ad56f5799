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
from llmtrain.training.loss import summed_loss
from llmtrain.training.metrics import sum_over_ranks


@torch.no_grad()
def evaluate(model: PreTrainedModel, loader: Loader, world: World) -> dict[str, Any]:
    """Loss over the whole held-out set.

    Every rank runs the same number of batches, empty ones included, so that none waits for another; only real
    tokens are counted.

    Returns:
        eval_loss (nats per supervised token), eval_perplexity, eval_tokens, eval_seconds.
    """
    start = time.perf_counter()
    device = world.device.torch_device
    was_training = model.training
    model.eval()
    loss = torch.zeros((), device=device)
    supervised = 0
    for batch in loader.evaluation_batches():
        supervised += batch.supervised
        batch = batch.to(device)
        loss += summed_loss(model(input_ids=batch.input_ids, use_cache=False).logits, batch.targets)
    model.train(was_training)
    dist.all_reduce(loss)
    (tokens,) = sum_over_ranks(world, [supervised])
    mean = loss.item() / max(1, tokens)
    return {
        "eval_loss": mean,
        "eval_perplexity": math.exp(min(mean, 700.0)),
        "eval_tokens": tokens,
        "eval_seconds": time.perf_counter() - start,
    }
