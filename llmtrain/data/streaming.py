"""Streamed data: rows are read, shuffled within windows, tokenised and cut into samples while the run goes on.

Each place of the global batch is a slot with a stream of its own: row k of the endless sequence of rows belongs to slot
k modulo the global batch. So what a slot gives does not depend on the ranks, the workers or the micro-batches, and its
place is a row and a token in it: nothing of the shuffle needs to be kept, since windows and files are drawn from (seed,
pass) and read anew. Every worker reads all rows, and parses and tokenises only those of its slots.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from llmtrain.data.chat import chat_sample
from llmtrain.data.gpt import normalised
from llmtrain.data.loader import Position
from llmtrain.data.mixture import permutation
from llmtrain.data.pretraining import window_sample
from llmtrain.data.readers import BadRow, RawRow, read_file
from llmtrain.data.sample import IGNORED, Collation, MicroBatch, Sample, collate
from llmtrain.data.sources import DataSource
from llmtrain.data.store import Tally
from llmtrain.data.tokenise import Document, Encoder, Place, encode_row_batch, kind_of_fault, shown_place
from llmtrain.errors import UserError

# Streams of random numbers of `permutation`, beside those of the other datasets.
_FILES, _WINDOWS = 1_000, 1_001
_ROWS_AT_ONCE = 16
_HOPELESS = 10_000  # so many rows of which not one can be used are no accident


@dataclass(frozen=True)
class Cursor:
    """A slot's place: the row whose tokens come next, and how many of them are gone."""

    row: int
    token: int = 0


@dataclass
class RowSource:
    """A dataset's rows, pass after pass: its files in an order of each pass, its rows shuffled within windows.

    size: rows of a pass, once one has been read to its end.
    """

    source: DataSource
    encoder: Encoder
    number: int
    seed: int
    shuffle: bool
    window: int
    most: int | None = None
    size: int = 0

    def rows(self, start: int) -> Iterator[tuple[Place, RawRow]]:
        """From row `start` of the endless sequence on.

        Raises:
            UserError: there are no rows, or a file cannot be read.
        """
        number, skip = 0, start
        while True:
            if self.size:
                number, skip = number + skip // self.size, skip % self.size
            self.size = yield from self._pass(number, skip)
            if self.size == 0:
                raise UserError(f"there is nothing in {', '.join(map(str, self.source.files[:3]))}.")
            if skip < self.size:
                number, skip = number + 1, 0

    def _pass(self, number: int, skip: int) -> Generator[tuple[Place, RawRow], None, int]:
        """One pass without its first `skip` rows; returns how many rows it has."""
        files: Sequence[Any] = self.source.files
        if self.shuffle and self.most is None:
            files = [files[i] for i in self._drawn(len(files), number, _FILES)]
        rows: Iterator[tuple[Place, RawRow]] = (((file, n), raw) for file in files for n, raw in read_file(file))
        rows = islice(rows, self.most)
        first = skip // self.window
        total = sum(1 for _ in islice(rows, first * self.window))
        if total < first * self.window:
            return total
        index = first
        while chunk := list(islice(rows, self.window)):
            total += len(chunk)
            order = self._drawn(len(chunk), number, _WINDOWS + index) if self.shuffle else range(len(chunk))
            for place in list(order)[skip - index * self.window if index == first else 0 :]:
                yield chunk[place]
            index += 1
        return total

    def _drawn(self, size: int, number: int, stream: int) -> list[int]:
        return permutation(size, self.seed, number, stream + 7919 * self.number).tolist()


class StreamData:
    """What a stream reads, and how its samples are made. `weights`: shares of the datasets; None: one after another."""

    def __init__(
        self,
        sources: Sequence[RowSource],
        weights: Sequence[float] | None,
        *,
        length: int,
        end_id: int,
        texts: bool,
        packs: bool,
        isolates: bool,
        skips_bad_rows: bool,
        described: Any,
    ) -> None:
        """`texts`: blocks of `length` tokens with their successors; else conversations, several a row where it `packs`.
        `described`: what else tells this stream from others."""
        self.sources, self._weights = list(sources), weights
        self.length, self.end_id, self.texts = length, end_id, texts
        self.packs, self.isolates, self.skips_bad_rows = packs, isolates, skips_bad_rows
        self._described = described

    def rows(self, start: int) -> Iterator[tuple[int, Place, RawRow]]:
        """(number of the dataset, place, row) from row `start` of all on, without end."""
        if len(self.sources) == 1:
            yield from ((0, place, raw) for place, raw in self.sources[0].rows(start))
        taken = [0] * len(self.sources)
        streams: list[Iterator[tuple[Place, RawRow]]] = []
        for row, chosen in enumerate(self._picks()):
            if row == start:
                streams = [source.rows(done) for source, done in zip(self.sources, taken, strict=True)]
            taken[chosen] += 1
            if row >= start:
                yield (chosen, *next(streams[chosen]))

    def _picks(self) -> Iterator[int]:
        """The dataset of each row: the one furthest behind its share."""
        shares = normalised(self._weights or [1.0] * len(self.sources))
        taken = [0] * len(shares)
        for row in count(1):
            chosen = max(range(len(shares)), key=lambda i: shares[i] * row - taken[i])
            taken[chosen] += 1
            yield chosen

    def first_samples(self) -> Iterator[Sample]:
        """Samples as one place of a batch would get them, up to the first row that cannot be used."""
        for item in _SlotsOfRank(self, 1, [0], [Cursor(0)]):
            if item.fault is not None:
                return
            yield item.sample

    def fingerprint(self) -> str:
        """A digest of what is read (names and sizes of the files) and of what is made of it."""
        files = [[_signature(str(file)) for file in part.source.files] for part in self.sources]
        shape = [self._weights, self.length, self.end_id, self.texts, self.packs, self.isolates]
        windows = [[part.window, part.shuffle, part.most] for part in self.sources]
        described = json.dumps([files, shape, windows, self._described], sort_keys=True, default=str)
        return f"stream {xxhash.xxh3_128_hexdigest(described.encode())}"


def _signature(file: str) -> list[Any]:
    path = Path(file)
    return [path.name, path.stat().st_size] if path.is_file() else [file]


@dataclass
class _Item:
    """A slot's sample with the place after it; or, instead of them, why the run must stop."""

    sample: Sample
    cursor: Cursor
    sizes: tuple[int, ...]
    rejected: list[tuple[str, str, str]] = field(default_factory=list)
    fault: str | None = None


class _Slot:
    """The samples of one place of the global batch."""

    def __init__(self, data: StreamData, cursor: Cursor, read_on: Callable[[], None]) -> None:
        """`read_on` brings new rows to the slots."""
        self._data, self._read_on, self.cursor = data, read_on, cursor
        self._pending: deque[tuple[int, int, Place, RawRow]] = deque()
        self._documents: deque[tuple[int, Document]] = deque()
        self._useless: int | None = 0  # rows so far of which not one could be used; None: one could
        self.rejected: list[tuple[str, str, str]] = []

    def add(self, row: int, source: int, place: Place, raw: RawRow) -> None:
        if row >= self.cursor.row:
            self._pending.append((row, source, place, raw))

    def next_sample(self) -> Sample:
        if self._data.texts:
            return self._block()
        return self._pack() if self._data.packs else self._conversation()

    def _block(self) -> Sample:
        """As many tokens as a block has and one more, which is the first of the next."""
        length, begin = self._data.length, self.cursor.token
        while sum(len(document.tokens) for _, document in self._documents) - begin <= length:
            self._tokenise()
        pieces, wanted = [], length + 1
        for _, document in self._documents:
            if wanted == 0:
                break
            piece = document.tokens[begin : begin + wanted]
            pieces.append(piece)
            wanted, begin = wanted - len(piece), 0
        begin, gone = self.cursor.token, length
        while gone >= len(self._documents[0][1].tokens) - begin:
            gone -= len(self._documents.popleft()[1].tokens) - begin
            begin = 0
        self.cursor = Cursor(self._documents[0][0], begin + gone)
        return window_sample([piece for piece in pieces if len(piece)], length, isolate=self._data.isolates)

    def _conversation(self) -> Sample:
        row, sample = self._peek()
        self._documents.popleft()
        self.cursor = Cursor(row + 1)
        return sample

    def _pack(self) -> Sample:
        """Conversations one after the other, as long as they fit."""
        parts: list[Sample] = []
        used = 0
        while True:
            row, sample = self._peek()
            if parts and used + len(sample.input_ids) > self._data.length:
                break
            parts.append(sample)
            used += len(sample.input_ids)
            self._documents.popleft()
        self.cursor = Cursor(row)
        documents = tuple(n for part in parts for n in part.lengths) if self._data.isolates else None
        ids, targets = ([getattr(part, name) for part in parts] for name in ("input_ids", "targets"))
        return Sample(np.concatenate(ids), np.concatenate(targets), documents)

    def _peek(self) -> tuple[int, Sample]:
        """The next conversation of which something is learnt."""
        while True:
            while not self._documents:
                self._tokenise()
            row, document = self._documents[0]
            assert document.learnt is not None
            length = self._data.length
            sample = chat_sample(document.tokens[:length], document.learnt[:length], self._data.end_id)
            if (sample.targets != IGNORED).any():
                self._useless = None
                return row, sample
            reason = f"has no supervised token within data.cutoff_len {length}"
            self.rejected.append((reason, f"row {row + 1} of the stream", reason))
            self._documents.popleft()
            self._count_useless(f"row {row + 1} of the stream {reason}")

    def _tokenise(self) -> None:
        """Some more rows become documents."""
        while not self._pending:
            self._read_on()
        source = self._pending[0][1]
        batch: list[tuple[int, int, Place, RawRow]] = []
        while self._pending and self._pending[0][1] == source and len(batch) < _ROWS_AT_ONCE:
            batch.append(self._pending.popleft())
        results = encode_row_batch(self._data.sources[source].encoder, [raw for _, _, _, raw in batch])
        for (row, _, place, _), result in zip(batch, results, strict=True):
            if isinstance(result, BadRow):
                self._reject(place, str(result))
            elif result is None or not len(result.tokens):
                self._count_useless(f"{shown_place(place)} is empty")
            else:
                self._documents.append((row, result))
                if self._data.texts:
                    self._useless = None

    def _reject(self, place: Place, reason: str) -> None:
        if not self._data.skips_bad_rows:
            raise UserError(
                f"data.dataset: {shown_place(place)}: {reason}. Mend it, or set data.on_bad_row: skip to train without "
                f"such rows."
            )
        self.rejected.append((kind_of_fault(reason), shown_place(place), reason))
        self._count_useless(f"{shown_place(place)}: {reason}")

    def _count_useless(self, last: str) -> None:
        if self._useless is not None:
            self._useless += 1
            if self._useless >= _HOPELESS:
                raise UserError(f"data.dataset: of {self._useless:,} rows not one can be used; {last}.")


class _SlotsOfRank(IterableDataset[_Item]):
    """The samples of a rank's slots, in turns, without end; a worker's share of the slots."""

    def __init__(self, data: StreamData, batch: int, slots: Sequence[int], cursors: Sequence[Cursor]) -> None:
        self._data, self._batch, self._numbers, self._cursors = data, batch, slots, cursors

    def __iter__(self) -> Iterator[_Item]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        chosen = list(zip(self._numbers, self._cursors, strict=True))[first::step]
        start = min(cursor.row for _, cursor in chosen)
        rows = enumerate(self._data.rows(start), start)
        slots: dict[int, _Slot] = {}

        def read_on() -> None:
            # One row for each place of the batch.
            for row, found in islice(rows, self._batch):
                if (slot := slots.get(row % self._batch)) is not None:
                    slot.add(row, *found)

        for number, cursor in chosen:
            slots[number] = _Slot(self._data, cursor, read_on)
        while True:
            for slot in slots.values():
                try:
                    sample = slot.next_sample()
                except UserError as error:
                    # The exception of a worker would come with its stack trace as text.
                    yield _Item(Sample(np.zeros(0), np.zeros(0)), slot.cursor, (), fault=str(error))
                    return
                rejected, slot.rejected = slot.rejected, []
                yield _Item(sample, slot.cursor, tuple(part.size for part in self._data.sources), rejected)


class StreamLoader:
    """Deals the slots of a stream to ranks, as `Loader` deals samples."""

    def __init__(
        self,
        data: StreamData,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        dp_rank: int,
        dp_size: int,
        pad_id: int,
        collation: Collation = "padded",
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        self._pin = pin_memory
        self._data, self._batch = data, global_batch_size
        self._micro, self._pad_id, self._collation = micro_batch_size, pad_id, collation
        rounds = global_batch_size // (micro_batch_size * dp_size)
        starts = [(m * dp_size + dp_rank) * micro_batch_size for m in range(rounds)]
        self._slots = [start + i for start in starts for i in range(micro_batch_size)]
        # Each slot belongs to one worker, and they take turns: their number must divide that of the slots.
        self._workers = max((n for n in range(1, num_workers + 1) if len(self._slots) % n == 0), default=0)
        self._prefetch = prefetch_factor
        self.left_out = Tally()

    def batches(self, position: Position) -> Iterator[tuple[Position, list[MicroBatch]]]:
        """Each step's micro-batches of this rank, with the position after it; endless.

        The position knows this rank's slots only; `whole_position` adds the others'.

        Raises:
            UserError: a file or a row cannot be used.
        """
        cursors = [Cursor(*place) for place in position.cursors] or [Cursor(slot) for slot in range(self._batch)]
        for part, size in zip(self._data.sources, position.sizes, strict=False):
            part.size = size
        dataset = _SlotsOfRank(self._data, self._batch, self._slots, [cursors[slot] for slot in self._slots])
        options: dict[str, Any] = {"prefetch_factor": self._prefetch} if self._workers and self._prefetch else {}
        items = iter(DataLoader(dataset, batch_size=None, num_workers=self._workers, **options))
        batch = position.batch
        sizes: tuple[int, ...] = ()
        while True:
            taken = []
            for slot in self._slots:
                item = next(items)
                if item.fault is not None:
                    raise UserError(item.fault)
                for fault in item.rejected:
                    self.left_out.reject(*fault)
                cursors[slot], sizes = item.cursor, tuple(max(pair) for pair in _paired(sizes, item.sizes))
                taken.append(item.sample)
            batch += 1
            places = tuple((cursor.row, cursor.token) for cursor in cursors)
            yield (
                Position(0, batch, places, sizes),
                [
                    self._collate(taken[i : i + self._micro], self._slots[i : i + self._micro])
                    for i in range(0, len(taken), self._micro)
                ],
            )

    def whole_position(self, position: Position, gather: Callable[[Any], list[Any]]) -> Position:
        """The position with the slots of all ranks; every rank must call it."""
        if not position.cursors:
            return position
        mine = {slot: position.cursors[slot] for slot in self._slots}
        found = gather((mine, position.sizes))
        places = {slot: place for slots, _ in found for slot, place in slots.items()}
        sizes = tuple(max(known) for known in zip(*(sizes for _, sizes in found), strict=True))
        return Position(0, position.batch, tuple(places[slot] for slot in range(self._batch)), sizes)

    def epoch(self, position: Position) -> float:
        """Passes over the data, of the slot that is furthest behind; 0 as long as one has not been finished."""
        total = sum(position.sizes)
        if not total or not all(position.sizes):
            return 0.0
        return min(position.cursors[slot][0] for slot in self._slots) / total

    def describe(self) -> str:
        return "streamed"

    def _collate(self, samples: list[Sample], slots: Sequence[int]) -> MicroBatch:
        batch = collate(samples, slots, self._pad_id, self._collation)
        return batch.pin_memory() if self._pin else batch


def _paired(old: tuple[int, ...], new: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return zip(old or (0,) * len(new), new, strict=True)
