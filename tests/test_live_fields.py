"""No dead settings: every field of the schema is read by code, refused when set, or said to change nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from llmtrain.config import field_kinds

PACKAGE = Path(__file__).parents[1] / "llmtrain"
LIVE = sorted(name for name, kind in field_kinds().items() if kind == "live")


@pytest.fixture(scope="module")
def attributes_read() -> set[str]:
    """Names read as attributes anywhere outside of the config package."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        if "config" not in file.relative_to(PACKAGE).parts:
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found.add(node.attr)
    return found


@pytest.mark.parametrize("name", LIVE)
def test_a_live_field_is_read(attributes_read: set[str], name: str) -> None:
    assert name.partition(".")[2] in attributes_read
