"""What is measured: sums kept on the device between log lines, and the file they end in."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from llmtrain.runtime.world import World


@dataclass
class Counts:
    """Host-side counts over all ranks, exact: they come from the data, before anything is on the device."""

    supervised: int = 0
    tokens: int = 0
    squared_lengths: int = 0

    def add(self, other: Counts) -> None:
        self.supervised += other.supervised
        self.tokens += other.tokens
        self.squared_lengths += other.squared_lengths


@dataclass(frozen=True)
class Reading:
    """One interval as the host reads it."""

    loss: float
    grad_norm: float
    skipped: int
    longest_skip: int


class IntervalMeter:
    """Sums on the device from one log line to the next; `read` is the only place where the host waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streak = torch.zeros((), device=device)
        self.reset()

    def reset(self) -> None:
        zero = torch.zeros((), device=self._device)
        self._loss, self._skipped, self._longest = zero.clone(), zero.clone(), self._streak.clone()
        self._norm = zero.clone()
        self.counts = Counts()
        self.steps = 0
        self.data_seconds = 0.0
        self.paused_seconds = 0.0
        self.started = time.perf_counter()

    def add(self, loss_sum: torch.Tensor, norm: torch.Tensor, finite: torch.Tensor, counts: Counts) -> None:
        """Adds one step: this rank's sum of token losses, the gradient norm, and whether the step was taken."""
        bad = (~finite).float()
        self._loss += loss_sum
        self._norm = norm
        self._skipped += bad
        self._streak = (self._streak + bad) * bad
        self._longest = torch.maximum(self._longest, self._streak)
        self.counts.add(counts)
        self.steps += 1

    def read(self) -> Reading:
        """Reduces over ranks and copies to the host. The loss is the mean over the interval's supervised tokens."""
        total = self._loss.clone()
        dist.all_reduce(total)
        loss, norm, skipped, longest = torch.stack([total, self._norm, self._skipped, self._longest]).tolist()
        return Reading(loss / max(1, self.counts.supervised), norm, round(skipped), round(longest))

    def seconds(self) -> float:
        """Wall time of the interval without evaluation and saving."""
        return time.perf_counter() - self.started - self.paused_seconds


def sum_over_ranks(world: World, values: list[int]) -> list[int]:
    """Sums host integers over all ranks, on the hosts: the device is not asked."""
    tensor = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(tensor, group=world.host_group)
    return tensor.numpy().tolist()


def max_over_ranks(world: World, value: float) -> float:
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=world.host_group)
    return float(tensor.numpy()[0])


@dataclass
class MetricsFile:
    """`metrics.jsonl`: one JSON object a line. A resumed run goes on where its checkpoint was written."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, path: Path, resumed_step: int | None) -> MetricsFile:
        """Opens a new file, or keeps the lines up to `resumed_step`: later ones are about to happen again.

        An older file of a run that left no checkpoint is moved aside, not overwritten.
        """
        rows: list[dict[str, Any]] = []
        if path.exists() and resumed_step is None:
            number = next(n for n in range(1, 10**6) if not path.with_suffix(f".{n}.jsonl").exists())
            path.rename(path.with_suffix(f".{number}.jsonl"))
        elif path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    break  # the line a killed run did not finish
                if row["step"] <= (resumed_step or 0):
                    rows.append(row)
            aside = path.with_suffix(".partial")
            aside.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
            aside.replace(path)
        else:
            path.touch()
        return cls(path, rows)

    def append(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
