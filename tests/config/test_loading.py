"""Reading configs: numbers, falsy values, overrides, base files, and every error at once with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from llmtrain.config import Config, ConfigError, Resolved, load_config, render_config

BASE = ["--model.model_name_or_path", "m", "--data.dataset", "d", "--training.output_dir", "o"]


def load(*words: str) -> Config:
    return load_config([*BASE, *words]).config


def refused(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config([*BASE, *words])
    return str(caught.value)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_file(text: str, name: str = "run.yaml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write_file


FULL = "model: {model_name_or_path: m}\ndata: {dataset: d}\ntraining: {output_dir: o, %s}\n"


# -- B01: numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["1e-5", '"1e-5"', "1.0e-5", "0.00001", "1E-5"])
def test_scientific_notation_is_a_number_in_a_file(write: Any, written: str) -> None:
    lr = load_config([write(FULL % f"lr: {written}")]).config.training.lr
    assert lr == 1e-5
    assert isinstance(lr, float)


@pytest.mark.parametrize("written", ["1e-5", "1E-5", "0.00001"])
def test_scientific_notation_is_a_number_on_the_command_line(written: str) -> None:
    assert load("--training.lr", written).training.lr == 1e-5


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert load("--training.max_steps", "1e3").training.max_steps == 1000


@pytest.mark.parametrize("written", ["1.5", "ten", "true", "null", "[1]"])
def test_what_is_no_whole_number_is_refused(written: str) -> None:
    message = refused("--training.save_steps", written)
    assert "training.save_steps" in message
    assert "a whole number" in message


@pytest.mark.parametrize("written", [".nan", ".inf", "-.inf"])
def test_a_rate_is_finite(written: str) -> None:
    assert "training.lr" in refused("--training.lr", written)


def test_negative_numbers_are_values_not_flags() -> None:
    assert load("--training.max_steps", "-1").training.max_steps == -1
    assert "at least 0" in refused("--training.lr", "-1e-6")


# -- B02: unknown keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "meant"),
    [
        ("training: {leraning_rate: 1}", "training.leraning_rate", None),
        ("training: {warmup_step: 1}", "training.warmup_step", "training.warmup_steps"),
        ("lr: 1", "lr", "training.lr"),
        ("parallel: {ep-size: 2}", "parallel.ep-size", "parallel.ep_size"),
        ("parallel: {lr: 2}", "parallel.lr", "training.lr"),
        ("optimization: {indexer_loss_coeff: 0.1}", "optimization.indexer_loss_coeff", "training.indexer_loss_coeff"),
        ("trian: {max_steps: 2}", "trian.max_steps", "training.max_steps"),
        ("data: {dataset: {file_name: f, wieght: 2}}", "data.dataset", None),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(write: Any, text: str, path: str, meant: str | None) -> None:
    file = write(text)
    with pytest.raises(ConfigError) as caught:
        load_config([file])
    line = next(p for p in caught.value.problems if p.path == path)
    assert line.where == f"{file}:1"
    if meant:
        assert f"did you mean {meant}?" in line.message


def test_an_unknown_flag_is_an_error() -> None:
    assert "did you mean training.max_steps?" in refused("--trian.max_steps", "5")


def test_a_key_twice_in_a_file_is_an_error(write: Any) -> None:
    with pytest.raises(ConfigError, match="duplicate"):
        load_config([write("training:\n  lr: 1\n  lr: 2\n")])


def test_a_flag_twice_with_two_values_is_an_error() -> None:
    assert "given twice" in refused("--training.lr", "1", "--training.lr", "2")


# -- B03: falsy values win ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("false", ["false", "False", "no", "off", "0"])
def test_false_on_the_command_line_wins_over_true_in_the_file(write: Any, false: str) -> None:
    file = write(FULL % "deterministic: true, max_grad_norm: 1.0, seed: 42" + "parallel: {recompute: true}\n")
    words = ["--parallel.recompute", false, f"--training.deterministic={false}"]
    config = load_config([file, *words, "--training.max_grad_norm", "0", "--training.seed", "0"]).config
    assert config.parallel.recompute is False
    assert config.training.deterministic is False
    assert config.training.max_grad_norm == 0.0
    assert config.training.seed == 0


def test_null_on_the_command_line_wins(write: Any) -> None:
    file = write(FULL % "run_name: x")
    assert load_config([file, "--training.run_name", "null"]).config.training.run_name is None


def test_the_reference_trainers_word_none_is_null() -> None:
    assert load("--model.tokenizer_name_or_path", "None").model.tokenizer_name_or_path is None


# -- B04: command-line forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--parallel.fsdp_size", "2"], ["--parallel.fsdp_size=2"]])
def test_both_forms_of_a_flag(words: list[str]) -> None:
    assert load(*words).parallel.fsdp_size == 2


@pytest.mark.parametrize("words", [["[a.q,b]"], ["a.q,b"], ["a.q", "b"]])
def test_three_forms_of_a_list(words: list[str]) -> None:
    assert load("--parallel.fsdp_modules", *words).parallel.fsdp_modules == ["a.q", "b"]


def test_one_word_is_a_list_of_one() -> None:
    assert load("--parallel.fsdp_modules", "layers").parallel.fsdp_modules == ["layers"]


def test_a_word_without_dashes_is_an_error_that_shows_the_form() -> None:
    with pytest.raises(ConfigError, match="write --parallel.ep_size=2"):
        load_config(["run.yaml"[:0] or "--training.lr=1", "parallel.ep_size=2"])


def test_a_flag_alone_is_true_for_a_switch_and_an_error_otherwise() -> None:
    assert load("--parallel.recompute").parallel.recompute is True
    assert "needs a value" in refused("--training.lr")


def test_a_nested_field_of_a_mapping() -> None:
    config = load("--model.config_overrides.num_hidden_layers", "4", "--model.config_overrides", "{hidden_size: 8}")
    assert config.model.config_overrides["hidden_size"] == 8
    assert load("--model.config_overrides.num_hidden_layers", "4").model.config_overrides == {"num_hidden_layers": 4}


# -- files --------------------------------------------------------------------------------------------------------------


def test_later_wins_default_base_file_command_line(write: Any) -> None:
    write("training: {lr: 1, seed: 1, weight_decay: 1, save_steps: 1}\nparallel: {fsdp_modules: [a, b]}", "one.yaml")
    write("base: one.yaml\ntraining: {lr: 2, seed: 2}\nparallel: {fsdp_modules: [c]}", "two.yaml")
    file = write("base: [two.yaml]\n" + FULL % "lr: 3")
    resolved = load_config([file, "--training.save_steps", "4"])
    training = resolved.config.training
    assert (training.lr, training.seed, training.weight_decay, training.save_steps) == (3, 2, 1, 4)
    assert resolved.config.parallel.fsdp_modules == ["c"]
    assert resolved.origins["training.lr"].endswith("run.yaml:4")
    assert resolved.origins["training.seed"].endswith("two.yaml:2")
    assert resolved.origins["training.save_steps"] == "command line --training.save_steps"


def test_files_that_include_each_other_are_refused(write: Any) -> None:
    write("base: b.yaml", "a.yaml")
    with pytest.raises(ConfigError, match="include each other: a.yaml -> b.yaml -> a.yaml"):
        write("base: a.yaml", "b.yaml")
        load_config([str(Path(write("base: b.yaml", "a.yaml")))])


def test_interpolation_and_environment(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATE", "3e-4")
    file = write(FULL % "lr: '${oc.env:RATE}', min_lr: '${training.lr}'")
    assert load_config([file]).config.training.min_lr == 3e-4
    with pytest.raises(ConfigError, match="NOT_SET"):
        load_config([write(FULL % "lr: '${oc.env:NOT_SET}'")])


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "no mapping"), ("- a", "no mapping"), ("a: [1", "no valid YAML"), ("training: 3", "a mapping of fields")],
)
def test_a_file_that_is_no_config(write: Any, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config([write(text)])


def test_a_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml does not exist"):
        load_config(["nowhere.yaml"])


# -- errors -------------------------------------------------------------------------------------------------------------


def test_all_problems_are_told_at_once_with_their_lines(write: Any) -> None:
    file = write(
        "model:\n  model_name_or_path: m\n  modell: 1\ndata:\n  dataset: d\n  cutoff_len: long\n"
        "parallel:\n  ep_size: 4\ntraining:\n  output_dir: o\n  stage: dpo\n  warmup_steps: 3\n  warmup_ratio: 0.1\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config([file])
    found = {(p.path, p.where) for p in caught.value.problems}
    assert found == {
        ("model.modell", f"{file}:3"),
        ("data.cutoff_len", f"{file}:6"),
        ("parallel.ep_size", f"{file}:8"),
        ("training.stage", f"{file}:11"),
        ("training.warmup_steps", f"{file}:12"),
    }
    text = str(caught.value)
    assert "one of pt, sft" in text
    assert "expert parallelism is not available" in text
    for jargon in ("pydantic", "type=", "extra_forbidden", "Traceback"):
        assert jargon not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data.train_on_prompt", "--data.mask_history"], "contradict"),
        (["--data.val_size", "0.1", "--data.eval_dataset", "e"], "not both"),
        (["--data.val_size", "1.5"], "whole number of rows"),
        (["--model.model_type", "qwen3"], "not both"),
        (["--training.min_lr", "1", "--training.lr", "0.1"], "above lr"),
        (["--training.gradient_accumulation_steps", "0"], "at least 1"),
        (["--training.max_steps", "0"], "must be -1"),
        (["--training.global_batch_size", "12", "--training.per_device_train_batch_size", "8"], "no multiple"),
        (["--training.dataloader_prefetch_factor", "2"], "dataloader_num_workers"),
        (["--training.save_only_model", "--training.resume_from_checkpoint", "latest"], "cannot be resumed"),
        (["--training.calculate_per_token_loss", "false"], "split over ranks"),
        (["--parallel.param_dtype", "fp16"], "loss scaler"),
        (["--optimization.use_flash_attn", "true"], "plain PyTorch"),
        (["--data.template", "qwen3"], "own chat template"),
    ],
)
def test_rules(words: list[str], said: str) -> None:
    assert said in refused(*words)


def test_what_is_needed_is_asked_for() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([])
    assert {p.path for p in caught.value.problems} == {
        "model.model_name_or_path",
        "data.dataset",
        "training.output_dir",
    }


def test_a_kernel_switch_may_be_false_or_auto() -> None:
    assert load("--optimization.use_flash_attn", "false").optimization.use_flash_attn is False
    assert load("--optimization.use_flash_attn", "auto").optimization.use_flash_attn == "auto"


def test_a_setting_without_effect_is_told() -> None:
    notices = load_config(
        [*BASE, "--model.init_model_with_meta_device", "--data.template", "x", "--training.stage", "pt"]
    ).notices
    assert any(n.startswith("model.init_model_with_meta_device changes nothing") for n in notices)
    assert any(n.startswith("data.template changes nothing") for n in notices)
    assert load_config(BASE).notices == []


# -- forms of output ----------------------------------------------------------------------------------------------------


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().training.lr = 3.0


def test_the_resolved_config_runs_again(write: Any) -> None:
    config = load("--training.lr", "1e-5", "--model.config_overrides", "{rope_parameters: {rope_theta: 1e6}}")
    assert load_config([write(config.to_yaml())]).config == config
    assert isinstance(yaml.safe_load(config.to_yaml())["training"]["lr"], float)


def test_print_config_runs_again_and_names_origins(write: Any) -> None:
    resolved: Resolved = load_config([*BASE, "--training.lr", "1e-5", "--parallel.fsdp_modules", "a", "b"])
    text = render_config(resolved)
    assert load_config([write(text)]).config == resolved.config
    assert "# command line --training.lr" in next(line for line in text.splitlines() if line.strip().startswith("lr:"))
    assert "# default" in next(line for line in text.splitlines() if line.strip().startswith("seed:"))
