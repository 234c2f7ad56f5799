"""Tokens in plain arrays: `.npy`, or `.bin` without any header."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from llmtrain.data.store import Tally
from llmtrain.errors import UserError


class ShardStore:
    """The tokens of some files in order. Each end token ends a document, and so does a file."""

    def __init__(self, files: Sequence[str], dtype: str | None, end_id: int) -> None:
        """`dtype`: the type of the tokens in a .bin file.

        Raises:
            UserError: a file that holds anything but a row of whole numbers.
        """
        self._given = (tuple(files), dtype, end_id)
        self._arrays = [_opened(Path(file), dtype) for file in files]
        self._starts = np.cumsum([0, *(len(array) for array in self._arrays)])

    def __reduce__(self) -> tuple[Any, ...]:
        # A memory map would travel to a worker as a copy of the whole file.
        return ShardStore, self._given

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each document ends in all tokens, int64 [documents]."""
        _, _, end_id = self._given
        parts = [np.zeros(0, np.int64)]
        for start, array in zip(self._starts.tolist(), self._arrays, strict=False):
            ends = np.flatnonzero(array == end_id) + 1
            if len(array) and (not len(ends) or ends[-1] < len(array)):
                ends = np.append(ends, len(array))
            parts.append(start + ends.astype(np.int64))
        return np.concatenate(parts)

    @property
    def learnt(self) -> np.ndarray | None:
        return None

    @property
    def tally(self) -> Tally:
        return Tally(len(self.ends), len(self.ends))

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        first = int(self.ends[document] - self.lengths[document])
        shard = int(np.searchsorted(self._starts, first, side="right")) - 1
        first -= int(self._starts[shard])
        return self._arrays[shard][first + start : first + stop]

    def read_learnt(self, document: int, start: int, stop: int) -> np.ndarray | None:
        return None

    def fingerprint(self) -> str:
        digest = xxhash.xxh3_128(np.ascontiguousarray(self.ends).data)
        for array in self._arrays:
            for place in np.linspace(0, max(0, len(array) - 4096), 16).astype(np.int64).tolist():
                digest.update(np.ascontiguousarray(array[place : place + 4096]).data)
        return digest.hexdigest()


def _opened(file: Path, dtype: str | None) -> np.ndarray:
    if file.suffix == ".npy":
        try:
            array = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read: {error}.") from error
        if array.ndim != 1 or array.dtype.kind not in "iu":
            shape = "x".join(map(str, array.shape))
            raise UserError(f"{file} holds {array.dtype} [{shape}]; tokens are one row of whole numbers.")
        return np.asarray(array).view(np.ndarray)
    if dtype is None:
        raise UserError(
            f"{file} holds tokens of a type that nothing tells; say it: {{file_name: {file.name}, dtype: uint16}}."
        )
    size, width = file.stat().st_size, np.dtype(dtype).itemsize
    if size % width:
        raise UserError(f"{file} has {size:,} bytes, which are no whole number of {dtype}.")
    return np.memmap(file, dtype, "r").view(np.ndarray) if size else np.zeros(0, dtype)
