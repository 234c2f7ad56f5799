"""What `data.dataset` names -> files, layouts, shares."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import fsspec
import pytest

from llmtrain.config import DataConfig
from llmtrain.data.readers import HubDataset, parse, read_file
from llmtrain.data.sources import DataSource, resolve_sources
from llmtrain.errors import UserError
from tests.data.conftest import Build, read
from tests.tiny import write_jsonl


def resolve(value: Any, folder: Path | str = "nowhere") -> list[DataSource]:
    return resolve_sources(value, str(folder), "data.dataset")


def texts(value: Any, folder: Path | str = "nowhere") -> list[list[str]]:
    """The texts of each source."""
    return [
        [parse(raw)["text"] for file in source.files for _, raw in read_file(file)] for source in resolve(value, folder)
    ]


def rows(*values: str) -> list[dict[str, str]]:
    return [{"text": value} for value in values]


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(folder / f"{name}.jsonl", rows(name))


def registry(folder: Path, **entries: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "dataset_info.json").write_text(json.dumps(entries), encoding="utf-8")
    return folder


def test_folders_and_patterns_are_sorted_and_lists_are_not(tmp_path: Path) -> None:
    put(tmp_path, "c", "a", "sub/b")
    assert texts(str(tmp_path)) == [["a", "c", "sub/b"]]
    assert texts(str(tmp_path / "*.jsonl")) == [["a", "c"]]
    assert texts(str(tmp_path / "**/*.jsonl")) == [["a", "c", "sub/b"]]
    assert texts([str(tmp_path / "c.jsonl"), str(tmp_path / "a.jsonl")]) == [["c"], ["a"]]
    assert texts(f"{tmp_path / 'c.jsonl'}, {tmp_path / 'a.jsonl'}") == [["c"], ["a"]]


def test_a_path_with_a_comma_is_a_path(tmp_path: Path) -> None:
    put(tmp_path, "a,b")
    assert texts(str(tmp_path / "a,b.jsonl")) == [["a,b"]]


def test_the_address_of_any_file_system_is_read(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for name in ("b", "a"):
        memory.pipe(f"/shards/{name}.jsonl", json.dumps({"text": name}).encode())
    assert texts("memory://shards") == texts("memory://shards/*.jsonl") == [["a", "b"]]
    assert texts("memory://shards/b.jsonl") == [["b"]]
    with pytest.raises(UserError, match="memory://nothing does not exist"):
        resolve("memory://nothing")
    with pytest.raises(UserError, match=r"data\.dataset: nosuch://x cannot be looked at"):
        resolve("nosuch://x")


def test_a_name_is_looked_up_in_dataset_info(tmp_path: Path) -> None:
    put(tmp_path / "info", "a", "shards/b", "shards/c")
    folder = registry(
        tmp_path / "info",
        plain={"file_name": "a.jsonl", "num_samples": 3, "weight": 0.25},
        shards={"file_name": "shards"},
        chats={"file_name": "a.jsonl", "formatting": "sharegpt", "columns": {"messages": "talk"}, "ranking": True,
               "tags": {"user_tag": "me"}},
        hub={"hf_hub_url": "org/name", "subset": "x", "split": "test"},
    )  # fmt: skip
    assert texts("plain, shards", folder) == [["a"], ["shards/b", "shards/c"]]
    plain, chats, hub = resolve(["plain", "chats", "hub"], folder)
    assert (plain.name, plain.num_samples, plain.weight) == ("plain", 3, 0.25)
    assert (chats.layout.column("messages"), chats.layout.tag("user_tag"), chats.layout.ranking) == ("talk", "me", True)
    assert hub.files == (HubDataset("org/name", "x", "test", None),)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"file_nam": "a.jsonl"}, "file_nam is unknown; did you mean file_name"),
        ({"script_url": "x.py"}, "script_url cannot be used: loading scripts are not run"),
        ({"ms_hub_url": "x"}, "ms_hub_url cannot be used"),
        ({}, "file_name must be a path"),
        (
            {"file_name": "a.jsonl", "formatting": "chatml"},
            "formatting is 'chatml'; known are alpaca",
        ),
        (
            {"file_name": "a.jsonl", "columns": {"promt": "q"}},
            r"columns\.promt is unknown; did you mean",
        ),
        ({"file_name": "a.jsonl", "columns": {"images": "i"}}, r"columns\.images cannot be used"),
        ({"file_name": "a.jsonl", "tags": {"role": "r"}}, r"tags\.role is unknown"),
        ({"file_name": "a.jsonl", "num_samples": 0}, "num_samples is 0"),
        ({"file_name": "a.jsonl", "weight": -1}, "weight is -1"),
    ],
)
def test_a_description_that_cannot_be_used_is_told_wherever_it_stands(
    tmp_path: Path, entry: dict[str, Any], reason: str
) -> None:
    put(tmp_path, "a")
    with pytest.raises(UserError, match=rf"dataset_info\.json, mine: {reason}"):
        resolve("mine", registry(tmp_path, mine=entry))
    with pytest.raises(ValueError, match=reason):
        DataConfig(dataset=entry)
    with pytest.raises(ValueError, match=reason):
        DataConfig(dataset=["a.jsonl", entry])


def test_an_unknown_name_is_told_with_the_nearest_one(tmp_path: Path) -> None:
    put(tmp_path, "a")
    folder = registry(tmp_path, identity={"file_name": "a.jsonl"})
    with pytest.raises(UserError, match=r"identiti does not exist, and .*no such name\. Did you mean identity"):
        resolve("identiti", folder)


@pytest.mark.parametrize("content", ["[]", "{", '{"a": 1}'])
def test_a_broken_dataset_info_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "dataset_info.json").write_text(content)
    with pytest.raises(UserError, match=r"dataset_info\.json (must be|cannot be read)"):
        resolve("a", tmp_path)


@pytest.mark.parametrize("blend", ["0.3,{a},0.7,{b}", "0.3 {a} 0.7 {b}", ["0.3", "{a}", "0.7", "{b}"]])
def test_weights_and_paths_in_turn_are_a_blend(tmp_path: Path, blend: Any) -> None:
    put(tmp_path, "a", "b")
    names = {name: str(tmp_path / f"{name}.jsonl") for name in "ab"}
    filled = blend.format(**names) if isinstance(blend, str) else [part.format(**names) for part in blend]
    assert [(source.name, source.weight) for source in resolve(filled)] == [("a", 0.3), ("b", 0.7)]


def test_datasets_of_one_name_are_told_apart(tmp_path: Path) -> None:
    put(tmp_path, "x/a", "y/a")
    assert [s.name for s in resolve([str(tmp_path / "x/a.jsonl"), str(tmp_path / "y/a.jsonl")])] == ["a", "a#2"]


@pytest.mark.parametrize("source", ["nowhere.jsonl", "nowhere/*.jsonl"])
def test_a_missing_file_is_named(source: str) -> None:
    with pytest.raises(UserError, match=r"data\.dataset: nowhere.* does not exist"):
        resolve(source)


def test_an_empty_folder_and_an_unknown_kind_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no .*\.jsonl"):
        resolve(str(tmp_path))
    (tmp_path / "a.xlsx").write_text("")
    with pytest.raises(UserError, match=r"a\.xlsx is of no known kind; \.jsonl, "):
        resolve(str(tmp_path / "a.xlsx"))


def test_a_column_of_another_name(build: Build, tmp_path: Path) -> None:
    file = str(write_jsonl(tmp_path / "a.jsonl", [{"body": "w1 w2", "id": 1}]))
    made = build(source={"file_name": file, "columns": {"text": "body"}}, stage="pt", cutoff_len=8)
    assert read(made.train[0].input_ids).startswith("w1 w2")
    with pytest.raises(UserError, match=r"a\.jsonl:1: has no column 'text'; it has body, id.*columns: \{text: NAME\}"):
        build(source=file, stage="pt")


def test_max_samples_takes_the_first_rows(build: Build) -> None:
    made = build(rows("w1", "w2", "w3"), "pt", max_samples=2, cutoff_len=8)
    assert read(made.train[0].input_ids).split()[:3] == ["w1", "</s>", "w2"]
    assert "2 documents" in made.summary[0][1]


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", ""), ("a.json", "[]"), ("a.csv", "text")])
def test_files_without_a_row_are_refused(build: Build, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"data\.dataset: there is nothing in .*" + re.escape(name)):
        build(source=str(tmp_path / name), stage="pt")


def test_rows_that_cannot_be_used_stop_the_run_or_are_counted_out(build: Build, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "w1"}\n{"text": "w2"\n{"text": 5}\n{"text": "w3"}\n', encoding="utf-8")
    settings: dict[str, Any] = {"source": str(tmp_path / "a.jsonl"), "stage": "pt", "cutoff_len": 8}
    for _ in range(2):  # also where the tokens are found in the cache
        with pytest.raises(UserError) as caught:
            build(**settings)
        assert "2 of 4 rows of a cannot be used" in str(caught.value)
        assert "a.jsonl:2: is not JSON" in str(caught.value)
        assert "a.jsonl:3: its text is 5 and no text" in str(caught.value)
    made = build(**settings, on_bad_row="skip")
    assert read(made.train[0].input_ids).split()[:4] == ["w1", "</s>", "w3", "</s>"]
    assert any("2 of 4 rows cannot be used and are left out, such as" in line for _, line in made.summary)


def test_without_one_usable_row_there_is_nothing_to_skip_to(build: Build) -> None:
    with pytest.raises(UserError, match=r"2 of 2 rows .*None is left to train on"):
        build([{"text": 1}, {"text": 2}], "pt", on_bad_row="skip")


@pytest.mark.parametrize(("val_size", "held"), [(3, 3), (0.25, 2), (0.01, 1)])
def test_held_out_rows_are_drawn_by_the_seed_and_both_parts_keep_their_order(
    build: Build, val_size: float, held: int
) -> None:
    def split(seed: int) -> tuple[list[str], list[str]]:
        documents = rows(*(f"w{i}" for i in range(8)))
        made = build(documents, "pt", seed=seed, val_size=val_size, append_eod=False, cutoff_len=16)
        parts = []
        for part in (made.train, made.evaluation[""]):
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
    assert read(made.evaluation[""][0].input_ids).startswith("w7 w8")
    assert [name for name, _ in made.summary] == ["data.dataset", "data.eval_dataset"]


@pytest.mark.parametrize("name", ["folder", "folder/a.npy", "folder/*"])
def test_tokens_on_another_file_system_are_refused_by_name(build: Build, name: str) -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/folder/a.npy", b"x")
    with pytest.raises(UserError, match=r"data\.dataset: memory://.*(must be local|holds no)"):
        build(source=f"memory://{name}", stage="pt")
    system.rm("/folder", recursive=True)
