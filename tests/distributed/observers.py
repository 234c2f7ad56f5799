"""What a case can be watched for from inside; each rank writes OUTPUT/NAME-rankR.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from llmtrain.models import load
from llmtrain.parallel.gradients import local_part
from llmtrain.training import loop

Patches = list[Any]
OBSERVERS: dict[str, Callable[[], Patches]] = {}


def observer(make: Callable[[], Patches]) -> Callable[[], Patches]:
    OBSERVERS[make.__name__] = make
    return make


def _write(run: loop.Run, name: str, value: Any) -> None:
    assert run.config.training.output_dir is not None
    (Path(run.config.training.output_dir) / f"{name}-rank{run.world.rank}.json").write_text(json.dumps(value))


def _storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Memory behind the local parts; parts of one storage (gradients of one unit) count once."""
    storages = {local_part(t).untyped_storage().data_ptr(): local_part(t).untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in storages.values())


@observer
def sample_ids() -> Patches:
    """Ids of this rank's samples, step by step."""
    original, seen = loop._step, []

    def step(run: loop.Run, micro_batches: Any, *rest: Any) -> None:
        seen.append([number for batch in micro_batches for number in batch.sample_ids])
        original(run, micro_batches, *rest)
        _write(run, "sample_ids", seen)

    return [mock.patch.object(loop, "_step", step)]


@observer
def state_bytes() -> Patches:
    """Bytes of memory behind this rank's parameters, gradients and optimizer state, in the middle of step 2."""
    original = loop.clip_gradients

    def clip(parameters: Any, norm: Any, max_norm: float) -> None:
        original(parameters, norm, max_norm)
        sizes["parameters"] = _storage_bytes(parameters)
        sizes["gradients"] = _storage_bytes(p.grad for p in parameters)

    step, sizes = loop._step, {}

    def measured(run: loop.Run, *args: Any) -> None:
        with mock.patch.object(loop, "clip_gradients", clip):
            step(run, *args)
        tensors = [t for state in run.optimizers.state().values() for t in state.values() if t.ndim]
        sizes["optimizer"] = _storage_bytes(tensors)
        _write(run, "state_bytes", sizes)

    return [mock.patch.object(loop, "_step", measured)]


@observer
def collectives() -> Patches:
    """How often gradients were reduced over ranks in one step."""
    counts = {"reduce_scatter": 0}
    original, step = _fsdp_param_group.foreach_reduce, loop._step

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts["reduce_scatter"] += 1
        return original(*args, **kwargs)

    def measured(run: loop.Run, *args: Any) -> None:
        counts["reduce_scatter"] = 0
        with mock.patch.object(_fsdp_param_group, "foreach_reduce", counted):
            step(run, *args)
        _write(run, "collectives", counts)

    return [mock.patch.object(loop, "_step", measured)]


@observer
def elements_read() -> Patches:
    """How many elements of the weight files this rank has read."""
    original, step, read = load._open_slices, loop._step, []

    class Counted:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def __getitem__(self, index: Any) -> torch.Tensor:
            piece: torch.Tensor = self._inner[index]
            read.append(piece.numel())
            return piece

    def opened(*args: Any) -> dict[str, Any]:
        return {key: Counted(piece) for key, piece in original(*args).items()}

    def measured(run: loop.Run, *args: Any) -> None:
        step(run, *args)
        _write(run, "elements_read", sum(read))

    return [mock.patch.object(load, "_open_slices", opened), mock.patch.object(loop, "_step", measured)]
