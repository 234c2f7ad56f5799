"""Files -> rows, and what is said of files that cannot be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from llmtrain.data.sources import read_rows
from llmtrain.errors import UserError
from tests.data.conftest import Build, read
from tests.tiny import write_jsonl


def texts(source: Any) -> list[str]:
    return list(read_rows(source, "text", "data.dataset")["text"])


def rows(*values: str) -> list[dict[str, str]]:
    return [{"text": value} for value in values]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.parquet"])
def test_every_kind_of_file_is_read_in_its_order(tmp_path: Path, name: str) -> None:
    file, values = tmp_path / name, ["你好", "", "b\n\nc"]
    if name.endswith(".parquet"):
        datasets.Dataset.from_list(rows(*values)).to_parquet(str(file))
    elif name.endswith(".json"):
        file.write_text(json.dumps(rows(*values)), encoding="utf-8")
    else:
        write_jsonl(tmp_path / "plain.jsonl", rows(*values))
        content = (tmp_path / "plain.jsonl").read_bytes()
        file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert texts(str(file)) == values


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    for name, text in (("b.txt", "two"), ("a.txt", "一\n\nline")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert texts(str(tmp_path)) == ["一\n\nline", "two"]


def test_folders_and_patterns_are_sorted_and_lists_are_not(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        write_jsonl(tmp_path / f"{name}.jsonl", rows(name))
    assert texts(str(tmp_path)) == texts(str(tmp_path / "*.jsonl")) == ["a", "b", "c"]
    assert texts([str(tmp_path / "c.jsonl"), str(tmp_path / "a.jsonl")]) == ["c", "a"]


def test_a_column_of_another_name(tmp_path: Path) -> None:
    file = str(write_jsonl(tmp_path / "a.jsonl", [{"body": "x", "id": 1}]))
    assert texts({"file_name": file, "columns": {"text": "body"}}) == ["x"]
    with pytest.raises(UserError, match=r"no column 'text'; it has body, id.*columns: \{text: NAME\}"):
        texts(file)


def test_max_samples_takes_the_first_rows(build: Build) -> None:
    made = build(rows("w1", "w2", "w3"), "pt", max_samples=2, cutoff_len=8)
    assert read(made.train[0].input_ids).split()[:3] == ["w1", "</s>", "w2"]
    assert "2 documents" in made.summary[0][1]


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", ""), ("a.json", "[]"), ("a.parquet", "no table"), ("a.csv", "a,b")]
)
def test_a_file_that_gives_no_rows_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=rf"data\.dataset.*{name}"):
        texts(str(tmp_path / name))


def test_broken_json_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"\n{"text": "c"}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.jsonl cannot be read \(.*(comma|delimiter)"):
        texts(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("source", ["nowhere.jsonl", "nowhere/*.jsonl"])
def test_a_missing_file_is_named(source: str) -> None:
    with pytest.raises(UserError, match=r"data\.dataset: nowhere.* does not exist"):
        texts(source)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no .*\.jsonl"):
        texts(str(tmp_path))


@pytest.mark.parametrize(("val_size", "held"), [(3, 3), (0.25, 2), (0.01, 1)])
def test_held_out_rows_are_drawn_by_the_seed_and_both_parts_keep_their_order(
    build: Build, val_size: float, held: int
) -> None:
    def split(seed: int) -> tuple[list[str], list[str]]:
        documents = rows(*(f"w{i}" for i in range(8)))
        made = build(documents, "pt", seed=seed, val_size=val_size, append_eod=False, cutoff_len=16)
        parts = []
        for part in (made.train, made.evaluation):
            assert part is not None
            first = part[0]
            parts.append(read([*first.input_ids.tolist(), int(first.targets[-1])]).replace(" .", "").split())
        return parts[0], parts[1]

    if held == 1:
        with pytest.raises(UserError, match=r"data\.val_size: .*1 token"):
            split(1)
        return
    train, evaluation = split(1)
    assert len(evaluation) == held
    assert sorted(train + evaluation) == [f"w{i}" for i in range(8)]
    assert train == sorted(train)
    assert evaluation == sorted(evaluation)
    assert split(1) == (train, evaluation)
    assert any(split(seed) != (train, evaluation) for seed in (2, 3))


@pytest.mark.parametrize("val_size", [2, 3])
def test_training_data_is_never_all_held_out(build: Build, val_size: int) -> None:
    with pytest.raises(UserError, match=r"data\.val_size takes .* of 2 rows"):
        build(rows("w1", "w2"), "pt", val_size=val_size)


def test_other_files_can_be_held_out(build: Build, tmp_path: Path) -> None:
    other = str(write_jsonl(tmp_path / "other.jsonl", rows("w7 w8")))
    made = build(rows("w1 w2"), "pt", eval_dataset=other, cutoff_len=8)
    assert made.evaluation is not None
    assert read(made.evaluation[0].input_ids).startswith("w7 w8")
    assert [name for name, _ in made.summary] == ["data.dataset", "data.eval_dataset"]
