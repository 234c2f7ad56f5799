"""The run's header: what is about to happen, in plain numbers, before it happens."""

from __future__ import annotations

from pathlib import Path

from llmtrain.data.streaming import StreamLoader
from llmtrain.parallel.fsdp import ShardingReport
from llmtrain.parallel.gradients import local_part
from llmtrain.runtime.device import GIB
from llmtrain.runtime.mesh import Layout
from llmtrain.training.batch import BatchPlan
from llmtrain.training.display import format_count
from llmtrain.training.loop import Run
from llmtrain.training.schedule import Schedule


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
        ("batch", f"{batch}; {run.loader.describe()}"),
        *data,
        ("steps", f"{run.schedule.total}{_epochs(run)}; {_describe_schedule(run.schedule)}"),
        *[("optimizer" if i == 0 else "", line) for i, line in enumerate(run.optimizers.describe())],
        *[("note", note) for note in sharding.notes],
        ("output", str(config.training.output_dir)),
    ]  # fmt: skip
    if resume_from is not None:
        rows.append(("resumed", f"{resume_from}, at step {run.progress.step}"))
    return rows


def _epochs(run: Run) -> str:
    if isinstance(run.loader, StreamLoader):
        return ""
    return f" ({run.schedule.total / run.loader.steps_per_epoch:.2f} epochs)"


def _state_gib(run: Run) -> float:
    """This rank's parameters, gradients and optimizer state, by arithmetic over its shards."""
    state = {"AdamW": 2, "Muon": 1, "SGD": int(run.config.training.momentum > 0)}
    total = 0
    for part in run.optimizers.parts:
        for parameter in (p for group in part.param_groups for p in group["params"]):
            total += local_part(parameter).nbytes * (2 + state[type(part).__name__])
    return total / GIB


def _describe_schedule(schedule: Schedule) -> str:
    parts = [f"lr {schedule.lr:g}", schedule.kind]
    if schedule.kind != "constant":
        parts.append(f"to {schedule.min_lr:g}")
    parts.append(f"after {schedule.warmup} warm-up steps" if schedule.warmup else "without warm-up")
    if schedule.decay:
        parts.append(f"decaying over the last {schedule.decay}")
    return " ".join(parts)
