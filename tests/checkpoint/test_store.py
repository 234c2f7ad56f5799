"""Whole or not there: the damaged are passed over by name, the old retired by number, the foreign refused."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from llmtrain.checkpoint import store as store_module
from llmtrain.checkpoint.files import find_damage
from llmtrain.checkpoint.store import CheckpointStore
from llmtrain.errors import UserError
from llmtrain.runtime.world import World
from tests.distributed.launch import losses, metrics
from tests.tiny import tiny_config

Run = Callable[[dict[str, Any]], Any]
TENSORS = {"a": torch.arange(6.0), "b": torch.ones(2, 3)}


def truncate(folder: Path) -> None:
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])


def flip(folder: Path) -> None:
    file = folder / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "the save did not finish"),
    "broken manifest": (lambda f: (f / "manifest.json").write_text("{"), "cannot be read"),
    "no metadata": (lambda f: (f / ".metadata").unlink(), ".metadata is missing"),
    "no state": (lambda f: (f / "state.json").unlink(), "state.json is missing"),
    "truncated": (truncate, "bytes, not"),
    "flipped bit": (flip, "have changed"),
}


@pytest.fixture
def store(world: World, tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", world, keep=3)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_newest_whole_one_is_taken(store: CheckpointStore, kind: str) -> None:
    for step in (1, 2, 3):
        store.save(step, TENSORS, {"step": step})
    damage, reason = DAMAGE[kind]
    damage(store.path(3))
    found, notices = store.resolve("latest")
    assert found == store.path(2)
    assert len(notices) == 1
    assert "step-3" in notices[0]
    assert reason in notices[0]
    with pytest.raises(UserError, match=r"step-3 cannot be used.*newest whole one is .*step-2"):
        store.resolve(str(store.path(3)))
    store.save(3, TENSORS, {"step": 3})
    assert find_damage(store.path(3)) is None


def test_a_folder_that_was_being_written_is_no_checkpoint(store: CheckpointStore) -> None:
    store.save(1, TENSORS, {})
    (store.folder / "step-2.partial").mkdir()
    (store.folder / "step-2.partial" / "__0_0.distcp").write_text("half")
    assert store.resolve("latest") == (store.path(1), [])
    store.save(2, TENSORS, {})
    assert not list(store.folder.glob("*.partial"))


def test_old_ones_are_retired_by_number_and_others_left_alone(world: World, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, world, keep=2)
    (tmp_path / "step-best").mkdir()
    (tmp_path / "notes").mkdir()
    for step in (8, 9, 10, 11):
        store.save(step, TENSORS, {})
    assert store.steps() == [10, 11]
    assert store.newest_whole()[0] == store.path(11)
    assert (tmp_path / "step-best").is_dir()
    assert (tmp_path / "notes").is_dir()


def test_values_come_back(store: CheckpointStore) -> None:
    store.save(1, TENSORS, {"step": 1})
    read = {name: torch.zeros_like(value) for name, value in TENSORS.items()}
    store.load(store.path(1), read)
    assert all(torch.equal(read[name], TENSORS[name]) for name in TENSORS)
    with pytest.raises(UserError, match="does not fit"):
        store.load(store.path(1), {"missing": torch.zeros(1)})


def test_a_full_disk_leaves_the_earlier_checkpoint_and_nothing_half_written(run: Run, files: Path) -> None:
    config = tiny_config(files, "out", training={"max_steps": 4, "save_steps": 2})
    original = store_module.dcp.save
    calls = []

    def save(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args, **kwargs)

    refusal = pytest.raises(UserError, match=r"step-4 could not be written: No space left on device.*step-2")
    with mock.patch.object(store_module.dcp, "save", save), refusal:
        run(config)
    checkpoints = files / "out" / "checkpoints"
    assert sorted(p.name for p in checkpoints.iterdir()) == ["step-2"]
    assert find_damage(checkpoints / "step-2") is None


def test_latest_starts_anew_where_there_is_none_and_ends_at_once_where_all_is_done(
    run: Run, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(files, "out", training={"max_steps": 3, "save_steps": 3, "resume_from_checkpoint": "latest"})
    run(config)
    assert "starts from its beginning" in capsys.readouterr().out
    before = metrics(files / "out")
    assert run(config).step == 3
    assert metrics(files / "out") == before


def test_another_runs_checkpoints_are_not_built_upon(run: Run, files: Path) -> None:
    run(tiny_config(files, "out", training={"max_steps": 2, "save_steps": 2}))
    before = (files / "out" / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match="holds checkpoints of an earlier run"):
        run(tiny_config(files, "out", training={"max_steps": 2}))
    assert (files / "out" / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("section", "change", "named"),
    [
        ("training", {"seed": 7}, "training.seed was 42 and is 7"),
        ("training", {"global_batch_size": 4}, "global batch size was 8 and is 4"),
        ("training", {"optimizer": "sgd"}, "training.optimizer was 'adamw' and is 'sgd'"),
        ("data", {"max_samples": 40}, "data was"),
        ("model", {"config_overrides": {"num_hidden_layers": 1}}, "model was"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(run: Run, files: Path, section: str, change: Any, named: str) -> None:
    settings = {"max_steps": 2, "save_steps": 2, "resume_from_checkpoint": "latest"}
    run(tiny_config(files, "out", training=settings))
    sections = {"training": settings, section: {**(settings if section == "training" else {}), **change}}
    with pytest.raises(UserError, match="belongs to another run") as caught:
        run(tiny_config(files, "out", **sections))
    assert named in str(caught.value)


def test_a_changed_rate_goes_on_and_is_said(run: Run, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"max_steps": 2, "save_steps": 2, "resume_from_checkpoint": "latest"}
    run(tiny_config(files, "out", training=settings))
    run(tiny_config(files, "out", training={**settings, "max_steps": 4, "lr": 0.002}))
    told = capsys.readouterr().out
    assert "training.lr: 0.01 -> 0.002" in told
    assert "training.max_steps: 2 -> 4" in told
    assert [row["lr"] for row in metrics(files / "out")] == [0.01, 0.01, 0.002, 0.002]


def test_micro_batch_and_accumulation_may_change_on_the_way(run: Run, files: Path) -> None:
    settings = {"save_steps": 3, "resume_from_checkpoint": "latest", "max_steps": 3}
    run(tiny_config(files, "out", training=settings))
    run(tiny_config(files, "out", training={**settings, "max_steps": 6, "per_device_train_batch_size": 8}))
    run(tiny_config(files, "straight", training={"max_steps": 6}))
    assert losses(files / "out") == pytest.approx(losses(files / "straight"), rel=1e-5)


def test_weights_alone_cannot_be_resumed(run: Run, files: Path) -> None:
    run(tiny_config(files, "out", training={"max_steps": 2, "save_steps": 2, "save_only_model": True}))
    state = json.loads((files / "out" / "checkpoints" / "step-2" / "state.json").read_text())
    assert state["only_model"] is True
    with pytest.raises(UserError, match="holds no optimizer state"):
        run(tiny_config(files, "out", training={"max_steps": 4, "resume_from_checkpoint": "latest"}))
