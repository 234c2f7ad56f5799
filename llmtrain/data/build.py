"""The datasets of a run, from its config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from llmtrain.config import Config, DataConfig, TrainingConfig
from llmtrain.config.data import Source, parse_split, parse_weights
from llmtrain.data.chat import ChatDataset, ChatEncoder
from llmtrain.data.gpt import Blend, GPTDataset, blend_for, normalised, split_documents
from llmtrain.data.indexed import IndexedStore, InstructionStore
from llmtrain.data.mixture import Mixture, permutation
from llmtrain.data.packing import PackedDataset
from llmtrain.data.pretraining import BlockDataset, TextEncoder
from llmtrain.data.sample import Collation
from llmtrain.data.shards import ShardStore
from llmtrain.data.sources import DataSource, resolve_sources
from llmtrain.data.store import MaskedDocuments
from llmtrain.data.streaming import RowSource, StreamData
from llmtrain.data.supervision import ChatFormat
from llmtrain.data.tokenise import Encoder, cache_folder, tokenise, tokenizer_signature
from llmtrain.errors import UserError

Summary = list[tuple[str, str]]
# Streams of random numbers of `permutation`, beside those of the epochs.
_HELD_OUT, _SUBSET = -1, -2


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
class _Chosen:
    """A source's documents that a dataset is made of."""

    source: DataSource
    store: MaskedDocuments
    documents: np.ndarray

    @property
    def tokens(self) -> int:
        return int(self.store.lengths[self.documents].sum(dtype=np.int64))


@dataclass(frozen=True)
class _Prepared:
    """The same as samples; `rows` are what is trained on, packs of samples perhaps."""

    chosen: _Chosen
    samples: BlockDataset | ChatDataset
    rows: BlockDataset | ChatDataset | PackedDataset


def build_datasets(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    *,
    global_batch: int,
    main_first: Callable[[], AbstractContextManager[None]],
    is_main: bool,
) -> Datasets:
    """Reads, splits, tokenises, mixes. Inside `main_first` the main process fills the cache, the others then find it.

    `global_batch` counts samples; where a run's order is drawn as a whole, it says how many are needed.

    Raises:
        UserError: anything wrong with the files or their rows.
    """
    if not is_main:
        datasets.disable_progress_bars()
    # Only the one that goes first tokenises again; the others take what it has made.
    data = config.data if is_main else config.data.model_copy(update={"overwrite_cache": False})
    with main_first():
        return _Builder(data, tokenizer, config.training, row_layout(config)).build(global_batch)


class _Builder:
    def __init__(
        self, data: DataConfig, tokenizer: PreTrainedTokenizerBase, training: TrainingConfig, layout: RowLayout
    ) -> None:
        self._data, self._tokenizer, self._layout = data, tokenizer, layout
        self._stage, self._seed, self._shuffle = training.stage, training.seed, not training.disable_shuffling
        self._max_steps, self._epochs = training.max_steps, training.num_train_epochs

    def build(self, global_batch: int) -> Datasets:
        data = self._data
        assert data.dataset is not None
        if data.data_manager_type == "mg":
            return self._build_blends(self._max_steps * global_batch if self._max_steps > 0 else None)
        if data.streaming:
            train, summary = self._stream()
            evaluation, held_summary = self._held_out(
                self._read(data.eval_dataset, "data.eval_dataset") if data.eval_dataset is not None else [],
                "data.eval_dataset",
            )
            return Datasets(train, evaluation, [*summary, *held_summary])
        chosen = self._read(data.dataset, "data.dataset")
        held_out: list[_Chosen] = []
        held_name = "data.eval_dataset"
        if data.eval_dataset is not None:
            held_out = self._read(data.eval_dataset, held_name)
        elif data.val_size:
            held_name = "data.val_size"
            chosen, held_out = self._split(chosen)
        mixture, summary = self._mix([self._repeated(part) for part in chosen], "data.dataset")
        evaluation, held_summary = self._held_out(held_out, held_name)
        return Datasets(mixture, evaluation, [*summary, *held_summary])

    def _held_out(self, chosen: Sequence[_Chosen], setting: str) -> tuple[dict[str, Mixture], Summary]:
        """Held-out data by name, "" for all of it."""
        if not chosen:
            return {}, []
        # The held-out loss is that of conversations by themselves, however the training rows are filled.
        prepared = self._prepare(chosen, setting, packs=self._layout.packs and self._layout.isolates)
        evaluation = {"": Mixture([part.rows for part in prepared])}
        if self._data.eval_on_each_dataset:
            evaluation = {part.chosen.source.name: Mixture([part.rows]) for part in prepared if len(part.rows)}
        return evaluation, self._summary(prepared, setting)

    def _stream(self) -> tuple[StreamData, Summary]:
        data, tokenizer = self._data, self._tokenizer
        assert data.dataset is not None and isinstance(tokenizer.eos_token_id, int)
        sources = resolve_sources(data.dataset, data.dataset_dir, "data.dataset")
        for source in sources:
            if source.kind != "rows":
                raise UserError(f"data.dataset: {source.name} holds tokens already; read it without data.streaming.")
            if source.num_samples is not None:
                raise UserError(
                    f"data.dataset: num_samples of {source.name} cannot be drawn from a stream; leave it out."
                )
        weights = self._weights(sources, "data.dataset")
        if weights is None and len(sources) > 1:
            first = sources[0]
            if any(source.layout != first.layout for source in sources):
                raise UserError(
                    "data.dataset names datasets of different forms, and a stream mixes such by weight: set "
                    "data.mix_strategy to interleave_under or interleave_over."
                )
            files = tuple(file for source in sources for file in source.files)
            sources = [replace(first, name="+".join(source.name for source in sources), files=files)]
        parts = [
            RowSource(source, self._encoder(source), n, self._seed, self._shuffle, data.buffer_size, data.max_samples)
            for n, source in enumerate(sources)
        ]
        stream = StreamData(
            parts,
            weights,
            length=data.cutoff_len,
            end_id=tokenizer.eos_token_id,
            texts=self._stage == "pt",
            packs=self._layout.packs,
            isolates=self._layout.isolates,
            skips_bad_rows=data.on_bad_row == "skip",
            described=[tokenizer_signature(tokenizer), *(part.encoder.key() for part in parts)],
        )
        summary: Summary = []
        for part in parts:
            order = f"shuffled within {data.buffer_size:,} rows" if self._shuffle else "in their order"
            count = len(part.source.files)
            line = f"{part.source.name}: {count:,} file{'s' if count > 1 else ''}, streamed, {order}"
            summary.append(("" if summary else "data.dataset", line))
        if weights is not None and len(parts) > 1:
            shares = ", ".join(f"{p.source.name} {w / sum(weights):.1%}" for p, w in zip(parts, weights, strict=True))
            summary.append(("mix", f"{shares} of the rows"))
        return stream, summary

    def _build_blends(self, samples: int | None) -> Datasets:
        """Megatron's way: the documents are split by their place, and each part is a sequence of samples."""
        data = self._data
        assert data.dataset is not None
        chosen = self._read(data.dataset, "data.dataset")
        shares = [split_documents(data.split, len(part.documents)) for part in chosen]
        train, held_out, kept = (
            [replace(part, documents=part.documents[share[i]]) for part, share in zip(chosen, shares, strict=True)]
            for i in range(3)
        )
        weights = [part.source.weight for part in train]
        if any(weight is None for weight in weights) and any(weight is not None for weight in weights):
            raise UserError("data.dataset: some of the datasets have a weight, and others none.")
        blended = blend_for(
            [partial(self._gpt_dataset, part, "data.dataset") for part in train],
            [part.tokens for part in train],
            data.cutoff_len,
            None if weights[0] is None else [weight or 0.0 for weight in weights],
            samples=samples,
            epochs=self._epochs,
        )
        summary = self._describe_blend(train, blended)
        held_name = "data.split"
        if data.eval_dataset is not None:
            held_name, held_out = "data.eval_dataset", self._read(data.eval_dataset, "data.eval_dataset")
        elif not parse_split(data.split)[1]:
            held_out = []
        evaluation: dict[str, Mixture] = {}
        if held_out:
            parts = [self._gpt_dataset(part, held_name, None) for part in held_out]
            evaluation = {"": Mixture(parts)}
            if data.eval_on_each_dataset:
                evaluation = {
                    part.source.name: Mixture([samples]) for part, samples in zip(held_out, parts, strict=True)
                }
            for n, (part, held) in enumerate(zip(held_out, parts, strict=True)):
                summary.append((held_name if n == 0 else "", f"{part.source.name}: {len(held):,} samples held out"))
        if unused := sum(len(part.documents) for part in kept):
            summary.append(("", f"{unused:,} documents kept for a test, which is not part of a run"))
        return Datasets(blended, evaluation, summary, whole_run=True)

    def _gpt_dataset(self, part: _Chosen, setting: str, samples: int | None) -> GPTDataset:
        length = self._data.cutoff_len
        if part.tokens < length + 1:
            raise UserError(
                f"{setting}: {part.source.name} holds {part.tokens:,} tokens in {len(part.documents):,} documents, "
                f"fewer than one sample of {length:,} and its successor."
            )
        return GPTDataset(
            part.store,
            part.documents,
            length,
            samples,
            self._seed,
            cache=cache_folder(self._data),
            shuffle=self._shuffle,
            isolate=self._layout.isolates,
        )

    def _describe_blend(self, chosen: Sequence[_Chosen], blended: Blend) -> Summary:
        summary: Summary = []
        for part, samples, share in zip(chosen, blended.parts, blended.shares, strict=True):
            passes = f", {samples.passes.epochs} passes" if samples.passes.epochs > 1 else ""
            line = f"{part.source.name}: {samples.documents:,} documents, {samples.tokens:,} tokens"
            line += f"; {share:,} of {len(samples):,} samples of {self._data.cutoff_len:,}{passes}"
            summary.append(("" if summary else "data.dataset", line))
        if self._layout.isolates:
            summary.append(("", "the documents of a sample do not see each other"))
        if len(chosen) > 1:
            names = [part.source.name for part in chosen]
            summary.append(("mix", _describe_mix(names, blended.shares, "samples a run")))
        return summary

    def _read(self, value: Source, setting: str) -> list[_Chosen]:
        """Each source's documents; of one with fewer `num_samples` than documents, so many drawn by the seed."""
        chosen = []
        for source in resolve_sources(value, self._data.dataset_dir, setting):
            store = self._store(source, setting)
            count = len(store.lengths)
            if source.kind != "rows" and self._data.max_samples is not None:
                count = min(count, self._data.max_samples)
            documents = np.arange(count)
            if source.num_samples is not None and source.num_samples < count:
                documents = np.sort(permutation(count, self._seed, _SUBSET)[: source.num_samples])
            chosen.append(_Chosen(source, store, documents))
        return chosen

    def _store(self, source: DataSource, setting: str) -> MaskedDocuments:
        if source.kind == "rows":
            return tokenise(source, self._encoder(source), self._tokenizer, self._data, setting)
        if source.kind == "pairs":
            return (IndexedStore if self._stage == "pt" else InstructionStore)(str(source.files[0]))
        if self._stage != "pt":
            raise UserError(
                f"{setting}: {source.name} holds tokens and not what is learnt of them; it is for stage pt."
            )
        end = self._tokenizer.eos_token_id
        assert isinstance(end, int)
        return ShardStore([str(file) for file in source.files], source.dtype, end)

    def _encoder(self, source: DataSource) -> Encoder:
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

    def _split(self, chosen: Sequence[_Chosen]) -> tuple[list[_Chosen], list[_Chosen]]:
        """Documents drawn by the seed, a count or a share (at least one) of all; both parts keep the files' order."""
        wanted, sizes = self._data.val_size, np.array([len(part.documents) for part in chosen])
        total = int(sizes.sum())
        count = int(wanted) if wanted >= 1 else max(1, round(wanted * total))
        if count >= total:
            raise UserError(f"data.val_size takes {count} of {total} rows; none is left to train on.")
        train: list[_Chosen] = []
        held_out: list[_Chosen] = []
        for part, held in zip(chosen, _proportional(count, sizes), strict=True):
            drawn = permutation(len(part.documents), self._seed, _HELD_OUT)
            for out, numbers in ((held_out, drawn[:held]), (train, drawn[held:])):
                out.append(_Chosen(part.source, part.store, part.documents[np.sort(numbers)]))
        return train, held_out

    def _repeated(self, part: _Chosen) -> _Chosen:
        """With more `num_samples` than there are documents, some come several times."""
        wanted, count = part.source.num_samples, len(part.documents)
        if wanted is None or wanted <= len(part.store.lengths) or count == 0:
            return part
        extra = np.sort(permutation(count, self._seed, _SUBSET)[: wanted % count])
        return _Chosen(
            part.source, part.store, np.concatenate([*[part.documents] * (wanted // count), part.documents[extra]])
        )

    def _prepare(self, chosen: Sequence[_Chosen], setting: str, *, packs: bool) -> list[_Prepared]:
        prepared = []
        for part in chosen:
            samples = self._samples(part)
            prepared.append(_Prepared(part, samples, self._pack(samples) if packs else samples))
        if not any(len(part.rows) for part in prepared):
            raise UserError(f"{setting}: {self._nothing(prepared)}")
        return prepared

    def _samples(self, part: _Chosen) -> BlockDataset | ChatDataset:
        if self._stage == "pt":
            isolate = self._layout.isolates
            return BlockDataset(part.store, self._data.cutoff_len, chosen=part.documents, isolate=isolate)
        end = self._tokenizer.eos_token_id
        assert isinstance(end, int)
        return ChatDataset(part.store, self._data.cutoff_len, end, part.documents)

    def _pack(self, samples: BlockDataset | ChatDataset) -> PackedDataset:
        isolate, shuffle = self._layout.isolates, self._shuffle
        return PackedDataset(samples, self._data.cutoff_len, isolate=isolate, shuffle=shuffle, seed=self._seed)

    def _nothing(self, prepared: Sequence[_Prepared]) -> str:
        files = ", ".join(str(file) for part in prepared for file in part.chosen.source.files[:3])
        if not any(len(part.chosen.documents) for part in prepared):
            return f"there is nothing in {files}."
        if self._stage == "pt":
            tokens = sum(part.samples.tokens for part in prepared if isinstance(part.samples, BlockDataset))
            return f"the texts of {files} hold {tokens} tokens; there is nothing to predict."
        count = sum(part.samples.left_out for part in prepared if isinstance(part.samples, ChatDataset))
        return (
            f"{count} of {count} conversations have no supervised token within data.cutoff_len "
            f"{self._data.cutoff_len}. Raise it, or look at whether they have answers."
        )

    def _mix(self, chosen: Sequence[_Chosen], setting: str) -> tuple[Mixture, Summary]:
        data = self._data
        weights = self._weights([part.source for part in chosen], setting)
        prepared = self._prepare(chosen, setting, packs=self._layout.packs)
        used = [i for i, part in enumerate(prepared) if len(part.rows) and (weights is None or weights[i])]
        if not used:
            raise UserError(f"{setting}: every dataset with a weight is empty.")
        parts = [prepared[i].rows for i in used]
        mixture = Mixture(parts, data.mix_strategy, None if weights is None else [weights[i] for i in used])
        summary = self._summary(prepared, setting)
        if len(used) > 1:
            names = [prepared[i].chosen.source.name for i in used]
            unit = "blocks" if self._stage == "pt" else "packed rows" if self._layout.packs else "conversations"
            tokens = [float(part.lengths.mean() * n) for part, n in zip(parts, mixture.shares, strict=True)]
            summary.append(("mix", _describe_mix(names, mixture.shares.tolist(), f"{unit} an epoch")))
            summary.append(("", f"in tokens {', '.join(f'{share:.1%}' for share in normalised(tokens))}"))
        return mixture, summary

    def _weights(self, sources: Sequence[DataSource], setting: str) -> list[float] | None:
        """One a source, by `interleave_probs` or the sources' own; None where nothing is interleaved."""
        data, own = self._data, [source.weight for source in sources]
        if data.mix_strategy == "concat":
            if any(weight is not None for weight in own):
                raise UserError(
                    f"{setting} has weights, and data.mix_strategy is concat, which takes all of each dataset. Use "
                    f"interleave_under or interleave_over, or leave the weights out."
                )
            return None
        if data.interleave_probs is not None:
            weights = parse_weights(data.interleave_probs)
            if len(weights) != len(sources):
                names = ", ".join(source.name for source in sources)
                raise UserError(
                    f"data.interleave_probs has {len(weights)} weights for {len(sources)} datasets ({names})."
                )
            return weights
        if all(weight is None for weight in own):
            return [1.0] * len(sources)
        if any(weight is None for weight in own):
            without = ", ".join(source.name for source in sources if source.weight is None)
            raise UserError(f"{setting}: {without} has no weight, and others have.")
        if not sum(weight or 0 for weight in own):
            raise UserError(f"{setting}: all weights are 0.")
        return [float(weight or 0) for weight in own]

    def _summary(self, prepared: Sequence[_Prepared], setting: str) -> Summary:
        lines: Summary = []
        for part in prepared:
            name = f"{part.chosen.source.name}: " if len(prepared) > 1 else ""
            for line in self._describe(part):
                lines.append(("" if lines else setting, name + line))
        return lines

    def _describe(self, part: _Prepared) -> list[str]:
        tally, samples, cutoff = part.chosen.store.tally, part.samples, self._data.cutoff_len
        if isinstance(samples, BlockDataset):
            empty = f" ({tally.empty:,} empty left out)" if tally.empty else ""
            tokens = f"{samples.tokens:,} tokens, {len(samples):,} blocks of {cutoff:,}"
            lines = [f"{samples.documents:,} documents{empty}, {tokens}"]
            if self._layout.isolates:
                lines.append("the documents of a block do not see each other")
        else:
            learnt, total = samples.supervised, max(1, int(samples.lengths.sum()))
            lines = [f"{len(samples):,} conversations, {learnt:,} supervised tokens ({learnt / total:.0%} of all)"]
            if samples.left_out:
                why = f"no supervised token within {cutoff} tokens"
                lines.append(
                    f"{samples.left_out:,} of {len(samples) + samples.left_out:,} conversations left out: {why}"
                )
            if samples.cut:
                lines.append(f"{samples.cut:,} conversations cut at {cutoff} tokens")
        if isinstance(part.rows, PackedDataset):
            seen = "do not see" if self._layout.isolates else "see"
            full = f"{part.rows.density:.1%} full"
            lines.append(
                f"{len(part.rows):,} rows of {cutoff:,} tokens, {full}; the conversations of a row {seen} each other"
            )
        if not len(samples):
            lines.append("nothing of it is used")
        if tally.rejected:
            worst = max(tally.rejected.values(), key=lambda kind: kind.count)
            lines.append(
                f"{tally.bad:,} of {tally.rows:,} rows cannot be used and are left out, such as {worst.place}: "
                f"{worst.reason}"
            )
        return lines


def _proportional(count: int, sizes: np.ndarray) -> list[int]:
    """`count` shared out in proportion to the sizes, none above its size."""
    exact = count * sizes / max(1, int(sizes.sum()))
    shares = np.floor(exact).astype(int)
    shares[np.argsort(shares - exact, kind="stable")[: count - int(shares.sum())]] += 1
    return [int(share) for share in shares]


def _describe_mix(names: Sequence[str], counts: Sequence[int], unit: str) -> str:
    total = sum(counts)
    parts = ", ".join(f"{name} {n / total:.1%} ({n:,})" for name, n in zip(names, counts, strict=True))
    return f"{parts} of {total:,} {unit}"
