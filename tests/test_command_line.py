"""What a person gets for input that cannot work: one clear error, an exit code that is not 0, nothing overwritten.

Most cases run `llmtrain train` in this process; starting, stopping and resuming run the real commands.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmtrain import cli
from llmtrain.runtime import world as world_module
from llmtrain.runtime.world import World
from tests.distributed.launch import REPOSITORY, environment, losses, start
from tests.tiny import make_tokenizer, tiny_config, write_jsonl

Sections = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Said:
    """What a command left: exit code and both outputs."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def command(world: World, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`llmtrain train CONFIG WORDS...` over the tiny config with `sections` laid over it."""
    monkeypatch.setattr(world_module, "open_world", lambda: world)
    monkeypatch.setattr(world_module, "close_world", lambda: None)

    def run(*words: str, sections: Sections | None = None) -> Said:
        path = files / "config.yaml"
        path.write_text(yaml.safe_dump(tiny_config(files, "out", **(sections or {}))))
        code = cli.main(["train", str(path), *words])
        return Said(code, *capsys.readouterr())

    return run


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def expect_refusal(said: Said, *parts: str) -> None:
    """One paragraph on stderr that holds all `parts`, and no stack trace."""
    assert said.code == 1
    message = said.err[said.err.index("error: ") :]
    assert "Traceback" not in said.out + said.err
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--training.leraning_rate", "1"], ["training.leraning_rate", "training.lr"]),
        (["--trainig.lr", "1"], ["trainig", "training"]),
        (["--training.max_steps", "many"], ["training.max_steps", "many"]),
        (
            ["--training.lr", "fast", "--parallel.fsdp_sise", "2"],
            ["training.lr", "fast", "parallel.fsdp_sise", "parallel.fsdp_size"],
        ),
        (
            ["--training.global_batch_size", "7"],
            ["training.global_batch_size is 7", "multiple of training.per_device_train_batch_size, which is 2"],
        ),
        (
            ["--training.gradient_accumulation_steps", "3"],
            ["global_batch_size is 8", "gradient_accumulation_steps, which is 6"],
        ),
        (["--parallel.fsdp_size", "3"], ["parallel.fsdp_size is 3", "1 rank", "Use one of 1"]),
        (["--data.dataset", "nowhere.jsonl"], ["nowhere.jsonl"]),
        (["--model.tokenizer_name_or_path", "nowhere"], ["nowhere"]),
        (["--training.resume_from_checkpoint", "nowhere"], ["nowhere"]),
        (["--parallel.fsdp_modules", "layers.{*}"], ["layers.{*}", "model.layers.{*}"]),
        (
            ["--training.warmup_steps", "21", "--training.lr_scheduler_type", "cosine"],
            ["21 warm-up updates", "only 20"],
        ),
        (["--parallel.tp_size", "2"], ["parallel.tp_size"]),
        (["--model.config_overrides.vocab_size", "100"], ["ids up to 127", "100 rows", "vocab_size: 128"]),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) and value[0].startswith("--") else "",
)
def test_a_setting_that_cannot_work(command: Command, files: Path, words: list[str], parts: list[str]) -> None:
    expect_refusal(command(*words), *parts)
    assert not (files / "out").exists()


def test_a_config_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["train", "nowhere.yaml"])
    expect_refusal(Said(code, *capsys.readouterr()), "nowhere.yaml")


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([{"conversation": []}], ["data.jsonl", "messages", "conversation"]),
        ([], ["data.jsonl"]),
        ([{"messages": [{"role": "user", "content": "w1"}]}] * 4, ["4 of 4"]),
        ([{"messages": "w1"}], ["1 of 1 rows", "data.jsonl:1: messages is empty or no list"]),
    ],
    ids=["no such column", "empty", "nothing supervised", "no conversation"],
)
def test_data_that_cannot_be_learned_from(
    command: Command, files: Path, rows: list[dict[str, Any]], parts: list[str]
) -> None:
    data = write_jsonl(files / "data.jsonl", rows)
    expect_refusal(command("--data.dataset", str(data)), *parts)
    assert not (files / "out").exists()


def test_rows_without_a_supervised_token_are_counted_and_left_out(command: Command, files: Path) -> None:
    rows = [json.loads(line) for line in (files / "chats.jsonl").read_text().splitlines()]
    rows[3:3] = [{"messages": [{"role": "user", "content": "w1"}]}] * 2
    data = write_jsonl(files / "data.jsonl", rows)
    said = command("--data.dataset", str(data), "--training.max_steps", "1")
    assert said.code == 0
    assert "48 conversations" in said.out
    assert "2 of 50" in said.out + said.err


@pytest.mark.parametrize("stage", ["pt", "sft"])
def test_a_tokenizer_without_end_token(command: Command, files: Path, stage: str) -> None:
    make_tokenizer(files / "bare", eos=None, pad=None)
    data = files / ("texts.jsonl" if stage == "pt" else "chats.jsonl")
    words = ["--model.tokenizer_name_or_path", str(files / "bare"), "--data.dataset", str(data)]
    expect_refusal(command(*words, "--training.stage", stage), "bare", "end")


def test_a_tokenizer_without_padding_pads_with_its_end_token(command: Command, files: Path) -> None:
    make_tokenizer(files / "bare", pad=None)
    words = ["--model.tokenizer_name_or_path", str(files / "bare"), "--training.max_steps", "2"]
    assert command(*words).code == 0
    assert command("--training.max_steps", "2", "--training.output_dir", str(files / "padded")).code == 0
    assert losses(files / "out") == losses(files / "padded")


def test_another_runs_folder_is_left_as_it_is(command: Command, files: Path) -> None:
    kept = {"training": {"max_steps": 2, "save_steps": 1, "save_hf_weights": True}}
    assert command(sections=kept).code == 0
    before = contents(files / "out")
    expect_refusal(command(sections=kept), "step 2", "resume_from_checkpoint latest", "training.output_dir")
    expect_refusal(
        command("--training.seed", "7", "--training.resume_from_checkpoint", "latest", sections=kept), "seed", "7"
    )
    expect_refusal(command("--training.lr", "x", sections=kept), "training.lr")
    assert contents(files / "out") == before


def test_debug_shows_where_an_error_arose(command: Command) -> None:
    with pytest.raises(Exception, match=r"nowhere\.jsonl"):
        command("--data.dataset", "nowhere.jsonl", "--debug")


def test_the_resolved_config_runs_again_and_gives_the_same_run(command: Command, files: Path) -> None:
    assert command("--training.max_steps", "3").code == 0
    resolved = files / "out" / "config.yaml"
    assert cli.main(["train", str(resolved), "--training.output_dir", str(files / "again")]) == 0
    assert losses(files / "again") == losses(files / "out")


def test_a_dry_look_needs_no_processes(command: Command, files: Path) -> None:
    said = command("--print-config", "--training.lr", "3e-4")
    assert said.code == 0
    assert yaml.safe_load(said.out)["training"]["lr"] == 3e-4
    assert re.search(r"lr: 0.0003 +# command line", said.out)
    assert not (files / "out").exists()


@pytest.fixture
def endless(files: Path) -> Path:
    """A config of more steps than any test waits for, resumed at each start."""
    settings = {"max_steps": 100_000, "save_steps": 50_000, "resume_from_checkpoint": "latest"}
    path = files / "endless.yaml"
    path.write_text(yaml.safe_dump(tiny_config(files, "out", training=settings)))
    return path


def wait_for_steps(process: subprocess.Popen[str], output: Path, steps: int) -> None:
    deadline = time.monotonic() + 120
    while not (output / "metrics.jsonl").exists() or len(losses(output)) < steps:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("ranks", "number", "name"), [(1, signal.SIGINT, "Ctrl-C"), (1, signal.SIGTERM, "SIGTERM"), (2, signal.SIGINT, "")]
)
def test_a_signal_saves_and_the_same_command_goes_on(
    files: Path, endless: Path, ranks: int, number: signal.Signals, name: str
) -> None:
    process = start(ranks, endless)
    wait_for_steps(process, files / "out", 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert f"Stopped by {name}" in out, out + err
    assert "resume_from_checkpoint: latest" in out
    if ranks == 1:
        assert process.returncode == 0
        assert "Traceback" not in out + err
    (saved,) = (files / "out" / "checkpoints").glob("step-*")
    reached = int(saved.name.removeprefix("step-"))
    assert len(losses(files / "out")) == reached
    again = start(3 - ranks, endless, "--training.max_steps", str(reached + 2))
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, out + err
    assert f"step-{reached}" in out
    assert len(losses(files / "out")) == reached + 2


def test_under_torchrun_an_error_is_told_once_and_fails_the_job(files: Path, endless: Path) -> None:
    process = start(2, endless, "--parallel.fsdp_size", "4")
    out, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert (out + err).count("parallel.fsdp_size is 4, but the run has 2 ranks") == 1
    assert "Use one of 1, 2" in err
    assert not (files / "out").exists()


def test_a_half_set_environment_is_named(endless: Path) -> None:
    process = subprocess.run(
        [sys.executable, "train_fsdp2.py", str(endless)],
        cwd=REPOSITORY,
        env={**environment(), "RANK": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 1
    assert "WORLD_SIZE, MASTER_ADDR, MASTER_PORT is not set" in process.stderr
    assert "Traceback" not in process.stderr
