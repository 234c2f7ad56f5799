"""What README and docs say is there: links, files, settings, configs, metrics fields, fields of a run's files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmtrain.config import Config
from llmtrain.config.schema import FIELDS
from tests.distributed.launch import REPOSITORY, metrics
from tests.tiny import tiny_config

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
SECTIONS = ("model", "data", "parallel", "training", "optimization")

# Files of a run, of a model folder, of a data folder.
OF_USERS = ("manifest.json", "state.json", "config.yaml", "config.json", "dataset_info.json", "hf/", "output/")


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@by_page
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, fragment = target.partition("#")
        file = page if not name else (page.parent / name).resolve()
        assert file.exists(), target
        if fragment:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert fragment in map(anchor, headings), target


@by_page
def test_settings_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for named in re.findall(rf"(?<![\w./])(?:--)?((?:{'|'.join(SECTIONS)})\.[a-z]\w+)(?!\w*\()", text):
        module_name = named in ("model.layers", "model.embed_tokens")
        assert named in FIELDS or module_name or named.startswith(("data.dataset", "data.eval_dataset")), named


@by_page
def test_files_that_are_named_exist(page: Path) -> None:
    roots = [REPOSITORY, REPOSITORY / "llmtrain", page.parent, REPOSITORY / "tests" / "distributed"]
    for name in re.findall(r"`([\w./]+\.(?:py|sh|yaml|json|md|txt|toml)|[\w./]+/)`", page.read_text(encoding="utf-8")):
        if name in OF_USERS:
            continue
        assert any((root / name).exists() for root in roots), name


@by_page
def test_configs_in_the_text_are_valid(page: Path) -> None:
    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL):
        values = yaml.safe_load(block)
        if set(values) == {"model", "data", "training"}:
            Config.from_dict({**values, "training": {**values["training"], "lr": float(values["training"]["lr"])}})
        else:
            assert {f"{s}.{f}" for s, fields in values.items() for f in fields} <= set(FIELDS)


def test_metrics_fields_in_the_text_are_those_of_a_run(run: Callable[..., Any], files: Path) -> None:
    run(tiny_config(files, "out", data={"val_size": 4}, training={"max_steps": 1, "save_steps": 1}))
    (line,) = [x for x in (REPOSITORY / "docs/quickstart.md").read_text().splitlines() if x.startswith("| `metrics.")]
    named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)*\b", line.split("|")[2])) - {"evaluations", "have"}
    written = {key for row in metrics(files / "out") for key in row}
    assert named <= written


def test_the_table_of_what_a_run_writes_is_what_it_writes(run: Callable[..., Any], files: Path) -> None:
    run(tiny_config(files, "out", training={"max_steps": 1, "save_steps": 1, "save_hf_weights": True}))
    text = (REPOSITORY / "docs/quickstart.md").read_text().partition("## What a run writes")[2]
    named = {
        name.strip("/").replace("step-N", "step-1") for name in re.findall(r"^\| `([\w./-]+)`", text, re.MULTILINE)
    }
    written = {p.relative_to(files / "out").as_posix() for p in (files / "out").rglob("*")}
    assert named <= written
    assert {p.split("/")[0] for p in written} == {name.split("/")[0] for name in named}
