"""Pictures: `loss.png`, training and held-out loss over the steps; the lengths of a dataset's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure


def plot_loss(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """Draws the loss curve from metrics rows; a run without a logged step draws nothing."""
    train = [(r["step"], r["loss"]) for r in rows if "loss" in r]
    held_out = [(r["step"], r["eval_loss"]) for r in rows if "eval_loss" in r]
    if not train:
        return
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    steps, losses = zip(*train, strict=True)
    axes.plot(steps, losses, color="#9db4d0", linewidth=0.8, label="training, each logged step")
    axes.plot(steps, smooth(np.array(losses)), color="#1f4e8c", label="training, mean around the step")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", color="#c8553d", markersize=4, label="held out")
    axes.set(xlabel="optimizer step", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def plot_lengths(lengths: np.ndarray, path: Path, title: str) -> None:
    """Draws how many rows there are of each length in tokens."""
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.hist(lengths, bins=min(60, int(np.ptp(lengths)) + 1), color="#1f4e8c")
    mean = float(lengths.mean())
    axes.axvline(mean, color="#c8553d", linewidth=1.2, label=f"mean {mean:,.1f}")
    axes.set(xlabel="tokens of a row", ylabel="rows", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def smooth(values: np.ndarray) -> np.ndarray:
    """Means over a fiftieth of the curve to either side; the window is symmetric to its ends, so nothing lags."""
    half, last = len(values) // 50, len(values) - 1
    reach = [min(half, i, last - i) for i in range(len(values))]
    return np.array([values[i - r : i + r + 1].mean() for i, r in enumerate(reach)])
