"""Stage `sft`: conversations -> tokens by the chat template -> targets on the assistant's tokens."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from llmtrain.data.formats import RowFormat, read_conversation
from llmtrain.data.readers import BadRow
from llmtrain.data.sample import IGNORED, Sample
from llmtrain.data.store import ENDS, LEARNT, NOT_LEARNT, MaskedDocuments
from llmtrain.data.supervision import ChatFormat
from llmtrain.data.tokenise import Document


class ChatEncoder:
    """A conversation, its tokens by the chat template, and which of them are learnt."""

    masked = True

    def __init__(
        self, chat: ChatFormat, layout: RowFormat, *, train_on_prompt: bool = False, mask_history: bool = False
    ) -> None:
        """`mask_history`: only the last answer is learnt."""
        self._chat, self._layout = chat, layout
        self._train_on_prompt, self._mask_history = train_on_prompt, mask_history

    def key(self) -> dict[str, Any]:
        return {
            "stage": "sft",
            "switches": self._chat.switches,
            "default_system": self._chat.default_system,
            "train_on_prompt": self._train_on_prompt,
            "mask_history": self._mask_history,
        }

    def encode(self, rows: list[dict[str, Any]]) -> list[Document | BadRow | None]:
        return [self._document(row) for row in rows]

    def _document(self, row: dict[str, Any]) -> Document | BadRow:
        try:
            conversation = read_conversation(row, self._layout)
            ids, spans = self._chat.encode(conversation.messages, conversation.tools)
        except BadRow as fault:
            return fault
        learnt = np.full(len(ids), LEARNT if self._train_on_prompt else NOT_LEARNT, np.uint8)
        for span in spans[-1:] if self._mask_history else spans:
            learnt[span.start : span.stop] = LEARNT
            if span.open_end:
                learnt[span.stop] = ENDS
        return Document(np.array(ids, np.int32), learnt)


def chat_sample(ids: np.ndarray, learnt: np.ndarray, end_id: int) -> Sample:
    """The sample of a conversation, or of its beginning; `learnt` as in `store`, both [length].

    A token cut away is not predicted; the last kept one then ends in the middle and is taught no end.
    """
    ids = ids.astype(np.int64)
    targets = np.full(len(ids), IGNORED, dtype=np.int64)
    targets[:-1] = np.where(learnt[1:] == LEARNT, ids[1:], IGNORED)
    targets[:-1][learnt[1:] == ENDS] = end_id
    return Sample(ids, targets)


class ChatDataset:
    """One conversation a sample; those without a learnt token within the cutoff are left out."""

    def __init__(self, store: MaskedDocuments, cutoff: int, end_id: int, chosen: np.ndarray | None = None) -> None:
        """`end_id`: what is learnt where a conversation's turn is closed by no token. `chosen`: numbers of the
        documents to take, in order (None: all)."""
        self._store, self._cutoff, self._end_id = store, cutoff, end_id
        candidates = np.arange(len(store.lengths)) if chosen is None else chosen
        answered = self._supervised[candidates] > 0
        self._chosen = candidates[answered]
        self.left_out = int(len(candidates) - answered.sum())

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Sample:
        document = int(self._chosen[index])
        stop = min(int(self._store.lengths[document]), self._cutoff)
        ids = self._store.read(document, 0, stop)
        learnt = self._store.read_learnt(document, 0, stop)
        assert learnt is not None
        return chat_sample(ids, learnt, self._end_id)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sample, int64 [samples]."""
        return np.minimum(self._store.lengths[self._chosen], self._cutoff)

    @property
    def cut(self) -> int:
        """Samples that lost their end to the cutoff."""
        return int((self._store.lengths[self._chosen] > self._cutoff).sum())

    @property
    def supervised(self) -> int:
        """Tokens that are learnt."""
        return int(self._supervised[self._chosen].sum())

    def fingerprint(self) -> str:
        """A digest of all ids and targets in order."""
        digest = xxhash.xxh3_128(repr((self._store.fingerprint(), self._cutoff, self._end_id)).encode())
        digest.update(np.ascontiguousarray(self._chosen, np.int64).data)
        return digest.hexdigest()

    @cached_property
    def _supervised(self) -> np.ndarray:
        """Targets within the cutoff, of each document of the store."""
        learnt, ends, lengths = self._store.learnt, self._store.ends, self._store.lengths
        assert learnt is not None
        counts = np.zeros(len(ends), np.int64)
        block = 1 << 16  # documents at a time: the counts must not need as much memory as the tokens
        for first in range(0, len(ends), block):
            part = slice(first, first + block)
            begin = int(ends[first] - lengths[first])
            upto = np.concatenate([[0], np.cumsum(learnt[begin : int(ends[part][-1])] != NOT_LEARNT)])
            starts = ends[part] - lengths[part] - begin
            # The first token of a document is predicted from nothing.
            counts[part] = upto[starts + np.minimum(lengths[part], self._cutoff)] - upto[starts + 1]
        return counts
