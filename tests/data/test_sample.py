"""Micro-batches: what is padding, what counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from llmtrain.data.sample import IGNORED, Sample, collate


def sample(*ids: int, targets: list[int] | None = None) -> Sample:
    return Sample(np.array(ids, dtype=np.int32), np.array(targets or ids, dtype=np.int32))


def test_short_rows_are_padded_on_the_right_to_the_multiple_and_not_counted() -> None:
    batch = collate([sample(5, 6, 7, targets=[6, IGNORED, 1]), sample(*range(9))], [4, 2], pad_id=1)
    assert batch.input_ids.shape == batch.targets.shape == (2, 16)
    assert batch.input_ids[0].tolist() == [5, 6, 7] + [1] * 13
    assert batch.targets[0].tolist() == [6, IGNORED, 1] + [IGNORED] * 13, "a learned id that is also padding is lost"
    assert (batch.tokens, batch.supervised, batch.squared_lengths, batch.sample_ids) == (12, 11, 9 + 81, (4, 2))
    assert batch.input_ids.dtype == batch.targets.dtype == torch.int64


@pytest.mark.parametrize("length", [8, 12])
def test_full_blocks_are_not_padded(length: int) -> None:
    assert collate([sample(*range(length))] * 2, [0, 1], pad_id=0).input_ids.shape == (2, length)


def test_no_samples_give_a_batch_that_counts_for_nothing() -> None:
    batch = collate([], [], pad_id=3)
    assert batch.input_ids.shape == (1, 8)
    assert (batch.targets == IGNORED).all()
    assert (batch.tokens, batch.supervised, batch.squared_lengths, batch.sample_ids) == (0, 0, 0, ())


def test_moving_keeps_the_counts() -> None:
    batch = collate([sample(1, 2)], [0], pad_id=0)
    assert batch.to(torch.device("meta")).input_ids.is_meta
    assert batch.to(torch.device("meta")).supervised == 2
