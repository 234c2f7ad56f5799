"""Promise 2: a run killed at any instant and started again with the same command ends as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from llmtrain.checkpoint.files import find_damage
from tests.distributed.launch import exported, start, steady
from tests.tiny import make_chats, make_tokenizer, tiny_config

STEPS = 120


def write_config(folder: Path, name: str) -> Path:
    """Saving takes most of the time: kills fall into it."""
    settings = {
        "max_steps": STEPS,
        "save_steps": 1,
        "save_total_limit": 2,
        "save_hf_weights": True,
        "hf_weights_dtype": "fp32",
        "resume_from_checkpoint": "latest",
        "eval_steps": 30,
    }
    config = tiny_config(folder, name, data={"val_size": 4}, training=settings)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def whole_checkpoints(output: Path) -> list[Path]:
    found = [p for p in (output / "checkpoints").glob("step-*") if p.name.removeprefix("step-").isdigit()]
    return [p for p in found if find_damage(p) is None]


def progress(output: Path) -> int:
    file = output / "metrics.jsonl"
    return file.read_text().count('"loss"') if file.exists() else 0


def kill_during(process: subprocess.Popen[str], output: Path, after_steps: int, delay: float) -> bool:
    """Kills the whole session `delay` seconds after so many more logged steps; False if the run ended before."""
    first = progress(output)
    while process.poll() is None and not first < progress(output) >= after_steps:
        time.sleep(0.005)
    time.sleep(delay)
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kill")
    make_tokenizer(root / "tokenizer")
    make_chats(root / "chats.jsonl")
    return root


@pytest.mark.parametrize(("ranks", "kills"), [(1, 15), (2, 5)])
def test_killed_at_random_moments_it_ends_bit_identical(folder: Path, ranks: int, kills: int) -> None:
    straight, broken = folder / f"straight-{ranks}", folder / f"broken-{ranks}"
    undisturbed = start(ranks, write_config(folder, straight.name))
    said = undisturbed.communicate(timeout=300)
    assert undisturbed.returncode == 0, said
    config, rng, killed, in_a_save = write_config(folder, broken.name), random.Random(ranks), 0, 0
    for number in range(kills):
        process = start(ranks, config)
        killed += kill_during(process, broken, (number + 1) * STEPS // (kills + 1), rng.uniform(0, 0.15))
        assert whole_checkpoints(broken), f"no whole checkpoint after kill {number + 1}"
        in_a_save += any((broken / "checkpoints").glob("*.partial"))
    process = start(ranks, config)
    said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert killed == kills
    assert in_a_save >= 1
    assert steady(broken) == steady(straight)
    weights: dict[str, Any] = exported(straight)
    assert all(torch.equal(value, exported(broken)[name]) for name, value in weights.items())
