"""What is written from a config or its schema: YAML that runs again, --print-config, help, the files in docs/."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import llmtrain.config
from llmtrain.config import (
    Config,
    field_kinds,
    json_schema,
    load_config,
    render_config,
    render_help,
    write_reference,
)
from tests.config.samples import load, minimal, problems, write

DOCS = Path(__file__).parents[2] / "docs"
CONFIGS: list[dict[str, dict[str, Any]]] = [
    {},
    {"training": {"warmup_steps": 5, "lr": 1e-7, "min_lr": 1e-9}},
    {"training": {"warmup_steps": 0, "run_name": "1e-5"}},
    {"training": {"run_name": "007"}},
    {"training": {"run_name": "yes"}},
    {"training": {"run_name": "a: b # c"}},
    {"training": {"run_name": "two\nlines"}},
    {"training": {"run_name": "${training.seed}"}},
    {"training": {"run_name": " spaced "}},
    {"training": {"run_name": "word " * 60}},
    {"data": {"dataset": {"file_name": ["a", "b"], "columns": {"text": "t"}}, "val_size": 1e-20}},
    {"data": {"dataset": ["*.jsonl", "[x]"]}},
    {"model": {"config_overrides": {"a": {"b": [1, {"c": 1e20}], "d": "1e5"}, "e": None, "f": True, "no": "no"}}},
    {"parallel": {"fsdp_modules": ["model.layers.{*}", "*head"], "recompute": True}},
    {"optimization": {"use_flash_attn": False}, "training": {"stage": "pt"}, "data": {"packing": True}},
]


@pytest.mark.parametrize("sections", CONFIGS)
def test_a_written_config_loads_as_an_equal_one(tmp_path: Path, sections: dict[str, dict[str, Any]]) -> None:
    config = Config.from_dict(minimal(**sections))
    again = load_config([write(tmp_path / "c.yaml", config.to_yaml())])
    assert again.config == config
    assert again.notices == list(config.notices())
    assert again.config.to_yaml() == config.to_yaml()


@pytest.mark.parametrize("sections", CONFIGS)
def test_the_printed_config_loads_as_an_equal_one(tmp_path: Path, sections: dict[str, dict[str, Any]]) -> None:
    resolved = load_config([write(tmp_path / "c.yaml", Config.from_dict(minimal(**sections)).to_yaml())])
    assert load_config([write(tmp_path / "printed.yaml", render_config(resolved))]).config == resolved.config


def test_the_printed_config_names_origins(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "training:\n  seed: 3\nmodel:\n  config_overrides:\n    depth: 2\n")
    lines = render_config(load(file, "--parallel.fsdp_modules", "a", "b")).split("\n")
    origins = {line.partition("#")[0].strip(): line.partition("# ")[2] for line in lines}
    assert origins["seed: 3"] == f"{file}:2"
    assert origins["depth: 2"] == f"{file}:5"
    assert origins["fsdp_modules:"] == "command line"
    assert origins["lr: 1.0e-05"] == "default"


def test_every_field_has_an_origin() -> None:
    origins = load().origins
    assert set(field_kinds()) <= set(origins)
    assert origins["training.output_dir"] == "command line" and origins["training.seed"] == "default"


def test_secrets_are_written_nowhere() -> None:
    resolved = load("--model.hf_hub_token", "hf_secret")
    assert resolved.config.model.hf_hub_token == "hf_secret"
    for text in (
        resolved.config.to_yaml(),
        json.dumps(resolved.config.to_dict()),
        render_config(resolved),
        repr(resolved),
    ):
        assert "hf_secret" not in text


@pytest.mark.parametrize(
    "words",
    [
        ["--model.ms_hub_token", "ms_secret"],
        ["--model.hf_hub_token", "[ms_secret]"],
        ["--model.hf_hub_token", "ms_secret", "--model.hf_hub_token", "ms_secret2"],
    ],
)
def test_secrets_are_not_repeated_in_messages(words: list[str]) -> None:
    (message,) = problems(*words)
    assert "hub_token is " in message and "ms_secret" not in message


def test_defaults_are_values_that_a_user_may_give() -> None:
    config = Config.from_dict(minimal())
    assert Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("name", ["configuration.md", "config.schema.json"])
def test_generated_documents_are_fresh(tmp_path: Path, name: str) -> None:
    write_reference(tmp_path)
    fresh, kept = (tmp_path / name).read_text(encoding="utf-8"), (DOCS / name).read_text(encoding="utf-8")
    assert kept == fresh, f"docs/{name} is stale; run python -m llmtrain.config"


def test_help_and_page_name_every_field() -> None:
    page, text = (DOCS / "configuration.md").read_text(encoding="utf-8"), render_help()
    for path in field_kinds():
        assert f"--{path}  (" in text
        assert f"| `{path.partition('.')[2]}` |" in page


def test_the_json_schema_knows_every_field_and_no_other() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == {"model", "data", "parallel", "training", "optimization", "inference", "base"}
    assert schema["additionalProperties"] is False and "required" not in schema
    known = set()
    for name in set(schema["properties"]) - {"base"}:
        section = schema["$defs"][schema["properties"][name]["$ref"].rpartition("/")[2]]
        assert section["additionalProperties"] is False and "required" not in section
        known |= {f"{name}.{field}" for field in section["properties"]}
    assert known == set(field_kinds())
    json.dumps(schema)


def test_config_imports_nothing_heavy_and_nothing_of_the_rest() -> None:
    code = "import sys, llmtrain.config; print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
    for file in Path(llmtrain.config.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("llmtrain"):
                assert str(node.module).startswith(("llmtrain.config", "llmtrain.errors")), (
                    f"{file.name}: {node.module}"
                )
