"""A sample, and micro-batches of samples. Targets are shifted already: `targets[t]` is what position t must predict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

IGNORED = -100

# How a micro-batch is laid out. `padded`: a row a sample, padded on the right; each row is one sequence. `flat`: one
# row, documents end to end without padding between them, with positions that start anew and the documents' lengths, for
# attention that keeps them apart.
Collation = Literal["padded", "flat"]


@dataclass(frozen=True)
class Sample:
    """input_ids and targets, both [length]; a target of -100 does not count.

    documents: the lengths of the documents in it where they must not see each other; None: it is one sequence.
    """

    input_ids: np.ndarray
    targets: np.ndarray
    documents: tuple[int, ...] | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of its sequences."""
        return self.documents or (len(self.input_ids),)


@dataclass(frozen=True)
class MicroBatch:
    """Samples as one forward pass takes them.

    input_ids and targets are [batch, seq]; position_ids too, or None where every row is one sequence from position 0.
    documents: in a flat batch, the lengths of all its sequences, padding last; else None. A causal model needs no mask
    for right padding: what stands behind a token cannot reach it, and padding is told by position, never by id, so an
    end token that doubles as padding is learnt. tokens, supervised, squared_lengths count without padding. sample_ids
    and lengths are of the samples, in order: their numbers, and the lengths of their sequences.
    """

    input_ids: torch.Tensor
    targets: torch.Tensor
    tokens: int
    supervised: int
    squared_lengths: int
    sample_ids: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    position_ids: torch.Tensor | None = None
    documents: tuple[int, ...] | None = None

    def to(self, device: torch.device) -> MicroBatch:
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> MicroBatch:
        return self._each(torch.Tensor.pin_memory)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> MicroBatch:
        positions = None if self.position_ids is None else change(self.position_ids)
        return replace(self, input_ids=change(self.input_ids), targets=change(self.targets), position_ids=positions)


def collate(
    samples: Sequence[Sample],
    sample_ids: Sequence[int],
    pad_id: int,
    collation: Collation = "padded",
    multiple_of: int = 8,
) -> MicroBatch:
    """Pads to the longest row, rounded up; blocks of one full length are not padded.

    No samples give one row that counts for nothing: a rank without data still joins every collective.
    """
    flat = collation == "flat"
    rows = [list(samples)] if flat or not samples else [[sample] for sample in samples]
    sizes = [sum(len(sample.input_ids) for sample in row) for row in rows]
    width = max(sizes)
    if width == 0 or min(sizes) < width or flat:
        width = max(multiple_of, -(-width // multiple_of) * multiple_of)
    lengths = [n for sample in samples for n in sample.lengths]
    documents = positions = None
    if flat:
        documents = (*lengths, width - sizes[0]) if sizes[0] < width else tuple(lengths)
        positions = torch.cat([torch.arange(n) for n in documents]).unsqueeze(0)
    return MicroBatch(
        _rows([[sample.input_ids for sample in row] for row in rows], width, pad_id),
        _rows([[sample.targets for sample in row] for row in rows], width, IGNORED),
        tokens=sum(sizes),
        supervised=sum(int((sample.targets != IGNORED).sum()) for sample in samples),
        squared_lengths=sum(n * n for n in lengths),
        sample_ids=tuple(sample_ids),
        lengths=tuple(sample.lengths for sample in samples),
        position_ids=positions,
        documents=documents,
    )


def _rows(rows: list[list[np.ndarray]], width: int, fill: int) -> torch.Tensor:
    """Each row's arrays end to end, filled up to `width`: int64 [rows, width]."""
    out = np.full((len(rows), width), fill, dtype=np.int64)
    for row, arrays in zip(out, rows, strict=True):
        if arrays:
            joined = np.concatenate(arrays)
            row[: len(joined)] = joined
    return torch.from_numpy(out)
