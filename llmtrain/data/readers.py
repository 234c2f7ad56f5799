"""A file -> its rows, one after the other, each with its number; what cannot be read is named.

Files are opened through fsspec, so a path may be local or an address (`s3://...`), and compressed files open as they
are. A line of JSON is handed on as bytes, to be parsed by whoever has the time; rows of tables come as mappings.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import datasets
import fsspec
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from llmtrain.errors import UserError

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
# What a broken or truncated file raises, in the libraries below.
_UNREADABLE = (
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    pa.ArrowException,
    UnicodeDecodeError,
    csv.Error,
    json.JSONDecodeError,
)
_UTF8_BOM = b"\xef\xbb\xbf"
_TABLE_ROWS = 1024
_ARROW_FILE = b"ARROW1"


class BadRow(Exception):
    """Why a row cannot be used."""


@dataclass(frozen=True)
class HubDataset:
    """A dataset of the Hugging Face hub; it is read as one file."""

    path: str
    subset: str | None
    split: str
    folder: str | None

    def __str__(self) -> str:
        return f"hub dataset {self.path} ({', '.join(x for x in (self.subset, self.folder, self.split) if x)})"


File = str | HubDataset
# A line of JSON, a row of a table, or why the reader could make no row of it.
RawRow = bytes | dict[str, Any] | BadRow
Numbered = tuple[int, RawRow]


def kind_of(file: str) -> str:
    """The suffix that tells how to read `file`, without that of its compression."""
    path = PurePosixPath(file)
    return PurePosixPath(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix


def read_file(file: File, start: int = 0) -> Iterator[Numbered]:
    """Rows of one file from row `start` (counted from 0) on, numbered from 1: lines of JSON Lines by their line.

    Raises:
        UserError: the file cannot be opened, or breaks off.
    """
    number = 0
    try:
        for number, row in _reader(file)(start):
            yield number, row
    except ImportError as error:
        raise UserError(f"{file} cannot be read: {error}. Install what is missing, or unpack the file.") from error
    except _UNREADABLE as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        where = f" after row {number}" if number else ""
        raise UserError(f"{file} cannot be read{where}: {reason}.") from error


def _reader(file: File) -> Callable[[int], Iterator[Numbered]]:
    if isinstance(file, HubDataset):
        return partial(_hub_dataset, file)
    return partial(_saved_dataset if Path(file).is_dir() else _READERS[kind_of(file)], file)


def parse(raw: RawRow) -> dict[str, Any]:
    """The row as a mapping.

    Raises:
        BadRow: no JSON, or JSON that is no object.
    """
    if isinstance(raw, BadRow):
        raise raw
    if isinstance(raw, dict):
        return raw
    try:
        row = json.loads(raw)
    except UnicodeDecodeError:
        raise BadRow("is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(":")[0] if isinstance(error, json.JSONDecodeError) else str(error)
        raise BadRow(f"is not JSON ({reason})") from None
    if not isinstance(row, dict):
        raise BadRow(f"is {_name_of(row)} and no object")
    return row


def _name_of(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "a switch", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _open(file: str) -> BinaryIO:
    compression = COMPRESSIONS.get(PurePosixPath(file).suffix)
    try:
        return cast(BinaryIO, fsspec.open(file, "rb", compression=compression).open())
    except ValueError as error:  # the library's way to say that it lacks one, of a protocol or a compression
        raise UserError(f"{file} cannot be read: {error}. Install what is missing, or unpack the file.") from error


def _json_lines(file: str, start: int) -> Iterator[Numbered]:
    """Lines of nothing but blanks are none; `start` counts the others."""
    seen = 0
    with _open(file) as stream:
        for number, line in enumerate(stream, 1):
            text = line.removeprefix(_UTF8_BOM) if number == 1 else line
            if text.isspace() or not text:
                continue
            seen += 1
            if seen > start:
                yield number, text


def _json(file: str, start: int) -> Iterator[Numbered]:
    """A list of objects, or JSON Lines under the other name."""
    with _open(file) as stream:
        head = stream.read(4096).removeprefix(_UTF8_BOM).lstrip()
        if not head.startswith(b"["):
            yield from _json_lines(file, start)
            return
    with _open(file) as stream:
        try:
            rows = json.loads(stream.read())
        except RecursionError as error:
            raise UserError(f"{file} cannot be read: {error}.") from error
    for number, row in enumerate(rows[start:], start + 1):
        # What is no object is told by `parse`, like the lines of JSON Lines.
        yield number, row if isinstance(row, dict) else json.dumps(row).encode()


def _csv(file: str, start: int) -> Iterator[Numbered]:
    """Rows under the header; bytes that are no UTF-8 are left for the row's reader to refuse."""
    csv.field_size_limit(sys.maxsize)
    separator = "\t" if kind_of(file) == ".tsv" else ","
    with io.TextIOWrapper(_open(file), encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        lines = csv.reader(stream, delimiter=separator, strict=True)
        header = next(lines, [])
        for number, fields in enumerate((line for line in lines if line), 1):
            if number <= start:
                continue
            if len(fields) == len(header):
                yield number, dict(zip(header, fields, strict=True))
            else:
                yield number, BadRow(f"has {len(fields)} fields under a header of {len(header)}")


def _text(file: str, start: int) -> Iterator[Numbered]:
    """The whole file is one document."""
    if start == 0:
        with _open(file) as stream:
            yield 1, {"text": stream.read().removeprefix(_UTF8_BOM).decode("utf-8", errors="surrogateescape")}


def _parquet(file: str, start: int) -> Iterator[Numbered]:
    with _open(file) as stream, pyarrow.parquet.ParquetFile(stream) as table:
        first, groups = 0, list(range(table.num_row_groups))
        while groups and first + table.metadata.row_group(groups[0]).num_rows <= start:
            first += table.metadata.row_group(groups.pop(0)).num_rows
        yield from _skipping(table.iter_batches(_TABLE_ROWS, row_groups=groups), first, start)


def _arrow(file: str, start: int) -> Iterator[Numbered]:
    """Either of Arrow's two file formats, batch by batch; the `datasets` library writes streams."""
    with _open(file) as stream:
        whole = stream.read(len(_ARROW_FILE)) == _ARROW_FILE
        stream.seek(0)
        if whole:
            table = pa.ipc.open_file(stream)
            batches = (table.get_batch(i) for i in range(table.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(stream))
        yield from _skipping(batches, 0, start)


def _skipping(batches: Iterator[pa.RecordBatch], first: int, start: int) -> Iterator[Numbered]:
    for batch in batches:
        # A damaged file may hold texts of negative lengths, which end the process.
        batch.validate(full=True)
        for begin in range(max(0, start - first), batch.num_rows, _TABLE_ROWS):
            yield from enumerate(batch.slice(begin, _TABLE_ROWS).to_pylist(), first + begin + 1)
        first += batch.num_rows


def _saved_dataset(folder: str, start: int) -> Iterator[Numbered]:
    """A folder that the `datasets` library's `save_to_disk` made; of several splits the one named train."""
    try:
        saved = datasets.load_from_disk(folder)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} cannot be read as a saved dataset: {error}.") from error
    if isinstance(saved, datasets.DatasetDict):
        if "train" not in saved:
            raise UserError(f"{folder} has the splits {', '.join(saved)} and none named train; name one's own folder.")
        saved = saved["train"]
    yield from _rows_of(saved, start)


def _hub_dataset(source: HubDataset, start: int) -> Iterator[Numbered]:
    try:
        loaded = datasets.load_dataset(source.path, source.subset, split=source.split, data_dir=source.folder)
    except (ValueError, datasets.exceptions.DatasetNotFoundError) as error:
        raise UserError(f"{source} cannot be read: {error}") from error
    yield from _rows_of(loaded, start)


def _rows_of(rows: datasets.Dataset, start: int) -> Iterator[Numbered]:
    for first in range(start, len(rows), _TABLE_ROWS):
        chunk = rows.select(range(first, min(first + _TABLE_ROWS, len(rows)))).to_list()
        yield from enumerate(chunk, first + 1)


_READERS: dict[str, Callable[[str, int], Iterator[Numbered]]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".csv": _csv,
    ".tsv": _csv,
    ".txt": _text,
}
KINDS = tuple(_READERS)
