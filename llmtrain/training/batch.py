"""Batch arithmetic: global batch = micro-batch x accumulation x data ranks."""

from __future__ import annotations

from dataclasses import dataclass

from llmtrain.config import TrainingConfig
from llmtrain.errors import UserError


@dataclass(frozen=True)
class BatchPlan:
    """Samples per forward on one rank, forwards per update, and ranks that read different data."""

    micro: int
    accumulation: int
    data_ranks: int

    @property
    def total(self) -> int:
        return self.micro * self.accumulation * self.data_ranks

    def __str__(self) -> str:
        return (
            f"{self.total} samples = {self.micro} per rank x {self.accumulation} accumulated x {self.data_ranks} ranks"
        )


def plan_batch(settings: TrainingConfig, data_ranks: int) -> BatchPlan:
    """Derives the accumulation from `global_batch_size`, or takes it as given.

    Raises:
        UserError: sizes that do not multiply up, with the sizes that would.
    """
    micro = settings.per_device_train_batch_size
    accumulation = settings.gradient_accumulation_steps
    wanted = settings.global_batch_size
    if wanted is None:
        return BatchPlan(micro, accumulation or 1, data_ranks)
    per_forward = micro * data_ranks
    if wanted % per_forward:
        below, above = wanted // per_forward * per_forward, (wanted // per_forward + 1) * per_forward
        fitting = f"{below} or {above}" if below else f"{above}"
        raise UserError(
            f"training.global_batch_size is {wanted}, but {micro} samples per rank "
            f"(training.per_device_train_batch_size) on {data_ranks} ranks make steps of {per_forward}. "
            f"Use {fitting}, another size per rank, or another number of ranks."
        )
    derived = wanted // per_forward
    if accumulation is not None and accumulation != derived:
        raise UserError(
            f"training.gradient_accumulation_steps is {accumulation} and training.global_batch_size is {wanted}, but "
            f"{micro} samples per rank x {accumulation} x {data_ranks} ranks = {micro * accumulation * data_ranks}. "
            f"Leave one of the two out; {derived} would fit."
        )
    return BatchPlan(micro, derived, data_ranks)
