"""From a config to a finished run: checks, data, model, optimizer, resume, loop, export."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import disable_progress_bars as disable_datasets_bars
from torch.distributed.tensor import DTensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

import llmtrain
from llmtrain.checkpoint.export import export_hf
from llmtrain.checkpoint.store import CheckpointStore
from llmtrain.config import Config, Resolved
from llmtrain.data.build import build_datasets
from llmtrain.data.loader import Loader, Position
from llmtrain.data.recipe import row_layout
from llmtrain.data.streaming import StreamLoader
from llmtrain.data.tokenizer import load_tokenizer, pad_id
from llmtrain.errors import UserError
from llmtrain.models.build import build_skeleton, layer_names
from llmtrain.models.hf_config import read_hf_config
from llmtrain.models.initialise import initialise
from llmtrain.models.load import load_pretrained
from llmtrain.models.sizes import measure
from llmtrain.parallel.fsdp import DTYPES, ShardingReport, apply_fsdp, default_units
from llmtrain.parallel.patterns import match_modules
from llmtrain.parallel.recompute import apply_recompute
from llmtrain.runtime.mesh import Layout, build_mesh, plan_layout
from llmtrain.runtime.world import World, set_determinism
from llmtrain.training.batch import BatchPlan, plan_batch
from llmtrain.training.display import Display
from llmtrain.training.generation import generation_config, notice_of_ends
from llmtrain.training.header import header_rows
from llmtrain.training.loaders import evaluation_loaders, training_loader
from llmtrain.training.loop import Ending, Run, run_loop
from llmtrain.training.metrics import MetricsFile
from llmtrain.training.optimizer import build_optimizers
from llmtrain.training.outputs import Outputs
from llmtrain.training.plot import plot_loss
from llmtrain.training.schedule import plan_schedule
from llmtrain.training.state import FORMAT, Progress, allocate_parameters, compare_identity, load_tensors
from llmtrain.training.trackers import Trackers


@dataclass(frozen=True)
class Plan:
    """What follows from the config and the number of ranks alone."""

    layout: Layout
    batch: BatchPlan


def train(resolved: Resolved, world: World) -> Ending:
    """Runs the config to its end on the ranks of `world`.

    Raises:
        UserError: anything the user can mend; nothing of an earlier run has been overwritten then.
    """
    config = resolved.config
    started = time.perf_counter()
    _quiet(world)
    set_determinism(config.training.deterministic)
    layout = plan_layout(world.size, config.parallel.fsdp_size)
    plan = Plan(layout, plan_batch(config.training, layout.data_ranks))
    display = Display(world.is_main)
    for notice in resolved.notices:
        display.say(f"note: {notice}")
    assert config.training.output_dir is not None
    outputs = Outputs(Path(config.training.output_dir))
    store = CheckpointStore(outputs.checkpoints, world, config.training.save_total_limit or None)
    resume_from = _choose_checkpoint(config, outputs, store, display)

    tokenizer = load_tokenizer(config)
    hf_config = read_hf_config(config.model)
    _fit_vocabulary(hf_config, tokenizer, config)
    if (ends := notice_of_ends(config, hf_config, tokenizer)) is not None:
        display.say(f"note: {ends}")
    datasets = build_datasets(
        config,
        tokenizer,
        global_batch=plan.batch.total,
        main_first=lambda: world.main_first(per_node=not config.data.data_shared_file_system),
        is_main=world.is_main,
    )
    place: dict[str, Any] = {"rank": world.rank, "padding": pad_id(tokenizer)}
    loader = training_loader(config, datasets, plan.batch, pin_memory=world.device.type != "cpu", **place)
    eval_loaders = evaluation_loaders(config, datasets, plan.batch, **place)
    schedule = plan_schedule(config.training, _total_steps(config, loader, datasets.whole_run))
    identity = _identity(
        config, hf_config, plan, world.broadcast(datasets.train.fingerprint() if world.is_main else None)
    )
    state = store.read_state(resume_from) if resume_from else None
    if state is not None and resume_from is not None:
        compare_identity(state["identity"], identity, resume_from)

    template = _skeleton(config, hf_config)
    model = _skeleton(config, hf_config)
    sharding = _lay_out(config, model, layout, world)
    for notice in _fill(config, model, template, resuming=resume_from is not None, device=_home(config, world)):
        display.say(f"note: {notice}")
    optimizers = build_optimizers(model, config.training, world.device, DTYPES[config.parallel.param_dtype])
    progress = Progress(0, Position(0, 0))
    if state is not None and resume_from is not None:
        load_tensors(store, resume_from, model, optimizers)
        progress = Progress.from_dict(state["progress"])
        for line in _changes(state["config"], config.to_dict()):
            display.say(f"changed since the checkpoint: {line}")

    outputs.prepare(world, config)
    peak, peak_source = world.device.peak_flops(DTYPES[config.parallel.param_dtype])
    run = Run(
        config=config,
        world=world,
        model=model,
        size=measure(template),
        optimizers=optimizers,
        schedule=schedule,
        loader=loader,
        eval_loaders=eval_loaders,
        store=store,
        metrics=_open_metrics(outputs, world, progress.step if resume_from else None),
        trackers=_start_trackers(config, outputs, world),
        display=display,
        progress=progress,
        describe_state=lambda now: _state(config, identity, now, world),
        peak_flops=world.broadcast(peak),
    )
    display.header(
        f"llmtrain {llmtrain.__version__}",
        header_rows(run, plan.layout, plan.batch, sharding, datasets.summary, peak_source, resume_from),
    )
    try:
        ending = run_loop(run)
        exported = None
        if ending.reason is None and config.training.save_hf_weights:
            exported = outputs.hf
            generation = generation_config(config, hf_config, tokenizer, datasets.train)
            export_hf(exported, model, template, tokenizer, generation, _export_dtype(config, hf_config), world)
    finally:
        if world.is_main:
            plot_loss(run.metrics.rows, outputs.plot, config.training.run_name or outputs.folder.name)
        run.trackers.finish()
    _summarise(run, ending, outputs, exported, time.perf_counter() - started, _left_out(loader, world))
    return ending


def _quiet(world: World) -> None:
    """transformers' own progress bars would be shown by every rank at once, and bars fill a log file with garbage."""
    transformers_logging.disable_progress_bar()
    if not (world.is_main and sys.stderr.isatty()):
        disable_datasets_bars()
    if not world.is_main:
        transformers_logging.set_verbosity_error()


def _choose_checkpoint(config: Config, outputs: Outputs, store: CheckpointStore, display: Display) -> Path | None:
    wanted = config.training.resume_from_checkpoint
    if wanted is None:
        outputs.refuse_foreign_results(store)
        return None
    found, notices = store.resolve(wanted)
    for notice in notices:
        display.say(f"note: {notice}")
    if found is None:
        display.say(f"note: {outputs.checkpoints} holds no whole checkpoint yet; the run starts from its beginning.")
    return found


def _fit_vocabulary(hf_config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, config: Config) -> None:
    """A model built from a type takes its vocabulary and special tokens from the tokenizer, unless overridden.

    Raises:
        UserError: a token id beyond the embedding table.
    """
    needed = max(tokenizer.get_vocab().values()) + 1
    text = hf_config.get_text_config()
    if config.model.model_type is not None:
        overrides = config.model.config_overrides
        taken = {
            "vocab_size": needed,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        for name, value in taken.items():
            if name not in overrides:
                setattr(text, name, value)
    if text.vocab_size < needed:
        raise UserError(
            f"The tokenizer has ids up to {needed - 1}, but the model's embedding has {text.vocab_size} rows. Use the "
            f"tokenizer of this model (model.tokenizer_name_or_path), or for a model from scratch set "
            f"model.config_overrides.vocab_size: {needed}."
        )


def _total_steps(config: Config, loader: Loader | StreamLoader, whole_run: bool) -> int:
    """`max_steps` where it is set, else epochs, a broken one rounded up to whole steps."""
    if config.training.max_steps > 0:
        return config.training.max_steps
    assert isinstance(loader, Loader), "a stream has max_steps"
    if whole_run:
        return loader.steps_per_epoch
    exact = config.training.num_train_epochs * loader.steps_per_epoch
    return max(1, -int(-exact // 1))


def _skeleton(config: Config, hf_config: PreTrainedConfig) -> PreTrainedModel:
    return build_skeleton(
        hf_config,
        DTYPES[config.training.master_dtype],
        attn_implementation=config.model.attn_implementation,
        packed=row_layout(config).collation == "flat",
        trust_remote_code=config.model.trust_remote_code,
    )


def _lay_out(config: Config, model: PreTrainedModel, layout: Layout, world: World) -> ShardingReport:
    parallel = config.parallel
    layers = layer_names(model)
    if parallel.recompute:
        chosen = parallel.recompute_modules
        apply_recompute(model, match_modules(model, chosen, "parallel.recompute_modules") if chosen else layers)
    return apply_fsdp(model, build_mesh(layout, world.device.type), parallel, default_units(model, layers))


def _home(config: Config, world: World) -> torch.device:
    """Where parameters live between steps."""
    return torch.device("cpu") if config.parallel.cpu_offload else world.device.torch_device


def _fill(
    config: Config, model: PreTrainedModel, template: PreTrainedModel, *, resuming: bool, device: torch.device
) -> list[str]:
    """Gives the sharded model its values: none yet (a checkpoint follows), drawn, or loaded."""
    notices: list[str] = []
    if resuming:
        allocate_parameters(model, device)
    elif config.model.model_type is not None or config.model.train_from_scratch:
        initialise(model, template, config.training.seed, device)
    else:
        assert config.model.model_name_or_path is not None
        notices = load_pretrained(model, config.model.model_name_or_path, device)
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if local.is_meta:
            raise RuntimeError(f"{name} was given no memory.")
    return notices


def _identity(config: Config, hf_config: PreTrainedConfig, plan: Plan, data: str) -> dict[str, Any]:
    """What must be the same for a checkpoint to be continued: the loss curve is a function of these."""
    described = hf_config.to_dict()
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "tie_word_embeddings")
    return {
        "model": {"model_type": hf_config.model_type, **{k: described.get(k) for k in sizes}},
        "data": data,
        "training.stage": config.training.stage,
        "training.seed": config.training.seed,
        "training.optimizer": config.training.optimizer.replace("fused_", ""),
        "training.disable_shuffling": config.training.disable_shuffling,
        "training.dataloader_drop_last": config.training.dataloader_drop_last,
        "global batch size": plan.batch.total,
    }


def _state(config: Config, identity: dict[str, Any], progress: Progress, world: World) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "llmtrain": llmtrain.__version__,
        "torch": torch.__version__,
        "world_size": world.size,
        "only_model": config.training.save_only_model,
        "identity": identity,
        "progress": progress.to_dict(),
        "config": config.to_dict(),
    }


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Settings that differ from the checkpoint's; the run goes on under the new ones from here."""
    lines = []
    for section, fields in after.items():
        for field, value in fields.items():
            old = before.get(section, {}).get(field)
            if old != value and field not in ("resume_from_checkpoint", "output_dir"):
                lines.append(f"{section}.{field}: {old} -> {value}")
    return lines


def _open_metrics(outputs: Outputs, world: World, resumed_step: int | None) -> MetricsFile:
    """Rank 0's file; the others keep an empty one that they never write."""
    if world.is_main:
        return MetricsFile.start(outputs.metrics, resumed_step)
    return MetricsFile(outputs.metrics)


def _start_trackers(config: Config, outputs: Outputs, world: World) -> Trackers:
    names = config.training.report_to if world.is_main else []
    name = config.training.run_name or outputs.folder.name
    return Trackers.start(names, name, outputs.folder, config.to_dict(), world.device.type == "cpu")


def _export_dtype(config: Config, hf_config: PreTrainedConfig) -> torch.dtype:
    """As asked; else as the source's weights were; else as the run computes."""
    if config.training.hf_weights_dtype is not None:
        return DTYPES[config.training.hf_weights_dtype]
    source = getattr(hf_config, "dtype", None)
    if config.model.model_type is None and not config.model.train_from_scratch and isinstance(source, torch.dtype):
        return source
    return DTYPES[config.parallel.param_dtype]


def _left_out(loader: Loader | StreamLoader, world: World) -> str | None:
    """What a stream could not use since the run was started, of all ranks."""
    if not isinstance(loader, StreamLoader):
        return None
    kinds = [kind for tally in world.gather(loader.left_out) for kind in tally.rejected.values()]
    if not kinds:
        return None
    worst = max(kinds, key=lambda kind: kind.count)
    return f"{sum(kind.count for kind in kinds):,}, such as {worst.place}: {worst.reason}"


def _summarise(
    run: Run, ending: Ending, outputs: Outputs, exported: Path | None, seconds: float, left_out: str | None
) -> None:
    lines: list[tuple[str, str]] = [("steps", f"{ending.step} of {run.schedule.total}")]
    for name, key in (("training loss", "loss"), ("held-out loss", "eval_loss")):
        values = _first_and_last([r[key] for r in run.metrics.rows if key in r])
        if values:
            lines.append((name, values))
    lines.append(("tokens", f"{run.progress.tokens_total:,}"))
    if left_out:
        lines.append(("rows left out", left_out))
    if run.progress.skipped_steps:
        lines.append(("skipped steps", f"{run.progress.skipped_steps} (gradients not finite)"))
    lines.append(("metrics", str(outputs.metrics)))
    if outputs.plot.exists():
        lines.append(("loss plot", str(outputs.plot)))
    newest = run.store.steps()[-1:]
    if newest:
        lines.append(("checkpoint", str(run.store.path(newest[0]))))
    if exported is not None:
        lines.append(("exported model", str(exported)))
    title = f"Finished in {seconds:.0f} s"
    if ending.reason is not None:
        title = f"Stopped by {ending.reason} after {seconds:.0f} s; go on with training.resume_from_checkpoint: latest"
    run.display.header(title, lines)


def _first_and_last(values: Sequence[float]) -> str | None:
    if not values:
        return None
    return f"{values[0]:.4f} -> {values[-1]:.4f}" if len(values) > 1 else f"{values[0]:.4f}"
