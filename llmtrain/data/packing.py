"""Several conversations in one row: best fit, within windows of the shuffled order."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import xxhash

from llmtrain.data.mixture import Part, permutation
from llmtrain.data.sample import Sample

# Samples that are packed together. The wider, the fewer rows end with room left; the work grows a little faster than
# the window.
WINDOW = 16_384
# The stream of random numbers of `permutation` that packing draws from.
_PACKING = -3


class PackedDataset:
    """Rows of up to `length` tokens, each of whole samples of a dataset. Which samples share a row depends on the seed,
    not on the ranks, and stays the same in every epoch."""

    def __init__(
        self, samples: Part, length: int, *, isolate: bool, shuffle: bool, seed: int, window: int = WINDOW
    ) -> None:
        """
        Args:
            samples: none of them longer than `length`.
            isolate: the samples of a row must not see each other.
            shuffle: draw what shares a row by `seed`; else neighbours do, and rows are in the order of their first.
        """
        self._samples, self._length, self._isolate = samples, length, isolate
        lengths = samples.lengths
        order = permutation(len(lengths), seed, _PACKING) if shuffle else np.arange(len(lengths))
        self.rows: list[list[int]] = []
        for first in range(0, len(order), window):
            chosen = order[first : first + window]
            rows = best_fit(lengths[chosen], length)
            self.rows += [chosen[np.sort(row)].tolist() for row in rows]
        if not shuffle:
            self.rows.sort(key=lambda row: row[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        parts = [self._samples[number] for number in self.rows[index]]
        documents = tuple(n for part in parts for n in part.lengths) if self._isolate else None
        return Sample(
            np.concatenate([part.input_ids for part in parts]),
            np.concatenate([part.targets for part in parts]),
            documents,
        )

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, int64 [rows]."""
        lengths = self._samples.lengths
        return np.array([lengths[row].sum() for row in self.rows], np.int64)

    @property
    def density(self) -> float:
        """Share of the rows' room that holds tokens."""
        return float(self._samples.lengths.sum() / max(1, len(self.rows) * self._length))

    def fingerprint(self) -> str:
        """A digest of the samples and of the rows that they make."""
        digest = xxhash.xxh3_128(repr((self._samples.fingerprint(), self._isolate)).encode())
        for row in self.rows:
            digest.update(np.array([len(row), *row], np.int64).data)
        return digest.hexdigest()


def best_fit(lengths: np.ndarray, room: int) -> list[list[int]]:
    """Best-fit decreasing: each sample, the longest first, goes where it leaves the least room.

    Args:
        lengths: tokens of each sample, none above `room`.

    Returns:
        Numbers of the samples of each row.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, row), sorted
    for number in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[number])
        place = bisect_left(free, (size, -1))
        if place == len(free):
            rows.append([number])
            left, row = room - size, len(rows) - 1
        else:
            left, row = free.pop(place)
            rows[row].append(number)
            left -= size
        if left:
            insort(free, (left, row))
    return rows
