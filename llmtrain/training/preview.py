"""`llmtrain data`: what the model will see, without a model and without other processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from llmtrain.config import Config
from llmtrain.data.build import build_datasets
from llmtrain.data.loader import Loader, Position
from llmtrain.data.sample import IGNORED, MicroBatch
from llmtrain.data.streaming import StreamData, StreamLoader
from llmtrain.data.tokenizer import load_tokenizer, pad_id
from llmtrain.errors import UserError
from llmtrain.runtime.mesh import plan_layout
from llmtrain.training.batch import plan_batch
from llmtrain.training.loaders import training_loader
from llmtrain.training.plot import plot_lengths

_BAR = 40  # characters of the histogram's longest bar


@dataclass(frozen=True)
class Row:
    """One row of a micro-batch. labels: what each position must predict, -100 where it counts for nothing; doc_ids: the
    number of the document in the row, -1 on padding."""

    step: int
    rank: int
    input_ids: list[int]
    labels: list[int]
    position_ids: list[int]
    doc_ids: list[int]


def preview(config: Config, *, rank: int, world_size: int, steps: int, as_json: bool, plot: Path | None = None) -> None:
    """Prints the sequences of the first steps of one rank, after a summary of the whole; with `as_json` one JSON line a
    sequence and nothing else. `plot`: where a picture of the rows' lengths goes.

    Raises:
        UserError: wrong numbers, or data that cannot be used.
    """
    if steps < 1 or world_size < 1 or not 0 <= rank < world_size:
        raise UserError(f"--rank {rank} --world-size {world_size} --steps {steps}: a rank from 0 on, below the size.")
    layout = plan_layout(world_size, config.parallel.fsdp_size)
    batch = plan_batch(config.training, layout.data_ranks)
    tokenizer = load_tokenizer(config)
    datasets = build_datasets(config, tokenizer, global_batch=batch.total, main_first=nullcontext, is_main=True)
    loader = training_loader(config, datasets, batch, rank=rank, padding=pad_id(tokenizer))
    if plot is not None:
        if isinstance(datasets.train, StreamData):
            raise UserError("--plot: the lengths of a stream's rows show only when it has been read.")
        plot_lengths(datasets.train.lengths, plot, f"{len(datasets.train):,} rows")
    found = _sequences(loader, rank, steps)
    if as_json:
        for sequence in found:
            print(json.dumps(vars(sequence)))
        return
    for name, value in [*datasets.summary, ("batch", f"{batch}; {loader.describe()}")]:
        print(f"{name:<18} {value}")
    if not isinstance(datasets.train, StreamData):
        print("\ntokens of a row")
        print("\n".join(_histogram(datasets.train.lengths)))
    for sequence in found:
        print("\n".join(_shown(sequence, tokenizer, coloured=sys.stdout.isatty())))


def _sequences(loader: Loader | StreamLoader, rank: int, steps: int) -> Iterator[Row]:
    for step, (_, batches) in enumerate(islice(loader.batches(Position(0, 0)), steps), 1):
        for batch in batches:
            yield from (Row(step, rank, *row) for row in _rows(batch))


def _rows(batch: MicroBatch) -> Iterator[tuple[list[int], ...]]:
    """Ids, labels, positions and documents of each row that holds a sample."""
    lengths = list(batch.lengths)
    if batch.documents is not None and lengths:
        lengths = [tuple(n for sample in lengths for n in sample)]
    for row, documents in enumerate(lengths):
        width = batch.input_ids.shape[1]
        numbers = np.full(width, -1)
        numbers[: sum(documents)] = np.repeat(np.arange(len(documents)), documents)
        positions = np.arange(width) if batch.position_ids is None else batch.position_ids[row].numpy()
        yield batch.input_ids[row].tolist(), batch.targets[row].tolist(), positions.tolist(), numbers.tolist()


def _histogram(lengths: np.ndarray, bins: int = 10) -> list[str]:
    """A line for each range of lengths, of equal whole widths."""
    low, high = int(lengths.min()), int(lengths.max())
    width = -(-(high - low + 1) // bins)
    counts = np.bincount((lengths - low) // width)
    return [
        f"  {low + n * width:>8,} to {min(high, low + (n + 1) * width - 1):>8,}  {count:>9,}  "
        f"{'█' * -(-count * _BAR // int(counts.max()))}"
        for n, count in enumerate(counts.tolist())
    ]


def _shown(sequence: Row, tokenizer: PreTrainedTokenizerBase, *, coloured: bool) -> Iterator[str]:
    """The text of each document; what is learnt is green, or stands between » and « where there is no colour."""
    marks = ("\033[32m", "\033[0m") if coloured else ("»", "«")
    doc_ids = np.array(sequence.doc_ids)
    learnt = sum(label != IGNORED for label in sequence.labels)
    yield f"\nstep {sequence.step} rank {sequence.rank}: {(doc_ids >= 0).sum():,} of {len(doc_ids):,} places filled, "\
          f"{doc_ids.max() + 1} documents, {learnt:,} tokens learnt"  # fmt: skip
    for document in range(doc_ids.max() + 1):
        places = np.flatnonzero(doc_ids == document).tolist()
        # A token is learnt where the place before it predicts it.
        states = [place > 0 and sequence.labels[place - 1] != IGNORED for place in places]
        text = ""
        for state, run in _runs(states, [sequence.input_ids[place] for place in places]):
            decoded = str(tokenizer.decode(run))
            text += f"{marks[0]}{decoded}{marks[1]}" if state else decoded
        yield f"--- document {document}, {len(places)} tokens"
        yield text


def _runs(states: Sequence[bool], ids: Sequence[int]) -> list[tuple[bool, list[int]]]:
    runs: list[tuple[bool, list[int]]] = []
    for state, token in zip(states, ids, strict=True):
        if not runs or runs[-1][0] != state:
            runs.append((state, []))
        runs[-1][1].append(token)
    return runs
