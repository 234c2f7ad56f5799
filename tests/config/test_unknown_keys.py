"""An unknown key is an error that names the key, its place and the nearest known one."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrain.config import Config
from tests.config.samples import dict_problems, minimal, problems, write


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("training.leraning_rate", "training.lr"),
        ("training.learning_rate", "training.lr"),
        ("learning_rate", "training.lr"),
        ("lr", "training.lr"),
        ("data.lr", "training.lr"),
        ("parallel.ep-size", "parallel.ep_size"),
        ("parallel.epsize", "parallel.ep_size"),
        ("training.EP_SIZE", "parallel.ep_size"),
        ("num-epochs", "training.num_train_epochs"),
        ("trian.max_steps", "training.max_steps"),
        ("training.max_stpes", "training.max_steps"),
        ("data.cutof_len", "data.cutoff_len"),
        ("optimization.indexer_loss_coeff", "training.indexer_loss_coeff"),
        ("model.fsdp_module", "parallel.fsdp_modules"),
        ("training.warmup_step", "training.warmup_steps"),
    ],
)
def test_the_nearest_field_is_named(given: str, meant: str) -> None:
    assert problems(f"--{given}", "1") == [f"command line: {given} is no known field; did you mean {meant}?"]


def test_nothing_is_guessed_for_a_name_like_no_other() -> None:
    assert problems("--training.zzz", "1") == ["command line: training.zzz is no known field; --help lists all fields"]


def test_similar_names_of_the_same_section_come_first() -> None:
    assert problems("--training.save_step", "1") == [
        "command line: training.save_step is no known field; did you mean training.save_steps?"
    ]
    assert problems("--parallel.fsdp_modul", "1") == [
        "command line: parallel.fsdp_modul is no known field; did you mean parallel.fsdp_modules?"
    ]


def test_keys_of_a_file_are_named_with_their_lines(tmp_path: Path) -> None:
    file = write(
        tmp_path / "c.yaml",
        "lr: 1\n\ntraining:\n  max_step: 3\n  lr: 1e-4\n"
        "trian:\n  # a comment\n  max_steps: 5\n  seed: 1\nnothing: {}\n",
    )
    assert problems(file) == [
        f"{file}:1: lr is no known field; did you mean training.lr?",
        f"{file}:8: trian.max_steps is no known field; did you mean training.max_steps?",
        f"{file}:9: trian.seed is no known field; did you mean training.seed?",
        f"{file}:10: nothing is no known field; --help lists all fields",
        f"{file}:4: training.max_step is no known field; did you mean training.max_steps?",
    ]


def test_keys_inside_the_form_of_a_dataset() -> None:
    (message,) = dict_problems(data={"dataset": {"file_nam": "a"}})
    assert "file_nam is unknown; did you mean file_name?" in message
    (message,) = dict_problems(data={"dataset": {"file_name": "a", "columns": {"txt": "body"}}})
    assert "columns.txt is unknown; did you mean columns.text?" in message


def test_a_number_as_a_key() -> None:
    assert dict_problems(training={True: 1}) == [  # type: ignore[dict-item]
        "training.True is no known field; --help lists all fields"
    ]
    assert dict_problems(training={7: 1}) == ["training.7 is no known field; --help lists all fields"]  # type: ignore[dict-item]


def test_any_field_may_stand_in_the_overrides_of_a_model_config() -> None:
    overrides = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "num_hidden_layers": 2}
    assert Config.from_dict(minimal(model={"config_overrides": overrides})).model.config_overrides == overrides
