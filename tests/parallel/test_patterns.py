"""Module patterns against a model's names."""

from __future__ import annotations

import pytest
from torch import nn

from llmtrain.errors import UserError
from llmtrain.parallel.patterns import match_modules


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """embed, layers.0 to layers.11 of {attn.{q_proj,k_proj}, mlp}, head."""
    layers = nn.ModuleList(
        nn.ModuleDict(
            {"attn": nn.ModuleDict({"q_proj": nn.Linear(1, 1), "k_proj": nn.Linear(1, 1)}), "mlp": nn.Linear(1, 1)}
        )
        for _ in range(12)
    )
    return nn.ModuleDict({"embed": nn.Linear(1, 1), "layers": layers, "head": nn.Linear(1, 1)})


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["layers.{*}"], [f"layers.{i}" for i in range(12)]),
        (["layers.{2-4}"], ["layers.2", "layers.3", "layers.4"]),
        (["layers.{9-11}.mlp"], ["layers.9.mlp", "layers.10.mlp", "layers.11.mlp"]),
        (["layers.1?"], ["layers.10", "layers.11"]),
        (["layers.1.attn.*_proj"], ["layers.1.attn.q_proj", "layers.1.attn.k_proj"]),
        (["*.q_proj"], [f"layers.{i}.attn.q_proj" for i in range(12)]),
        (["head", "embed"], ["embed", "head"]),
        (["layers.1", "layers.{0-1}"], ["layers.0", "layers.1"]),
        (["layers.{0-100}.mlp"], [f"layers.{i}.mlp" for i in range(12)]),
    ],
)
def test_what_a_pattern_names(model: nn.Module, patterns: list[str], names: list[str]) -> None:
    assert match_modules(model, patterns, "parallel.fsdp_modules") == names


@pytest.mark.parametrize("pattern", ["layer.{*}", "layers.{12-20}", "Head", "layers.{*}.", "layers[0]"])
def test_a_pattern_that_names_nothing_is_refused_with_what_is_there(model: nn.Module, pattern: str) -> None:
    with pytest.raises(UserError) as refusal:
        match_modules(model, ["layers.{*}", pattern], "parallel.fsdp_modules")
    assert "parallel.fsdp_modules" in str(refusal.value)
    assert repr(pattern) in str(refusal.value)
    assert "layers.{*}.attn.q_proj" in str(refusal.value) or "layers.{*}.attn" in str(refusal.value)
