"""What must not depend on the layout beside the curve: first weights, consumed samples; and what must: memory."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.launch import exported, losses, metrics, run_cases
from tests.tiny import SIZES, make_chats, make_tokenizer, tiny_config

RANKS = (1, 2, 4)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    make_tokenizer(folder / "tokenizer")
    make_chats(folder / "chats.jsonl", conversations=21)
    for ranks in RANKS:
        cases = []
        for tied in (False, True):
            overrides = {**SIZES, "intermediate_size": 95, "tie_word_embeddings": tied, "vocab_size": 129}
            config = tiny_config(
                folder,
                f"{'tied' if tied else 'untied'}-{ranks}",
                model={"config_overrides": overrides},
                training={
                    "lr": 0.0,
                    "min_lr": 0.0,
                    "max_steps": 8,
                    "per_device_train_batch_size": 1,
                    "save_hf_weights": True,
                },
            )
            cases.append({"name": f"{ranks}-{tied}", "config": config, "observe": ["sample_ids", "state_bytes"]})
        # 5 held-out samples in batches of one and of two: ranks have more, fewer and none of them.
        for micro in (1, 2):
            config = tiny_config(
                folder,
                f"evaluated-{ranks}-{micro}",
                data={"val_size": 5},
                training={"max_steps": 1, "per_device_train_batch_size": 1, "per_device_eval_batch_size": micro},
            )
            cases.append({"name": f"evaluated-{ranks}-{micro}", "config": config})
        if ranks > 1:
            for kind in ("untied", "tied"):
                config = tiny_config(folder, f"loaded-{kind}-{ranks}", training={"max_steps": 1})
                config["model"] = {"model_name_or_path": str(folder / f"{kind}-1" / "hf")}
                config["training"]["per_device_train_batch_size"] = 1
                cases.append({"name": f"loaded-{kind}-{ranks}", "config": config, "observe": ["elements_read"]})
        if ranks == 4:
            hsdp = json.loads(json.dumps(cases[0]["config"]))
            hsdp["parallel"]["fsdp_size"] = 2
            hsdp["training"]["output_dir"] = str(folder / "hsdp-4")
            cases.append({"name": "hsdp", "config": hsdp, "observe": ["state_bytes"]})
        if ranks == 2:
            for deferred in (False, True):
                config = tiny_config(
                    folder,
                    f"deferred-{deferred}",
                    parallel={"defer_gradient_sync": deferred},
                    training={"max_steps": 1, "per_device_train_batch_size": 1},
                )
                cases.append({"name": f"deferred-{deferred}", "config": config, "observe": ["collectives"]})
        run_cases(ranks, cases, folder)
    return folder


def observed(output: Path, name: str, ranks: int) -> list[Any]:
    return [json.loads((output / f"{name}-rank{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("kind", ["untied", "tied"])
def test_first_weights_are_the_same_on_any_number_of_ranks(root: Path, kind: str) -> None:
    one = exported(root / f"{kind}-1")
    for ranks in RANKS[1:]:
        other = exported(root / f"{kind}-{ranks}")
        assert set(one) == set(other)
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert ("lm_head.weight" in one) == (kind == "untied")


def test_first_weights_are_drawn_as_the_config_says_and_no_two_alike(root: Path) -> None:
    weights = exported(root / "untied-4")
    matrices = {name: value for name, value in weights.items() if value.ndim == 2}
    for name, value in matrices.items():
        assert value.std().item() == pytest.approx(0.02, rel=0.05), name
        blocks = value[: len(value) // 4 * 4].chunk(4)
        assert not any(torch.equal(a, b) for i, a in enumerate(blocks) for b in blocks[:i]), name
    first_rows = [tuple(value[0, :8].tolist()) for value in matrices.values()]
    assert len(set(first_rows)) == len(first_rows)


def test_each_step_learns_from_the_same_samples_on_any_number_of_ranks(root: Path) -> None:
    """21 samples in batches of 8: two whole ones and a tail of 5 an epoch, another order each epoch."""
    per_step = {}
    for ranks in RANKS:
        by_rank = observed(root / f"untied-{ranks}", "sample_ids", ranks)
        per_step[ranks] = [sorted(number for rank in step for number in rank) for step in zip(*by_rank, strict=True)]
    assert per_step[1] == per_step[2] == per_step[4]
    assert [len(step) for step in per_step[1]] == [8, 8, 5, 8, 8, 5, 8, 8]
    epochs = [[number for step in per_step[1][i : i + 3] for number in step] for i in (0, 3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(21))] * 2
    assert per_step[1][0] != per_step[1][3]


def test_held_out_loss_is_the_same_on_any_number_of_ranks(root: Path) -> None:
    rows = {(r, m): metrics(root / f"evaluated-{r}-{m}") for r in RANKS for m in (1, 2)}
    found = {key: [row for row in value if "eval_loss" in row] for key, value in rows.items()}
    (one,) = found[1, 1]
    assert one["eval_loss"] != pytest.approx(losses(root / "evaluated-1-1")[0], rel=1e-3)
    for (other,) in found.values():
        assert other["eval_tokens"] == one["eval_tokens"]
        assert other["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-6)
        assert other["eval_perplexity"] == pytest.approx(math.exp(one["eval_loss"]), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "ranks", "shards"), [("untied-2", 2, 2), ("tied-4", 4, 4), ("untied-4", 4, 4), ("hsdp-4", 4, 2)]
)
def test_memory_of_each_rank_is_its_share(root: Path, name: str, ranks: int, shards: int) -> None:
    """Parameters, gradients and two moments in float32, also where 129 rows and 95 columns do not divide."""
    elements = sum(value.numel() for value in exported(root / name).values())
    for sizes in observed(root / name, "state_bytes", ranks):
        assert sizes["parameters"] == pytest.approx(4 * elements / shards, rel=0.05)
        assert sizes["gradients"] == pytest.approx(4 * elements / shards, rel=0.05)
        assert sizes["optimizer"] == pytest.approx(8 * elements / shards, rel=0.05)


@pytest.mark.parametrize("kind", ["untied", "tied"])
@pytest.mark.parametrize("ranks", RANKS[1:])
def test_each_rank_reads_of_a_weight_file_what_it_keeps(root: Path, kind: str, ranks: int) -> None:
    elements = sum(value.numel() for value in exported(root / f"{kind}-1").values())
    for read in observed(root / f"loaded-{kind}-{ranks}", "elements_read", ranks):
        assert read == pytest.approx(elements / ranks, rel=0.05)


def test_deferred_gradients_are_reduced_once_a_step(root: Path) -> None:
    """4 units and the root; 4 micro-batches."""
    for deferred, expected in ((False, 4 * 5), (True, 5)):
        for counts in observed(root / f"deferred-{deferred}", "collectives", 2):
            assert counts["reduce_scatter"] == expected
