"""Every random number of a run is a function of the run's seed and of what it is drawn for.

Nothing is drawn from a stream whose position would have to be saved: a parameter's first values depend on (seed, its
module's name), a step's dropout masks on (seed, step, data rank). So a resumed run draws what the straight run drew,
and initial weights do not know the number of ranks.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from `parts`, the same on every machine and in every process."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_step(seed: int, step: int, data_rank: int) -> None:
    """Seeds torch (all devices), numpy and python for one optimizer step on one data rank."""
    value = derive_seed("step", seed, step, data_rank)
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
