"""The one training loop: micro-batches, loss, backward, norm, clip, step, schedule, metrics, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from llmtrain.checkpoint.store import CheckpointStore
from llmtrain.config import Config
from llmtrain.data.loader import Loader
from llmtrain.data.sample import MicroBatch
from llmtrain.data.streaming import StreamLoader
from llmtrain.errors import UserError
from llmtrain.models.sizes import ModelSize
from llmtrain.parallel.fsdp import set_gradient_sync
from llmtrain.parallel.gradients import clip_gradients, gradient_norm
from llmtrain.runtime.device import GIB
from llmtrain.runtime.seeds import seed_step
from llmtrain.runtime.world import World
from llmtrain.training.display import Display
from llmtrain.training.evaluate import evaluate
from llmtrain.training.loss import batch_loss
from llmtrain.training.metrics import Counts, IntervalMeter, MetricsFile, Reading, max_over_ranks, sum_over_ranks
from llmtrain.training.optimizer import Optimizers
from llmtrain.training.schedule import Schedule
from llmtrain.training.state import Progress, training_tensors
from llmtrain.training.stopping import StopRequest
from llmtrain.training.trackers import Trackers


@dataclass
class Run:
    """Everything a run is made of, built in `train.py`."""

    config: Config
    world: World
    model: PreTrainedModel
    size: ModelSize
    optimizers: Optimizers
    schedule: Schedule
    loader: Loader | StreamLoader
    eval_loaders: dict[str, Loader]
    store: CheckpointStore
    metrics: MetricsFile
    trackers: Trackers
    display: Display
    progress: Progress
    describe_state: Callable[[Progress], dict[str, Any]]
    peak_flops: float


@dataclass(frozen=True)
class Ending:
    """How the loop ended: `reason` is set when a signal ended it before the last step."""

    step: int
    reason: str | None
    checkpoint: Path | None


def run_loop(run: Run) -> Ending:
    """Trains from `run.progress` to the schedule's last update, or until a signal.

    Raises:
        UserError: a checkpoint cannot be written, or too many steps in a row had non-finite gradients.
    """
    config, total = run.config.training, run.schedule.total
    meter = IntervalMeter(run.world.device.torch_device)
    checkpoint: Path | None = None
    run.model.train()
    run.display.start(run.progress.step, total)
    try:
        with StopRequest() as stop:
            if run.eval_loaders and config.eval_steps and run.progress.step == 0:
                _evaluate(run, meter)
            batches = run.loader.batches(run.progress.position)
            while run.progress.step < total:
                start = time.perf_counter()
                position, micro_batches = next(batches)
                meter.data_seconds += time.perf_counter() - start
                counts, asked_to_stop = _count(run.world, micro_batches, stop)
                if asked_to_stop:
                    if checkpoint is None or checkpoint != run.store.path(run.progress.step):
                        checkpoint = _save(run, meter)
                    return Ending(run.progress.step, stop.reason or "a signal to another rank", checkpoint)
                _step(run, micro_batches, counts, meter)
                run.progress.advance(position, counts.tokens)
                if run.progress.step % config.logging_steps == 0 or run.progress.step == total:
                    _log(run, meter)
                if run.eval_loaders and _is_due(run.progress.step, config.eval_steps, total):
                    _evaluate(run, meter)
                if _save_is_due(run):
                    checkpoint = _save(run, meter)
        return Ending(run.progress.step, None, checkpoint)
    finally:
        run.display.finish()


def _count(world: World, micro_batches: list[MicroBatch], stop: StopRequest) -> tuple[Counts, bool]:
    """Tokens of the global batch, and whether any rank was signalled, in one host-side sum."""
    supervised, tokens, squared, signalled = sum_over_ranks(
        world,
        [
            sum(b.supervised for b in micro_batches),
            sum(b.tokens for b in micro_batches),
            sum(b.squared_lengths for b in micro_batches),
            int(stop.reason is not None),
        ],
    )
    return Counts(supervised, tokens, squared), signalled > 0


def _step(run: Run, micro_batches: list[MicroBatch], counts: Counts, meter: IntervalMeter) -> None:
    """One optimizer update. Nothing here waits for the device."""
    parallel, training, device = run.config.parallel, run.config.training, run.world.device.torch_device
    update = run.progress.step + 1
    seed_step(training.seed, update, run.world.rank)
    loss_sum = torch.zeros((), device=device)
    for number, batch in enumerate(micro_batches):
        last = number + 1 == len(micro_batches)
        set_gradient_sync(run.model, last or not parallel.defer_gradient_sync)
        batch = batch.to(device)
        loss = batch_loss(run.model, batch)
        # By the tokens of the global batch: gradients are then summed over micro-batches and ranks, never averaged.
        (loss / max(1, counts.supervised)).backward()
        loss_sum += loss.detach()
    parameters = list(run.optimizers.names)
    norm = gradient_norm(parameters, device)
    finite = torch.isfinite(norm)
    if training.max_grad_norm > 0:
        clip_gradients(parameters, norm, training.max_grad_norm)
    run.optimizers.step(run.schedule.at(update), finite)
    run.optimizers.zero_grad()
    meter.add(loss_sum, norm, finite, counts)


def _log(run: Run, meter: IntervalMeter) -> None:
    reading = meter.read()
    row = _metrics_row(run, meter, reading)
    run.progress.skipped_steps = row["skipped_steps"]
    remaining = (run.schedule.total - run.progress.step) * row["step_seconds"]
    run.display.step(row, run.schedule.total, remaining)
    _record(run, row)
    meter.reset()
    limit = run.config.training.max_skipped_steps
    if reading.longest_skip >= limit:
        newest = run.store.steps()
        kept = f"The newest checkpoint is {run.store.path(newest[-1])}." if newest else "No checkpoint was written yet."
        raise UserError(
            f"{reading.longest_skip} steps in a row up to step {run.progress.step} had gradients that are not finite; "
            f"none of them was applied. The run stops (training.max_skipped_steps: {limit}). {kept} "
            f"Lower training.lr, lengthen the warm-up, or look at the data around these steps."
        )


def _metrics_row(run: Run, meter: IntervalMeter, reading: Reading) -> dict[str, Any]:
    seconds, world, counts = meter.seconds(), run.world, meter.counts
    rate = counts.tokens / seconds
    flops = run.size.flops(counts.tokens, counts.squared_lengths)
    row: dict[str, Any] = {
        "step": run.progress.step,
        "epoch": round(run.loader.epoch(run.progress.position), 6),
        "loss": reading.loss,
        "grad_norm": reading.grad_norm,
        "lr": run.schedule.at(run.progress.step),
        "tokens": counts.tokens,
        "supervised_tokens": counts.supervised,
        "tokens_total": run.progress.tokens_total,
        "tokens_per_second": rate,
        "tokens_per_second_per_rank": rate / world.size,
        "mfu": flops / seconds / (run.peak_flops * world.size),
        "step_seconds": seconds / meter.steps,
        "data_seconds": meter.data_seconds / meter.steps,
        "peak_memory_gib": max_over_ranks(world, world.device.peak_memory_bytes() / GIB),
        "skipped_steps": run.progress.skipped_steps + reading.skipped,
    }
    if run.config.training.log_cpu_memory:
        row["cpu_memory_gib"] = max_over_ranks(world, world.device.host_memory_bytes() / GIB)
    return row


def _evaluate(run: Run, meter: IntervalMeter) -> None:
    result = evaluate(run.model, run.eval_loaders, run.world)
    meter.paused_seconds += result["eval_seconds"]
    position = round(run.loader.epoch(run.progress.position), 6)
    _record(run, {"step": run.progress.step, "epoch": position, **result})
    run.display.say(
        f"step {run.progress.step}  held-out loss {result['eval_loss']:.4f}  "
        f"perplexity {result['eval_perplexity']:,.2f}  ({result['eval_tokens']:,} tokens)"
    )
    for name in run.eval_loaders:
        if name:
            run.display.say(f"    {name}  {result[f'eval_loss_{name}']:.4f}")


def _save(run: Run, meter: IntervalMeter) -> Path:
    start = time.perf_counter()
    run.progress.position = run.loader.whole_position(run.progress.position, run.world.gather)
    tensors = training_tensors(run.model, None if run.config.training.save_only_model else run.optimizers)
    path = run.store.save(run.progress.step, tensors, run.describe_state(run.progress))
    meter.paused_seconds += time.perf_counter() - start
    return path


def _save_is_due(run: Run) -> bool:
    """Every `save_steps`, at the end of every `save_epochs`-th epoch, and at the end unless both are off."""
    training, step, position = run.config.training, run.progress.step, run.progress.position
    if not training.save_steps and not training.save_epochs:
        return False
    if _is_due(step, training.save_steps, run.schedule.total):
        return True
    return bool(training.save_epochs) and position.batch == 0 and position.epoch % training.save_epochs == 0


def _is_due(step: int, every: int, total: int) -> bool:
    return step == total or (every > 0 and step % every == 0)


def _record(run: Run, row: dict[str, Any]) -> None:
    if run.world.is_main:
        run.metrics.append(row)
        run.trackers.log(row)
