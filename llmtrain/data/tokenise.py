"""The rows of a source -> a store of tokens, on several processes, found again where nothing has changed."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from llmtrain.config import DataConfig
from llmtrain.data.readers import BadRow, File, RawRow, parse, read_file
from llmtrain.data.sources import DataSource
from llmtrain.data.store import Encoded, Tally, TokenStore, find_or_write, write_store
from llmtrain.errors import UserError

# Raise it when the code that makes tokens changes its mind.
CODE_VERSION = 5
# So many rows of which not one can be used are no accident.
_HOPELESS = 10_000

Place = tuple[File, int]


class Encoder(Protocol):
    """Turns rows into tokens; it travels to the processes that do so."""

    masked: bool

    def key(self) -> dict[str, Any]:
        """All that decides about the tokens beside the rows and the tokenizer."""

    def encode(self, rows: list[dict[str, Any]]) -> list[Document | BadRow | None]:
        """Each row's document; None where it is empty."""


@dataclass(frozen=True)
class Document:
    """The tokens of one row, and which of them are learnt (see `store`; None: all)."""

    tokens: np.ndarray
    learnt: np.ndarray | None = None


@dataclass(frozen=True)
class Batch:
    """What a process makes of some rows; `rejected` holds (row, reason)."""

    encoded: Encoded
    rows: int
    empty: int
    rejected: list[tuple[int, str]]


def tokenise(
    source: DataSource, encoder: Encoder, tokenizer: PreTrainedTokenizerBase, settings: DataConfig, setting: str
) -> TokenStore:
    """The documents of a source, from the cache or made now.

    Raises:
        UserError: a file cannot be read, no row can be used, or some cannot and `data.on_bad_row` is `error`.
    """
    key = json.dumps(
        [
            _signature(source.files),
            asdict(source.layout),
            settings.max_samples,
            tokenizer_signature(tokenizer),
            encoder.key(),
            CODE_VERSION,
        ],
        sort_keys=True,
        default=dict,
    )
    folder = cache_folder(settings) / hashlib.sha256(key.encode()).hexdigest()[:32]
    dtype = "uint16" if max(tokenizer.get_vocab().values()) < 2**16 else "int32"
    chunks = partial(encoded_chunks, source, encoder, settings, setting)
    find_or_write(
        folder, settings.overwrite_cache, lambda path: write_store(path, chunks(), dtype, masked=encoder.masked)
    )
    store = TokenStore(folder)
    if store.tally.rejected and (settings.on_bad_row == "error" or store.tally.used == 0):
        raise UserError(describe_rejected(store.tally, setting, source.name))
    return store


def cache_folder(settings: DataConfig) -> Path:
    """`data.tokenized_path`, or a folder of the user's cache ($LLMTRAIN_CACHE)."""
    if settings.tokenized_path is not None:
        return Path(settings.tokenized_path)
    return Path(os.environ.get("LLMTRAIN_CACHE", "~/.cache/llmtrain")).expanduser() / "tokens"


def describe_rejected(tally: Tally, setting: str, name: str, shown: int = 3) -> str:
    """The error for rows that cannot be used: the first few kinds with the first row of each."""
    kinds = sorted(tally.rejected.values(), key=lambda kind: -kind.count)
    lines = [
        f"\n  {kind.place}: {kind.reason}" + (f" ({kind.count:,} such rows)" if kind.count > 1 else "")
        for kind in kinds[:shown]
    ]
    more = f"\n  and {len(kinds) - shown} more kinds of faults" if len(kinds) > shown else ""
    advice = "Mend them, or set data.on_bad_row: skip to train without them."
    if tally.used == 0:
        advice = "None is left to train on."
    return f"{setting}: {tally.bad:,} of {tally.rows:,} rows of {name} cannot be used. {advice}{''.join(lines)}{more}"


def tokenizer_signature(tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of all that decides how text becomes ids: the model, special tokens, the chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = [
        backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items())),
        json.dumps({k: str(v) for k, v in tokenizer.special_tokens_map.items()}, sort_keys=True),
        json.dumps(tokenizer.chat_template, sort_keys=True),
        str(getattr(tokenizer, "split_special_tokens", False)),
    ]
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def _signature(files: tuple[File, ...]) -> list[Any]:
    """What tells that files have changed; the folder they lie in does not matter."""
    out: list[Any] = []
    for file in files:
        path = Path(file) if isinstance(file, str) and "://" not in file else None
        if path is None:
            out.append(str(file))
            continue
        for part in sorted(path.rglob("*")) if path.is_dir() else [path]:
            found = part.stat()
            out.append([part.name, found.st_size, found.st_mtime_ns])
    return out


def encoded_chunks(
    source: DataSource, encoder: Encoder, settings: DataConfig, setting: str
) -> Iterator[tuple[Encoded, Tally]]:
    """Encoded documents in the order of the rows, each time with the tally so far.

    Raises:
        UserError: a file cannot be read, or of very many rows not one can be used.
    """
    tally = Tally()
    rows: Iterator[tuple[Place, RawRow]] = chain.from_iterable(
        (((file, number), raw) for number, raw in read_file(file)) for file in source.files
    )
    if settings.max_samples is not None:
        rows = islice(rows, settings.max_samples)
    progress = tqdm(desc=f"tokenising {source.name}", unit=" rows", disable=None, leave=False)
    with progress:
        for places, batch in encode_rows(
            rows, encoder, settings.preprocessing_batch_size, settings.preprocessing_num_workers
        ):
            tally.rows += batch.rows
            tally.used += len(batch.encoded.lengths)
            tally.empty += batch.empty
            for index, reason in batch.rejected:
                tally.reject(kind_of_fault(reason), shown_place(places[index]), reason)
            progress.update(batch.rows)
            if tally.rows >= _HOPELESS and not tally.used and tally.bad:
                raise UserError(describe_rejected(tally, setting, f"the first rows of {source.name}"))
            yield batch.encoded, tally


def kind_of_fault(reason: str) -> str:
    """Reasons that differ only in names and numbers are of one kind."""
    return re.sub(r"'[^']*'|\d+", "*", reason)


def shown_place(place: Place) -> str:
    file, number = place
    lines = isinstance(file, str) and ".jsonl" in file
    return f"{file}:{number}" if lines else f"{file}, row {number}"


def encode_rows(
    rows: Iterator[tuple[Place, RawRow]], encoder: Encoder, batch_size: int, workers: int | None
) -> Iterator[tuple[list[Place], Batch]]:
    """Batches of rows with their places, in order; on `workers` processes, or in this one with the tokenizer's threads.

    Only a few batches are under way at a time: memory does not grow with the files.
    """
    batches = iter(lambda: list(islice(rows, batch_size)), [])
    if not workers or workers == 1:
        for batch in batches:
            yield [place for place, _ in batch], encode_batch(encoder, [raw for _, raw in batch])
        return
    # Threads of the tokenizer do not survive the birth of a process, and would compete with the processes.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pending: deque[tuple[list[Place], Future[Batch]]] = deque()
    # Forked, the processes have the encoder already; sent with every batch, it would cost more than the work.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_keep, initargs=(encoder,)) as pool:
        for batch in batches:
            future = pool.submit(_encode_kept, [raw for _, raw in batch])
            pending.append(([place for place, _ in batch], future))
            if len(pending) > 2 * workers:
                places, done = pending.popleft()
                yield places, done.result()
        for places, done in pending:
            yield places, done.result()


_kept: list[Encoder] = []  # in a process of the pool: what it encodes with


def _keep(encoder: Encoder) -> None:
    _kept[:] = [encoder]


def _encode_kept(raw_rows: list[RawRow]) -> Batch:
    return encode_batch(_kept[0], raw_rows)


def encode_batch(encoder: Encoder, raw_rows: list[RawRow]) -> Batch:
    """Parses and encodes; no row is lost: each one is a document, empty, or rejected with its reason."""
    rejected: list[tuple[int, str]] = []
    documents: list[Document] = []
    empty = 0
    for index, result in enumerate(encode_row_batch(encoder, raw_rows)):
        if isinstance(result, BadRow):
            rejected.append((index, str(result)))
        elif result is None or not len(result.tokens):
            empty += 1
        else:
            documents.append(result)
    return Batch(_joined(documents, encoder.masked), len(raw_rows), empty, rejected)


def encode_row_batch(encoder: Encoder, raw_rows: list[RawRow]) -> list[Document | BadRow | None]:
    """What becomes of each row: a document, nothing, or why it cannot be used."""
    results: list[Document | BadRow | None] = [None] * len(raw_rows)
    parsed: list[dict[str, Any]] = []
    numbers: list[int] = []
    for index, raw in enumerate(raw_rows):
        try:
            parsed.append(parse(raw))
            numbers.append(index)
        except BadRow as reason:
            results[index] = reason
    for index, result in zip(numbers, encoder.encode(parsed), strict=True):
        results[index] = result
    return results


def _joined(documents: list[Document], masked: bool) -> Encoded:
    tokens = [document.tokens for document in documents] or [np.zeros(0, np.int32)]
    learnt = [document.learnt for document in documents if document.learnt is not None] or [np.zeros(0, np.uint8)]
    lengths = np.fromiter((len(document.tokens) for document in documents), np.int64, len(documents))
    return Encoded(np.concatenate(tokens), np.concatenate(learnt) if masked else None, lengths)
