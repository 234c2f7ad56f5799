"""Megatron-Core's indexed datasets: `PREFIX.bin` with the tokens, `PREFIX.idx` with what they are and where they lie.

The .idx file, little-endian: `MMIDIDX\\0\\0`, version 1 (8 bytes), the code of the tokens' type (1 byte), the numbers
of sequences and of document borders (8 bytes each), then the sequences' lengths (int32), their places in the .bin file
in bytes (int64), and the documents' borders as numbers of sequences (int64).
"""

from __future__ import annotations

import struct
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from llmtrain.data.sample import IGNORED
from llmtrain.data.store import ENDS, LEARNT, NOT_LEARNT, Tally
from llmtrain.errors import UserError

# What follows a prefix in the names of the pairs that hold conversations: their tokens, and what is learnt.
CONVERSATIONS = ("_packed_input_ids_document", "_packed_labels_document")
_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
_CODES = {name: code for code, name in _DTYPES.items()}


class IndexedStore:
    """The sequences of a pair as documents. The header decides about the tokens' type, whatever the vocabulary."""

    def __init__(self, prefix: str) -> None:
        """
        Raises:
            UserError: a file is missing, cut short, or of another kind.
        """
        self.prefix = prefix
        index, tokens = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
        for file in (index, tokens):
            if not file.is_file():
                raise UserError(f"{file} does not exist; Megatron's data is a pair of .bin and .idx.")
        found = index.stat().st_size
        with index.open("rb") as stream:
            head = stream.read(_HEADER.size)
        if head[: len(_MAGIC)] != _MAGIC:
            raise UserError(f"{index} does not begin like an index of Megatron's ({head[:9]!r}).")
        if len(head) < _HEADER.size:
            raise UserError(f"{index} is cut short: it has {found} bytes, and its header alone {_HEADER.size}.")
        _, version, code, sequences, documents = _HEADER.unpack(head)
        if version != 1:
            raise UserError(f"{index} is of version {version}; only 1 is known.")
        name = _DTYPES.get(code, f"of the unknown code {code}")
        if code not in _DTYPES or "float" in name:
            raise UserError(f"{index} says that the tokens are {name}; they must be whole numbers.")
        self.dtype = np.dtype(name)
        expected = _HEADER.size + sequences * 12 + documents * 8
        if found < expected:
            raise UserError(
                f"{index} is cut short: it has {found:,} bytes, and {sequences:,} sequences need {expected:,}."
            )
        place = _HEADER.size
        self.lengths = _mapped(index, "<i4", place, sequences)
        self._pointers = _mapped(index, "<i8", place + 4 * sequences, sequences)
        size = tokens.stat().st_size
        ends = self._pointers + self.lengths.astype(np.int64) * self.dtype.itemsize
        last = int(ends.max(initial=0))
        if size < last:
            raise UserError(f"{tokens} is cut short: it has {size:,} bytes, and {index.name} needs {last:,}.")
        if sequences and (
            self.lengths.min() < 0 or self._pointers.min() < 0 or (self._pointers % self.dtype.itemsize).any()
        ):
            raise UserError(f"{index} is damaged: it has lengths or places that cannot be.")

    def __reduce__(self) -> tuple[Any, ...]:
        # A memory map would travel to a worker as a copy of the whole file.
        return IndexedStore, (self.prefix,)

    @cached_property
    def tokens(self) -> np.ndarray:
        """All tokens of the .bin file, [tokens]."""
        file = Path(f"{self.prefix}.bin")
        return _mapped(file, self.dtype.str, 0, file.stat().st_size // self.dtype.itemsize)

    @cached_property
    def _starts(self) -> np.ndarray:
        return self._pointers // self.dtype.itemsize

    @property
    def tally(self) -> Tally:
        empty = int((self.lengths == 0).sum())
        return Tally(len(self.lengths), len(self.lengths) - empty, empty)

    @property
    def ends(self) -> np.ndarray:
        return np.cumsum(self.lengths, dtype=np.int64)

    @property
    def learnt(self) -> np.ndarray | None:
        return None

    def read_learnt(self, document: int, start: int, stop: int) -> np.ndarray | None:
        return None

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        first = int(self._starts[document])
        return self.tokens[first + start : first + stop]

    def fingerprint(self) -> str:
        """A digest of the index, and of samples of the tokens: to read terabytes would take hours."""
        digest = xxhash.xxh3_128(Path(f"{self.prefix}.idx").read_bytes())
        count, piece = len(self.tokens), 1 << 12
        for place in np.linspace(0, max(0, count - piece), 64).astype(np.int64).tolist():
            digest.update(np.ascontiguousarray(self.tokens[place : place + piece]).data)
        return digest.hexdigest()


class InstructionStore(IndexedStore):
    """Conversations as two pairs, `PREFIX_packed_input_ids_document` and `PREFIX_packed_labels_document`, whose labels
    stand at the tokens themselves, -100 where nothing is learnt. Where a label is another token, it is learnt there."""

    def __init__(self, prefix: str) -> None:
        super().__init__(f"{prefix}{CONVERSATIONS[0]}")
        self._whole = prefix
        self._labels = IndexedStore(f"{prefix}{CONVERSATIONS[1]}")
        if not np.array_equal(self.lengths, self._labels.lengths):
            raise UserError(f"{self.prefix} and {self._labels.prefix} have sequences of different lengths.")
        if self._labels.dtype.kind == "u":
            raise UserError(
                f"{self._labels.prefix} holds {self._labels.dtype}, which has no {IGNORED} for what is not learnt."
            )
        for store in (self, self._labels):
            if not np.array_equal(store._starts, self.ends - self.lengths) or len(store.tokens) != self.lengths.sum():
                raise UserError(f"{store.prefix}: its sequences do not follow each other in the .bin file.")

    def __reduce__(self) -> tuple[Any, ...]:
        return InstructionStore, (self._whole,)

    @cached_property
    def _marks(self) -> np.ndarray:
        labels = self._labels.tokens
        return np.where(labels == IGNORED, NOT_LEARNT, np.where(labels == self.tokens, LEARNT, ENDS)).astype(np.uint8)

    @property
    def learnt(self) -> np.ndarray:
        return self._marks

    def read_learnt(self, document: int, start: int, stop: int) -> np.ndarray:
        first = int(self._starts[document])
        return self._marks[first + start : first + stop]

    def fingerprint(self) -> str:
        return super().fingerprint() + self._labels.fingerprint()


def token_dtype(vocabulary: int) -> str:
    """The type that Megatron takes for so many tokens."""
    return "uint16" if vocabulary < 65_500 else "int32"


class IndexedWriter:
    """Writes a pair; each document is one sequence. Both files are written aside and appear at the end, complete."""

    def __init__(self, prefix: str, dtype: str) -> None:
        self._files = [Path(f"{prefix}.bin"), Path(f"{prefix}.idx")]
        self._parts = [file.with_name(f".{file.name}.part") for file in self._files]
        self._dtype = dtype
        self._lengths: list[np.ndarray] = [np.zeros(0, np.int32)]

    def __enter__(self) -> IndexedWriter:
        self._parts[0].parent.mkdir(parents=True, exist_ok=True)
        self._stream = self._parts[0].open("wb")
        return self

    def add(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Some documents: their tokens end to end, and how many each has."""
        self._stream.write(np.ascontiguousarray(tokens, self._dtype).data)
        self._lengths.append(lengths.astype(np.int32))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stream.close()
        try:
            if kind is None:
                self._write_index()
                for part, file in zip(self._parts, self._files, strict=True):
                    part.rename(file)
        finally:
            for part in self._parts:
                part.unlink(missing_ok=True)

    def _write_index(self) -> None:
        sizes = np.concatenate(self._lengths)
        starts = np.cumsum(sizes, dtype=np.int64) - sizes
        with self._parts[1].open("wb") as stream:
            stream.write(_HEADER.pack(_MAGIC, 1, _CODES[self._dtype], len(sizes), len(sizes) + 1))
            stream.write(sizes.astype("<i4").data)
            stream.write((starts * np.dtype(self._dtype).itemsize).astype("<i8").data)
            stream.write(np.arange(len(sizes) + 1, dtype="<i8").data)


def _mapped(file: Path, dtype: str, offset: int, count: int) -> np.ndarray:
    """Part of a file as a plain array: slices of a memmap object cost ten times as much."""
    if count == 0:
        return np.zeros(0, dtype)
    return np.memmap(file, dtype, "r", offset, (count,)).view(np.ndarray)
