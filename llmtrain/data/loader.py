"""A loader whose place is two numbers: the epoch and the global batch in it, whatever the ranks and the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from torch.utils.data import DataLoader, Dataset

from llmtrain.data.sample import Collation, MicroBatch, Sample, collate
from llmtrain.errors import UserError


class Samples(Protocol):
    """What the loader reads: a map-style dataset that knows the order of its samples."""

    def __len__(self) -> int:
        """Samples of an epoch."""

    def __getitem__(self, index: int) -> Sample: ...

    def order(self, epoch: int, *, shuffle: bool, seed: int) -> np.ndarray:
        """Numbers of an epoch's samples, a function of (seed, epoch)."""


@dataclass(frozen=True)
class Position:
    """The next global batch: number `batch` of epoch `epoch`.

    Of a stream also: each slot's row and token (`streaming.Cursor`), and how many rows each dataset has, 0 where that
    is not known yet.
    """

    epoch: int
    batch: int
    cursors: tuple[tuple[int, int], ...] = ()
    sizes: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Position:
        cursors = tuple((int(row), int(token)) for row, token in values.get("cursors", ()))
        return cls(values["epoch"], values["batch"], cursors, tuple(values.get("sizes", ())))


class Loader:
    """Deals a global order of samples to ranks.

    Each epoch's order is drawn from (seed, epoch) alone. Global batch g is the g-th slice of it, so which samples a
    step learns from does not depend on the ranks; micro-batch m of rank r takes slice m * ranks + r of the global
    batch. An epoch's tail is a smaller global batch of its own and never mixes with the next epoch.
    """

    def __init__(
        self,
        dataset: Samples,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        dp_rank: int,
        dp_size: int,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        pad_id: int,
        collation: Collation = "padded",
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        whole_run: bool = False,
    ) -> None:
        """Sizes count samples. With `drop_last` an epoch ends before its tail. `whole_run`: there is one epoch only, so
        a run that ended with it can be gone on with when it is longer.

        Raises:
            UserError: an epoch without any batch.
        """
        self._dataset = dataset
        self._global, self._micro = global_batch_size, micro_batch_size
        self._rank, self._ranks = dp_rank, dp_size
        self._seed, self._shuffle, self._whole_run = seed, shuffle, whole_run
        self._collate = partial(_collate, pad_id=pad_id, collation=collation)
        self._workers: dict[str, Any] = {
            "num_workers": num_workers,
            "prefetch_factor": prefetch_factor,
            "pin_memory": pin_memory,
            "persistent_workers": persistent_workers,
        }
        size = len(dataset)
        self.steps_per_epoch = size // global_batch_size if drop_last else -(-size // global_batch_size)
        if self.steps_per_epoch == 0:
            raise UserError(
                f"The data has {size} samples, fewer than the global batch of {global_batch_size}, and "
                f"training.dataloader_drop_last leaves out a batch that is not full: nothing remains. Lower the batch "
                f"size or set dataloader_drop_last to false."
            )

    def batches(self, position: Position) -> Iterator[tuple[Position, list[MicroBatch]]]:
        """Each step's micro-batches of this rank, with the position after it; endless, but for a whole run.

        Every rank gets the same number of micro-batches in a step; where it has no sample left, an empty one.
        """
        epoch, batch = position.epoch, position.batch
        while True:
            plans = self._plans(epoch, batch)
            stream = iter(self._stream([indices for plan in plans for indices in plan]))
            for plan in plans:
                batch += 1
                ended = batch == self.steps_per_epoch and not self._whole_run
                after = Position(epoch + 1, 0) if ended else Position(epoch, batch)
                yield after, [next(stream) for _ in plan]
            if self._whole_run:
                return
            epoch, batch = epoch + 1, 0

    def whole_position(self, position: Position, gather: Callable[[Any], list[Any]]) -> Position:
        """The position as all ranks together know it."""
        return position

    def epoch(self, position: Position) -> float:
        """Passes over the data."""
        return position.epoch + position.batch / self.steps_per_epoch

    def describe(self) -> str:
        return f"{self.steps_per_epoch} steps an epoch"

    def evaluation_batches(self) -> Iterator[MicroBatch]:
        """One pass over the data; every rank gets the same number of micro-batches."""
        yield from self._stream([indices for plan in self._plans(0, 0) for indices in plan])

    def _plans(self, epoch: int, start: int) -> list[list[list[int]]]:
        """For each global batch from `start` on, the sample indices of this rank's micro-batches."""
        order = self._dataset.order(epoch, shuffle=self._shuffle, seed=self._seed).tolist()
        slices = (order[g * self._global : (g + 1) * self._global] for g in range(start, self.steps_per_epoch))
        return [self._deal(samples) for samples in slices]

    def _deal(self, samples: Sequence[int]) -> list[list[int]]:
        rounds = -(-len(samples) // (self._micro * self._ranks))
        starts = ((m * self._ranks + self._rank) * self._micro for m in range(rounds))
        return [list(samples[s : s + self._micro]) for s in starts]

    def _stream(self, batches: list[list[int]]) -> DataLoader[Any]:
        return DataLoader(
            _Numbered(self._dataset),
            batch_sampler=batches,
            collate_fn=self._collate,
            **self._workers,
        )


class _Numbered(Dataset[tuple[int, Sample]]):
    """Samples with their numbers, which a micro-batch keeps."""

    def __init__(self, dataset: Samples) -> None:
        self._dataset = dataset

    def __getitem__(self, index: int) -> tuple[int, Sample]:
        return index, self._dataset[index]


def _collate(items: list[tuple[int, Sample]], pad_id: int, collation: Collation) -> MicroBatch:
    return collate([sample for _, sample in items], [number for number, _ in items], pad_id, collation)
