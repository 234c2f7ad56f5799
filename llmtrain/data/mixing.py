"""Datasets mixed by epochs: split, packed, interleaved, held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmtrain.config.data import parse_weights
from llmtrain.data.chat import ChatDataset
from llmtrain.data.gpt import normalised
from llmtrain.data.mixture import Mixture, permutation
from llmtrain.data.packing import PackedDataset
from llmtrain.data.pretraining import BlockDataset
from llmtrain.data.recipe import SUBSET, Chosen, Datasets, Recipe, Summary, describe_mix
from llmtrain.data.sources import DataSource
from llmtrain.errors import UserError

# A stream of random numbers of `permutation`, beside those of the epochs.
_HELD_OUT = -1


@dataclass(frozen=True)
class _Prepared:
    """A source's documents as samples; `rows` are what is trained on, packs of samples perhaps."""

    chosen: Chosen
    samples: BlockDataset | ChatDataset
    rows: BlockDataset | ChatDataset | PackedDataset


class MixtureRecipe(Recipe):
    """LLaMA-Factory's way: every epoch a pass over the data, shuffled anew."""

    def build(self) -> Datasets:
        data = self._data
        assert data.dataset is not None
        chosen = self.read(data.dataset, "data.dataset")
        held_out: list[Chosen] = []
        held_name = "data.eval_dataset"
        if data.eval_dataset is not None:
            held_out = self.read(data.eval_dataset, held_name)
        elif data.val_size:
            held_name = "data.val_size"
            chosen, held_out = self._split(chosen)
        mixture, summary = self._mix([self._repeated(part) for part in chosen], "data.dataset")
        evaluation, held_summary = self.held_out(held_out, held_name)
        return Datasets(mixture, evaluation, [*summary, *held_summary])

    def held_out(self, chosen: Sequence[Chosen], setting: str) -> tuple[dict[str, Mixture], Summary]:
        """Held-out data by name, "" for all of it."""
        if not chosen:
            return {}, []
        # The held-out loss is that of conversations by themselves, however the training rows are filled.
        prepared = self._prepare(chosen, setting, packs=self._layout.packs and self._layout.isolates)
        evaluation = {"": Mixture([part.rows for part in prepared])}
        if self._data.eval_on_each_dataset:
            evaluation = {part.chosen.source.name: Mixture([part.rows]) for part in prepared if len(part.rows)}
        return evaluation, self._summary(prepared, setting)

    def _split(self, chosen: Sequence[Chosen]) -> tuple[list[Chosen], list[Chosen]]:
        """Documents drawn by the seed, a count or a share (at least one) of all; both parts keep the files' order."""
        wanted, sizes = self._data.val_size, np.array([len(part.documents) for part in chosen])
        total = int(sizes.sum())
        count = int(wanted) if wanted >= 1 else max(1, round(wanted * total))
        if count >= total:
            raise UserError(f"data.val_size takes {count} of {total} rows; none is left to train on.")
        train: list[Chosen] = []
        held_out: list[Chosen] = []
        for part, held in zip(chosen, _proportional(count, sizes), strict=True):
            drawn = permutation(len(part.documents), self._seed, _HELD_OUT)
            for out, numbers in ((held_out, drawn[:held]), (train, drawn[held:])):
                out.append(Chosen(part.source, part.store, part.documents[np.sort(numbers)]))
        return train, held_out

    def _repeated(self, part: Chosen) -> Chosen:
        """With more `num_samples` than there are documents, some come several times."""
        wanted, count = part.source.num_samples, len(part.documents)
        if wanted is None or wanted <= len(part.store.lengths) or count == 0:
            return part
        extra = np.sort(permutation(count, self._seed, SUBSET)[: wanted % count])
        return Chosen(
            part.source, part.store, np.concatenate([*[part.documents] * (wanted // count), part.documents[extra]])
        )

    def _prepare(self, chosen: Sequence[Chosen], setting: str, *, packs: bool) -> list[_Prepared]:
        prepared = []
        for part in chosen:
            samples = self._samples(part)
            prepared.append(_Prepared(part, samples, self._pack(samples) if packs else samples))
        if not any(len(part.rows) for part in prepared):
            raise UserError(f"{setting}: {self._nothing(prepared)}")
        return prepared

    def _samples(self, part: Chosen) -> BlockDataset | ChatDataset:
        if self._stage == "pt":
            isolate = self._layout.isolates
            return BlockDataset(part.store, self._data.cutoff_len, chosen=part.documents, isolate=isolate)
        return ChatDataset(part.store, self._data.cutoff_len, self._end_id, part.documents)

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

    def _mix(self, chosen: Sequence[Chosen], setting: str) -> tuple[Mixture, Summary]:
        data = self._data
        weights = self.weights([part.source for part in chosen], setting)
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
            summary.append(("mix", describe_mix(names, mixture.shares.tolist(), f"{unit} an epoch")))
            summary.append(("", f"in tokens {', '.join(f'{share:.1%}' for share in normalised(tokens))}"))
        return mixture, summary

    def weights(self, sources: Sequence[DataSource], setting: str) -> list[float] | None:
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
