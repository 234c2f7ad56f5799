"""What `data.dataset` names: paths, patterns, mappings and names of a dataset_info.json -> files and their layout."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import fsspec

from llmtrain.config.data import Source, check_source
from llmtrain.data.formats import RowFormat
from llmtrain.data.indexed import CONVERSATIONS
from llmtrain.data.readers import COMPRESSIONS, KINDS, File, HubDataset, kind_of
from llmtrain.errors import UserError

Kind = Literal["rows", "pairs", "shards"]
_MEGATRON = (".bin", ".idx")
_SHARDS = (".npy", ".bin")


@dataclass(frozen=True)
class DataSource:
    """One dataset of a run: its files in order, how their rows are laid out, and how much of it is wanted.

    num_samples: this many samples, drawn by seed; more than there are repeats some.
    weight: its share where datasets are interleaved, up to a common factor.
    kind: what the files hold: rows; tokens in Megatron's pairs, named by their prefixes; tokens in plain arrays.
    dtype: the type of the tokens in plain arrays without a header.
    """

    name: str
    files: tuple[File, ...]
    layout: RowFormat = field(default_factory=RowFormat)
    num_samples: int | None = None
    weight: float | None = None
    kind: Kind = "rows"
    dtype: str | None = None


def resolve_sources(value: Source, dataset_dir: str, setting: str) -> list[DataSource]:
    """The sources that a setting names, in its order.

    Text is a path, folder or pattern (local, or of any file system that fsspec knows), a name in
    `dataset_dir`/dataset_info.json, or several of these with commas; `weight, prefix, weight, prefix` are Megatron's
    blends.

    Raises:
        UserError: `setting` with what is not there, or of no known kind.
    """
    registry = _Registry(dataset_dir, setting)
    plain: list[tuple[str | dict[str, Any], float | None]] = [
        (item, None) for item in (value if isinstance(value, list) else [value])
    ]
    items = _blend(value) or plain
    sources: list[DataSource] = []
    for item, weight in items:
        if isinstance(item, dict):
            sources.append(registry.described(item, item.get("name")))
            continue
        for word in _words(item):
            source = registry.named(word)
            sources.append(source if weight is None else replace(source, weight=weight))
    return _distinct([part for source in sources for part in _apart(source, setting)])


def _apart(source: DataSource, setting: str) -> list[DataSource]:
    """Each of Megatron's pairs is a dataset of its own."""
    if source.kind != "pairs" or len(source.files) == 1:
        return [source]
    if source.weight is not None or source.num_samples is not None:
        raise UserError(
            f"{setting}: {source.name} is {len(source.files)} pairs of .bin/.idx; a weight or num_samples needs one."
        )
    return [replace(source, name=_short_name(str(prefix)), files=(prefix,)) for prefix in source.files]


def _blend(value: Source) -> list[tuple[str | dict[str, Any], float | None]] | None:
    """Megatron's `0.3 prefix 0.7 prefix`, as a list or with blanks or commas."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")] if "," in value else value.split()
    elif isinstance(value, list):
        parts = [part for part in value if isinstance(part, str)]
    else:
        return None
    weights = [_number(part) for part in parts[::2]]
    if len(parts) < 2 or len(parts) % 2 or any(weight is None for weight in weights):
        return None
    return [(name, weight) for name, weight in zip(parts[1::2], weights, strict=True) if weight is not None]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _words(text: str) -> list[str]:
    """A path may hold commas; only where there is no such file they part names."""
    if "," not in text or Path(text).exists():
        return [text]
    return [word.strip() for word in text.split(",") if word.strip()]


def _distinct(sources: Sequence[DataSource]) -> list[DataSource]:
    """Names tell the datasets of a run apart in messages and metrics; a second one of the same name gets a number."""
    seen: dict[str, int] = {}
    out = []
    for source in sources:
        count = seen[source.name] = seen.get(source.name, 0) + 1
        name = source.name if count == 1 else f"{source.name}#{count}"
        out.append(replace(source, name=name))
    return out


class _Registry:
    """A dataset_info.json, read when a name is looked up in it."""

    def __init__(self, folder: str, setting: str) -> None:
        self._folder, self._setting = Path(folder), setting
        self._file = self._folder / "dataset_info.json"

    def named(self, word: str) -> DataSource:
        entries = self._entries()
        if word in entries:
            return self.described(entries[word], word, registered=True)
        files, kind = self._expand(word, entries)
        return DataSource(_short_name(word), files, kind=kind)

    def described(self, entry: Mapping[str, Any], name: str | None, *, registered: bool = False) -> DataSource:
        """A source from the fields of a dataset_info.json."""
        where = f"{self._file}, {name}" if registered else self._setting
        try:
            check_source(entry)
        except ValueError as error:
            raise UserError(f"{where}: {error}.") from error
        files, kind = self._files(entry, where)
        layout = RowFormat(
            formatting=entry.get("formatting"),
            columns=_texts(entry.get("columns")),
            tags=_texts(entry.get("tags")),
            ranking=bool(entry.get("ranking", False)),
        )
        shown = name or _short_name(str(files[0]))
        return DataSource(shown, files, layout, entry.get("num_samples"), entry.get("weight"), kind, entry.get("dtype"))

    def _files(self, entry: Mapping[str, Any], where: str) -> tuple[tuple[File, ...], Kind]:
        if entry.get("hf_hub_url"):
            split = entry.get("split") or "train"
            return (HubDataset(entry["hf_hub_url"], entry.get("subset"), split, entry.get("folder")),), "rows"
        given = entry.get("file_name") or entry.get("cloud_file_name")
        if not given:
            raise UserError(f"{where} names no file (file_name).")
        names = [word for item in (given if isinstance(given, list) else [given]) for word in _words(item)]
        expanded = [self._expand(self._placed(name), {}) for name in names]
        kinds = {kind for _, kind in expanded}
        if len(kinds) > 1:
            raise UserError(f"{where} mixes files of tokens with other files; make them two datasets.")
        return tuple(file for files, _ in expanded for file in files), kinds.pop()

    def _placed(self, name: str) -> str:
        """Relative paths are taken from the working folder, or from the folder of dataset_info.json."""
        if "://" in name or Path(name).exists() or _pair_exists(name):
            return name
        beside = self._folder / name
        return str(beside) if beside.exists() or _pair_exists(str(beside)) else name

    def _entries(self) -> dict[str, Any]:
        if not self._file.is_file():
            return {}
        try:
            entries = json.loads(self._file.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise UserError(f"{self._file} cannot be read: {error}.") from error
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise UserError(f"{self._file} must be a mapping of names to descriptions of datasets.")
        return entries

    def _expand(self, item: str, entries: Mapping[str, Any]) -> tuple[tuple[File, ...], Kind]:
        """The files of a path, folder or pattern."""
        prefix = item.removesuffix(".bin").removesuffix(".idx")
        if _pair_exists(prefix):
            return (prefix,), "pairs"
        if "://" in item:
            return tuple(self._remote(item)), "rows"
        path = Path(item)
        if path.is_dir():
            if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
                return (item,), "rows"
            return self._folder_of(item, [str(p) for p in path.rglob("*") if p.is_file()])
        found = [item] if path.is_file() else _matches(item)
        if not found:
            close = difflib.get_close_matches(item, entries, n=1)
            hint = f" Did you mean {close[0]}, of {self._file}?" if close else ""
            known = f", and {self._file} has no such name" if entries else ""
            raise UserError(f"{self._setting}: {item} does not exist{known}.{hint}")
        sorted_out = _by_kind(found)
        if sorted_out["unknown"]:
            raise UserError(
                f"{self._setting}: {sorted_out['unknown'][0]} is of no known kind; {', '.join(KINDS)} are read, also "
                f"compressed, Megatron's .bin/.idx by their common prefix, and tokens in .npy or .bin."
            )
        kinds = [kind for kind in _KINDS if sorted_out[kind]]
        if len(kinds) > 1:
            raise UserError(f"{self._setting}: {item} names files of rows and files of tokens; make them two datasets.")
        return tuple(sorted_out[kinds[0]]), kinds[0]

    def _folder_of(self, folder: str, files: Iterable[str]) -> tuple[tuple[File, ...], Kind]:
        """Rows, where there are any; else tokens."""
        found = _by_kind(sorted(name for name in files if PurePosixPath(name).name != "dataset_info.json"))
        for kind in _KINDS:
            if found[kind]:
                return tuple(found[kind]), kind
        raise UserError(f"{self._setting}: the folder {folder} holds no {', '.join(KINDS)} file.")

    def _remote(self, address: str) -> list[str]:
        try:
            system, path = fsspec.core.url_to_fs(address)
            if any(sign in path for sign in "*?["):
                found = [system.unstrip_protocol(name) for name in sorted(system.glob(path))]
            elif system.isdir(path):
                names = _by_kind(map(system.unstrip_protocol, sorted(system.find(path))))
                found = [name for name in names["rows"] if PurePosixPath(name).name != "dataset_info.json"]
            else:
                found = [address] if system.exists(path) else []
        except (OSError, ValueError, ImportError) as error:
            raise UserError(f"{self._setting}: {address} cannot be looked at: {error}.") from error
        if not found:
            raise UserError(f"{self._setting}: {address} does not exist, or holds no {', '.join(KINDS)} file.")
        for name in found:
            if kind_of(name) not in KINDS:
                raise UserError(
                    f"{self._setting}: {name} is none of {', '.join(KINDS)}; files of tokens must be local."
                )
        return found


def _pair_exists(prefix: str) -> bool:
    """A pair of this prefix, or the pairs of conversations."""
    names = (prefix, f"{prefix}{CONVERSATIONS[0]}")
    return any(all(Path(f"{name}{suffix}").is_file() for suffix in _MEGATRON) for name in names)


_KINDS: tuple[Kind, ...] = ("rows", "pairs", "shards")


def _by_kind(files: Iterable[str]) -> dict[str, list[str]]:
    """Files by what they hold; a pair by its prefix, once."""
    found: dict[str, list[str]] = {kind: [] for kind in (*_KINDS, "unknown")}
    for name in files:
        prefix, suffix = name[:-4], name[-4:]
        if suffix in _MEGATRON and _pair_exists(prefix):
            if prefix not in found["pairs"]:
                found["pairs"].append(prefix)
        elif kind_of(name) in KINDS:
            found["rows"].append(name)
        else:
            found["shards" if suffix in _SHARDS else "unknown"].append(name)
    return found


def _matches(pattern: str) -> list[str]:
    return sorted(f for f in glob(pattern, recursive=True) if Path(f).is_file())  # noqa: PTH207  Path takes no absolute one


def _short_name(path: str) -> str:
    name = PurePosixPath(path.rstrip("/")).name or path
    while PurePosixPath(name).suffix in {*KINDS, *COMPRESSIONS}:
        name = PurePosixPath(name).stem
    return name


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(name) for key, name in (value or {}).items() if name is not None}
