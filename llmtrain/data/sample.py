"""A sample, and micro-batches of samples. Targets are shifted already: `targets[t]` is what position t must predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

IGNORED = -100


@dataclass(frozen=True)
class Sample:
    """input_ids and targets, both [length]; a target of -100 does not count."""

    input_ids: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True)
class MicroBatch:
    """Samples padded on the right to one length.

    input_ids and targets are [batch, seq]. A causal model needs no mask for right padding: what stands behind a token
    cannot reach it, and padding is told by position, never by id, so an end token that doubles as padding is learnt.
    tokens, supervised, squared_lengths count without padding.
    """

    input_ids: torch.Tensor
    targets: torch.Tensor
    tokens: int
    supervised: int
    squared_lengths: int
    sample_ids: tuple[int, ...]

    def to(self, device: torch.device) -> MicroBatch:
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
        )

    def pin_memory(self) -> MicroBatch:
        return replace(self, input_ids=self.input_ids.pin_memory(), targets=self.targets.pin_memory())


def collate(samples: Sequence[Sample], sample_ids: Sequence[int], pad_id: int, multiple_of: int = 8) -> MicroBatch:
    """Pads to the longest sample, rounded up; blocks of one full length are not padded.

    No samples give one row that counts for nothing: a rank without data still joins every collective.
    """
    lengths = [len(s.input_ids) for s in samples]
    longest = max(lengths, default=0)
    even = bool(lengths) and min(lengths) == longest
    width = longest if even else max(multiple_of, -(-longest // multiple_of) * multiple_of)
    input_ids = torch.full((max(1, len(samples)), width), pad_id, dtype=torch.int64)
    targets = torch.full_like(input_ids, IGNORED)
    for row, sample in enumerate(samples):
        input_ids[row, : lengths[row]] = torch.from_numpy(sample.input_ids.astype(np.int64))
        targets[row, : lengths[row]] = torch.from_numpy(sample.targets.astype(np.int64))
    return MicroBatch(
        input_ids,
        targets,
        tokens=sum(lengths),
        supervised=sum(int((s.targets != IGNORED).sum()) for s in samples),
        squared_lengths=sum(n * n for n in lengths),
        sample_ids=tuple(sample_ids),
    )
