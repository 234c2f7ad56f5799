"""Muon (Jordan et al. 2024) on sharded matrices: momentum stays sharded, whole matrices are orthogonalised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from llmtrain.parallel.gradients import local_part

# The quintic of Jordan's Muon: steep at zero, so that five steps bring every singular value near 1.
_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(Optimizer):
    """Momentum, Nesterov, Newton-Schulz, and an update scaled by 0.2 sqrt(max(rows, columns)).

    The scale makes the root mean square of an update that of AdamW (Liu et al. 2025, "Muon is scalable for LLM
    training"), so one learning rate and one weight decay serve both. A gathered matrix gives the same update on any
    number of ranks; orthogonalising shards one by one would not. `found_inf`, a zero-dimensional tensor, makes a step a
    no-op when it is 1, as in torch's fused optimizers.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        steps: int = 5,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "steps": steps})
        self.found_inf: torch.Tensor | None = None
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = local_part(state["momentum_buffer"])
        gradient = local_part(parameter.grad)
        if self.found_inf is not None:
            # A where, not a product: zero times infinity is no zero.
            skip = self.found_inf.to(gradient.device).bool()
            gradient = torch.where(skip, buffer, gradient)
            keep = 1.0 - self.found_inf.to(gradient.device)
        else:
            keep = torch.ones((), device=gradient.device)
        buffer.lerp_(gradient, 1.0 - group["momentum"])
        direction = _like(gradient.lerp(buffer, group["momentum"]), parameter)
        whole = direction.full_tensor() if isinstance(direction, DTensor) else direction
        factor = 0.2 * max(whole.shape) ** 0.5
        update = orthogonalise(whole, group["steps"], self.dtype).to(whole.dtype)
        if isinstance(parameter, DTensor):
            update = local_part(
                distribute_tensor(update, parameter.device_mesh, parameter.placements, src_data_rank=None)
            )
        values = local_part(parameter)
        update = update.to(values.device)
        values.mul_(1.0 - group["lr"] * group["weight_decay"] * keep)
        values.sub_(update * (group["lr"] * factor) * keep)


def orthogonalise(matrix: torch.Tensor, steps: int, dtype: torch.dtype) -> torch.Tensor:
    """An approximation of U V^T of `matrix` = U S V^T, [rows, columns], by Newton-Schulz iteration."""
    x = matrix.to(dtype)
    tall = x.size(0) > x.size(1)
    x = x.mT if tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if tall else x


def _like(local: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
