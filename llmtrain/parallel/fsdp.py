"""FSDP2 over the dense mesh: which modules are units, with which precision, and gradients that are plain sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PreTrainedModel

from llmtrain.config import ParallelConfig
from llmtrain.parallel.patterns import match_modules

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class ShardingReport:
    """What was done, for the run's header: unit names in forward order, and modules kept out with the reason."""

    units: tuple[str, ...]
    notes: tuple[str, ...]


def apply_fsdp(
    model: PreTrainedModel, mesh: DeviceMesh, settings: ParallelConfig, default_units: Sequence[str]
) -> ShardingReport:
    """Shards `model` in place; parameters become DTensors (still on meta if they were).

    Gradients are summed, never divided: the loss is already divided by the tokens of the global batch, and torch's
    other divide factors differ between backends and versions.

    Raises:
        UserError: a pattern that matches nothing.
    """
    units = (
        match_modules(model, settings.fsdp_modules, "parallel.fsdp_modules") if settings.fsdp_modules else default_units
    )
    units, notes = _leave_shared_to_root(model, list(units))
    precision = MixedPrecisionPolicy(
        param_dtype=DTYPES[settings.param_dtype], reduce_dtype=DTYPES[settings.reduce_dtype], output_dtype=None
    )
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if settings.cpu_offload else OffloadPolicy()
    common: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": precision,
        "offload_policy": offload,
        "reshard_after_forward": settings.reshard_after_forward,
    }
    for name in _strict_modules(model, precision.param_dtype):
        strict = MixedPrecisionPolicy(
            param_dtype=torch.float32, reduce_dtype=torch.float32, output_dtype=precision.param_dtype
        )
        fully_shard(model.get_submodule(name), **{**common, "mp_policy": strict})
        notes.append(f"{name} computes in float32, as its model class asks")
    if settings.ignored_modules:
        whole = _replicating_mesh(mesh)
        for name in match_modules(model, settings.ignored_modules, "parallel.ignored_modules"):
            fully_shard(model.get_submodule(name), **{**common, "mesh": whole})
            notes.append(f"{name} is kept whole on every rank; its gradients are summed over all")
    for name in sorted(units, key=lambda n: -n.count(".")):
        module = model.get_submodule(name)
        if not isinstance(module, FSDPModule):
            fully_shard(module, **common)
    # The root gathers what no unit holds (norms, tied tables). It is needed again at once in the backward pass, so it
    # stays whole in between.
    fully_shard(model, **{**common, "reshard_after_forward": False})
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    _set_prefetch(model, units, settings.num_to_forward_prefetch, settings.num_to_backward_prefetch)
    return ShardingReport(tuple(units), tuple(notes))


def set_gradient_sync(model: nn.Module, enabled: bool) -> None:
    """Whether the next backward reduces gradients over ranks, or keeps adding up this rank's unsharded ones."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(enabled)


def default_units(model: PreTrainedModel, layers: Sequence[str]) -> list[str]:
    """Each block, the input embedding and the output head, in forward order."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    names = {name for name, module in model.named_modules() if any(module is end for end in ends if end is not None)}
    return [name for name, _ in model.named_modules() if name in names or name in set(layers)]


def _leave_shared_to_root(model: nn.Module, units: list[str]) -> tuple[list[str], list[str]]:
    """A parameter that two units would share must lie in one group: the root's."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    shared = [names for names in owners.values() if len(names) > 1]
    to_root: dict[str, None] = {}
    notes = []
    for names in shared:
        holders = [u for u in units if any(n.startswith(f"{u}.") for n in names)]
        split = [u for u in holders if not all(n.startswith(f"{u}.") for n in names)]
        if split:
            notes.append(f"{' and '.join(names)} are one tensor; the root shards it, not {' and '.join(split)}")
            to_root |= dict.fromkeys(split)
    return [u for u in units if u not in to_root], notes


def _strict_modules(model: PreTrainedModel, param_dtype: torch.dtype | None) -> list[str]:
    """Modules whose class keeps them in float32 whatever the run computes in (`_keep_in_fp32_modules*`)."""
    if param_dtype == torch.float32:
        return []
    words = {*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ())}
    return [
        name
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in words and next(module.parameters(), None) is not None
    ]


def _replicating_mesh(mesh: DeviceMesh) -> DeviceMesh:
    return init_device_mesh(mesh.device_type, (mesh.size(), 1), mesh_dim_names=("replicate", "whole"))


def _set_prefetch(model: nn.Module, units: Sequence[str], forward: int, backward: int) -> None:
    modules: list[FSDPModule] = [m for m in map(model.get_submodule, units) if isinstance(m, FSDPModule)]
    for i, module in enumerate(modules):
        if forward > 0:
            module.set_modules_to_forward_prefetch(modules[i + 1 : i + 1 + forward])
        if backward > 0:
            module.set_modules_to_backward_prefetch(modules[max(0, i - backward) : i][::-1])
