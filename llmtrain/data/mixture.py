"""Several datasets as one: how much of each an epoch holds, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
import torch

from llmtrain.data.sample import Sample

Strategy = Literal["concat", "interleave_under", "interleave_over"]


class Part(Protocol):
    """One dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sample, int64 [samples]."""

    def fingerprint(self) -> str: ...


class Mixture:
    """Samples of all parts, numbered through; `order` says which of them make an epoch."""

    def __init__(
        self, parts: Sequence[Part], strategy: Strategy = "concat", weights: Sequence[float] | None = None
    ) -> None:
        """`weights`: one a part, not all 0 (None: equal); read where the strategy interleaves."""
        self._parts = list(parts)
        self._sizes = np.array([len(part) for part in parts], np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._strategy = strategy
        # Samples of each part in an epoch.
        self.shares = (
            self._sizes if strategy == "concat" else _shares(self._sizes, weights or [1.0] * len(parts), strategy)
        )

    def __len__(self) -> int:
        """Samples of an epoch."""
        return int(self.shares.sum())

    def __getitem__(self, index: int) -> Sample:
        part = self.part_of(index)
        return self._parts[part][index - int(self._starts[part])]

    def part_of(self, index: int) -> int:
        """The number of the part that holds a sample."""
        return int(np.searchsorted(self._starts, index, side="right")) - 1

    def order(self, epoch: int, *, shuffle: bool, seed: int) -> np.ndarray:
        """Numbers of the samples of an epoch, drawn from (seed, epoch) alone.

        An interleaved part goes on where the last epoch left it, and is drawn anew when all of it was seen: no sample
        comes a second time before every one of its part came once.
        """
        if self._strategy == "concat":
            return permutation(len(self), seed, epoch) if shuffle else np.arange(len(self))
        drawn = [self._stretch(part, epoch, shuffle, seed) for part in range(len(self._parts))]
        if shuffle:
            return np.concatenate(drawn)[permutation(len(self), seed, epoch)]
        places = np.concatenate([(np.arange(n) + 0.5) / max(1, n) for n in self.shares])
        return np.concatenate(drawn)[np.argsort(places, kind="stable")]

    def _stretch(self, part: int, epoch: int, shuffle: bool, seed: int) -> np.ndarray:
        """The part's samples of an epoch, out of its endless sequence of passes."""
        size, share = int(self._sizes[part]), int(self.shares[part])
        if share == 0:
            return np.zeros(0, np.int64)
        first, last = epoch * share, (epoch + 1) * share
        passes = range(first // size, -(-last // size))
        pieces = [permutation(size, seed, p, part + 1) if shuffle else np.arange(size) for p in passes]
        begin = first - passes.start * size
        return np.concatenate(pieces)[begin : begin + share] + int(self._starts[part])

    def first_samples(self) -> Iterator[Sample]:
        """The samples in the files' order."""
        return (self[number] for number in self.order(0, shuffle=False, seed=0).tolist())

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sample by its number, int64."""
        return np.concatenate([part.lengths for part in self._parts])

    def fingerprint(self) -> str:
        """What the parts' contents and shares are."""
        parts = [part.fingerprint() for part in self._parts]
        if self._strategy == "concat" and len(parts) == 1:
            return parts[0]
        return f"{self._strategy} {'+'.join(parts)} {self.shares.tolist()}"


def permutation(size: int, seed: int, epoch: int, stream: int = 0) -> np.ndarray:
    """A permutation of `size` numbers, int64; `stream` tells apart what is drawn for other purposes."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch + stream * 15_485_863) % 2**63)
    return torch.randperm(size, generator=generator).numpy()


def _shares(sizes: np.ndarray, weights: Sequence[float], strategy: Strategy) -> np.ndarray:
    """Samples of each part in an epoch: in proportion to the weights, each within one of the exact share.

    `under`: as many as there are before one part would repeat; `over`: as many as every part needs to be seen whole.
    """
    probabilities = np.array(weights, np.float64) / sum(weights)
    wanted = probabilities > 0
    totals = sizes[wanted] / probabilities[wanted]
    # The last digits of a quotient must not decide whether a part is seen whole.
    total = int(np.floor(totals.min() + 1e-6)) if strategy == "interleave_under" else int(np.ceil(totals.max() - 1e-6))
    total = max(1, total)
    exact = probabilities * total
    shares = np.floor(exact + 1e-9).astype(np.int64)
    missing = total - int(shares.sum())
    shares[np.argsort(-(exact - shares), kind="stable")[:missing]] += 1
    return shares
