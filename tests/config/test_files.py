"""YAML files: bases, interpolation, lines in messages, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrain.config import ConfigError, load_config
from tests.config.samples import load, problems, problems_of, write


def test_later_wins_from_base_to_command_line(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "training: {seed: 1, lr: 1e-3, max_steps: 10, save_steps: 7}\n")
    write(tmp_path / "sub/b.yaml", "training:\n  seed: 2\n  lr: 2e-3\n")
    file = write(tmp_path / "c.yaml", "base: [a.yaml, sub/b.yaml]\ntraining:\n  seed: 3\n")
    resolved = load(file, "--training.max_steps", "40")
    training = resolved.config.training
    assert (training.seed, training.lr, training.max_steps, training.save_steps) == (3, 2e-3, 40, 7)
    assert resolved.origins["training.seed"] == f"{file}:3"
    assert resolved.origins["training.lr"] == f"{tmp_path / 'sub/b.yaml'}:3"
    assert resolved.origins["training.save_steps"] == f"{tmp_path / 'a.yaml'}:1"
    assert resolved.origins["training.max_steps"] == "command line"
    assert resolved.origins["training.weight_decay"] == "default"


def test_bases_nest_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    write(tmp_path / "root.yaml", "training: {seed: 1, lr: 1e-3}\n")
    write(tmp_path / "family/base.yaml", "base: ../root.yaml\ntraining: {seed: 2}\n")
    file = write(tmp_path / "family/size/c.yaml", "base: ../base.yaml\ndata: {cutoff_len: 16}\n")
    config = load(file).config
    assert (config.training.seed, config.training.lr, config.data.cutoff_len) == (2, 1e-3, 16)


def test_mappings_merge_and_lists_are_replaced(tmp_path: Path) -> None:
    write(
        tmp_path / "a.yaml",
        "model: {config_overrides: {rope: {theta: 1, kind: x}, depth: 2}}\nparallel: {fsdp_modules: [a, b, c]}\n",
    )
    file = write(
        tmp_path / "c.yaml",
        "base: a.yaml\nmodel:\n  config_overrides:\n    rope: {theta: 9}\nparallel: {fsdp_modules: [d]}\n",
    )
    resolved = load(file)
    assert resolved.config.model.config_overrides == {"rope": {"theta": 9, "kind": "x"}, "depth": 2}
    assert resolved.config.parallel.fsdp_modules == ["d"]
    assert resolved.origins["model.config_overrides.rope.theta"] == f"{file}:4"
    assert resolved.origins["model.config_overrides.rope.kind"] == f"{tmp_path / 'a.yaml'}:1"


def test_two_bases_may_share_one(tmp_path: Path) -> None:
    write(tmp_path / "root.yaml", "training: {seed: 7}\n")
    write(tmp_path / "a.yaml", "base: root.yaml\n")
    write(tmp_path / "b.yaml", "base: root.yaml\n")
    assert load(write(tmp_path / "c.yaml", "base: [a.yaml, b.yaml]\n")).config.training.seed == 7


def test_files_that_include_each_other(tmp_path: Path) -> None:
    first = write(tmp_path / "a.yaml", "training: {seed: 1}\nbase: b.yaml\n")
    second = write(tmp_path / "b.yaml", "base: [a.yaml]\n")
    assert problems(first) == [f"{second}:1: base makes files include each other: a.yaml -> b.yaml -> a.yaml"]
    itself = write(tmp_path / "c.yaml", "base: c.yaml\n")
    assert problems(itself) == [f"{itself}:1: base makes files include each other: c.yaml -> c.yaml"]


def test_a_base_that_is_not_there(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "training: {seed: 1}\nbase: nowhere.yaml\n")
    assert problems(file) == [f"{file}:2: base: {tmp_path / 'nowhere.yaml'} does not exist"]


@pytest.mark.parametrize("base", ["3", "{a: b}", "[a.yaml, 3]", "[[a.yaml]]"])
def test_a_base_that_is_no_path(tmp_path: Path, base: str) -> None:
    write(tmp_path / "a.yaml", "training: {seed: 1}\n")
    file = write(tmp_path / "c.yaml", f"base: {base}\n")
    assert problems(file) == [f"{file}:1: base takes the path of a file, or a list of them"]


def test_an_empty_section_does_not_wipe_out_a_base(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "training: {seed: 7}\n")
    assert load(write(tmp_path / "c.yaml", "base: a.yaml\ntraining:\n")).config.training.seed == 7


def test_interpolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATE", "1e-4")
    monkeypatch.delenv("ABSENT", raising=False)
    file = write(
        tmp_path / "c.yaml",
        "training:\n  lr: ${oc.env:RATE}\n  min_lr: ${training.lr}\n  seed: ${oc.env:ABSENT,5}\n"
        "  run_name: n-${.seed}\n"
        "model: {config_overrides: {a: {b: '${data.cutoff_len}'}}}\ndata: {cutoff_len: 32}\n",
    )
    config = load(file).config
    assert (config.training.lr, config.training.min_lr, config.training.seed) == (1e-4, 1e-4, 5)
    assert config.training.run_name == "n-5" and config.model.config_overrides == {"a": {"b": 32}}


def test_interpolation_meets_values_of_the_command_line_and_of_bases(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "training: {run_name: 'seed-${training.seed}', seed: 1}\n")
    file = write(tmp_path / "c.yaml", "base: a.yaml\ntraining: {seed: 2}\n")
    assert load(file).config.training.run_name == "seed-2"
    assert load(file, "--training.seed", "3").config.training.run_name == "seed-3"
    assert load(file, "--training.run_name", "x-${data.cutoff_len}").config.training.run_name == "x-2048"


def test_interpolation_that_fails_does_not_hide_the_next_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ABSENT", raising=False)
    file = write(
        tmp_path / "c.yaml",
        "training:\n  seed: ${oc.env:ABSENT}\n  lr: ${training.nothing}\n  max_steps: 1.5\n  run_name: ???\n",
    )
    found = problems(file)
    assert [message.partition(" ")[0] for message in found] == [f"{file}:{line}:" for line in (2, 3, 5, 4)]
    assert "training.seed cannot be resolved: " in found[0] and "ABSENT" in found[0]
    assert "training.lr cannot be resolved: " in found[1] and "training.nothing" in found[1]
    assert "training.run_name cannot be resolved: " in found[2]


def test_everything_wrong_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    base = write(tmp_path / "a.yaml", "# comment\ndata:\n  cutof_len: 3\n  val_size: 0.1\n")
    file = write(
        tmp_path / "c.yaml",
        "base: a.yaml\n"
        "data:\n  eval_dataset: e\n"
        "training:\n  lr: fast\n  stage: rl\n\n  max_grad_norm: -1\n"
        "parallel: {ep_size: 4,\n  param_dtype: fp16}\n",
    )
    assert problems(file, "--training.seed", "x") == [
        f"{base}:3: data.cutof_len is no known field; did you mean data.cutoff_len?",
        f"{file}:10: parallel.param_dtype is 'fp16'; it takes one of bf16, fp16, fp32 "
        "(fp16 needs a loss scaler, which is not available in this version; use bf16 or fp32)",
        f"{file}:6: training.stage is 'rl'; it takes one of pt, sft",
        "command line: training.seed is 'x'; it takes a whole number",
        f"{file}:5: training.lr is 'fast'; it takes a number",
        f"{file}:8: training.max_grad_norm is -1; it must be at least 0",
        f"{base}:4: data.val_size and data.eval_dataset exclude each other; give one",
        f"{file}:9: parallel.ep_size is 4, but only 1 can be used: expert parallelism is not available in this version",
    ]


def test_messages_are_for_people(tmp_path: Path) -> None:
    file = write(
        tmp_path / "c.yaml", "training: {lr: fast, x: 1, stage: rl, report_to: {a: 1}}\ndata: {dataset: {a: 1}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config([file])
    text = str(caught.value)
    assert text.startswith("the config cannot be used; 7 things are wrong:\n  - ")
    for word in ("type=", "pydantic", "validation error", "Input should", "https://", "Extra inputs"):
        assert word not in text


def test_a_key_twice(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "training:\n  lr: 1e-3\n  seed: 1\n  lr: 1e-4\n")
    assert problems(file) == [f"{file}:4: this is no valid YAML: found duplicate key lr"]


@pytest.mark.parametrize(
    ("text", "line"), [("training:\n  lr: [1\n", 3), ("training:\n\tlr: 1\n", 2), ("a: b: c\n", 1)]
)
def test_no_yaml(tmp_path: Path, text: str, line: int) -> None:
    file = write(tmp_path / "c.yaml", text)
    (message,) = problems(file)
    assert message.startswith(f"{file}:{line}: this is no valid YAML: ")


@pytest.mark.parametrize("text", ["training: !!set {a}\n", "null: 1\n", "a: !!int x\n", "base: ${x}\n"])
def test_yaml_of_a_kind_that_configs_do_not_have(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "c.yaml", text)
    (message,) = problems(file)
    assert message.startswith(f"{file}: the file cannot be interpreted: ") and "\n" not in message


@pytest.mark.parametrize(
    ("text", "what"),
    [("", "is empty"), ("# only a comment\n", "is empty"), ("- a\n", "holds no mapping"), ("a\n", "holds no mapping")],
)
def test_no_mapping(tmp_path: Path, text: str, what: str) -> None:
    file = write(tmp_path / "c.yaml", text)
    assert problems(file) == [
        f"{file}: the file {what}; it takes sections (model, data, parallel, training, optimization) with their fields"
    ]


def test_no_file(tmp_path: Path) -> None:
    write(tmp_path / "qwen3_1point7b.yaml", "training: {seed: 1}\n")
    assert problems_of([str(tmp_path / "qwen3_1p7b.yaml")]) == [
        f"{tmp_path / 'qwen3_1p7b.yaml'} does not exist; did you mean {tmp_path / 'qwen3_1point7b.yaml'}?"
    ]
    (message,) = problems_of(["qwen3"])
    assert message.startswith("qwen3 does not exist; the first word is the YAML file")


def test_unreadable_files(tmp_path: Path) -> None:
    (message,) = problems(str(tmp_path))
    assert message.startswith(f"{tmp_path} cannot be read (")
    (tmp_path / "c.yaml").write_bytes(b"training: {run_name: \xff}\n")
    assert problems(str(tmp_path / "c.yaml")) == [f"{tmp_path / 'c.yaml'} cannot be read (it is no UTF-8 text)"]


def test_every_config_of_the_repository_loads() -> None:
    files = sorted((Path(__file__).parents[2] / "configs").rglob("*.yaml"))
    assert files
    for file in files:
        assert load_config([str(file)]).notices == []


def test_origins_of_merged_anchors(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "training: {lr: 1e-3, seed: 1}\n")
    file = write(
        tmp_path / "c.yaml",
        "base: a.yaml\nmodel:\n  config_overrides:\n    depth: 2\n    width: 4\ndata:\n  cutoff_len: 8\n"
        "training:\n  <<: {seed: 5,\n       lr: 2e-3}\n  lr: 3e-3\n",
    )
    resolved = load(file)
    assert (resolved.config.training.seed, resolved.config.training.lr) == (5, 3e-3)
    assert resolved.origins["training.seed"] == f"{file}:9" and resolved.origins["training.lr"] == f"{file}:11"
