"""Optimizers over sharded parameters: groups for weight decay, and a step that the device itself can leave out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer
from transformers import PreTrainedModel

from llmtrain.config import TrainingConfig
from llmtrain.errors import UserError
from llmtrain.runtime.device import Device
from llmtrain.training.muon import Muon
from llmtrain.training.sgd import SGD

Named = list[tuple[str, nn.Parameter]]


class Optimizers:
    """The optimizers of a run as one: a model may train its matrices and the rest by different rules."""

    def __init__(self, parts: list[Optimizer], names: dict[torch.Tensor, str], skips_on_device: bool) -> None:
        self.parts = parts
        self.names = names
        self._skips_on_device = skips_on_device

    def step(self, lr: float, finite: torch.Tensor) -> None:
        """One update at `lr`, or none where `finite` (zero-dimensional, bool) is false.

        torch's fused optimizers and ours decide on the device. Where there are none, the host has to look.
        """
        if not self._skips_on_device and not bool(finite):
            return
        found_inf = (~finite).to(torch.float32)
        for part in self.parts:
            part.grad_scale = None  # type: ignore[attr-defined]
            part.found_inf = found_inf  # type: ignore[attr-defined]
            for group in part.param_groups:
                group["lr"] = lr
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """State tensors by parameter name: {"model.norm.weight": {"exp_avg": ...}}; empty before the first step."""
        return {
            self.names[parameter]: {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
            for part in self.parts
            for parameter, state in part.state.items()
        }

    def set_state(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        """Puts back what `state` gave. No step is taken to make room: a made-up step would count as a real one."""
        for part in self.parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    if self.names[parameter] in state:
                        part.state[parameter] = dict(state[self.names[parameter]])

    def describe(self) -> list[str]:
        """One line a group: rule, tensors, elements, weight decay."""
        lines = []
        for part in self.parts:
            for decay in sorted({g["weight_decay"] for g in part.param_groups}, reverse=True):
                params = [p for g in part.param_groups if g["weight_decay"] == decay for p in g["params"]]
                count = sum(p.numel() for p in params)
                lines.append(f"{type(part).__name__}, decay {decay:g}: {len(params)} tensors, {count:,} parameters")
        return lines


def build_optimizers(
    model: PreTrainedModel, settings: TrainingConfig, device: Device, compute: torch.dtype
) -> Optimizers:
    """Builds what `training.optimizer` names over the trainable parameters of the sharded model.

    Vectors (norms, biases) are not decayed, since a decayed norm weight shrinks its layer's output; matrices are, the
    embedding with them. Muon takes the matrices inside the blocks, AdamW all the rest.

    Raises:
        UserError: `fused_adamw` on a device without one.
    """
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in named}
    fused = device.has_fused_optimizers
    if settings.optimizer == "fused_adamw" and not fused:
        raise UserError(f"training.optimizer: torch has no fused AdamW for {device.type}; use adamw.")
    parts: list[Optimizer] = []
    if settings.optimizer == "sgd":
        parts.append(SGD(_groups(named, settings.weight_decay), lr=settings.lr, momentum=settings.momentum))
    else:
        rest = named
        if settings.optimizer == "muon":
            inside, rest = _split_for_muon(model, named)
            parts.append(
                Muon(
                    _groups(inside, settings.weight_decay),
                    lr=settings.lr,
                    weight_decay=settings.weight_decay,
                    momentum=settings.muon_momentum,
                    dtype=compute,
                )
            )
        parts.append(
            AdamW(
                _groups(rest, settings.weight_decay),
                lr=settings.lr,
                betas=(settings.adam_beta1, settings.adam_beta2),
                eps=settings.adam_epsilon,
                fused=fused,
            )
        )
    return Optimizers(parts, names, skips_on_device=fused)


def _split_for_muon(model: PreTrainedModel, named: Named) -> tuple[Named, Named]:
    outside = {
        id(p)
        for end in (model.get_input_embeddings(), model.get_output_embeddings())
        if end is not None
        for p in end.parameters()
    }
    inside = [(n, p) for n, p in named if p.ndim == 2 and id(p) not in outside]
    chosen = {n for n, _ in inside}
    return inside, [(n, p) for n, p in named if n not in chosen]


def _groups(named: Named, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups by decay and by mesh: torch's multi-tensor kernels take tensors of one mesh at a time."""
    groups: dict[tuple[float, Any], list[nn.Parameter]] = {}
    for _, parameter in named:
        decay = weight_decay if parameter.ndim > 1 else 0.0
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault((decay, mesh), []).append(parameter)
    return [{"params": params, "weight_decay": decay} for (decay, _), params in groups.items()]
