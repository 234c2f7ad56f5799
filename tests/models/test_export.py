"""An exported folder is a Hugging Face folder: transformers loads it with nothing else, and it says what it holds."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from llmtrain.checkpoint import export
from llmtrain.models.initialise import initialise
from llmtrain.training import train
from tests.tiny import TEMPLATE, tiny_config

Run = Callable[[dict[str, Any]], Any]
IDS = torch.arange(7, 27).view(2, 10)


def keys_and_dtypes(folder: Path) -> dict[str, torch.dtype]:
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as handle:
            found |= {key: handle.get_tensor(key).dtype for key in handle.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("source", ["scratch", "folder"])
def test_the_reloaded_model_computes_what_the_trained_one_did(run: Run, files: Path, tied: bool, source: str) -> None:
    kept: dict[str, torch.Tensor] = {}
    original = train.export_hf

    def watched(folder: Path, model: Any, *rest: Any) -> None:
        with torch.no_grad():
            kept["logits"] = model.eval()(input_ids=IDS, use_cache=False).logits
        original(folder, model, *rest)

    settings = {"max_steps": 2, "save_hf_weights": True}
    config = tiny_config(files, "first", model={"config_overrides": {"tie_word_embeddings": tied}}, training=settings)
    with mock.patch.object(train, "export_hf", watched):
        run(config)
        folder = files / "first" / "hf"
        if source == "folder":
            config = tiny_config(files, "second", training={**settings, "deterministic": False})
            config["model"] = {"model_name_or_path": str(folder)}
            run(config)
            folder = files / "second" / "hf"
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        assert torch.allclose(model(input_ids=IDS).logits, kept["logits"], atol=1e-6)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert ("lm_head.weight" in keys_and_dtypes(folder)) == (not tied)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is tied
    assert (
        AutoTokenizer.from_pretrained(folder).chat_template
        == AutoTokenizer.from_pretrained(files / "tokenizer").chat_template
    )


def test_several_files_with_an_index_that_lists_just_what_they_hold(run: Run, files: Path) -> None:
    with mock.patch.object(export, "MAX_FILE_BYTES", 100_000):
        run(tiny_config(files, "out", training={"max_steps": 1, "save_hf_weights": True}))
    folder = files / "out" / "hf"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert set(index["weight_map"]) == set(keys_and_dtypes(folder))
    one = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(p.numel() * 4 for p in one.parameters()) == index["metadata"]["total_size"]


@pytest.mark.parametrize(
    ("asked", "compute", "expected"),
    [("bf16", "fp32", "bfloat16"), ("fp32", "bf16", "float32"), (None, "bf16", "bfloat16")],
)
def test_the_dtype_is_the_one_asked_for(run: Run, files: Path, asked: str | None, compute: str, expected: str) -> None:
    settings = {"max_steps": 1, "save_hf_weights": True, "hf_weights_dtype": asked}
    run(tiny_config(files, "out", parallel={"param_dtype": compute}, training=settings))
    folder = files / "out" / "hf"
    assert set(keys_and_dtypes(folder).values()) == {getattr(torch, expected)}
    assert json.loads((folder / "config.json").read_text())["dtype"] == expected


def test_rotary_settings_stand_in_both_spellings(run: Run, files: Path) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
    settings = {"max_steps": 1, "save_hf_weights": True}
    run(tiny_config(files, "out", model={"config_overrides": {"rope_parameters": yarn}}, training=settings))
    written = json.loads((files / "out" / "hf" / "config.json").read_text())
    assert written["rope_theta"] == 1e6
    assert written["rope_scaling"]["rope_type"] == "yarn"
    assert written["rope_scaling"]["factor"] == 4.0
    model = AutoModelForCausalLM.from_pretrained(files / "out" / "hf")
    assert model.config.rope_parameters["rope_theta"] == 1e6
    assert model.config.rope_parameters["factor"] == 4.0
    # 0.1 ln(factor) + 1, the temperature of the YaRN paper.
    assert model.model.rotary_emb.attention_scaling == pytest.approx(1.138629, rel=1e-6)


def test_a_model_stops_where_it_was_taught_to(run: Run, files: Path) -> None:
    """The tokenizer's eos is </s> (1); answers end with <end> (6)."""
    run(tiny_config(files, "out", training={"max_steps": 1, "save_hf_weights": True}))
    assert set(GenerationConfig.from_pretrained(files / "out" / "hf").eos_token_id) == {1, 6}


def test_a_streamed_run_stops_where_it_was_taught_to(run: Run, files: Path) -> None:
    settings = {"max_steps": 1, "save_hf_weights": True}
    run(tiny_config(files, "out", data={"streaming": True}, training=settings))
    assert set(GenerationConfig.from_pretrained(files / "out" / "hf").eos_token_id) == {1, 6}


def test_a_named_template_and_its_end_are_exported(run: Run, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "{#- ends: <end>\n-#}\n" + TEMPLATE
    template = files / "mine.jinja"
    template.write_text(text)
    settings = {"max_steps": 1, "save_hf_weights": True}
    run(tiny_config(files, "out", data={"template": str(template)}, training=settings))
    assert AutoTokenizer.from_pretrained(files / "out" / "hf").chat_template == text
    assert GenerationConfig.from_pretrained(files / "out" / "hf").eos_token_id == [1, 6]
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "note: The chat template ends answers with <end>, and the model as it is stops at </s>: it learns the new end"
        in said
    )


def test_a_source_folders_generation_settings_are_kept(run: Run, files: Path) -> None:
    run(tiny_config(files, "first", training={"max_steps": 1, "save_hf_weights": True}))
    source = files / "first" / "hf"
    GenerationConfig(eos_token_id=[6, 1], temperature=0.3, do_sample=True, pad_token_id=2).save_pretrained(source)
    config = tiny_config(files, "second", training={"max_steps": 1, "save_hf_weights": True})
    config["model"] = {"model_name_or_path": str(source)}
    run(config)
    kept = GenerationConfig.from_pretrained(files / "second" / "hf")
    assert (kept.eos_token_id, kept.temperature, kept.pad_token_id) == ([6, 1], 0.3, 2)


def test_one_whole_tensor_is_held_at_a_time(run: Run, files: Path) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    most = 0
    original = export._gather

    def watched(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        nonlocal most
        whole = original(tensor, dtype).clone()  # of one rank, a gathered tensor may be the shard itself
        held.append(weakref.ref(whole))
        most = max(most, sum(other() is not None for other in held))
        return whole

    with mock.patch.object(export, "_gather", watched):
        run(tiny_config(files, "out", training={"max_steps": 1, "save_hf_weights": True}))
    assert len(held) == len(keys_and_dtypes(files / "out" / "hf"))
    assert most == 1


def test_a_failing_export_leaves_nothing_half_written(run: Run, files: Path) -> None:
    def full(self: Any, tensors: Any) -> None:
        raise OSError(28, "No space left on device")

    refusal = pytest.raises(Exception, match="No space left on device")
    with mock.patch.object(export._Writer, "write", full), refusal:
        run(tiny_config(files, "out", training={"max_steps": 1, "save_hf_weights": True}))
    assert not (files / "out" / "hf").exists()
    assert not (files / "out" / "hf.partial").exists()


def test_initialise_is_what_the_trainer_calls() -> None:
    assert train.initialise is initialise
