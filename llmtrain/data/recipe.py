"""What every way to make datasets shares: the settings, the sources as stores of tokens, what a row holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from llmtrain.config import Config, DataConfig
from llmtrain.config.data import Source
from llmtrain.data.chat import ChatEncoder
from llmtrain.data.gpt import Blend
from llmtrain.data.indexed import IndexedStore, InstructionStore
from llmtrain.data.mixture import Mixture, permutation
from llmtrain.data.pretraining import TextEncoder
from llmtrain.data.sample import Collation
from llmtrain.data.shards import ShardStore
from llmtrain.data.sources import DataSource, resolve_sources
from llmtrain.data.store import MaskedDocuments
from llmtrain.data.streaming import StreamData
from llmtrain.data.supervision import ChatFormat
from llmtrain.data.tokenise import Encoder, tokenise
from llmtrain.errors import UserError

Summary = list[tuple[str, str]]
# A stream of random numbers of `permutation`, beside those of the epochs.
SUBSET = -2


@dataclass(frozen=True)
class Datasets:
    """Training data; held-out data by name, where there is any; lines for the header.

    whole_run: `train` is all that the run sees, in its order, and not one pass of several.
    """

    train: Mixture | Blend | StreamData
    evaluation: dict[str, Mixture]
    summary: Summary
    whole_run: bool = False


@dataclass(frozen=True)
class RowLayout:
    """What a row of the model holds: whether conversations share rows, whether the documents of a row must not see each
    other, and how a micro-batch is laid out."""

    packs: bool
    isolates: bool
    collation: Collation


def row_layout(config: Config) -> RowLayout:
    data, chat = config.data, config.training.stage == "sft"
    packs = chat and (data.packing or data.neat_packing)
    # A conversation with a row of its own has nothing to be kept apart from.
    isolates = (data.neat_packing or data.reset_attention_mask) and (packs or not chat)
    return RowLayout(packs, isolates, "flat" if isolates or data.padding_free else "padded")


@dataclass(frozen=True)
class Chosen:
    """A source's documents that a dataset is made of."""

    source: DataSource
    store: MaskedDocuments
    documents: np.ndarray

    @property
    def tokens(self) -> int:
        return int(self.store.lengths[self.documents].sum(dtype=np.int64))


class Recipe:
    """Makes the datasets of a run. `data` are its settings; they may differ from the config's by rank."""

    def __init__(self, config: Config, data: DataConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        training = config.training
        self._data, self._tokenizer, self._layout = data, tokenizer, row_layout(config)
        self._stage, self._seed, self._shuffle = training.stage, training.seed, not training.disable_shuffling

    @property
    def _end_id(self) -> int:
        end = self._tokenizer.eos_token_id
        assert isinstance(end, int)
        return end

    def read(self, value: Source, setting: str) -> list[Chosen]:
        """Each source's documents; of one with fewer `num_samples` than documents, so many drawn by the seed."""
        chosen = []
        for source in resolve_sources(value, self._data.dataset_dir, setting):
            store = self._store(source, setting)
            count = len(store.lengths)
            if source.kind != "rows" and self._data.max_samples is not None:
                count = min(count, self._data.max_samples)
            documents = np.arange(count)
            if source.num_samples is not None and source.num_samples < count:
                documents = np.sort(permutation(count, self._seed, SUBSET)[: source.num_samples])
            chosen.append(Chosen(source, store, documents))
        return chosen

    def _store(self, source: DataSource, setting: str) -> MaskedDocuments:
        if source.kind == "rows":
            return tokenise(source, self.encoder(source), self._tokenizer, self._data, setting)
        if source.kind == "pairs" and self._stage == "sft":
            if self._data.train_on_prompt or self._data.mask_history:
                raise UserError(
                    f"{setting}: {source.name} says itself what is learnt; data.train_on_prompt and data.mask_history "
                    f"cannot be used with it."
                )
            return InstructionStore(str(source.files[0]))
        if source.kind == "pairs":
            return IndexedStore(str(source.files[0]))
        if self._stage != "pt":
            raise UserError(
                f"{setting}: {source.name} holds tokens and not what is learnt of them; it is for stage pt."
            )
        return ShardStore([str(file) for file in source.files], source.dtype, self._end_id)

    def encoder(self, source: DataSource) -> Encoder:
        data, tokenizer = self._data, self._tokenizer
        if self._stage == "pt":
            return TextEncoder(tokenizer, source.layout, tokenizer.eos_token_id if data.append_eod else None)
        if not tokenizer.chat_template:
            raise UserError(
                "The tokenizer has no chat template, so stage sft cannot render conversations. Name one "
                "(data.template), or use the tokenizer of a chat model."
            )
        switches: dict[str, Any] = {}
        if data.enable_thinking is not None:
            switches["enable_thinking"] = data.enable_thinking
        chat = ChatFormat(tokenizer, switches, data.default_system)
        return ChatEncoder(chat, source.layout, train_on_prompt=data.train_on_prompt, mask_history=data.mask_history)


def describe_mix(names: Sequence[str], counts: Sequence[int], unit: str) -> str:
    total = sum(counts)
    parts = ", ".join(f"{name} {n / total:.1%} ({n:,})" for name, n in zip(names, counts, strict=True))
    return f"{parts} of {total:,} {unit}"
