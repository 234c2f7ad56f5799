"""The run's header: what is about to happen, in plain numbers, before it happens."""

from __future__ import annotations

from pathlib import Path

from torch.distributed.tensor import DTensor

from llmtrain.parallel.fsdp import ShardingReport
from llmtrain.runtime.device import GIB
from llmtrain.runtime.mesh import Layout
from llmtrain.training.batch import BatchPlan
from llmtrain.training.display import format_count
from llmtrain.training.loop import Run
from llmtrain.training.schedule import Schedule

# Bytes of optimizer state per parameter element, in units of the master dtype: two moments, one momentum, none.
_STATE_SLOTS = {"adamw": 2, "fused_adamw": 2, "muon": 1, "sgd": 0}


def header_rows(
    run: Run,
    layout: Layout,
    batch: BatchPlan,
    sharding: ShardingReport,
    data: list[tuple[str, str]],
    peak_source: str,
    resume_from: Path | None,
) -> list[tuple[str, str]]:
    """Rows of (what, value)."""
    config, size, device = run.config, run.size, run.world.device
    source = config.model.model_name_or_path or "from scratch"
    if config.model.train_from_scratch and config.model.model_name_or_path:
        source = f"from scratch, config of {source}"
    rows = [
        ("model", f"{type(run.model).__name__.removeprefix('FSDP')}, {format_count(size.total)} parameters "
                  f"({size.total:,}; {size.embedding:,} in the embedding), {source}"),
        ("device", f"{run.world.size} x {device.name}; "
                   f"peak {run.peak_flops / 1e12:.3g} TFLOP/s per rank ({peak_source})"),
        ("mesh", f"dp_replicate {layout.dp_replicate} x fsdp {layout.fsdp}; {len(sharding.units)} units and the root"),
        ("precision", f"master {config.training.master_dtype}, compute {config.parallel.param_dtype}, "
                      f"reduce {config.parallel.reduce_dtype}"),
        ("attention", str(run.model.config._attn_implementation)),
        ("memory", f"{_state_gib(run):.3f} GiB a rank for parameters, gradients and optimizer state; "
                   f"{device.total_memory_bytes() / GIB:.0f} GiB there"),
        ("batch", f"{batch}; {run.loader.steps_per_epoch} steps an epoch"),
        *data,
        ("steps", f"{run.schedule.total} ({run.schedule.total / run.loader.steps_per_epoch:.2f} epochs); "
                  f"{_describe_schedule(run.schedule)}"),
        *[("optimizer" if i == 0 else "", line) for i, line in enumerate(run.optimizers.describe())],
        *[("note", note) for note in sharding.notes],
        ("output", str(config.training.output_dir)),
    ]  # fmt: skip
    if resume_from is not None:
        rows.append(("resumed", f"{resume_from}, at step {run.progress.step}"))
    return rows


def _state_gib(run: Run) -> float:
    """This rank's parameters, gradients and optimizer state, by arithmetic over its shards."""
    slots = 2 + _STATE_SLOTS[run.config.training.optimizer] + bool(run.config.training.momentum)
    total = 0
    for parameter in run.model.parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        total += local.numel() * local.element_size() * slots
    return total / GIB


def _describe_schedule(schedule: Schedule) -> str:
    parts = [f"lr {schedule.lr:g}", schedule.kind]
    if schedule.kind != "constant":
        parts.append(f"to {schedule.min_lr:g}")
    parts.append(f"after {schedule.warmup} warm-up steps" if schedule.warmup else "without warm-up")
    if schedule.decay:
        parts.append(f"decaying over the last {schedule.decay}")
    return " ".join(parts)
