"""Ranges, settings that exclude each other, settings that are refused or change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from llmtrain.config import Config, field_kinds
from tests.config.samples import dict_problems, load, minimal


@pytest.mark.parametrize(
    ("field", "allowed", "refused"),
    [
        ("training.lr", [0, 1], [-1e-9]),
        ("training.weight_decay", [0, 1], [-0.1]),
        ("training.adam_beta1", [0, 0.999], [-0.1, 1]),
        ("training.adam_beta2", [0, 0.999], [-0.1, 1]),
        ("training.momentum", [0, 0.9], [-0.1, 1]),
        ("training.max_grad_norm", [0, 5], [-1]),
        ("training.per_device_train_batch_size", [1], [0, -1]),
        ("training.per_device_eval_batch_size", [1, None], [0]),
        ("training.gradient_accumulation_steps", [1, None], [0]),
        ("training.max_steps", [-1, 1], [0, -2]),
        ("training.num_train_epochs", [0.5, 3], [0, -1]),
        ("training.warmup_ratio", [0, 1], [-0.1, 1.1]),
        ("training.warmup_steps", [0, 7, None], [-1]),
        ("training.decay_ratio", [0.1, 1], [0, 1.1]),
        ("training.save_steps", [0], [-1]),
        ("training.save_total_limit", [0], [-1]),
        ("training.logging_steps", [1], [0]),
        ("training.max_skipped_steps", [1], [0]),
        ("training.dataloader_num_workers", [0], [-1]),
        ("training.seed", [0], [-1]),
        ("data.cutoff_len", [1], [0]),
        ("data.max_samples", [1, None], [0]),
        ("data.val_size", [0, 0.5, 1, 20, 3.0], [-1, 1.5]),
        ("data.preprocessing_num_workers", [1, None], [0]),
        ("parallel.fsdp_size", [1, None], [0, -1]),
        ("parallel.num_to_forward_prefetch", [0], [-1]),
        ("parallel.ep_size", [1], [0]),
    ],
)
def test_ranges(field: str, allowed: list[Any], refused: list[Any]) -> None:
    section, name = field.split(".")
    for value in allowed:
        lr = {"min_lr": 0} if name == "lr" else {}
        config = Config.from_dict(minimal(**{section: {name: value, **lr}}))
        assert getattr(getattr(config, section), name) == value
    for value in refused:
        (message,) = dict_problems(**{section: {name: value}})
        assert message.startswith(f"{field} is ")


@pytest.mark.parametrize(
    "dataset", ["a.jsonl", ["a", "b"], {"file_name": "a"}, {"file_name": ["a"], "columns": {"text": "t"}}]
)
def test_forms_of_a_dataset(dataset: Any) -> None:
    config = Config.from_dict(minimal(data={"dataset": dataset, "eval_dataset": dataset}))
    assert config.data.dataset == config.data.eval_dataset == dataset


@pytest.mark.parametrize("dataset", ["", [], [""], {}, {"file_name": None}, {"file_name": "a", "columns": "b"}])
def test_forms_that_name_no_dataset(dataset: Any) -> None:
    (message,) = dict_problems(data={"dataset": dataset})
    assert message.startswith("data.dataset is ")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"data": {"mask_history": True, "train_on_prompt": True}},
            "data.mask_history and data.train_on_prompt exclude each other; choose one",
        ),
        (
            {"data": {"val_size": 0.1, "eval_dataset": "e"}},
            "data.val_size and data.eval_dataset exclude each other; give one",
        ),
        (
            {"training": {"warmup_steps": 5, "warmup_ratio": 0.1}},
            "training.warmup_steps and training.warmup_ratio exclude each other; give one",
        ),
        (
            {"training": {"save_only_model": True, "resume_from_checkpoint": "latest"}},
            "training.save_only_model and training.resume_from_checkpoint exclude each other; "
            "without optimizer state nothing is resumed",
        ),
        (
            {"model": {"model_type": "qwen3", "tokenizer_name_or_path": "t"}},
            "model.model_name_or_path and model.model_type exclude each other; "
            "for random weights of a folder's config set model.train_from_scratch",
        ),
        (
            {"model": {"model_name_or_path": None, "model_type": "qwen3"}},
            "model.tokenizer_name_or_path is missing; "
            "with model.model_type there is no model folder to take a tokenizer from",
        ),
        (
            {"training": {"lr": 1e-4, "min_lr": 1e-3}},
            "training.min_lr is 0.001; it must be at most training.lr, which is 0.0001",
        ),
        (
            {"training": {"lr": 1e-7}},
            "training.min_lr is 1e-06; it must be at most training.lr, which is 1e-07",
        ),
        (
            {"training": {"global_batch_size": 12, "per_device_train_batch_size": 5}},
            "training.global_batch_size is 12; "
            "it must be a multiple of training.per_device_train_batch_size, which is 5",
        ),
        (
            {"training": {"global_batch_size": 12, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}},
            "training.global_batch_size is 12; it must be a multiple of "
            "training.per_device_train_batch_size * training.gradient_accumulation_steps, which is 8",
        ),
        (
            {"training": {"dataloader_prefetch_factor": 2}},
            "training.dataloader_prefetch_factor needs training.dataloader_num_workers of at least 1",
        ),
        (
            {"data": {"split": "99,1,0"}},
            "data.split is read where data.data_manager_type is mg; use data.val_size or data.eval_dataset",
        ),
        (
            {"data": {"data_manager_type": "mg"}},
            "data.data_manager_type is mg, which orders texts; only stage pt can be used with it",
        ),
        (
            {"data": {"data_manager_type": "mg", "val_size": 5}, "training": {"stage": "pt"}},
            "data.val_size is not for data.data_manager_type mg; use data.split",
        ),
        (
            {
                "data": {"data_manager_type": "mg", "eval_dataset": "e", "split": "9,1,0"},
                "training": {"stage": "pt"},
            },
            "data.eval_dataset and a validation share in data.split exclude each other; give one",
        ),
        (
            {"data": {"streaming": True}},
            "data.streaming needs training.max_steps: how long a stream is shows when it has been read",
        ),
        (
            {"data": {"streaming": True, "val_size": 4}, "training": {"max_steps": 5}},
            "data.val_size cannot be taken out of a stream; use data.eval_dataset",
        ),
        (
            {"data": {"streaming": True, "data_manager_type": "mg"}, "training": {"max_steps": 5, "stage": "pt"}},
            "data.streaming and data.data_manager_type mg exclude each other; choose one",
        ),
        (
            {"data": {"tool_format": "qwen"}},
            "data.tool_format has a meaning for a named data.template only; the tokenizer's own writes tools its way",
        ),
        (
            {"training": {"eval_steps": 10}},
            "training.eval_steps needs held-out data: give data.val_size or data.eval_dataset",
        ),
    ],
)
def test_settings_that_do_not_go_together(sections: dict[str, dict[str, Any]], message: str) -> None:
    assert dict_problems(**sections) == [message]


@pytest.mark.parametrize(
    "sections",
    [
        {"data": {"mask_history": True}},
        {"data": {"val_size": 3}, "training": {"eval_steps": 10}},
        {"training": {"warmup_steps": 5}},
        {"training": {"warmup_steps": 5, "warmup_ratio": 0}},
        {"training": {"lr": 1e-7, "lr_scheduler_type": "constant"}},
        {"training": {"global_batch_size": 16, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}},
        {"training": {"dataloader_prefetch_factor": 2, "dataloader_num_workers": 1}},
        {"model": {"model_name_or_path": None, "model_type": "qwen3", "tokenizer_name_or_path": "t"}},
        {"model": {"model_name_or_path": "m", "model_type": None}},
    ],
)
def test_settings_that_go_together(sections: dict[str, dict[str, Any]]) -> None:
    config = Config.from_dict(minimal(**sections)).to_dict()
    for section, fields in sections.items():
        assert {name: config[section][name] for name in fields} == fields


def test_a_rule_is_silent_about_a_value_that_cannot_be_read() -> None:
    # warmup_ratio falls back to its default while it is judged; the rule must not speak of that default.
    assert dict_problems(training={"lr": "x", "min_lr": 5.0}) == ["training.lr is 'x'; it takes a number"]
    assert dict_problems(training={"stage": "x"}, data={"template": "qwen3"}) == [
        "training.stage is 'x'; it takes one of pt, sft"
    ]


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("parallel.tp_size", 2, "1"),
        ("parallel.ep_size", 2, "1"),
        ("parallel.cp_size", 2, "1"),
        ("parallel.fsdp_implementation", "custom", "native"),
        ("parallel.enable_chunk_batch", True, "false"),
        ("optimization.use_flash_attn", True, "auto or false"),
        ("optimization.chunk_loss_size", 1024, "null"),
        ("training.router_aux_loss_coef", 0.001, "0.0"),
        ("training.calculate_per_token_loss", False, "true"),
        ("training.save_async", True, "false"),
        ("training.profile", True, "false"),
        ("model.quant_recipe_name", "mxfp8", "null"),
        ("model.resize_vocab", True, "false"),
        ("inference.max_new_tokens", 256, "512"),
    ],
)
def test_what_is_not_available_is_refused(field: str, value: Any, accepted: str) -> None:
    section, name = field.split(".")
    (message,) = dict_problems(**{section: {name: value}})
    assert message.startswith(f"{field} is ") and f", but only {accepted} can be used: " in message
    assert field_kinds()[field] == "later"


def test_kernels_may_be_left_to_the_machine_or_switched_off() -> None:
    kernels = [name for name in field_kinds() if name.startswith("optimization.") and "use_" in name]
    names = [*(name.partition(".")[2] for name in kernels), "moe_grouped_gemm"]
    assert len(names) == 12
    for value in (False, "auto", "false", 0):
        config = Config.from_dict(minimal(optimization=dict.fromkeys(names, value)))
        assert {getattr(config.optimization, name) for name in names} == {"auto" if value == "auto" else False}
    assert len(dict_problems(optimization=dict.fromkeys(names, True))) == 12


@pytest.mark.parametrize("field", ["param_dtype", "reduce_dtype"])
def test_half_precision_needs_a_loss_scaler(field: str) -> None:
    (message,) = dict_problems(parallel={field: "fp16"})
    assert message.startswith(f"parallel.{field} is 'fp16'") and "loss scaler" in message


def test_settings_that_change_nothing_are_told() -> None:
    config = Config.from_dict(
        minimal(
            model={"init_model_with_meta_device": True},
            parallel={"ep_dispatcher": "mc2", "ep_modules": ["x"], "cp_type": "ring"},
            training={"log_throughput": True, "profile_level": "level1"},
        )
    )
    said = [notice.partition(" ")[0] for notice in config.notices()]
    assert said == [
        "model.init_model_with_meta_device",
        "parallel.ep_modules",
        "parallel.ep_dispatcher",
        "parallel.cp_type",
        "training.log_throughput",
        "training.profile_level",
    ]
    assert list(Config.from_dict(minimal()).notices()) == []


def test_what_a_stage_has_no_use_for_is_told_in_that_stage() -> None:
    resolved = load("--training.stage", "pt", "--data.template", "qwen3", "--data.packing", "--data.train_on_prompt")
    assert resolved.notices == [
        "data.train_on_prompt changes nothing here: pretraining learns every token anyway",
        "data.template changes nothing here: pretraining uses no chat template",
        "data.packing changes nothing here: pretraining always fills its blocks",
    ]
    assert load("--data.train_on_prompt").notices == []


def test_weights_in_bf16_are_told_their_price() -> None:
    (notice,) = load("--training.master_dtype", "bf16").notices
    assert notice.startswith("training.master_dtype bf16 rounds small updates away")
