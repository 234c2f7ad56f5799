"""Promise 1: loss, gradient norm and weights are a function of (config, seed, data) alone.

Every layout is held against `reference.py`: a plain loop over stock transformers that knows nothing of the trainer.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.distributed import reference
from tests.distributed.launch import exported, losses, norms, run_cases, steady
from tests.distributed.mutations import MUTATIONS
from tests.tiny import SIZES, make_chats, make_texts, make_tokenizer, tiny_config

STEPS = 20
TOLERANCE = 1e-5

# name -> ranks and what differs from the base config. The global batch is 8 everywhere.
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "r1-1x8": (1, {"training": {"per_device_train_batch_size": 1}}),
    "r1-2x4": (1, {}),
    "r1-8x1": (1, {"training": {"per_device_train_batch_size": 8}}),
    "r2-fsdp2-1x4": (2, {"training": {"per_device_train_batch_size": 1}}),
    "r2-fsdp2-2x2": (2, {}),
    "r2-fsdp2-4x1": (2, {"training": {"per_device_train_batch_size": 4}}),
    "r2-fsdp1": (2, {"parallel": {"fsdp_size": 1}}),
    "r2-deferred": (2, {"parallel": {"defer_gradient_sync": True}}),
    "r2-recompute": (2, {"parallel": {"recompute": True}}),
    "r2-offload": (2, {"parallel": {"cpu_offload": True}}),
    "r2-no-reshard": (2, {"parallel": {"reshard_after_forward": False, "num_to_forward_prefetch": 2}}),
    "r2-units": (2, {"parallel": {"fsdp_modules": ["model.layers.{*}.mlp", "model.layers.{0-1}.self_attn"]}}),
    "r2-ignored": (2, {"parallel": {"ignored_modules": ["model.layers.{*}.input_layernorm", "lm_head"]}}),
    "r2-eager": (2, {"model": {"attn_implementation": "eager"}}),
    "r2-padding-free": (2, {"data": {"padding_free": True}}),
    "r2-padding-free-eager": (2, {"data": {"padding_free": True}, "model": {"attn_implementation": "eager"}}),
    "r4-fsdp4": (4, {"training": {"per_device_train_batch_size": 1}}),
    "r4-hsdp-2x2": (4, {"parallel": {"fsdp_size": 2}}),
    "r4-hsdp-2x2-deferred": (
        4,
        {"parallel": {"fsdp_size": 2, "defer_gradient_sync": True}, "training": {"per_device_train_batch_size": 1}},
    ),
    "r4-fsdp1": (4, {"parallel": {"fsdp_size": 1}}),
}
KINDS = [("sgd", "untied"), ("adamw", "untied"), ("sgd", "tied"), ("adamw", "tied")]
# Every layout trains with AdamW on untied weights; a few with every kind.
THOROUGH = {"r1-2x4", "r2-fsdp2-2x2", "r4-hsdp-2x2", "r2-fsdp1", "r2-offload"}


def rates(peak: float) -> list[float]:
    """Four warm-up steps, then linearly down to a tenth; written from the documentation, not from the code."""
    return [peak * n / 4 for n in range(1, 5)] + [
        peak + (0.1 * peak - peak) * (n - 4) / (STEPS - 4) for n in range(5, STEPS + 1)
    ]


# High enough to move every weight by far more than the tolerance; not so high that training is unstable and grows
# rounding into another curve: two plain float32 loops part by 1e-5, too, in the gradient norm with SGD at 0.5 and
# altogether with AdamW, which divides by the size of the gradient, at 0.01.
PEAK = {"sgd": 0.2, "adamw": 0.001}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parity")
    make_tokenizer(folder / "tokenizer")
    make_chats(folder / "chats.jsonl", conversations=44)
    make_texts(folder / "texts.jsonl")
    torch.manual_seed(0)
    for tied in (False, True):
        # 127 rows do not divide by 2 or 4.
        config = AutoConfig.for_model("qwen3", **{**SIZES, "tie_word_embeddings": tied, "intermediate_size": 95})
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(
            folder / ("tied" if tied else "untied")
        )
    return folder


def case(root: Path, name: str, optimizer: str, model: str, changes: dict[str, Any], **more: Any) -> dict[str, Any]:
    config = tiny_config(
        root,
        name,
        model={
            "model_type": None,
            "model_name_or_path": str(root / model),
            "config_overrides": None,
            **changes.get("model", {}),
        },
        data=changes.get("data", {}),
        parallel=changes.get("parallel", {}),
        training={
            "optimizer": optimizer,
            "lr": PEAK[optimizer],
            "min_lr": 0.1 * PEAK[optimizer],
            "lr_scheduler_type": "linear",
            "warmup_steps": 4,
            "disable_shuffling": True,
            "save_hf_weights": True,
            "hf_weights_dtype": "fp32",
            **changes.get("training", {}),
        },
    )
    config["model"]["config_overrides"] = {}
    return {"name": name, "config": config, **more}


@pytest.fixture(scope="module")
def curves(root: Path) -> dict[tuple[str, str], reference.Curve]:
    samples = reference.chat_samples(root)
    return {(opt, model): reference.train(root / model, samples, opt, rates(PEAK[opt])) for opt, model in KINDS}


def name_of(layout: str, optimizer: str, model: str) -> str:
    return f"{layout}-{optimizer}-{model}"


@pytest.fixture(scope="module")
def runs(root: Path) -> None:
    """All layouts, each number of ranks in one start."""
    for ranks in (1, 2, 4):
        cases = [
            case(root, name_of(layout, opt, model), opt, model, changes)
            for layout, (count, changes) in LAYOUTS.items()
            if count == ranks
            for opt, model in (KINDS if layout in THOROUGH else KINDS[1:2])
        ]
        run_cases(ranks, cases, root)


def distance(output: Path, curve: reference.Curve) -> float:
    """The largest deviation: relative for losses and norms, absolute for weights (which are below 2)."""
    loss = max(abs(a - b) / b for a, b in zip(losses(output), curve.losses, strict=True))
    norm = max(abs(a - b) / b for a, b in zip(norms(output), curve.norms, strict=True))
    weights = exported(output)
    assert set(weights) == set(curve.weights)
    weight = max((weights[name] - value).abs().max().item() for name, value in curve.weights.items())
    return max(x if math.isfinite(x) else math.inf for x in (loss, norm, weight))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_reference_curve(runs: None, root: Path, curves: Any, layout: str) -> None:
    for opt, model in KINDS if layout in THOROUGH else KINDS[1:2]:
        assert distance(root / name_of(layout, opt, model), curves[opt, model]) < TOLERANCE, (opt, model)


def test_pretraining_gives_the_reference_curve(root: Path) -> None:
    samples = reference.text_samples(root, 24)
    curve = reference.train(root / "untied", samples, "sgd", rates(PEAK["sgd"]))
    changes = {
        "data": {"dataset": str(root / "texts.jsonl"), "cutoff_len": 24},
        "training": {"stage": "pt"},
    }
    run_cases(2, [case(root, "pretraining", "sgd", "untied", changes)], root)
    assert distance(root / "pretraining", curve) < TOLERANCE


RESUME = {"training": {"save_steps": 100, "resume_from_checkpoint": "latest"}}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_stop_at_step_7_and_a_resume_change_nothing(runs: None, root: Path, curves: Any, ranks: int) -> None:
    """Started on 2 ranks; on the same number the resumed run is the same to the last bit."""
    name = f"resumed-{ranks}"
    run_cases(2, [case(root, name, "adamw", "untied", RESUME, stop_at=7)], root)
    assert [row["step"] for row in steady(root / name)] == list(range(1, 8))
    run_cases(ranks, [case(root, name, "adamw", "untied", RESUME)], root)
    assert distance(root / name, curves["adamw", "untied"]) < TOLERANCE
    if ranks == 2:
        straight = root / name_of("r2-fsdp2-2x2", "adamw", "untied")
        assert steady(root / name) == steady(straight)
        for key, value in exported(straight).items():
            assert torch.equal(exported(root / name)[key], value), key


# AdamW does not see a constant factor of the gradient; SGD has no state to lose.
SEEN_BY_ADAMW = {"count_a_step_that_never_was", *(name for name in MUTATIONS if name.startswith("resume"))}


@pytest.fixture(scope="module")
def mutants(root: Path) -> None:
    cases = []
    for name in MUTATIONS:
        opt = "adamw" if name in SEEN_BY_ADAMW else "sgd"
        if name.startswith("resume"):
            cases.append(case(root, f"mutant-{name}", opt, "untied", RESUME, stop_at=7))
            cases.append(case(root, f"mutant-{name}", opt, "untied", RESUME, mutation=name))
        else:
            cases.append(case(root, f"mutant-{name}", opt, "untied", {}, mutation=name))
    run_cases(2, cases, root)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_suite_notices_a_fault(mutants: None, root: Path, curves: Any, name: str) -> None:
    opt = "adamw" if name in SEEN_BY_ADAMW else "sgd"
    assert distance(root / f"mutant-{name}", curves[opt, "untied"]) > 10 * TOLERANCE
