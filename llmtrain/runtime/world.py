"""The ranks of a run: who they are, how they start and stop, and how their hosts talk about what is no tensor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from llmtrain.errors import UserError
from llmtrain.runtime.device import Device, detect_device

# Preprocessing a large corpus on one rank may take hours; the others wait on the host group, never on the device's.
HOST_TIMEOUT = timedelta(hours=48)


class PeerFailure(UserError):
    """Another rank failed and has said why; this one stops too, without saying it again."""


@dataclass(frozen=True)
class World:
    """Ranks, the device of this one, and a gloo group over all ranks for host-side agreement."""

    rank: int
    size: int
    local_rank: int
    device: Device
    host_group: dist.ProcessGroup

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        dist.barrier(group=self.host_group)

    def broadcast(self, value: Any) -> Any:
        """`value` of rank 0, on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.host_group)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in order, on every rank."""
        boxes: list[Any] = [None] * self.size
        dist.all_gather_object(boxes, value, group=self.host_group)
        return boxes

    def agree(self, error: UserError | None) -> None:
        """Raises on every rank if any rank brings an error: the first one, with its rank where there are several."""
        errors = self.gather(str(error) if error else None)
        for rank, message in enumerate(errors):
            if message is not None:
                where = f" (rank {rank})" if self.size > 1 else ""
                raise UserError(f"{message}{where}") from error

    @contextmanager
    def main_first(self, *, per_node: bool = False) -> Iterator[None]:
        """Runs the body on the main process (of each node) first, on the others once it is done.

        Raises:
            PeerFailure: on the waiting ranks, when a main process failed in the body.
        """
        leads = self.local_rank == 0 if per_node else self.rank == 0
        if not leads:
            self._raise_if_a_leader_failed(self.gather(None))
            yield
            return
        try:
            yield
        except BaseException as error:
            self.gather(f"{type(error).__name__}: {error}")
            raise
        self._raise_if_a_leader_failed(self.gather(None))

    @staticmethod
    def _raise_if_a_leader_failed(messages: list[str | None]) -> None:
        for message in messages:
            if message is not None:
                raise PeerFailure(message)


def open_world() -> World:
    """Joins the process group: the one torchrun describes, else a group of this process alone.

    Raises:
        UserError: a half-set torchrun environment, or a device that is not there.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = detect_device(local_rank)
    device.activate()
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        missing = [k for k in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if k not in os.environ]
        if missing:
            raise UserError(
                f"The environment describes a distributed run only in part: {', '.join(missing)} is not set. "
                f"Start with torchrun, or unset RANK and WORLD_SIZE for a run of one process."
            )
        dist.init_process_group(device.backend)
    else:
        dist.init_process_group(device.backend, store=dist.HashStore(), rank=0, world_size=1)
    host_group = dist.new_group(backend="gloo", timeout=HOST_TIMEOUT)
    assert host_group is not None
    return World(dist.get_rank(), dist.get_world_size(), local_rank, device, host_group)


def close_world() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def set_determinism(enabled: bool) -> None:
    """Asks torch for deterministic kernels. New memory is not filled: reading it would be an error of ours anyway."""
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(enabled)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
