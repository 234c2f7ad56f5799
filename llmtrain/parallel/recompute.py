"""Activation recomputation: chosen modules keep their inputs only and run again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def apply_recompute(model: nn.Module, names: Sequence[str]) -> None:
    """Wraps the forward of the named modules' instances.

    The instance's forward is replaced rather than the module wrapped, so that parameter names stay those of the
    checkpoint, and FSDP2's hooks stay outside: parameters are gathered once for the second run and the backward.
    """
    for name in names:
        module = model.get_submodule(name)
        module.forward = partial(_recomputed, module.forward)


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
