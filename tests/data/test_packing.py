"""Packing: nothing lost, nothing split, rows full, independent of everything but the seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmtrain.data.packing import PackedDataset, best_fit
from llmtrain.data.sample import IGNORED, Sample
from tests.data.conftest import Build, chat

REPOSITORY = Path(__file__).parents[2]


class Numbered:
    """Sample i holds i, as many times as it is long."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = np.array(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Sample:
        tokens = np.full(self.lengths[index], index)
        targets = tokens.copy()
        targets[-1] = IGNORED
        return Sample(tokens, targets)

    def fingerprint(self) -> str:
        return str(self.lengths.tolist())


def packed(lengths: list[int], room: int, **changes: Any) -> PackedDataset:
    settings: dict[str, Any] = {"isolate": True, "shuffle": True, "seed": 1, **changes}
    return PackedDataset(Numbered(lengths), room, **settings)


def test_best_fit_by_hand() -> None:
    # 7 and 5 open rows; 4 fits the second alone (1 left); 3 fills the first; 2 opens a third; 1 fills the second.
    assert best_fit(np.array([2, 4, 7, 1, 3, 5]), 10) == [[2, 4], [5, 1, 3], [0]]


@pytest.mark.parametrize("window", [3, 16, 1000])
def test_every_sample_is_in_one_row_and_whole(window: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 65, 200).tolist()
    rows = packed(lengths, 64, window=window)
    assert sorted(number for row in rows.rows for number in row) == list(range(200))
    assert rows.lengths.max() <= 64
    assert rows.lengths.sum() == sum(lengths)
    for index in range(len(rows)):
        row = rows[index]
        assert row.documents == tuple(lengths[number] for number in rows.rows[index])
        assert row.input_ids.tolist() == [n for n in rows.rows[index] for _ in range(lengths[n])]


def test_the_last_token_of_a_sample_does_not_predict_the_next_sample() -> None:
    row = packed([3, 2], 8, isolate=False)[0]
    ends = [2, 4] if row.input_ids[0] == 0 else [1, 4]
    assert [place for place, target in enumerate(row.targets) if target == IGNORED] == ends


def test_rows_depend_on_the_seed_and_on_isolation() -> None:
    lengths = np.random.default_rng(0).integers(1, 65, 200).tolist()
    first = packed(lengths, 64, window=16)
    assert first.rows == packed(lengths, 64, window=16).rows
    assert first.fingerprint() == packed(lengths, 64, window=16).fingerprint()
    assert first.fingerprint() != packed(lengths, 64, window=16, seed=2).fingerprint()
    assert first.fingerprint() != packed(lengths, 64, window=16, isolate=False).fingerprint()


def test_without_shuffling_rows_keep_the_files_order() -> None:
    rows = packed([5] * 40, 10, shuffle=False, window=8).rows
    assert [number for row in rows for number in row] == list(range(40))


def test_the_shipped_chat_set_fills_rows_of_4096(build: Build) -> None:
    data = REPOSITORY / "configs" / "quickstart" / "data" / "wordnet_chat.jsonl"
    tokenizer = REPOSITORY / "configs" / "quickstart" / "tokenizer"
    datasets = build(tokenizer=tokenizer, source=str(data), neat_packing=True, cutoff_len=4096)
    assert datasets.train.lengths.sum() / (len(datasets.train) * 4096) >= 0.98


@pytest.mark.parametrize("packing", [{"packing": True}, {"neat_packing": True}])
def test_the_same_tokens_are_learnt_packed_and_unpacked(build: Build, packing: dict[str, bool]) -> None:
    """Those over the cutoff too: cut, not left out (B18)."""
    rows = [chat(f"w{i}", " ".join(["w9"] * n)) for i, n in enumerate([3, 4, 5, 20, 8, 1])]
    plain, rows_of = build(rows, cutoff_len=16).train, build(rows, cutoff_len=16, **packing).train
    assert len(rows_of) < len(plain)

    def tokens(samples: Any, part: str) -> list[int]:
        return sorted(int(i) for n in range(len(samples)) for i in getattr(samples[n], part))

    assert tokens(plain, "input_ids") == tokens(rows_of, "input_ids")
    assert tokens(plain, "targets") == tokens(rows_of, "targets")
    isolated = "neat_packing" in packing
    assert all((rows_of[n].documents is not None) == isolated for n in range(len(rows_of)))


def test_held_out_conversations_share_a_row_only_where_they_are_kept_apart(build: Build, tmp_path: Path) -> None:
    rows = [chat(f"w{i}", "w1 w2") for i in range(20)]
    assert len(build(rows, packing=True, val_size=8).evaluation[""]) == 8
    assert len(build(rows, neat_packing=True, val_size=8).evaluation[""]) == 1


def test_the_header_tells_how_full_rows_are(build: Build) -> None:
    rows = [chat(f"w{i}", "w1 w2") for i in range(20)]
    said = " ".join(line for _, line in build(rows, packing=True).summary)
    assert "% full" in said
    assert "see each other" in said


def test_documents_of_a_block_are_kept_apart_on_request(build: Build) -> None:
    texts = [{"text": "w1 w2 w3"}, {"text": "w4 w5"}, {"text": "w6 w7 w8 w9"}]
    block = build(texts, stage="pt", reset_attention_mask=True, cutoff_len=64).train[0]
    assert block.documents == (4, 3, 5)
    assert build(texts, stage="pt", cutoff_len=64).train[0].documents is None
