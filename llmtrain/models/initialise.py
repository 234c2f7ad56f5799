"""First weights that do not know the mesh: the model's own initialisation, drawn per module, then cut into shards."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.initialization import guard_torch_init_functions

from llmtrain.models.build import layer_names, set_parameter
from llmtrain.runtime.seeds import derive_seed


@torch.no_grad()
def initialise(model: PreTrainedModel, template: PreTrainedModel, seed: int, device: torch.device) -> None:
    """Fills the sharded `model` with initial weights; `template` is an unsharded skeleton of the same config.

    Each module draws from a generator of its own, seeded by (seed, the module's full name), in the model class's own
    `_init_weights`, on the CPU in float32. One block of the template is real at a time, so that the most a rank holds
    beyond its shards is one whole block.

    Raises:
        RuntimeError: the model class leaves a parameter without a value.
    """
    parameters = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    with torch.random.fork_rng(devices=[]), guard_torch_init_functions():
        for prefix, unit in _units(template):
            _make_real(unit)
            _run_own_initialisation(template, prefix, unit, seed)
            for name, value in unit.named_parameters(prefix):
                if name in parameters:
                    if value.isnan().any():
                        raise RuntimeError(f"{type(template).__name__}._init_weights leaves {name} without a value.")
                    set_parameter(model, name, _shard(value, parameters[name], device))
            for name, buffer in unit.named_buffers(prefix):
                buffers[name].copy_(buffer)
            unit.to("meta")
    for one in (model, template):
        one.tie_weights()


def shard_like(full: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's part of `full`, cut as `like` is; every rank has the whole, so nothing is sent."""
    if isinstance(like, DTensor):
        return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)
    return full


def _shard(full: torch.Tensor, like: torch.Tensor, device: torch.device) -> torch.Tensor:
    whole = full.to(dtype=like.dtype)
    if isinstance(like, DTensor):
        # distribute_tensor moves to the mesh's device; with CPU offload the shard belongs on the CPU again.
        return shard_like(whole, like).to(device)
    return whole.to(device)


def _units(template: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """Blocks, and outside of them the smallest modules that hold parameters or buffers; each tensor in one unit."""
    blocks = set(layer_names(template))

    def walk(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        holds_tensors = next(module.parameters(recurse=False), None) is not None or (
            next(module.buffers(recurse=False), None) is not None
        )
        if name in blocks or holds_tensors:
            yield name, module
            return
        for child_name, child in module.named_children():
            yield from walk(f"{name}.{child_name}" if name else child_name, child)

    yield from walk("", template)


def _make_real(unit: nn.Module) -> None:
    """Gives the unit's parameters float32 memory, filled with NaN so that a value nobody writes is found."""
    for module in unit.modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            value = torch.full(parameter.shape, float("nan"), dtype=torch.float32)
            setattr(module, leaf, nn.Parameter(value, requires_grad=parameter.requires_grad))


def _run_own_initialisation(template: PreTrainedModel, prefix: str, unit: nn.Module, seed: int) -> None:
    """transformers' order: children before parents, each with the nearest enclosing model's `_init_weights`."""

    def visit(name: str, module: nn.Module, owner: PreTrainedModel) -> None:
        owner = module if isinstance(module, PreTrainedModel) else owner
        for child_name, child in module.named_children():
            visit(f"{name}.{child_name}", child, owner)
        torch.manual_seed(derive_seed("initialise", seed, name))
        owner._init_weights(module)

    visit(prefix, unit, _enclosing_model(template, prefix))


def _enclosing_model(template: PreTrainedModel, name: str) -> PreTrainedModel:
    owner: nn.Module = template
    module: nn.Module = template
    for part in name.split(".")[:-1] if name else []:
        module = getattr(module, part)
        owner = module if isinstance(module, PreTrainedModel) else owner
    assert isinstance(owner, PreTrainedModel)
    return owner
