"""What a checkpoint holds: tensors by name, and the rest of the run's state as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from llmtrain.checkpoint.store import CheckpointStore
from llmtrain.data.loader import Position
from llmtrain.errors import UserError
from llmtrain.models.build import set_parameter
from llmtrain.training.optimizer import Optimizers

FORMAT = 1


@dataclass
class Progress:
    """How far the run is. Random generators need no entry: each step seeds them from (seed, step, rank)."""

    step: int
    position: Position
    tokens_total: int = 0
    skipped_steps: int = 0

    def advance(self, position: Position, tokens: int) -> None:
        self.step += 1
        self.position = position
        self.tokens_total += tokens

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "position": self.position.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Progress:
        return cls(**{**values, "position": Position.from_dict(values["position"])})


def training_tensors(model: PreTrainedModel, optimizers: Optimizers | None) -> dict[str, torch.Tensor]:
    """Flat names: `model/NAME`, `optimizer/NAME/KEY`. Tied parameters stand once."""
    kept = set(model.state_dict())
    tensors = {f"model/{name}": p.detach() for name, p in model.named_parameters()}
    tensors |= {f"model/{name}": b for name, b in model.named_buffers() if name in kept}
    if optimizers is not None:
        for name, state in optimizers.state().items():
            tensors |= {f"optimizer/{name}/{key}": value for key, value in state.items()}
    return tensors


def load_tensors(store: CheckpointStore, folder: Path, model: PreTrainedModel, optimizers: Optimizers) -> None:
    """Loads model and optimizer, on any number of ranks.

    Room for the optimizer's state is made from the shapes in the checkpoint. A made-up first step would do that too,
    and would then count as a step.

    Raises:
        UserError: the checkpoint holds no optimizer state, or does not fit.
    """
    shapes = {k: s for k, s in store.read_shapes(folder).items() if k.startswith("optimizer/")}
    if not shapes and store.read_state(folder)["only_model"]:
        raise UserError(
            f"{folder} was saved with training.save_only_model: it holds no optimizer state and cannot be resumed. "
            f"Export it, and start a new run from the exported folder with model.model_name_or_path."
        )
    parameters = dict(model.named_parameters())
    state: dict[str, dict[str, torch.Tensor]] = {}
    for key, shape in shapes.items():
        name, _, leaf = key.removeprefix("optimizer/").rpartition("/")
        parameter = parameters.get(name)
        if parameter is None:
            raise UserError(f"{folder} holds optimizer state for {name}, which this model does not have.")
        state.setdefault(name, {})[leaf] = _room(parameter, shape)
    tensors = training_tensors(model, None)
    tensors |= {f"optimizer/{n}/{k}": t for n, entries in state.items() for k, t in entries.items()}
    store.load(folder, tensors)
    optimizers.set_state(state)


def _room(parameter: nn.Parameter, shape: torch.Size) -> torch.Tensor:
    if shape == parameter.shape:
        return torch.zeros_like(parameter.detach())
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return torch.zeros(shape, dtype=torch.float32, device=local.device)


def allocate_parameters(model: PreTrainedModel, device: torch.device) -> None:
    """Gives a sharded meta model memory without values, to be filled from a checkpoint."""
    for name, parameter in list(model.named_parameters()):
        set_parameter(model, name, torch.empty_like(parameter, device=device))
    model.tie_weights()


def compare_identity(stored: dict[str, Any], current: dict[str, Any], folder: Path) -> None:
    """Refuses to resume what would be another run under the old name.

    Raises:
        UserError: naming each difference with both values.
    """
    different = [
        f"{key} was {stored.get(key)!r} and is {value!r}" for key, value in current.items() if stored.get(key) != value
    ]
    if different:
        raise UserError(
            f"{folder} belongs to another run: {'; '.join(different)}. Positions in the data and the optimizer's state "
            f"would not fit. Restore these settings, or start anew in another training.output_dir."
        )
