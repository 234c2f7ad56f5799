"""Learning rate as a closed formula of the update number, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmtrain.config import TrainingConfig
from llmtrain.errors import UserError


@dataclass(frozen=True)
class Schedule:
    """Warm-up, then constant, linear, cosine or WSD (warm-up, stable, decay).

    Update n counts from 1. With W warm-up updates, update n <= W runs at lr * n / W: the first one already learns, and
    update W runs at lr. From there linear and cosine fall to min_lr, which the last update reaches. WSD holds lr and
    lets the last D updates fall linearly to min_lr; where min_lr is 0 the fall ends just after the last update, since
    an update at rate 0 would change nothing.
    """

    kind: str
    lr: float
    min_lr: float
    warmup: int
    decay: int
    total: int

    def at(self, update: int) -> float:
        """Learning rate of update 1, 2, ..., total."""
        if update < self.warmup:
            return self.lr * update / self.warmup
        if self.kind == "constant":
            return self.lr
        if self.kind == "wsd":
            return self._toward_min(self._wsd_progress(update))
        peak = max(self.warmup, 1)
        progress = min(1.0, (update - peak) / max(1, self.total - peak))
        if self.kind == "cosine":
            progress = 0.5 * (1.0 - math.cos(math.pi * progress))
        return self._toward_min(progress)

    def _wsd_progress(self, update: int) -> float:
        fallen = update - (self.total - self.decay)
        return min(1.0, max(0, fallen) / (self.decay + (self.min_lr == 0.0)))

    def _toward_min(self, progress: float) -> float:
        return self.lr + (self.min_lr - self.lr) * progress


def plan_schedule(settings: TrainingConfig, total: int) -> Schedule:
    """Sizes the phases for a run of `total` updates.

    Raises:
        UserError: warm-up (and decay) longer than the run.
    """
    warmup = math.ceil(settings.warmup_ratio * total) if settings.warmup_steps is None else settings.warmup_steps
    decay = math.ceil(settings.decay_ratio * total) if settings.lr_scheduler_type == "wsd" else 0
    if warmup + decay > total:
        parts = f"{warmup} warm-up updates" + (f" and {decay} decay updates" if decay else "")
        raise UserError(
            f"The schedule has {parts}, but the run has only {total} updates. "
            f"Lower training.warmup_steps / training.warmup_ratio{' / training.decay_ratio' if decay else ''}, "
            f"or train longer."
        )
    # The default minimum may lie above a small rate; a schedule never rises to it.
    return Schedule(settings.lr_scheduler_type, settings.lr, min(settings.min_lr, settings.lr), warmup, decay, total)
