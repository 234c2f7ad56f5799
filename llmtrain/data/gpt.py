"""Megatron-Core's GPT dataset over any documents: the same samples in the same order for the same seed.

A run is one long sequence of samples. The documents of all epochs are shuffled together and laid end to end; sample k
holds the tokens k L to k L + L, so that each predicts its successor; then the samples are shuffled. If the last epoch
is wanted to less than 80 %, its documents and samples are shuffled apart from the others, so that they come last.
Several datasets are blended by taking, at each place, the one that is furthest behind its weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from llmtrain.config.data import parse_split
from llmtrain.data.pretraining import window_sample
from llmtrain.data.sample import Sample
from llmtrain.data.store import Documents, appearing, find_or_write

_SEPARATE_BELOW = 0.8  # the share of the last epoch below which it is shuffled apart
_SURPLUS = 0.005  # more samples of each dataset than its weight asks for, since places are whole numbers


@dataclass(frozen=True)
class GPTIndex:
    """documents: their numbers, epoch after epoch, int32 [documents x epochs]. samples: where each begins, as place in
    `documents` and token in it, and where the last one ends, [samples + 1, 2]. shuffle: the order of the samples."""

    documents: np.ndarray
    samples: np.ndarray
    shuffle: np.ndarray


@dataclass(frozen=True)
class Passes:
    """How often the documents are gone through, and whether the last time is shuffled apart."""

    epochs: int
    separate_last: bool
    samples_before_last: int


def plan_passes(tokens: int, length: int, samples: int | None) -> Passes:
    """For `samples` samples (None: one epoch) of `length` tokens out of `tokens` an epoch."""
    if samples is None:
        return Passes(1, False, 0)
    epochs = max(1, -(-(samples * length + 1) // tokens))
    if epochs == 1:
        return Passes(1, False, 0)
    before = ((epochs - 1) * tokens - 1) // length
    share = samples - before < int(_SEPARATE_BELOW * ((tokens - 1) // length))
    return Passes(epochs, share, before)


def build_gpt_index(
    lengths: np.ndarray, documents: np.ndarray, length: int, passes: Passes, seed: int, *, shuffle: bool = True
) -> GPTIndex:
    """The index over these documents, whose tokens `lengths` counts.

    Memory at its peak: some 16 bytes a document and epoch, and 60 a sample.
    """
    random = np.random.RandomState(seed)
    mix = random.shuffle if shuffle else lambda array: None
    chosen = np.asarray(documents, np.int32)
    groups = [passes.epochs - 1, 1] if passes.separate_last else [passes.epochs]
    shuffled = []
    for epochs in groups:
        shuffled.append(np.tile(chosen, epochs))
        mix(shuffled[-1])
    order = np.concatenate(shuffled) if len(shuffled) > 1 else shuffled[0]
    ends = np.cumsum(lengths[order], dtype=np.int64)
    count = (int(ends[-1]) - 1) // length
    begins = np.arange(count + 1, dtype=np.int64) * length
    places = np.searchsorted(ends, begins, side="right")
    offsets = begins - (ends[places] - lengths[order[places]])
    places[0] = offsets[0] = 0  # as Megatron has it, also where the first document is empty
    kind = np.int32 if max(len(order), int(lengths.max())) <= np.iinfo(np.int32).max else np.int64
    samples = np.stack([places, offsets], axis=1).astype(kind)
    first = passes.samples_before_last if passes.separate_last else count
    number = np.uint32 if count < np.iinfo(np.uint32).max - 1 else np.int64
    numbers = np.arange(count, dtype=number)
    # Views: each part is shuffled in place.
    mix(numbers[:first])
    if first < count:
        mix(numbers[first:])
    return GPTIndex(order, samples, numbers)


class GPTDataset:
    """The samples of one dataset, in the order in which a run takes them."""

    def __init__(
        self,
        store: Documents,
        documents: np.ndarray,
        length: int,
        samples: int | None,
        seed: int,
        *,
        cache: Path,
        shuffle: bool = True,
        isolate: bool = False,
    ) -> None:
        """`documents`: the numbers of those to take. `samples`: how many are wanted at least (None: one epoch)."""
        self._store, self._length, self._isolate = store, length, isolate
        self.documents, self.tokens = len(documents), int(store.lengths[documents].sum(dtype=np.int64))
        self.passes = plan_passes(self.tokens, length, samples)
        described = repr((store.fingerprint(), length, self.passes, seed, shuffle, "gpt 1"))
        digest = xxhash.xxh3_128(described.encode())
        digest.update(np.ascontiguousarray(documents, np.int64).data)
        self._digest = digest.hexdigest()
        self._folder = cache / f"gpt-{self._digest}"
        build = partial(build_gpt_index, store.lengths, documents, length, self.passes, seed, shuffle=shuffle)
        find_or_write(self._folder, False, lambda folder: _save(folder, **vars(build())))
        self._open()

    def _open(self) -> None:
        self._places, self._samples, self._shuffle = _load(self._folder, "documents", "samples", "shuffle")

    def __getstate__(self) -> dict[str, Any]:
        # Memory maps would travel to a worker as copies.
        return {k: v for k, v in vars(self).items() if k not in ("_places", "_samples", "_shuffle")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return len(self._shuffle)

    def __getitem__(self, index: int) -> Sample:
        number = int(self._shuffle[index])
        (first, begin), (last, end) = self._samples[number].tolist(), self._samples[number + 1].tolist()
        pieces = []
        for place in range(first, last + 1):
            document = int(self._places[place])
            start = begin if place == first else 0
            stop = end + 1 if place == last else int(self._store.lengths[document])
            if stop > start:
                pieces.append(self._store.read(document, start, stop))
        return window_sample(pieces, self._length, isolate=self._isolate)

    @property
    def lengths(self) -> np.ndarray:
        return np.full(len(self), self._length, np.int64)

    def fingerprint(self) -> str:
        """A digest of the samples and their order; how many of them are wanted is not part of it."""
        return f"{self._digest} {self._isolate}"


class Blend:
    """Samples of several datasets in the order of a whole run."""

    def __init__(
        self, parts: Sequence[GPTDataset], taken: tuple[np.ndarray, np.ndarray], weights: Sequence[float]
    ) -> None:
        """`taken`: at each place the number of the dataset and that of its sample. `weights`: what they follow."""
        self.parts, (self.datasets, self.numbers), self._weights = list(parts), taken, list(weights)

    def __len__(self) -> int:
        return len(self.datasets)

    def __getitem__(self, index: int) -> Sample:
        return self.parts[int(self.datasets[index])][int(self.numbers[index])]

    def order(self, epoch: int, *, shuffle: bool, seed: int) -> np.ndarray:
        """The samples in their own order: they are shuffled already."""
        return np.arange(len(self))

    @property
    def lengths(self) -> np.ndarray:
        return np.concatenate([part.lengths[:1] for part in self.parts])[self.datasets]

    @property
    def shares(self) -> list[int]:
        """How many samples each dataset gives."""
        return np.bincount(self.datasets, minlength=len(self.parts)).tolist()

    def fingerprint(self) -> str:
        return f"{self._weights} {'+'.join(part.fingerprint() for part in self.parts)}"


def blend_for(
    make: Sequence[Callable[[int | None], GPTDataset]],
    tokens: Sequence[int],
    length: int,
    weights: Sequence[float] | None,
    *,
    samples: int | None,
    epochs: float,
    cache: Path,
) -> Blend:
    """The samples of a run: `samples` of them, or as many as `epochs` passes hold.

    `make[i](n)` gives dataset i with at least n samples (None: one pass). Without weights all datasets count by their
    tokens, and one pass takes each sample once.
    """
    ones = [(count - 1) // length for count in tokens]
    if samples is None:
        samples = sum(ones) if epochs == 1 else int((epochs * sum(tokens) - len(tokens)) // length)
    if len(make) == 1:
        return Blend([make[0](samples)], (np.zeros(samples, np.int16), np.arange(samples)), [])
    if weights is None and samples <= sum(ones):
        datasets, numbers = _kept(cache, exhaustive_blend, ones)
        return Blend([build(None) for build in make], (datasets[:samples], numbers[:samples]), [])
    shares = normalised(weights if weights is not None else [float(count) for count in tokens])
    wanted = [math.ceil(samples * share) for share in shares]
    taken = _kept(cache, blend, shares, sum(wanted))
    # Whole numbers may ask for one more than the surplus holds, where there are few.
    counts = np.bincount(taken[0], minlength=len(make)).tolist()
    needed = [max(math.ceil(n * (1 + _SURPLUS)), count) for n, count in zip(wanted, counts, strict=True)]
    return Blend([build(n) for build, n in zip(make, needed, strict=True)], taken, shares)


def _kept(
    cache: Path, make: Callable[..., tuple[np.ndarray, np.ndarray]], *given: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The order of a blend, from the cache or made now: a million places take a second."""
    folder = cache / f"blend-{xxhash.xxh3_128_hexdigest(repr((make.__name__, given, 'blend 1')).encode())}"
    find_or_write(
        folder, False, lambda path: _save(path, **dict(zip(("datasets", "numbers"), make(*given), strict=True)))
    )
    datasets, numbers = _load(folder, "datasets", "numbers")
    return datasets, numbers


def blend(weights: Sequence[float], size: int) -> tuple[np.ndarray, np.ndarray]:
    """At each place the dataset (int16) furthest behind its weight, and the number of its sample (int64), [size]."""
    return _behind(normalised(weights), size, [math.inf] * len(weights))


def normalised(weights: Sequence[float]) -> list[float]:
    """Shares that add up to 1, as numpy rounds them: the last digit may decide between two datasets."""
    array = np.array(weights, np.float64)
    return (array / np.sum(array)).tolist()


def exhaustive_blend(sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The same by the datasets' sizes, until each sample of all was taken once."""
    total = sum(sizes)
    return _behind([size / total for size in sizes], total, list(sizes))


def _behind(weights: Sequence[float], size: int, limits: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    datasets, numbers = np.zeros(size, np.int16), np.zeros(size, np.int64)
    taken = [0] * len(weights)
    open_ones = [i for i, limit in enumerate(limits) if limit > 0]
    for place in range(size):
        due = float(max(place, 1))
        # The first of several that are equally far behind.
        chosen = max(open_ones, key=lambda i: weights[i] * due - taken[i])
        datasets[place], numbers[place] = chosen, taken[chosen]
        taken[chosen] += 1
        if taken[chosen] >= limits[chosen]:
            open_ones.remove(chosen)
    return datasets, numbers


def split_documents(split: str, count: int) -> list[np.ndarray]:
    """The documents for training, validation and test, by shares such as `969,30,1`."""
    borders = [0.0]
    for share in parse_split(split):
        borders.append(borders[-1] + share)
    return [np.arange(round(begin * count), round(end * count), dtype=np.int32) for begin, end in pairwise(borders)]


def _save(folder: Path, **arrays: np.ndarray) -> None:
    with appearing(folder) as unfinished:
        for name, array in arrays.items():
            np.save(unfinished / f"{name}.npy", array)


def _load(folder: Path, *names: str) -> list[np.ndarray]:
    return [np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in names]
