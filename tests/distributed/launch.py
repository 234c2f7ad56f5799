"""Starts worker.py on N ranks and reads back what its cases left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

REPOSITORY = Path(__file__).parents[2]
VOLATILE = ("seconds", "per_second", "per_second_per_rank", "mfu", "peak_memory_gib", "cpu_memory_gib")


def run_cases(ranks: int, cases: list[dict[str, Any]], folder: Path, timeout: int = 900) -> None:
    """Runs all cases in one torchrun; fails with the ranks' output if a case fails."""
    file = folder / f"cases-{ranks}-{cases[0]['name']}.json"
    file.write_text(json.dumps(cases))
    command = [*torchrun(ranks), "-m", "tests.distributed.worker", str(file)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=timeout)
    # torchrun's own report of the failed child comes last and says nothing.
    assert done.returncode == 0, (
        (done.stdout + done.stderr)
        .split("ChildFailedError")[0]
        .rpartition('Traceback (most recent call last):\n  File "<frozen runpy>')[0][-4000:]
    )


def torchrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]


def start(ranks: int, config: Path, *words: str) -> subprocess.Popen[str]:
    """The real command, in a session of its own, so that all of it can be killed at once."""
    launcher = torchrun(ranks) if ranks > 1 else [sys.executable]
    return subprocess.Popen(
        [*launcher, "train_fsdp2.py", str(config), *words],
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "random",
    }


def metrics(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def steady(output: Path) -> list[dict[str, Any]]:
    """Metrics rows without what the clock and the allocator decide."""
    return [{k: v for k, v in row.items() if not k.endswith(VOLATILE)} for row in metrics(output)]


def losses(output: Path) -> list[float]:
    return [row["loss"] for row in metrics(output) if "loss" in row]


def norms(output: Path) -> list[float]:
    return [row["grad_norm"] for row in metrics(output) if "grad_norm" in row]


def exported(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "hf" / "model.safetensors")
