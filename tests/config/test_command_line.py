"""The words after the script: which are the file, flags and values, and which are out of place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmtrain.config import load_config
from tests.config.samples import NEEDED, load, problems, problems_of, write


@pytest.mark.parametrize("words", [["--parallel.fsdp_size", "2"], ["--parallel.fsdp_size=2"]])
def test_both_forms_of_an_override(words: list[str]) -> None:
    assert load(*words).config.parallel.fsdp_size == 2


def test_a_config_needs_no_file() -> None:
    config = load_config(NEEDED).config
    assert (config.model.model_name_or_path, config.data.dataset, config.training.output_dir) == ("m", "d", "o")


def test_the_file_comes_first(tmp_path: Path) -> None:
    file = write(tmp_path / "a=b.yaml", "training: {seed: 1}\n")
    assert load(file).config.training.seed == 1
    assert problems("--training.seed", "1", "--training.lr", "1e-3", file) == [
        f"command line: training.lr takes one value, not 1e-3 {file}"
    ]
    assert problems(file, file) == [
        f"command line: {file!r} is out of place; "
        "one YAML file is read, and comes first; it can name others under base:"
    ]


@pytest.mark.parametrize("word", ["parallel.fsdp_size=2", "-parallel.fsdp_size=2"])
def test_a_flag_without_its_dashes(word: str) -> None:
    assert problems(word) == [f"command line: {word!r} is out of place; write --parallel.fsdp_size=2"]


def test_stray_words(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "training: {seed: 1}\n")
    assert problems(file, "fast", "-x") == [
        "command line: 'fast' is out of place; write --section.field value",
        "command line: '-x' is out of place; write --section.field value",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["--model.add_tokens", "[q_proj,v_proj]"],
        ["--model.add_tokens=[q_proj, v_proj]"],
        ["--model.add_tokens", "q_proj,v_proj"],
        ["--model.add_tokens", "q_proj", "v_proj"],
    ],
)
def test_forms_of_a_list(words: list[str]) -> None:
    assert load(*words).config.model.add_tokens == ["q_proj", "v_proj"]


@pytest.mark.parametrize("words", [["[0]"], ["0"], ["[0, 2]"], ["0,2"], ["0", "2"]])
def test_lists_of_numbers(words: list[str]) -> None:
    ranks = load("--training.profile_ranks", *words).config.training.profile_ranks
    assert ranks == ([0, 2] if "2" in "".join(words) else [0]) and all(type(rank) is int for rank in ranks)


def test_a_list_where_a_number_belongs_is_refused() -> None:
    assert problems("--training.adam_beta1", "[0.9,0.95]") == [
        "command line: training.adam_beta1 is [0.9, 0.95]; it takes a number"
    ]


def test_patterns_need_no_quotes_against_yaml() -> None:
    words = ["model.layers.{*}", "*.mlp.router", "model.layers.{0-3}.mlp"]
    assert load("--parallel.fsdp_modules", *words).config.parallel.fsdp_modules == words
    assert load("--parallel.fsdp_modules", "*lm_head").config.parallel.fsdp_modules == ["*lm_head"]
    (message,) = problems("--parallel.fsdp_modules", "[model.layers.{*}]")
    assert message.endswith("; a pattern needs quotes inside brackets, and none outside: a b c")


@pytest.mark.parametrize(("text", "value"), [("-1", -1), ("1e3", 1000)])
def test_negative_numbers_are_values(text: str, value: int) -> None:
    assert load("--training.max_steps", text, "--training.seed", "3").config.training.max_steps == value


@pytest.mark.parametrize("text", ["-1e-6", "-0.5"])
def test_negative_numbers_reach_the_range_check(text: str) -> None:
    assert problems("--training.lr", text) == [f"command line: training.lr is {float(text)!r}; it must be at least 0"]


def test_mappings_whole_and_by_key() -> None:
    whole = load("--model.config_overrides", "{num_hidden_layers: 4, rope: {theta: 1e6}}").config
    parts = load("--model.config_overrides.num_hidden_layers", "4", "--model.config_overrides.rope.theta=1e6").config
    assert whole.model.config_overrides == parts.model.config_overrides
    assert parts.model.config_overrides == {"num_hidden_layers": 4, "rope": {"theta": 1e6}}
    assert type(parts.model.config_overrides["num_hidden_layers"]) is int


def test_a_bare_flag_turns_a_switch_on_and_nothing_else() -> None:
    resolved = load("--parallel.recompute", "--training.log_cpu_memory", "--training.seed", "1").config
    assert resolved.parallel.recompute is True and resolved.training.log_cpu_memory is True
    assert problems("--training.max_steps", "--training.run_name") == [
        "command line: training.max_steps needs a value",
        "command line: training.run_name needs a value",
    ]
    assert problems("--training.run_name=") == ["command line: training.run_name needs a value"]
    assert problems("--training.run_name", "") == ["command line: training.run_name needs a value"]


@pytest.mark.parametrize("second", [["--training.seed", "2"], ["--training.seed=2"]])
def test_a_flag_twice(second: list[str]) -> None:
    assert problems("--training.seed", "1", *second) == ["command line: training.seed is given twice, as 1 and 2"]
    assert load("--training.seed", "2", *second).config.training.seed == 2


def test_a_mapping_whole_and_by_key() -> None:
    words = ["--model.config_overrides.a", "1", "--model.config_overrides", "{b: 2, a.c: 3}"]
    assert load(*words).config.model.config_overrides == {"a": 1, "b": 2, "a.c": 3}
    assert problems("--model.config_overrides.a", "1", "--model.config_overrides", "{a: 2, b: 2}") == [
        "command line: model.config_overrides.a is given twice, as 1 and 2"
    ]


@pytest.mark.parametrize("words", [["--data.dataset.file_name", "x"], ["--data.dataset", "{file_name: x}"]])
def test_a_field_as_a_whole_and_in_part(words: list[str]) -> None:
    assert problems(*words) == ["command line: data.dataset is given as a whole and in part; choose one"]


def test_a_key_below_a_plain_field() -> None:
    assert problems("--training.lr.max", "1") == ["command line: training.lr is {max: 1}; it takes a number"]


@pytest.mark.parametrize("text", ["[a, b", "{a: 1", "'a", "${", "{null: 1}", "!!set {a}", "!!int x"])
def test_values_that_cannot_be_read(text: str) -> None:
    (message,) = problems("--model.add_tokens", text)
    assert message.startswith("command line: model.add_tokens has a value that cannot be read: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "value"), [("#3", "#3"), ("&3", "&3"), ("a=b", "a=b"), ("~", None), ("a: b: c", "a: b: c")]
)
def test_words_that_yaml_would_swallow(text: str, value: Any) -> None:
    assert load("--training.run_name", text).config.training.run_name == value


def test_the_command_line_replaces_what_a_file_says_whatever_its_form(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "data:\n  dataset: {file_name: x, columns: {text: body}}\n")
    rest = NEEDED[:2] + NEEDED[4:]
    assert load_config([file, "--data.dataset", "a", *rest]).config.data.dataset == "a"
    assert load_config([file, "--data.dataset", "a", "b", *rest]).config.data.dataset == ["a", "b"]
    merged = load_config([file, "--data.dataset.file_name", "y", *rest]).config.data.dataset
    assert merged == {"file_name": "y", "columns": {"text": "body"}}


def test_a_flag_and_its_value_are_told_from_the_empty_flag() -> None:
    assert problems("--") == ["command line: '--' is out of place; write --section.field value"]


def test_no_word_at_all() -> None:
    assert problems_of([]) == [
        "model.model_name_or_path is missing; give a Hugging Face folder, or model.model_type to build from scratch",
        "data.dataset is missing; give a file, a folder or a list of them",
        "training.output_dir is missing; give a folder for what the run leaves",
    ]
