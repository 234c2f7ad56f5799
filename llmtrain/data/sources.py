"""Rows from files, through the `datasets` library."""

from __future__ import annotations

from glob import glob
from pathlib import Path
from typing import Any

import datasets
import xxhash
from datasets import Dataset, load_dataset

from llmtrain.errors import UserError

# Extension -> builder of the `datasets` library. A text file is one document.
_BUILDERS: dict[str, tuple[str, dict[str, Any]]] = {
    ".jsonl": ("json", {}),
    ".json": ("json", {}),
    ".parquet": ("parquet", {}),
    ".txt": ("text", {"sample_by": "document"}),
}
_COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
_UNREADABLE = (
    datasets.exceptions.DatasetGenerationError,
    datasets.exceptions.DatasetNotFoundError,
    ValueError,
    OSError,
)


def read_rows(
    source: str | list[str] | dict[str, Any], column: str, field: str, max_rows: int | None = None
) -> Dataset:
    """Rows of `source` with the one column that the stage needs, renamed to `column` (`text` or `messages`).

    A second column, `row`, is the row's number in the source from 0, which a split of the rows keeps.

    `source` is a file, folder or glob, a list of them, or {file_name, columns}. Files are read in sorted order. `field`
    names the setting in messages.

    Raises:
        UserError: nothing there, an unknown or mixed kind of file, unreadable contents, a missing column, no rows.
    """
    renames: dict[str, str] = {}
    if isinstance(source, dict):
        renames = dict(source.get("columns") or {})
        source = source["file_name"]
    files = [file for item in ([source] if isinstance(source, str) else source) for file in _expand(item, field)]
    kinds = {_kind(file, field) for file in files}
    if len(kinds) > 1:
        raise UserError(f"{field} mixes kinds of files ({', '.join(sorted(kinds))}); give files of one kind.")
    builder, options = _BUILDERS[kinds.pop()]
    try:
        # The library's cache knows a file by its path and time of change alone; the name adds the size.
        name = xxhash.xxh3_64_hexdigest(repr([(f, Path(f).stat().st_size) for f in files]).encode())
        rows = load_dataset(builder, name=name, data_files={"train": files}, split="train", **options)
    except StopIteration:  # the reader's way to meet a file without a line
        raise UserError(f"{field}: there is no row in {', '.join(files[:3])}.") from None
    except _UNREADABLE as error:
        cause = error.__cause__ or error
        shown = ", ".join(files[:3]) + (" ..." if len(files) > 3 else "")
        raise UserError(f"{field}: {shown} cannot be read ({' '.join(str(cause).split())[:300]}).") from error
    if len(rows) == 0:
        raise UserError(f"{field}: there is no row in {', '.join(files[:3])}.")
    wanted = renames.get(column, column)
    if wanted not in rows.column_names:
        raise UserError(
            f"{field}: {files[0]} has no column {wanted!r}; it has {', '.join(rows.column_names)}. Name the right one "
            f"with {{file_name: ..., columns: {{{column}: NAME}}}}."
        )
    rows = rows.select_columns([wanted])
    if wanted != column:
        rows = rows.rename_column(wanted, column)
    if max_rows is not None:
        rows = rows.select(range(min(max_rows, len(rows))))
    return rows.add_column("row", range(len(rows)))


def _expand(item: str, field: str) -> list[str]:
    path = Path(item)
    if path.is_dir():
        found = sorted(str(p) for p in path.rglob("*") if p.is_file() and _suffix(p.name) in _BUILDERS)
        if not found:
            raise UserError(f"{field}: the folder {item} holds no {', '.join(_BUILDERS)} file.")
        return found
    if path.is_file():
        return [item]
    found = sorted(f for f in glob(item, recursive=True) if Path(f).is_file())  # noqa: PTH207  Path takes no absolute one
    if not found:
        raise UserError(f"{field}: {item} does not exist.")
    return found


def _kind(file: str, field: str) -> str:
    suffix = _suffix(file)
    if suffix not in _BUILDERS:
        raise UserError(f"{field}: {file} is of no known kind; {', '.join(_BUILDERS)} are read, also compressed.")
    return suffix


def _suffix(name: str) -> str:
    path = Path(name)
    return Path(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix
