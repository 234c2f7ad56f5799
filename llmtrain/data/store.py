"""Documents as tokens in memory-mapped files: written once, whole or not at all, read by every process."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash
from filelock import FileLock

# What `learnt` says of a token. At the end of an answer whose template writes no end token, the position before the
# token marked ENDS learns the tokenizer's end token in place of what stands there.
NOT_LEARNT, LEARNT, ENDS = 0, 1, 2


class Documents(Protocol):
    """Anything that holds documents as tokens."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document, int64 [documents]."""

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) of a document."""

    def fingerprint(self) -> str:
        """A digest of all documents in order."""

    @property
    def tally(self) -> Tally:
        """What became of the rows that they were made from."""


class MaskedDocuments(Documents, Protocol):
    """Documents of which only some tokens are learnt."""

    @property
    def ends(self) -> np.ndarray:
        """Where each document ends in `learnt`, int64 [documents]."""

    @property
    def learnt(self) -> np.ndarray | None:
        """NOT_LEARNT, LEARNT or ENDS of each token in order, uint8 [tokens]; None where all are learnt."""

    def read_learnt(self, document: int, start: int, stop: int) -> np.ndarray | None:
        """`learnt` of tokens [start, stop) of a document."""


@dataclass
class Rejected:
    """Rows left out for one kind of reason: how many, and the first one's place and reason."""

    count: int
    place: str
    reason: str


@dataclass
class Tally:
    """What became of the rows of a source: rows = used + empty + the rejected ones."""

    rows: int = 0
    used: int = 0
    empty: int = 0
    rejected: dict[str, Rejected] = field(default_factory=dict)

    @property
    def bad(self) -> int:
        return sum(kind.count for kind in self.rejected.values())

    def reject(self, kind: str, place: str, reason: str) -> None:
        self.rejected.setdefault(kind, Rejected(0, place, reason)).count += 1


@dataclass(frozen=True)
class Encoded:
    """Some documents: tokens one after the other, `learnt` of each (None: all are), and the documents' lengths."""

    tokens: np.ndarray
    learnt: np.ndarray | None
    lengths: np.ndarray


class TokenStore:
    """A folder that `write_store` made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._meta: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        tally = self._meta["tally"]
        rejected = {kind: Rejected(**values) for kind, values in tally["rejected"].items()}
        self.tally = Tally(tally["rows"], tally["used"], tally["empty"], rejected)

    def __reduce__(self) -> tuple[Any, ...]:
        # A memory map would travel to a worker as a copy of the whole file.
        return TokenStore, (self.folder,)

    @cached_property
    def tokens(self) -> np.ndarray:
        """All tokens, [tokens]."""
        return self._map("tokens.bin", self._meta["dtype"])

    @cached_property
    def learnt(self) -> np.ndarray | None:
        return self._map("learnt.bin", "uint8") if self._meta["masked"] else None

    @cached_property
    def ends(self) -> np.ndarray:
        return np.load(self.folder / "ends.npy")

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        first = int(self.ends[document] - self.lengths[document])
        return self.tokens[first + start : first + stop]

    def read_learnt(self, document: int, start: int, stop: int) -> np.ndarray | None:
        first = int(self.ends[document] - self.lengths[document])
        return None if self.learnt is None else self.learnt[first + start : first + stop]

    def fingerprint(self) -> str:
        return str(self._meta["digest"])

    def _map(self, name: str, dtype: str) -> np.ndarray:
        file = self.folder / name
        return np.memmap(file, dtype=dtype, mode="r") if file.stat().st_size else np.zeros(0, dtype)


def write_store(folder: Path, chunks: Iterable[tuple[Encoded, Tally]], dtype: str, masked: bool) -> None:
    """Writes documents as they come; the folder appears at the end, complete."""
    with appearing(folder) as unfinished:
        digest, ends, total, tally = xxhash.xxh3_128(), [np.zeros(0, np.int64)], 0, Tally()
        with (unfinished / "tokens.bin").open("wb") as tokens, (unfinished / "learnt.bin").open("wb") as learnt:
            for encoded, tally in chunks:  # noqa: B007  the last one is the sum of all
                for stream, array in ((tokens, encoded.tokens.astype(dtype, copy=False)), (learnt, encoded.learnt)):
                    if array is not None:
                        data = np.ascontiguousarray(array).data
                        stream.write(data)
                        digest.update(data)
                digest.update(np.ascontiguousarray(encoded.lengths, np.int64).data)
                ends.append(total + np.cumsum(encoded.lengths, dtype=np.int64))
                total += int(encoded.lengths.sum())
        np.save(unfinished / "ends.npy", np.concatenate(ends))
        meta = {"dtype": dtype, "masked": masked, "digest": digest.hexdigest(), "tally": asdict(tally)}
        (unfinished / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def find_or_write(folder: Path, fresh: bool, write: Callable[[Path], None]) -> None:
    """Calls `write(folder)` unless the folder is there; of several processes one writes and the others wait for it.

    With `fresh` an existing folder is replaced.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if fresh and folder.exists():
            # Readers that have mapped the old files keep them.
            shutil.rmtree(folder)
        if not folder.exists():
            write(folder)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder to write in, which becomes `folder` at the end, complete."""
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
