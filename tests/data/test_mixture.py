"""Shares of several datasets: exact, evenly spread, and each sample once before any comes twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmtrain.data.mixture import Mixture, Strategy
from llmtrain.data.sample import Sample
from llmtrain.errors import UserError
from tests.data.conftest import Build, chat, read
from tests.tiny import write_jsonl


class Numbers:
    """Sample i of this part is the token `first + i`."""

    def __init__(self, size: int, first: int) -> None:
        self.size, self.first = size, first

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Sample:
        assert 0 <= index < self.size
        return Sample(np.array([self.first + index]), np.array([0]))

    @property
    def lengths(self) -> np.ndarray:
        return np.ones(self.size, np.int64)

    def fingerprint(self) -> str:
        return f"{self.first}+{self.size}"


def mixture(sizes: list[int], strategy: Strategy, weights: list[float] | None = None) -> Mixture:
    return Mixture([Numbers(size, 1000 * i) for i, size in enumerate(sizes)], strategy, weights)


def epoch(mixed: Mixture, number: int, shuffle: bool = True, seed: int = 1) -> list[int]:
    return [int(mixed[i].input_ids[0]) for i in mixed.order(number, shuffle=shuffle, seed=seed).tolist()]


@pytest.mark.parametrize(
    ("sizes", "strategy", "weights", "shares"),
    [
        ([3, 5], "concat", None, [3, 5]),
        ([10, 90], "interleave_under", [0.5, 0.5], [10, 10]),
        ([10, 90], "interleave_over", [0.5, 0.5], [90, 90]),
        ([10, 90], "interleave_under", [0.3, 0.7], [10, 23]),  # 33 samples: 9.9 and 23.1
        ([10, 90], "interleave_over", [0.3, 0.7], [39, 90]),  # 128.57 -> 129 samples: 38.7 and 90.3
        ([10, 20, 30], "interleave_under", [1, 2, 3], [10, 20, 30]),
        ([10, 20, 30], "interleave_over", [1, 2, 3], [10, 20, 30]),
        ([4, 4], "interleave_under", [0, 1], [0, 4]),
        ([100, 100], "interleave_under", [0.1, 0.9], [11, 100]),
    ],
)
def test_shares_are_exact(sizes: list[int], strategy: Strategy, weights: list[float] | None, shares: list[int]) -> None:
    mixed = mixture(sizes, strategy, weights)
    assert mixed.shares.tolist() == shares
    assert len(mixed) == sum(shares)
    for number in range(3):
        counts = Counter(value // 1000 for value in epoch(mixed, number))
        assert [counts[i] for i in range(len(sizes))] == shares


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("strategy", ["interleave_under", "interleave_over"])
def test_no_sample_comes_again_before_all_of_its_dataset_came(strategy: Strategy, shuffle: bool) -> None:
    mixed = mixture([7, 31], strategy, [0.4, 0.6])
    counts: Counter[int] = Counter()
    for number in range(12):
        counts.update(epoch(mixed, number, shuffle))
        for part, size in ((0, 7), (1, 31)):
            seen = [counts[1000 * part + i] for i in range(size)]
            assert max(seen) - min(seen) <= 1


def test_an_epoch_over_all_sees_every_sample() -> None:
    for number in range(3):
        assert set(epoch(mixture([7, 31], "interleave_over", [0.4, 0.6]), number)) == {
            *range(7), *range(1000, 1031)
        }  # fmt: skip


def test_orders_are_drawn_from_seed_and_epoch() -> None:
    mixed = mixture([20, 20], "interleave_under")
    assert epoch(mixed, 0) == epoch(mixed, 0)
    assert epoch(mixed, 0) != epoch(mixed, 1)
    assert epoch(mixed, 0) != epoch(mixed, 0, seed=2)
    assert mixed.fingerprint() != mixture([20, 20], "interleave_under", [1, 2]).fingerprint()
    assert mixed.fingerprint() != mixture([20, 20], "concat").fingerprint()


def test_without_shuffling_the_datasets_take_turns_by_their_shares() -> None:
    mixed = mixture([2, 6], "interleave_under", [1, 3])
    assert [value // 1000 for value in epoch(mixed, 0, shuffle=False)] == [1, 0, 1, 1, 1, 0, 1, 1]
    assert [v % 1000 for v in epoch(mixed, 0, shuffle=False) if v >= 1000] == list(range(6))
    assert epoch(mixture([2, 3], "concat"), 0, shuffle=False) == [0, 1, 1000, 1001, 1002]


def sources(folder: Path, **counts: int) -> list[dict[str, Any]]:
    """Datasets of one-answer conversations; the answers name the dataset and the conversation."""
    out = []
    for number, (name, count) in enumerate(counts.items()):
        rows = [chat("w1", f"w{20 * (number + 1) + i}") for i in range(count)]
        out.append({"name": name, "file_name": str(write_jsonl(folder / f"{name}.jsonl", rows))})
    return out


def answers(mixed: Mixture) -> list[str]:
    order = mixed.order(0, shuffle=False, seed=0).tolist()
    return [read(mixed[i].targets).replace(". ", "").split()[0] for i in order]


def test_weights_come_from_the_setting_or_from_the_datasets(build: Build, tmp_path: Path) -> None:
    a, b = sources(tmp_path, a=4, b=12)
    for settings in (
        {"source": [a, b], "interleave_probs": "0.25,0.75"},
        {"source": [{**a, "weight": 1}, {**b, "weight": 3}]},
        {"source": f"0.25 {a['file_name']} 0.75 {b['file_name']}"},
    ):
        made = build(**settings, mix_strategy="interleave_under")
        assert made.train.shares.tolist() == [4, 12]
        assert ("mix", "a 25.0% (4), b 75.0% (12) of 16 conversations an epoch") in made.summary
        assert ("", "in tokens 25.0%, 75.0%") in made.summary


@pytest.mark.parametrize(
    ("changes", "settings", "reason"),
    [
        ([{"weight": 1}, {"weight": 1}], {}, "has weights, and data.mix_strategy is concat"),
        ([{"weight": 1}, {}], {"mix_strategy": "interleave_over"}, "b has no weight, and others have"),
        ([{"weight": 0}, {"weight": 0}], {"mix_strategy": "interleave_over"}, "all weights are 0"),
        ([{}, {}], {"mix_strategy": "interleave_over", "interleave_probs": "1"}, r"1 weights for 2 datasets \(a, b\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    build: Build, tmp_path: Path, changes: list[dict[str, Any]], settings: dict[str, Any], reason: str
) -> None:
    mixed = [{**source, **change} for source, change in zip(sources(tmp_path, a=2, b=2), changes, strict=True)]
    with pytest.raises(UserError, match=reason):
        build(source=mixed, **settings)


def test_a_dataset_of_weight_0_never_comes_and_an_empty_one_is_named(build: Build, tmp_path: Path) -> None:
    a, b, c = sources(tmp_path, a=3, b=3, c=0)
    made = build(source=[a, b, c], mix_strategy="interleave_over", interleave_probs="0,0.5,0.5")
    assert {int(answer[1:]) // 20 for answer in answers(made.train)} == {2}
    assert ("", "c: nothing of it is used") in made.summary


@pytest.mark.parametrize(("wanted", "most"), [(3, 1), (8, 1), (20, 3)])
def test_num_samples_draws_a_subset_or_repeats(build: Build, tmp_path: Path, wanted: int, most: int) -> None:
    (a,) = sources(tmp_path, a=8)
    counts = Counter(answers(build(source={**a, "num_samples": wanted}).train))
    assert sum(counts.values()) == wanted
    assert max(counts.values()) == most
    assert max(counts.values()) - min(counts.values()) <= 1
    again = Counter(answers(build(source={**a, "num_samples": wanted}).train))
    assert again == counts
    if wanted == 3:
        others = [Counter(answers(build(source={**a, "num_samples": 3}, seed=s).train)) for s in (2, 3, 4)]
        assert any(other != counts for other in others)


def test_what_is_held_out_is_never_trained_on_even_where_samples_repeat(build: Build, tmp_path: Path) -> None:
    made = build(source=[{**s, "num_samples": 20} for s in sources(tmp_path, a=8, b=4)], val_size=3)
    held = answers(made.evaluation[""])
    assert len(held) == 3
    assert not set(held) & set(answers(made.train))
    assert len(answers(made.train)) == 40


def test_each_dataset_can_have_a_loss_of_its_own(build: Build, tmp_path: Path) -> None:
    made = build(source=sources(tmp_path, a=8, b=4), val_size=3, eval_on_each_dataset=True)
    assert {name: len(samples) for name, samples in made.evaluation.items()} == {"a": 2, "b": 1}
