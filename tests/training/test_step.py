"""Properties of a step that no loss curve shows: reads by the host, skipped steps, clipping, precision, seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from llmtrain.config import TrainingConfig
from llmtrain.errors import UserError
from llmtrain.parallel.gradients import clip_gradients, gradient_norm
from llmtrain.runtime.seeds import seed_step
from llmtrain.runtime.world import World
from llmtrain.training import loop, loss, train
from llmtrain.training.muon import orthogonalise
from llmtrain.training.optimizer import build_optimizers
from tests.distributed.launch import losses, metrics, norms, steady
from tests.tiny import tiny_config, write_jsonl

READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::masked_select", "aten::_unique2"}


class HostReads(TorchDispatchMode):
    """Counts operations whose result the host must wait for; `Tensor.tolist` does not show here: counted apart."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in READS:
            self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize(("every", "expected"), [(1, 12), (4, 3), (100, 1)])
def test_the_host_reads_the_device_once_a_logging_interval(
    run: Callable[..., Any], files: Path, optimizer: str, every: int, expected: int
) -> None:
    training = {"logging_steps": every, "optimizer": optimizer}
    assert reads_of_12_steps(run, files, training=training) == expected


@pytest.mark.parametrize("layout", [{"padding_free": True}, {"neat_packing": True}])
@pytest.mark.parametrize("attention", [None, "eager"])
def test_packed_rows_are_not_looked_at_by_the_host(
    run: Callable[..., Any], files: Path, layout: dict[str, bool], attention: str | None
) -> None:
    training, model = {"logging_steps": 100, "global_batch_size": 2}, {"attn_implementation": attention}
    assert reads_of_12_steps(run, files, training=training, data=layout, model=model) == 1


def reads_of_12_steps(run: Callable[..., Any], files: Path, training: dict[str, Any], **sections: Any) -> int:
    reads = HostReads()
    tolist = torch.Tensor.tolist

    def counted(self: torch.Tensor) -> Any:
        reads.count += 1
        return tolist(self)

    original = loop._step

    def step(*args: Any) -> None:
        with reads, mock.patch.object(torch.Tensor, "tolist", counted):
            original(*args)

    log = loop._log

    def logged(*args: Any) -> None:
        with reads, mock.patch.object(torch.Tensor, "tolist", counted):
            log(*args)

    with mock.patch.object(loop, "_step", step), mock.patch.object(loop, "_log", logged):
        run(tiny_config(files, "out", training={"max_steps": 12, **training}, **sections))
    return reads.count


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(
    run: Callable[..., Any], files: Path, optimizer: str
) -> None:
    """Steps 3 and 4 are poisoned; at rate 0 elsewhere the weights show whether they were applied."""
    weights: dict[int, dict[str, torch.Tensor]] = {}
    original = loop._step

    def step(run_: loop.Run, *args: Any) -> None:
        number = run_.progress.step + 1
        weights[number - 1] = {n: p.full_tensor().detach().clone() for n, p in run_.model.named_parameters()}
        poison = (lambda logits, targets: logits.sum() * math.inf) if number in (3, 4) else loop_loss
        with mock.patch.object(loss, "summed_loss", poison):
            original(run_, *args)

    loop_loss = loss.summed_loss
    with mock.patch.object(loop, "_step", step):
        run(tiny_config(files, "out", training={"max_steps": 6, "optimizer": optimizer, "momentum": 0.9}))
    same = {n: all(torch.equal(weights[n][k], weights[n + 1][k]) for k in weights[n]) for n in range(5)}
    assert same == {0: False, 1: False, 2: True, 3: True, 4: False}
    assert [row["skipped_steps"] for row in metrics(files / "out")] == [0, 0, 1, 2, 2, 2]
    assert all(torch.isfinite(v).all() for v in weights[5].values())


def test_too_many_bad_steps_in_a_row_stop_the_run(run: Callable[..., Any], files: Path) -> None:
    refusal = pytest.raises(UserError, match="3 steps in a row up to step 3 had gradients that are not finite")
    with mock.patch.object(loss, "summed_loss", lambda logits, targets: logits.sum() * math.nan), refusal:
        run(tiny_config(files, "out", training={"max_skipped_steps": 3}))
    rows = metrics(files / "out")
    assert [row["skipped_steps"] for row in rows] == [1, 2, 3]
    assert all(math.isnan(row["loss"]) and math.isnan(row["grad_norm"]) for row in rows)


@pytest.mark.parametrize(
    ("rows", "micro", "tokens"), [(5, 1, [4, 4, 2]), (5, 2, [4, 4, 2]), (3, 1, [4, 2]), (1, 2, [2])]
)
def test_a_broken_last_batch_is_a_mean_over_its_own_tokens(
    run: Callable[..., Any], files: Path, rows: int, micro: int, tokens: list[int]
) -> None:
    """Equal rows (one word and the end token are learned) in batches of two: each update has the same loss and norm.

    The next epoch begins with a batch of its own.
    """
    messages = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3"}]
    data = write_jsonl(files / "equal.jsonl", [{"messages": messages}] * rows)
    settings = {"global_batch_size": 2, "per_device_train_batch_size": micro, "lr": 0.0, "min_lr": 0.0}
    settings |= {"max_steps": -1, "num_train_epochs": 3}
    run(tiny_config(files, "out", data={"dataset": str(data)}, training=settings))
    assert [row["supervised_tokens"] for row in metrics(files / "out")] == tokens * 3
    assert losses(files / "out") == pytest.approx(losses(files / "out")[:1] * len(tokens) * 3, rel=1e-6)
    assert norms(files / "out") == pytest.approx(norms(files / "out")[:1] * len(tokens) * 3, rel=1e-5)


def test_clipping_a_matrix_of_ones() -> None:
    """64 gradients of 2: norm sqrt(64 * 4) = 16; clipped to 1 and stepped at rate 1: 1 - 2 / 16."""
    linear = torch.nn.Linear(8, 8, bias=False)
    torch.nn.init.ones_(linear.weight)
    linear(torch.ones(2, 8)).sum().backward()
    norm = gradient_norm(linear.parameters(), torch.device("cpu"))
    clip_gradients(linear.parameters(), norm, 1.0)
    assert norm.item() == 16.0
    assert torch.equal(linear.weight - linear.weight.grad, torch.full((8, 8), 0.875))


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_a_zeroed_head_gives_the_logarithm_of_the_vocabulary(
    run: Callable[..., Any], files: Path, accumulation: int
) -> None:
    """Whatever the accumulation, the logging interval and the lengths; held-out loss on the same footing."""

    def zero_head(model: Any, *args: Any, **kwargs: Any) -> Any:
        fill(model, *args, **kwargs)
        with torch.no_grad():
            model.lm_head.weight.zero_()

    fill = train.initialise
    settings = {"max_steps": 6, "lr": 0.0, "min_lr": 0.0, "eval_steps": 3, "logging_steps": 3, "global_batch_size": 8}
    with mock.patch.object(train, "initialise", zero_head):
        run(
            tiny_config(
                files,
                "out",
                data={"val_size": 5},
                training={**settings, "per_device_train_batch_size": 8 // accumulation},
            )
        )
    assert losses(files / "out") == pytest.approx([math.log(128)] * 2, rel=1e-6)
    held_out = [row["eval_loss"] for row in metrics(files / "out") if "eval_loss" in row]
    assert held_out == pytest.approx([math.log(128)] * 3, rel=1e-6)


@pytest.mark.parametrize("eval_batch", [1, 2, 5, 8])
def test_held_out_loss_does_not_know_the_batch_size(run: Callable[..., Any], files: Path, eval_batch: int) -> None:
    settings = {"max_steps": 1, "lr": 0.0, "min_lr": 0.0, "per_device_eval_batch_size": eval_batch}
    run(tiny_config(files, "out", data={"val_size": 5}, training=settings))
    run(tiny_config(files, "ref", data={"val_size": 5}, training={**settings, "per_device_eval_batch_size": 3}))
    (ours,) = [r["eval_loss"] for r in metrics(files / "out") if "eval_loss" in r]
    (other,) = [r["eval_loss"] for r in metrics(files / "ref") if "eval_loss" in r]
    assert ours == pytest.approx(other, rel=1e-6)


def test_norms_and_biases_are_not_decayed(run: Callable[..., Any], files: Path) -> None:
    """With a zeroed head every gradient below it is 0 at step 1: what moves there was moved by decay alone."""
    before: dict[str, torch.Tensor] = {}
    after: dict[str, torch.Tensor] = {}

    def zero_head(model: Any, *args: Any, **kwargs: Any) -> Any:
        fill(model, *args, **kwargs)
        with torch.no_grad():
            model.lm_head.weight.zero_()
        before.update({n: p.full_tensor().clone() for n, p in model.named_parameters()})

    def step(run_: loop.Run, *args: Any) -> None:
        original(run_, *args)
        after.update({n: p.full_tensor().detach().clone() for n, p in run_.model.named_parameters()})

    fill, original = train.initialise, loop._step
    config = tiny_config(files, "out", training={"max_steps": 1, "lr": 0.1, "weight_decay": 0.5})
    config["model"]["config_overrides"]["attention_bias"] = True
    with mock.patch.object(train, "initialise", zero_head), mock.patch.object(loop, "_step", step):
        run(config)
    for name, value in before.items():
        if name != "lm_head.weight":
            factor = 1.0 if value.ndim == 1 else 1 - 0.1 * 0.5
            assert torch.allclose(after[name], value * factor, rtol=1e-6, atol=0), name


def test_the_first_adamw_update_is_as_large_as_the_rate(run: Callable[..., Any], files: Path) -> None:
    """The first update is lr * g / (|g| + eps): a made-up earlier step would make it 0.73 lr."""
    moved: list[float] = []
    original = loop._step

    def step(run_: loop.Run, *args: Any) -> None:
        before = run_.model.lm_head.weight.full_tensor().clone()
        original(run_, *args)
        moved.append((run_.model.lm_head.weight.full_tensor() - before).abs().max().item())

    settings = {"max_steps": 1, "lr": 0.01, "weight_decay": 0.0, "resume_from_checkpoint": "latest"}
    with mock.patch.object(loop, "_step", step):
        run(tiny_config(files, "out", training=settings))
    assert moved == pytest.approx([0.01], rel=1e-4)


def test_master_weights_and_state_are_float32_under_bf16_compute(run: Callable[..., Any], files: Path) -> None:
    seen: dict[str, Any] = {}
    original = loop._step

    def step(run_: loop.Run, *args: Any) -> None:
        projection = run_.model.model.layers[0].mlp.up_proj
        hook = projection.register_forward_hook(lambda m, i, o: seen.update(forward=m.weight.dtype, output=o.dtype))
        original(run_, *args)
        hook.remove()
        seen["parameters"] = {p.dtype for p in run_.model.parameters()}
        seen["state"] = {v.dtype for s in run_.optimizers.state().values() for v in s.values()}
        seen["buffers"] = {b.dtype for b in run_.model.buffers()}

    with mock.patch.object(loop, "_step", step):
        run(tiny_config(files, "out", parallel={"param_dtype": "bf16"}, training={"max_steps": 1}))
    bf16, fp32 = torch.bfloat16, torch.float32
    assert seen == {"forward": bf16, "output": bf16, "parameters": {fp32}, "state": {fp32}, "buffers": {fp32}}


def test_dropout_draws_by_seed_step_and_rank() -> None:
    def draw(seed: int, step: int, rank: int) -> list[float]:
        seed_step(seed, step, rank)
        return torch.rand(4).numpy().tolist()

    assert draw(1, 1, 0) == draw(1, 1, 0)
    assert len({tuple(draw(*key)) for key in [(1, 1, 0), (2, 1, 0), (1, 2, 0), (1, 1, 1)]}) == 4


def test_a_resume_draws_the_dropout_that_the_straight_run_drew(run: Callable[..., Any], files: Path) -> None:
    config = {"model": {"config_overrides": {"attention_dropout": 0.5}}}
    settings = {"save_steps": 3, "resume_from_checkpoint": "latest", "lr": 0.001}
    run(tiny_config(files, "straight", **config, training={**settings, "max_steps": 6}))
    for steps in (3, 6):
        run(tiny_config(files, "broken", **config, training={**settings, "max_steps": steps}))
    assert steady(files / "broken") == steady(files / "straight")
    run(tiny_config(files, "without", training={**settings, "max_steps": 6}))
    assert losses(files / "without")[0] != losses(files / "straight")[0]


@pytest.mark.parametrize(("dtype", "reached"), [(torch.float32, 0.94), (torch.bfloat16, 1.0)])
def test_small_updates_add_up_only_in_float32(world: World, dtype: torch.dtype, reached: float) -> None:
    """100 AdamW updates of 6e-4 under a constant gradient: 1 - 0.06; next to 1, bfloat16 has steps of 1/256."""
    model: Any = torch.nn.Linear(1, 1, bias=False, dtype=dtype)
    torch.nn.init.ones_(model.weight)
    settings = TrainingConfig(lr=6e-4, weight_decay=0.0)
    optimizers = build_optimizers(model, settings, world.device, dtype)
    for _ in range(100):
        model.weight.grad = torch.ones_like(model.weight)
        optimizers.step(6e-4, torch.tensor(True))
    assert model.weight.item() == pytest.approx(reached, abs=1e-4)


def test_muon_orthogonalises() -> None:
    """Five Newton-Schulz steps of the published quintic bring every singular value into about [0.7, 1.2]."""
    matrix = torch.randn(24, 40, generator=torch.Generator().manual_seed(0))
    for shape in (matrix, matrix.mT):
        values = torch.linalg.svdvals(orthogonalise(shape, 5, torch.float32))
        assert 0.6 < values.min() < values.max() < 1.3


def test_metrics_lines_hold_the_promised_fields(run: Callable[..., Any], files: Path) -> None:
    run(tiny_config(files, "out", training={"max_steps": 2, "log_cpu_memory": True}))
    promised = {"step", "epoch", "loss", "grad_norm", "lr", "tokens", "tokens_total", "tokens_per_second", "mfu"}
    promised |= {"tokens_per_second_per_rank", "step_seconds", "data_seconds", "peak_memory_gib", "skipped_steps"}
    promised |= {"cpu_memory_gib"}
    rows = metrics(files / "out")
    assert promised <= set(rows[0])
    assert rows[1]["tokens_total"] == rows[0]["tokens"] + rows[1]["tokens"]
    assert norms(files / "out") == [row["grad_norm"] for row in rows]
    chats = [json.loads(line) for line in (files / "chats.jsonl").read_text().splitlines()]
    assert len(chats) == 48
