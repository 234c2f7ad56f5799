"""Against Megatron-Core itself, where it is installed (`pip install --no-deps megatron-core`): files byte for byte,
indices number for number, and the batches of both."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmtrain.data.gpt import blend, build_gpt_index, exhaustive_blend, plan_passes
from llmtrain.data.indexed import IndexedStore, IndexedWriter
from tests.data.conftest import Build

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core", reason="Megatron-Core is not installed (pip install --no-deps megatron-core)")
    from megatron.core.datasets import helpers
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
    from megatron.core.datasets.utils import Split


def documents(seed: int, count: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 120, random.integers(1, 40)) for _ in range(count)]


def ours(prefix: Path, docs: list[np.ndarray], dtype: str = "uint16") -> str:
    with IndexedWriter(str(prefix), dtype) as writer:
        for doc in docs:
            writer.add(doc, np.array([len(doc)]))
    return str(prefix)


def theirs(prefix: Path, docs: list[np.ndarray], dtype: str = "uint16") -> str:
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=getattr(np, dtype))
    for doc in docs:
        builder.add_document(doc, [len(doc)])
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


def settings(length: int, seed: int, **more: Any) -> GPTDatasetConfig:
    tokenizer = SimpleNamespace(eod=0, pad=-1, vocab_size=128, unique_identifiers={"class": "none"})
    return GPTDatasetConfig(
        random_seed=seed,
        sequence_length=length,
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        **more,
    )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "uint16"])
def test_files_are_the_same_byte_for_byte_and_each_reads_the_others(tmp_path: Path, dtype: str) -> None:
    docs = documents(3, 50)
    mine, its = ours(tmp_path / "a", docs, dtype), theirs(tmp_path / "b", docs, dtype)
    for suffix in (".bin", ".idx"):
        assert Path(mine + suffix).read_bytes() == Path(its + suffix).read_bytes()
    reader, store = IndexedDataset(mine, multimodal=False), IndexedStore(its)
    for i, doc in enumerate(docs):
        assert reader[i].tolist() == doc.tolist() == store.read(i, 0, len(doc)).tolist()


@pytest.mark.parametrize("seed", [1, 1234])
@pytest.mark.parametrize("samples", [None, 1, 30, 70, 100, 175, 400])
def test_indices_are_the_same(tmp_path: Path, samples: int | None, seed: int) -> None:
    prefix = ours(tmp_path / "a", documents(5, 60))
    dataset = IndexedDataset(prefix, multimodal=False)
    chosen = np.arange(3, 57, dtype=np.int32)
    config = settings(16, seed, blend=([prefix], None), split="1")
    peer = GPTDataset(dataset, prefix, chosen, samples, Split.train, config)
    store = IndexedStore(prefix)
    passes = plan_passes(int(store.lengths[chosen].sum()), 16, samples)
    index = build_gpt_index(store.lengths, chosen, 16, passes, seed)
    for mine, its in (
        (index.documents, peer.document_index),
        (index.samples, peer.sample_index),
        (index.shuffle, peer.shuffle_index),
    ):
        assert mine.dtype == its.dtype
        assert np.array_equal(mine, its)


@pytest.mark.parametrize(
    "weights", [[0.3, 0.7], [1.0, 1.0, 1.0], [0.05, 0.2, 0.33, 0.42], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
)
def test_blends_are_the_same(weights: list[float]) -> None:
    size, count = 5000, len(weights)
    datasets, numbers = np.zeros(size, np.int16), np.zeros(size, np.int64)
    array = np.array(weights, np.float64)
    helpers.build_blending_indices(datasets, numbers, (array / array.sum()).tolist(), count, size, False)
    mine = blend(weights, size)
    assert np.array_equal(mine[0], datasets) and np.array_equal(mine[1], numbers)
    sizes = [int(weight * 100) for weight in weights]
    datasets, numbers = np.zeros(sum(sizes), np.int16), np.zeros(sum(sizes), np.int64)
    helpers.build_exhaustive_blending_indices(datasets, numbers, sizes, count)
    mine = exhaustive_blend(sizes)
    assert np.array_equal(mine[0], datasets) and np.array_equal(mine[1], numbers)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("split", ["1", "969,30,1", "8,1,1"])
def test_a_whole_run_sees_the_same_tokens(tmp_path: Path, build: Build, split: str, weighted: bool) -> None:
    prefixes = [ours(tmp_path / name, documents(n, 3000)) for n, name in enumerate("ab")]
    steps, batch = (40, 4) if weighted else (20, 4)
    blended = (prefixes, [0.3, 0.7]) if weighted else (prefixes, None)
    config = settings(16, 7, blend=blended, split=split)
    peer, valid, _ = BlendedMegatronDatasetBuilder(
        GPTDataset, [steps * batch, 8 if weighted else None, 8 if weighted else None], lambda: True, config
    ).build()
    source: Any = [0.3, prefixes[0], 0.7, prefixes[1]] if weighted else prefixes
    source = " ".join(map(str, source)) if weighted else source
    made = build(
        stage="pt", source=source, data_manager_type="mg", cutoff_len=16, split=split, steps=steps, batch=batch, seed=7
    )
    for i in range(steps * batch):
        assert made.train[i].input_ids.tolist() == peer[i]["tokens"].tolist()
        assert made.train[i].targets.tolist() == peer[i]["labels"].tolist()
    if not weighted and split != "1":
        held = made.evaluation[""]
        assert sorted(held[i].input_ids.tolist() for i in range(len(held))) == sorted(
            valid[i]["tokens"].tolist() for i in range(len(valid))
        )
