"""One gradient norm over every mesh, and clipping by it, without a read by the host."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard


def local_part(tensor: torch.Tensor | None) -> torch.Tensor:
    """The part of a (possibly sharded) tensor that this rank holds; it shares memory."""
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def gradient_norm(parameters: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """The 2-norm over all distinct gradient elements of the run, float32, zero-dimensional, equal on all ranks.

    Parameters are grouped by the mesh dimensions they are sharded over; squares are summed over just those, so that a
    replicated element counts once. The stock function cannot stack norms of different meshes.
    """
    groups: dict[tuple[int, ...], tuple[list[dist.ProcessGroup], list[torch.Tensor]]] = {}
    for parameter in parameters:
        grad = parameter.grad
        if grad is None:
            continue
        over: list[dist.ProcessGroup] = []
        if isinstance(grad, DTensor):
            mesh = grad.device_mesh
            over = [mesh.get_group(dim) for dim, place in enumerate(grad.placements) if isinstance(place, Shard)]
            grad = grad.to_local()
        groups.setdefault(tuple(id(g) for g in over), (over, []))[1].append(grad)
    total = torch.zeros((), dtype=torch.float32, device=device)
    for over, grads in groups.values():
        norms = torch._foreach_norm([g for g in grads if g.numel()], 2, dtype=torch.float32)
        squares = torch.stack(norms).square().sum() if norms else torch.zeros((), dtype=torch.float32)
        squares = squares.to(device)
        for group in over:
            dist.all_reduce(squares, group=group)
        total = total + squares
    return total.sqrt()


@torch.no_grad()
def clip_gradients(parameters: Iterable[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Scales all gradients by max_norm / norm where the norm is larger."""
    factor = (max_norm / norm).clamp(max=1.0)
    grads = [local_part(p.grad) for p in parameters if p.grad is not None]
    for grad in grads:
        if grad.device != factor.device:
            factor = factor.to(grad.device)
        break
    torch._foreach_mul_(grads, factor)
