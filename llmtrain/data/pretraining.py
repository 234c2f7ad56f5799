"""Stage `pt`: documents -> one stream of tokens -> blocks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import xxhash
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from llmtrain.config import DataConfig
from llmtrain.data.cache import cached_map
from llmtrain.data.sample import IGNORED, Sample
from llmtrain.errors import UserError


class BlockDataset:
    """Block i holds tokens [i L, i L + L) of the stream; each predicts its successor in the stream.

    So every token but the first is predicted exactly once, also across borders of blocks. The last block may be short.
    Tokens stay in the memory-mapped Arrow file.
    """

    def __init__(self, tokens: Dataset, length: int) -> None:
        """`tokens`: rows with a column `input_ids` of int32 lists. `length`: L."""
        self.length = length
        arrays = [chunk.flatten().to_numpy(zero_copy_only=True) for chunk in tokens.data.column("input_ids").chunks]
        self._parts = [a for a in arrays if len(a)]
        self._ends = np.cumsum([len(a) for a in self._parts], dtype=np.int64)
        self.tokens = int(self._ends[-1]) if self._parts else 0

    def __len__(self) -> int:
        # The last token of the stream has nothing to predict: a block of it alone would teach nothing.
        return -(-max(0, self.tokens - 1) // self.length)

    def __getitem__(self, index: int) -> Sample:
        window = self._read(index * self.length, min((index + 1) * self.length + 1, self.tokens))
        inputs = window[: self.length]
        targets = window[1:]
        if len(targets) < len(inputs):
            targets = np.append(targets, IGNORED)
        return Sample(inputs, targets)

    def fingerprint(self) -> str:
        """A digest of the whole stream and the block length."""
        digest = xxhash.xxh3_128(str(self.length).encode())
        for part in self._parts:
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def _read(self, start: int, end: int) -> np.ndarray:
        pieces = []
        part = int(np.searchsorted(self._ends, start, side="right"))
        while start < end:
            begin = int(self._ends[part]) - len(self._parts[part])
            stop = min(end, int(self._ends[part]))
            pieces.append(self._parts[part][start - begin : stop - begin])
            start, part = stop, part + 1
        return np.concatenate(pieces).astype(np.int64)


def build_blocks(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, settings: DataConfig, field: str
) -> tuple[BlockDataset, list[tuple[str, str]]]:
    """Tokenises `rows` (columns `text`, `row`) into blocks of `cutoff_len`; returns them with lines for the header.

    Raises:
        UserError: a row that is no text, or too little text for a single prediction.
    """
    eos = tokenizer.eos_token_id if settings.append_eod else None
    tokens = cached_map(
        rows,
        partial(_tokenise, tokenizer=tokenizer, eos=eos, field=field),
        tokenizer,
        {"stage": "pt", "eos": eos},
        batch_size=settings.preprocessing_batch_size,
        workers=settings.preprocessing_num_workers,
        fresh=settings.overwrite_cache,
    )
    blocks = BlockDataset(tokens, settings.cutoff_len)
    if len(blocks) == 0:
        raise UserError(f"{field}: the texts hold {blocks.tokens} tokens; there is nothing to predict.")
    lengths = [chunk.value_lengths().to_numpy() for chunk in tokens.data.column("input_ids").chunks]
    empty = sum(int((chunk == 0).sum()) for chunk in lengths)
    documents = f"{len(rows) - empty:,} documents" + (f" ({empty:,} empty left out)" if empty else "")
    summary = f"{documents}, {blocks.tokens:,} tokens, {len(blocks):,} blocks of {settings.cutoff_len:,}"
    return blocks, [(field, summary)]


def _tokenise(
    batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase, eos: int | None, field: str
) -> dict[str, list[Any]]:
    texts = batch["text"]
    for text, number in zip(texts, batch["row"], strict=True):
        if not isinstance(text, str):
            raise UserError(f"{field}: row {number + 1}: its text is {text!r}. Every row needs a text in that column.")
    ids = tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
    if eos is not None:
        ids = [row if row and row[-1] == eos else [*row, eos] for row in ids]
    # An empty document is none: it would teach to end what has not begun.
    ids = [row if text else [] for text, row in zip(texts, ids, strict=True)]
    return {"input_ids": [np.asarray(row, dtype=np.int32) for row in ids]}
