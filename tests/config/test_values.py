"""What is read as which value: numbers, switches, lists, null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmtrain.config import Config
from tests.config.samples import dict_problems, load, minimal, problems, write


@pytest.mark.parametrize("text", ["1e-5", '"1e-5"', "1.0e-5", "1E-5", "0.00001", "'0.00001'"])
def test_small_rates_are_numbers_in_a_file(tmp_path: Path, text: str) -> None:
    config = load(write(tmp_path / "c.yaml", f"training:\n  lr: {text}\n")).config
    assert config.training.lr == 1e-5 and type(config.training.lr) is float


@pytest.mark.parametrize("words", [["--training.lr", "1e-5"], ["--training.lr=1e-5"], ["--training.lr", "'1e-5'"]])
def test_small_rates_are_numbers_on_the_command_line(words: list[str]) -> None:
    config = load(*words).config
    assert config.training.lr == 1e-5 and type(config.training.lr) is float


@pytest.mark.parametrize("value", [1000, 1e3, "1e3", "1000"])
def test_whole_numbers_may_be_written_with_an_exponent(value: Any) -> None:
    steps = Config.from_dict(minimal(training={"max_steps": value})).training.max_steps
    assert steps == 1000 and type(steps) is int


def test_exponents_of_either_case(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "training:\n  adam_epsilon: 1E-8\n  max_steps: 1e3\n  weight_decay: 5e-1\n")
    training = load(file).config.training
    assert (training.adam_epsilon, training.max_steps, training.weight_decay) == (1e-8, 1000, 0.5)
    assert type(training.max_steps) is int


@pytest.mark.parametrize("value", [1.5, "1.5", "1e-3", "x", True, None, [1], {"a": 1}])
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    (message,) = dict_problems(training={"max_steps": value})
    assert message.startswith("training.max_steps is ") and "it takes a whole number" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan", "inf", "-inf"])
@pytest.mark.parametrize("field", ["lr", "max_grad_norm", "num_train_epochs"])
def test_numbers_are_finite(field: str, value: Any) -> None:
    (message,) = dict_problems(training={field: value})
    assert message.startswith(f"training.{field} is ") and "finite" in message


@pytest.mark.parametrize("field", ["lr", "seed", "max_grad_norm", "gradient_accumulation_steps"])
def test_a_switch_is_no_number(field: str) -> None:
    (message,) = dict_problems(training={field: True})
    assert message.startswith(f"training.{field} is true; it takes a ") and "switch" in message


def test_a_switch_is_no_number_inside_a_list() -> None:
    (message,) = dict_problems(training={"profile_ranks": [0, True]})
    assert message.startswith("training.profile_ranks is [0, true]; it takes a list of whole numbers")


@pytest.mark.parametrize("value", [False, 0, "no", "off", "0", "false", "False", "n"])
def test_ways_to_say_false(value: Any) -> None:
    assert Config.from_dict(minimal(training={"deterministic": value})).training.deterministic is False


@pytest.mark.parametrize("value", [True, 1, "yes", "on", "1", "true", "True", "y"])
def test_ways_to_say_true(value: Any) -> None:
    assert Config.from_dict(minimal(parallel={"recompute": value})).parallel.recompute is True


@pytest.mark.parametrize("value", ["maybe", 2, "", None, [True]])
def test_what_is_neither_true_nor_false_is_refused(value: Any) -> None:
    (message,) = dict_problems(parallel={"recompute": value})
    assert message.startswith("parallel.recompute is ") and message.endswith("it takes true or false")


# Each falsy value on the command line wins over a truthy one in the file.
FILE = (
    "parallel:\n  recompute: true\ndata:\n  max_samples: 5\n"
    "training:\n  max_grad_norm: 1.0\n  seed: 42\n  run_name: x\n"
)


@pytest.mark.parametrize("false", ["false", "False", "no", "off", "0"])
@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
def test_falsy_values_of_the_command_line_win(tmp_path: Path, false: str, form: str) -> None:
    file = write(tmp_path / "c.yaml", FILE)
    given = {
        "--parallel.recompute": false,
        "--training.max_grad_norm": "0",
        "--training.seed": "0",
        "--training.run_name": "null",
        "--data.max_samples": "None",
    }
    words = [word for flag, value in given.items() for word in form.format(flag, value).split(" ")]
    config = load(file, *words).config
    assert config.parallel.recompute is False
    assert (config.training.max_grad_norm, config.training.seed, config.training.run_name) == (0.0, 0, None)
    assert config.data.max_samples is None


@pytest.mark.parametrize("false", ["false", "no", "off", "0", '"false"', '"no"'])
def test_falsy_values_of_a_file_win_over_the_default_and_a_base(tmp_path: Path, false: str) -> None:
    write(tmp_path / "base.yaml", "training:\n  deterministic: true\n")
    file = write(tmp_path / "c.yaml", f"base: base.yaml\ntraining:\n  deterministic: {false}\n  save_steps: 0\n")
    training = load(file).config.training
    assert training.deterministic is False and training.save_steps == 0


@pytest.mark.parametrize("value", [["q", "v"], "q,v", "q, v", " q , v ,"])
def test_a_list_may_be_written_with_commas(value: Any) -> None:
    assert Config.from_dict(minimal(model={"add_tokens": value})).model.add_tokens == ["q", "v"]


def test_one_word_is_a_list_of_one_not_of_letters() -> None:
    config = Config.from_dict(minimal(training={"report_to": "wandb"}, parallel={"fsdp_modules": "lm_head"}))
    assert config.training.report_to == ["wandb"] and config.parallel.fsdp_modules == ["lm_head"]


@pytest.mark.parametrize("value", [3, "3", [3], ["3"]])
def test_one_number_is_a_list_of_one(value: Any) -> None:
    assert Config.from_dict(minimal(training={"profile_ranks": value})).training.profile_ranks == [3]


def test_the_word_none_is_null_only_where_null_is_allowed() -> None:
    config = Config.from_dict(minimal(model={"tokenizer_name_or_path": "None", "model_revision": "None"}))
    assert config.model.tokenizer_name_or_path is None and config.model.model_revision == "None"


def test_null_is_an_empty_mapping_or_list_and_no_number() -> None:
    config = Config.from_dict(minimal(model={"config_overrides": None}, training={"report_to": None}))
    assert config.model.config_overrides == {} and config.training.report_to == []
    assert dict_problems(training={"lr": None}) == ["training.lr is null; it takes a number"]


def test_numbers_are_texts_where_texts_belong() -> None:
    config = Config.from_dict(minimal(training={"run_name": 7}, data={"dataset": ["a", 3]}))
    assert config.training.run_name == "7" and config.data.dataset == ["a", "3"]


def test_a_section_is_a_mapping() -> None:
    assert problems("--optimization", "5") == ["command line: optimization is 5; it takes a mapping of fields"]


def test_a_config_cannot_be_changed() -> None:
    config = Config.from_dict(minimal())
    with pytest.raises(ValueError, match="frozen"):
        config.training.lr = 1.0
