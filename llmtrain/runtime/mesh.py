"""The dense view of the ranks: `dp_replicate x fsdp`."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from llmtrain.errors import UserError


@dataclass(frozen=True)
class Layout:
    """Sizes of the mesh dimensions; ranks that are neighbours share shards, groups of `fsdp` are replicas."""

    dp_replicate: int
    fsdp: int

    @property
    def data_ranks(self) -> int:
        """How many ranks read different data."""
        return self.dp_replicate * self.fsdp


def plan_layout(world_size: int, fsdp_size: int | None) -> Layout:
    """Derives the replicas from the world and `parallel.fsdp_size` (None: shard over all ranks).

    Raises:
        UserError: `fsdp_size` does not divide the world.
    """
    fsdp = world_size if fsdp_size is None else fsdp_size
    if world_size % fsdp:
        fitting = [str(d) for d in range(1, world_size + 1) if world_size % d == 0]
        raise UserError(
            f"parallel.fsdp_size is {fsdp}, but the run has {world_size} rank{'s' if world_size > 1 else ''}: "
            f"it must divide them. Use one of {', '.join(fitting)}, or start another number of processes."
        )
    return Layout(dp_replicate=world_size // fsdp, fsdp=fsdp)


def build_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """A 2-D mesh (HSDP) where there are replicas, else a 1-D one: FSDP2 reads the form off the dimensions."""
    if layout.dp_replicate > 1:
        return init_device_mesh(
            device_type, (layout.dp_replicate, layout.fsdp), mesh_dim_names=("dp_replicate", "fsdp")
        )
    return init_device_mesh(device_type, (layout.fsdp,), mesh_dim_names=("fsdp",))
