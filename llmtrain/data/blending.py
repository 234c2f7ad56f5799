"""Megatron's way to make datasets: the documents split by their place, and one sequence of samples for the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from transformers import PreTrainedTokenizerBase

from llmtrain.config import Config, DataConfig
from llmtrain.config.data import parse_split
from llmtrain.data.gpt import Blend, GPTDataset, blend_for, split_documents
from llmtrain.data.mixture import Mixture
from llmtrain.data.recipe import Chosen, Datasets, Recipe, Summary, describe_mix
from llmtrain.data.tokenise import cache_folder
from llmtrain.errors import UserError


class BlendRecipe(Recipe):
    """The samples of Megatron-Core's GPT dataset, in its order."""

    def __init__(self, config: Config, data: DataConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(config, data, tokenizer)
        self._epochs = config.training.num_train_epochs

    def build(self, samples: int | None) -> Datasets:
        """`samples`: how many the run needs; None: as many as its epochs hold."""
        data = self._data
        assert data.dataset is not None
        chosen = [part for part in self.read(data.dataset, "data.dataset") if part.source.weight != 0]
        weights = [part.source.weight for part in chosen]
        if not chosen:
            raise UserError("data.dataset: all weights are 0.")
        if any(weight is None for weight in weights) and any(weight is not None for weight in weights):
            raise UserError("data.dataset: some of the datasets have a weight, and others none.")
        if counted := [part.source.name for part in chosen if part.source.num_samples is not None]:
            raise UserError(
                f"data.dataset: {counted[0]} has num_samples; with data.data_manager_type mg give it a weight."
            )
        shares = [split_documents(data.split, len(part.documents)) for part in chosen]
        train, held_out, kept = (
            [replace(part, documents=part.documents[share[i]]) for part, share in zip(chosen, shares, strict=True)]
            for i in range(3)
        )
        self._refuse_too_few(train, "data.dataset")
        blended = blend_for(
            [partial(self._gpt_dataset, part) for part in train],
            [part.tokens for part in train],
            data.cutoff_len,
            None if weights[0] is None else [weight or 0.0 for weight in weights],
            samples=samples,
            epochs=self._epochs,
            cache=cache_folder(data),
        )
        summary = self._describe_blend(train, blended)
        held_name = "data.split"
        if data.eval_dataset is not None:
            held_name, held_out = "data.eval_dataset", self.read(data.eval_dataset, "data.eval_dataset")
        elif not parse_split(data.split)[1]:
            held_out = []
        evaluation: dict[str, Mixture] = {}
        if held_out:
            self._refuse_too_few(held_out, held_name)
            parts = [self._gpt_dataset(part, None) for part in held_out]
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

    def _refuse_too_few(self, chosen: Sequence[Chosen], setting: str) -> None:
        length = self._data.cutoff_len
        for part in chosen:
            if part.tokens < length + 1:
                raise UserError(
                    f"{setting}: {part.source.name} holds {part.tokens:,} tokens in {len(part.documents):,} documents, "
                    f"fewer than one sample of {length:,} and its successor."
                )

    def _gpt_dataset(self, part: Chosen, samples: int | None) -> GPTDataset:
        return GPTDataset(
            part.store,
            part.documents,
            self._data.cutoff_len,
            samples,
            self._seed,
            cache=cache_folder(self._data),
            shuffle=self._shuffle,
            isolate=self._layout.isolates,
        )

    def _describe_blend(self, chosen: Sequence[Chosen], blended: Blend) -> Summary:
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
            summary.append(("mix", describe_mix(names, blended.shares, "samples a run")))
        return summary
