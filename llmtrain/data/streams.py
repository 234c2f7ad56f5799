"""How a streamed run gets its datasets: the training rows as they come, held-out data as ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmtrain.data.mixing import MixtureRecipe
from llmtrain.data.recipe import Datasets, Summary
from llmtrain.data.sources import DataSource, resolve_sources
from llmtrain.data.streaming import RowSource, StreamData
from llmtrain.data.tokenise import tokenizer_signature
from llmtrain.errors import UserError


class StreamRecipe(MixtureRecipe):
    """Rows that are tokenised during the run."""

    def build(self) -> Datasets:
        held = self._data.eval_dataset
        stream, summary = self._stream()
        held_out = self.read(held, "data.eval_dataset") if held is not None else []
        evaluation, held_summary = self.held_out(held_out, "data.eval_dataset")
        return Datasets(stream, evaluation, [*summary, *held_summary])

    def _stream(self) -> tuple[StreamData, Summary]:
        data = self._data
        assert data.dataset is not None
        sources: Sequence[DataSource] = resolve_sources(data.dataset, data.dataset_dir, "data.dataset")
        for source in sources:
            if source.kind != "rows":
                raise UserError(f"data.dataset: {source.name} holds tokens already; read it without data.streaming.")
            if source.num_samples is not None:
                raise UserError(
                    f"data.dataset: num_samples of {source.name} cannot be drawn from a stream; leave it out."
                )
        weights: Sequence[float] | None = self.weights(sources, "data.dataset")
        if weights is None and len(sources) > 1:
            first = sources[0]
            if any(source.layout != first.layout for source in sources):
                raise UserError(
                    "data.dataset names datasets of different forms, and a stream mixes such by weight: set "
                    "data.mix_strategy to interleave_under or interleave_over."
                )
            files = tuple(file for source in sources for file in source.files)
            sources = [replace(first, name="+".join(source.name for source in sources), files=files)]
        if weights is not None:
            sources, weights = zip(*[pair for pair in zip(sources, weights, strict=True) if pair[1]], strict=True)
        parts = [
            RowSource(source, self.encoder(source), n, self._seed, self._shuffle, data.buffer_size, data.max_samples)
            for n, source in enumerate(sources)
        ]
        stream = StreamData(
            parts,
            weights,
            length=data.cutoff_len,
            end_id=self._end_id,
            texts=self._stage == "pt",
            packs=self._layout.packs,
            isolates=self._layout.isolates,
            skips_bad_rows=data.on_bad_row == "skip",
            described=[tokenizer_signature(self._tokenizer), *(part.encoder.key() for part in parts)],
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
