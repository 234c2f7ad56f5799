"""SGD that the device itself can leave out; torch's fused one, which could, does not take DTensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from llmtrain.parallel.gradients import local_part


class SGD(Optimizer):
    """torch.optim.SGD's rule (coupled weight decay, heavy-ball momentum) on the shards each rank holds.

    `found_inf`, a zero-dimensional tensor, makes a step a no-op when it is 1, as in torch's fused optimizers.
    """

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})
        self.found_inf: torch.Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        values, gradient = local_part(parameter), local_part(parameter.grad)
        direction = gradient.add(values, alpha=group["weight_decay"]) if group["weight_decay"] else gradient
        skip = None if self.found_inf is None else self.found_inf.to(values.device).bool()
        if group["momentum"]:
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            buffer = local_part(state["momentum_buffer"])
            moved = buffer * group["momentum"] + direction
            buffer.copy_(moved if skip is None else torch.where(skip, buffer, moved))
            direction = moved
        # A where, not a product with 0: that times infinity is no zero.
        step = direction if skip is None else torch.where(skip, torch.zeros_like(direction), direction)
        values.sub_(step, alpha=group["lr"])
