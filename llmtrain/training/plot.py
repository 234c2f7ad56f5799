"""`loss.png`: training and held-out loss over the tokens seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure


def plot_loss(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """Draws the loss curve from metrics rows; a run without a logged step draws nothing."""
    matplotlib.use("Agg")
    train = [(r["step"], r["loss"]) for r in rows if "loss" in r]
    held_out = [(r["step"], r["eval_loss"]) for r in rows if "eval_loss" in r]
    if not train:
        return
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*train, strict=True), color="#9db4d0", linewidth=0.8, label="training, each logged step")
    axes.plot([s for s, _ in train], _smooth([v for _, v in train]), color="#1f4e8c", label="training, smoothed")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", color="#c8553d", markersize=4, label="held out")
    axes.set(xlabel="optimizer step", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def _smooth(values: list[float], weight: float = 0.9) -> list[float]:
    """Exponential mean, corrected for its start."""
    out, mean, mass = [], 0.0, 0.0
    for value in values:
        mean, mass = weight * mean + (1 - weight) * value, weight * mass + (1 - weight)
        out.append(mean / mass)
    return out
