"""Files -> rows: every kind, and what is said of what cannot be read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from llmtrain.data.readers import BadRow, parse, read_file
from llmtrain.errors import UserError

ROWS = [{"text": "你好"}, {"text": ""}, {"text": 'b\n\nc, "d"'}, {"text": "e\x85f"}]


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    kind = file.name.partition(".")[2]
    if kind == "parquet":
        pa.parquet.write_table(pa.Table.from_pylist(rows), file, row_group_size=3)
    elif kind in ("arrow", "stream.arrow"):
        table = pa.Table.from_pylist(rows)
        with (pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream)(str(file), table.schema) as sink:
            sink.write_table(table)
    elif kind == "folder":
        datasets.Dataset.from_list(rows).save_to_disk(file)
    elif kind == "splits.folder":
        datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(file)
    elif kind in ("csv", "tsv"):
        sign = "," if kind == "csv" else "\t"
        quoted = ['"' + row["text"].replace('"', '""') + '"' for row in rows]
        file.write_text("".join(f"{sign.join(cells)}\n" for cells in [("n", "text"), *(("1", q) for q in quoted)]))
    else:
        content = json.dumps(rows).encode() if kind.startswith("json") and not kind.startswith("jsonl") else lines
        pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}.get(kind.rpartition(".")[2])
        file.write_bytes(pack(content) if pack else content)
    return file


KINDS = ["jsonl", "json", "jsonl.gz", "jsonl.bz2", "json.xz", "parquet", "arrow", "stream.arrow", "folder"]
KINDS += ["splits.folder", "csv", "tsv"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_its_rows_from_any_on(tmp_path: Path, kind: str) -> None:
    rows = ROWS * 3
    file = str(write(tmp_path / f"a.{kind}", rows))
    for start in (0, 1, 3, 4, len(rows) - 1, len(rows), len(rows) + 1):
        found = [(number, parse(raw)["text"]) for number, raw in read_file(file, start)]
        assert found == [(i + 1, row["text"]) for i, row in enumerate(rows)][start:]


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("一\n\nline", encoding="utf-8")
    assert list(read_file(str(tmp_path / "a.txt"))) == [(1, {"text": "一\n\nline"})]
    assert list(read_file(str(tmp_path / "a.txt"), 1)) == []


def test_lines_are_numbered_as_an_editor_does_and_blank_ones_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n  \n{"text": "b"}', encoding="utf-8")
    assert [number for number, _ in read_file(str(tmp_path / "a.jsonl"))] == [1, 4]
    assert [number for number, _ in read_file(str(tmp_path / "a.jsonl"), 1)] == [4]


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "txt"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, kind: str) -> None:
    content = {"jsonl": '{"text": "a"}', "json": '[{"text": "a"}]', "csv": "text\na\n", "txt": "a"}[kind]
    (tmp_path / f"a.{kind}").write_text(content, encoding="utf-8-sig")
    assert [parse(raw) for _, raw in read_file(str(tmp_path / f"a.{kind}"))] == [{"text": "a"}]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "b"', "is not JSON .*delimiter"),
        (b"text", "is not JSON .*Expecting value"),
        (b'["a"]', "is a list and no object"),
        (b"null", "is null and no object"),
        (b'{"text": "\xff"}', "is not UTF-8"),
        (b"[" * 100_000, "is not JSON .*recursion"),
        (b'{"text": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
)
def test_a_line_that_is_no_row_says_why_and_the_next_ones_are_read(tmp_path: Path, line: bytes, reason: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' + line + b'\n{"text": "c"}\n')
    rows = list(read_file(str(tmp_path / "a.jsonl")))
    assert [number for number, _ in rows] == [1, 2, 3]
    assert [parse(rows[i][1])["text"] for i in (0, 2)] == ["a", "c"]
    with pytest.raises(BadRow, match=reason):
        parse(rows[1][1])


def test_a_table_row_of_another_width_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n1,2,3\n1\n", encoding="utf-8")
    rows = [raw for _, raw in read_file(str(tmp_path / "a.csv"))]
    assert rows[0] == {"a": "1", "b": "2"}
    assert [str(row) for row in rows[1:]] == ["has 3 fields under a header of 2", "has 1 fields under a header of 2"]


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.bz2", "json.xz", "parquet", "arrow", "json"])
def test_a_truncated_file_is_named_with_how_far_it_could_be_read(tmp_path: Path, kind: str) -> None:
    file = write(tmp_path / f"a.{kind}", [{"text": str(i) * 50} for i in range(2000)])
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(UserError, match=rf"a\.{kind} cannot be read"):
        list(read_file(str(file)))


@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet", "arrow", "json.xz"])
def test_a_file_of_another_kind_than_its_name_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"a.{kind}").write_bytes(b'{"text": "a"}\n')
    with pytest.raises(UserError, match=rf"a\.{kind} cannot be read"):
        list(read_file(str(tmp_path / f"a.{kind}")))


def test_a_missing_decompressor_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(b"")
    with pytest.raises(UserError, match=r"a\.jsonl\.zst cannot be read: .*zst"):
        list(read_file(str(tmp_path / "a.jsonl.zst")))


def test_a_saved_dataset_without_a_train_split_is_named(tmp_path: Path) -> None:
    datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "a")
    with pytest.raises(UserError, match="has the splits test and none named train"):
        list(read_file(str(tmp_path / "a")))
