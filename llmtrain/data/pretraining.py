"""Stage `pt`: documents -> one stream of tokens -> blocks."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from llmtrain.data.formats import RowFormat, read_text
from llmtrain.data.readers import BadRow
from llmtrain.data.sample import IGNORED, Sample
from llmtrain.data.store import Documents
from llmtrain.data.tokenise import Document


class TextEncoder:
    """A text, its tokens by the tokenizer's own rule (its BOS, if it writes one), and the end-of-document token."""

    masked = False

    def __init__(self, tokenizer: PreTrainedTokenizerBase, layout: RowFormat, eos: int | None) -> None:
        """`eos`: the token appended to each document that does not end with it, or None."""
        self._tokenizer, self._layout, self._eos = tokenizer, layout, eos

    def key(self) -> dict[str, Any]:
        return {"stage": "pt", "eos": self._eos}

    def encode(self, rows: list[dict[str, Any]]) -> list[Document | BadRow | None]:
        texts: list[str] = []
        faults: list[BadRow | None] = []
        for row in rows:
            try:
                texts.append(read_text(row, self._layout))
                faults.append(None)
            except BadRow as fault:
                faults.append(fault)
        encoded = iter(zip(texts, self._ids(texts), strict=True))
        return [fault or self._document(*next(encoded)) for fault in faults]

    def _document(self, text: str, ids: np.ndarray) -> Document | None:
        # An empty document is none: it would teach to end what has not begun.
        if not text:
            return None
        if self._eos is not None and not (len(ids) and ids[-1] == self._eos):
            ids = np.append(ids, np.int32(self._eos))
        return Document(ids)

    def _ids(self, texts: list[str]) -> list[np.ndarray]:
        if not texts:
            return []
        if self._is_plain:
            # The tokenizer's core without offsets and masks, which nobody reads here.
            core = self._tokenizer.backend_tokenizer
            core.encode_special_tokens = self._tokenizer.split_special_tokens
            return [np.array(encoding.ids, np.int32) for encoding in core.encode_batch_fast(texts)]
        rows = self._tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
        return [np.array(row, np.int32) for row in rows]

    @cached_property
    def _is_plain(self) -> bool:
        """Nothing stands between the tokenizer and its core."""
        kind = type(self._tokenizer)
        return isinstance(self._tokenizer, PreTrainedTokenizerFast) and all(
            getattr(kind, name) is getattr(PreTrainedTokenizerFast, name) for name in ("__call__", "_encode_plus")
        )


def window_sample(pieces: list[np.ndarray], length: int, *, isolate: bool) -> Sample:
    """Up to `length` + 1 tokens in a row, given as pieces of documents: each predicts its successor.

    With `isolate` the documents do not see each other, and the first token of one is not predicted from the last.
    """
    window = np.concatenate(pieces).astype(np.int64)
    inputs, targets = window[:length], window[1:]
    if len(targets) < len(inputs):
        targets = np.append(targets, IGNORED)
    if not isolate:
        return Sample(inputs, targets)
    ends = np.cumsum([len(piece) for piece in pieces])
    targets = targets.copy()  # it shares the inputs' memory
    targets[ends[ends <= len(inputs)] - 1] = IGNORED
    borders = ends[ends < len(inputs)]
    return Sample(inputs, targets, tuple(np.diff([0, *borders, len(inputs)]).tolist()))


class BlockDataset:
    """Block i holds tokens [i L, i L + L) of the stream; each predicts its successor in the stream.

    So every token but the first is predicted exactly once, also across borders of blocks. The last block may be short.
    Where documents are isolated, they do not see each other and the first token of one is not predicted from the last.
    """

    def __init__(
        self, documents: Documents, length: int, *, chosen: np.ndarray | None = None, isolate: bool = False
    ) -> None:
        """`length`: L. `chosen`: numbers of the documents that make the stream, in order (None: all)."""
        self.length = length
        self._documents, self._chosen, self._isolate = documents, chosen, isolate
        self._lengths = documents.lengths if chosen is None else documents.lengths[chosen]
        self._ends = np.cumsum(self._lengths, dtype=np.int64)
        self.tokens = int(self._ends[-1]) if len(self._ends) else 0

    @property
    def documents(self) -> int:
        return len(self._ends)

    def __len__(self) -> int:
        # The last token of the stream has nothing to predict: a block of it alone would teach nothing.
        return -(-max(0, self.tokens - 1) // self.length)

    def __getitem__(self, index: int) -> Sample:
        start = index * self.length
        parts = self._parts(start, min(start + self.length + 1, self.tokens))
        return window_sample([self._documents.read(*part) for part in parts], self.length, isolate=self._isolate)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each block."""
        starts = np.arange(len(self), dtype=np.int64) * self.length
        return np.minimum(self.length, self.tokens - starts)

    def fingerprint(self) -> str:
        """A digest of the stream, its borders and the block length."""
        digest = xxhash.xxh3_128(repr((self._documents.fingerprint(), self.length, self._isolate)).encode())
        if self._chosen is not None:
            digest.update(np.ascontiguousarray(self._chosen, np.int64).data)
        return digest.hexdigest()

    def _parts(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """(document, first, past the last token in it) of the stream's tokens [start, stop)."""
        parts = []
        position = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            begin = int(self._ends[position] - self._lengths[position])
            end = min(stop, int(self._ends[position]))
            document = position if self._chosen is None else int(self._chosen[position])
            parts.append((document, start - begin, end - begin))
            start = end
            position = int(np.searchsorted(self._ends, start, side="right"))
        return parts
