"""The loader: one global order, dealt to any ranks; places that can be saved."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from llmtrain.data.loader import Loader, Position
from llmtrain.data.mixture import permutation
from llmtrain.data.sample import IGNORED, MicroBatch, Sample
from llmtrain.errors import UserError


class Probe:
    """Sample i is token 10 + i repeated, of a length of its own."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Sample:
        tokens = np.full(1 + index % 3, 10 + index)
        return Sample(tokens, tokens)

    def order(self, epoch: int, *, shuffle: bool, seed: int) -> np.ndarray:
        return permutation(self.size, seed, epoch) if shuffle else np.arange(self.size)


def loader(size: int, **changes: Any) -> Loader:
    settings: dict[str, Any] = {
        "global_batch_size": 8, "micro_batch_size": 2, "dp_rank": 0, "dp_size": 1, "seed": 1, "shuffle": True,
        "drop_last": False, "pad_id": 0,
    }  # fmt: skip
    return Loader(Probe(size), **{**settings, **changes})


def consumed(batch: MicroBatch) -> list[int]:
    """Samples by what the batch holds, not by what it says."""
    learned = batch.targets != IGNORED
    return [int(row[mask][0]) - 10 for row, mask in zip(batch.input_ids, learned, strict=True) if mask.any()]


START = Position(0, 0)


def steps(count: int, size: int, dp_size: int = 1, start: Position = START, **changes: Any) -> list[list[int]]:
    """The samples of each global batch, micro-batch by micro-batch over the ranks."""
    ranks = [loader(size, dp_rank=r, dp_size=dp_size, **changes).batches(start) for r in range(dp_size)]
    out = []
    for _ in range(count):
        dealt = [next(rank) for rank in ranks]
        assert len({position for position, _ in dealt}) == 1
        assert len({len(batches) for _, batches in dealt}) == 1, "ranks have unequal numbers of micro-batches"
        rounds = zip(*(batches for _, batches in dealt), strict=True)
        out.append([sample for round_ in rounds for batch in round_ for sample in consumed(batch)])
    return out


@pytest.mark.parametrize("dp_size", [1, 2, 4])
@pytest.mark.parametrize("micro", [1, 2, 4])
def test_a_global_batch_holds_the_same_samples_in_the_same_order_on_any_ranks(dp_size: int, micro: int) -> None:
    assert steps(7, 21, dp_size, micro_batch_size=micro) == steps(7, 21, 1, micro_batch_size=8)


def test_each_epoch_is_another_permutation_drawn_from_the_seed() -> None:
    epochs = [[s for step in steps(2, 8, 2, Position(e, 0), global_batch_size=4) for s in step] for e in range(3)]
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert steps(6, 8, global_batch_size=4) == steps(6, 8, global_batch_size=4)
    assert steps(2, 8, global_batch_size=4) != steps(2, 8, global_batch_size=4, seed=2)


def test_without_shuffling_the_order_is_the_files() -> None:
    assert steps(3, 10, global_batch_size=4, shuffle=False) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_from_every_position_is_the_straight_run(workers: int) -> None:
    settings: dict[str, Any] = {"global_batch_size": 4, "num_workers": workers}
    straight = list(islice(loader(11, **settings).batches(Position(0, 0)), 7))
    for done in range(0, 7, 1 if workers == 0 else 3):
        position = Position(0, 0) if done == 0 else Position.from_dict(straight[done - 1][0].to_dict())
        resumed = islice(loader(11, **settings).batches(position), 7 - done)
        for (at, batches), (expected_at, expected) in zip(resumed, straight[done:], strict=True):
            assert at == expected_at
            assert [b.sample_ids for b in batches] == [b.sample_ids for b in expected]
            assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(batches, expected, strict=True))


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (1, 4)])
def test_a_position_means_the_same_on_other_ranks(before: int, after: int) -> None:
    straight = steps(5, 16, before, global_batch_size=4, micro_batch_size=1)
    assert steps(3, 16, after, Position(0, 2), global_batch_size=4, micro_batch_size=1) == straight[2:]


def test_positions_count_global_batches_and_roll_over_with_the_epoch() -> None:
    positions = [position for position, _ in islice(loader(20).batches(Position(0, 0)), 4)]
    assert positions == [Position(0, 1), Position(0, 2), Position(1, 0), Position(1, 1)]


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [2, 2, 1, 2, 2, 1]), (True, [2, 2, 2, 2, 2, 2])])
def test_a_tail_is_a_batch_of_its_own_or_dropped(drop_last: bool, sizes: list[int]) -> None:
    made = steps(6, 5, global_batch_size=2, micro_batch_size=1, drop_last=drop_last)
    assert [len(step) for step in made] == sizes
    assert loader(5, global_batch_size=2, drop_last=drop_last).steps_per_epoch == (2 if drop_last else 3)


def test_three_samples_are_one_step_though_four_micro_batches_are_asked_for() -> None:
    assert loader(3, global_batch_size=4, micro_batch_size=1).steps_per_epoch == 1
    assert [len(s) for s in steps(2, 3, global_batch_size=4, micro_batch_size=1)] == [3, 3]


def test_fewer_samples_than_a_batch_with_drop_last_is_refused() -> None:
    with pytest.raises(UserError, match=r"3 samples.*batch of 4.*drop_last"):
        loader(3, global_batch_size=4, drop_last=True)


@pytest.mark.parametrize("size", [1, 5, 8])
@pytest.mark.parametrize("dp_size", [1, 2, 4])
@pytest.mark.parametrize("micro", [1, 2, 5])
def test_evaluation_sees_each_sample_once_in_equally_many_batches(size: int, dp_size: int, micro: int) -> None:
    settings: dict[str, Any] = {"dp_size": dp_size, "micro_batch_size": micro, "global_batch_size": micro * dp_size}
    ranks = [list(loader(size, dp_rank=r, shuffle=False, **settings).evaluation_batches()) for r in range(dp_size)]
    assert len({len(batches) for batches in ranks}) == 1
    assert sorted(s for batches in ranks for b in batches for s in consumed(b)) == list(range(size))
    assert sum(b.supervised for batches in ranks for b in batches) == sum(1 + i % 3 for i in range(size))
