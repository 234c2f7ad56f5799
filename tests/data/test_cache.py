"""A cache is used where nothing that made it has changed, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from llmtrain.data import store, tokenise
from tests.data.conftest import BOS_FIRST, Build, chat, edit_tokenizer
from tests.tiny import TEMPLATE, WORDS, make_tokenizer, write_jsonl

CHATS = [
    chat("w1", "w2 w3"),
    chat("w4 w5", "w6", "w7", "w8 w9 w10"),
    chat("w1", "w2"),
    chat("w3", "w4"),
    chat("w5", "w6"),
]
TEXTS = [{"text": f"w{i} w{i + 1} w{i + 2}"} for i in range(5)]
ROWS = {"sft": CHATS, "pt": TEXTS}


def dump(made: Any) -> list[tuple[list[int], list[int]]]:
    train = made.train
    return [(train[i].input_ids.tolist(), train[i].targets.tolist()) for i in range(len(train))]


def shifted(folder: Path) -> Path:
    """The tokenizer with every word's id one further on."""
    words = WORDS[:7] + WORDS[-1:] + WORDS[7:-1]
    model = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "<unk>"}
    return edit_tokenizer(make_tokenizer(folder), model=model)


def with_bos(folder: Path) -> Path:
    return edit_tokenizer(make_tokenizer(folder), post_processor=BOS_FIRST)


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("sft", {"tokenizer": shifted}),
        ("sft", {"template": TEMPLATE.replace("<user>", "<s>")}),
        ("sft", {"cutoff_len": 8}),
        ("sft", {"train_on_prompt": True}),
        ("sft", {"mask_history": True}),
        ("sft", {"max_samples": 2}),
        ("sft", {"val_size": 2}),
        ("sft", {"rows": [*CHATS[:4], chat("w5", "w7")]}),
        ("sft", {"rows": CHATS[::-1]}),
        ("pt", {"tokenizer": shifted}),
        ("pt", {"tokenizer": with_bos}),
        ("pt", {"append_eod": False}),
        ("pt", {"cutoff_len": 4}),
        ("pt", {"max_samples": 3}),
        ("pt", {"val_size": 2}),
        ("pt", {"model": {"add_tokens": ["w1 w2"]}}),
        ("pt", {"rows": [*TEXTS[:4], {"text": "w40 w41 w42"}]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_one_change_gives_what_an_empty_cache_gives(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, change: dict[str, Any]
) -> None:
    source = write_jsonl(tmp_path / "source.jsonl", ROWS[stage])
    settings: dict[str, Any] = {"stage": stage, "source": str(source), "cutoff_len": 16}
    before = dump(build(**settings))
    changed = {**settings, **change}
    if "rows" in change:
        write_jsonl(source, changed.pop("rows"))
    if "tokenizer" in change:
        changed["tokenizer"] = change["tokenizer"](tmp_path / "other")
    after = dump(build(**changed))
    assert after != before
    monkeypatch.setenv("LLMTRAIN_CACHE", str(tmp_path / "empty"))
    assert after == dump(build(**changed))


def test_the_switch_for_thinking_is_part_of_the_key(build: Build, tmp_path: Path) -> None:
    source = str(write_jsonl(tmp_path / "source.jsonl", CHATS))
    template = "{% if enable_thinking %}w9 {% endif %}" + TEMPLATE
    first = [dump(build(source=source, template=template, enable_thinking=on))[0][0][0] for on in (True, False)]
    assert first == [WORDS.index("w9"), WORDS.index("<user>")]


@pytest.mark.parametrize("stage", ["pt", "sft"])
def test_an_edit_that_leaves_the_time_of_change_is_seen(build: Build, tmp_path: Path, stage: str) -> None:
    seen = []
    for count in (2, 5):
        source = write_jsonl(tmp_path / "source.jsonl", ROWS[stage][:count])
        os.utime(source, (1e9, 1e9))
        seen.append(dump(build(stage=stage, source=str(source), cutoff_len=64)))
    assert seen[0] != seen[1]


@pytest.mark.parametrize("stage", ["pt", "sft"])
@pytest.mark.parametrize("val_size", [0, 2])
def test_the_same_settings_find_the_cache_unless_told_otherwise(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, val_size: int
) -> None:
    settings: dict[str, Any] = {"stage": stage, "val_size": val_size}
    settings["source"] = str(write_jsonl(tmp_path / "source.jsonl", ROWS[stage]))
    first = dump(build(**settings))
    written: list[Path] = []

    def watched(path: Path, *rest: Any, **more: Any) -> None:
        written.append(path)
        store.write_store(path, *rest, **more)

    monkeypatch.setattr(tokenise, "write_store", watched)
    assert dump(build(**settings)) == first
    assert not written
    assert dump(build(**settings, overwrite_cache=True)) == first
    assert len(written) == 1


def test_several_processes_make_the_same(build: Build, tmp_path: Path) -> None:
    source = str(write_jsonl(tmp_path / "source.jsonl", CHATS))
    alone = dump(build(source=source))
    assert dump(build(source=source, overwrite_cache=True, preprocessing_num_workers=2)) == alone
