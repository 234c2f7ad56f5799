"""Speed of the data side, as ratios within one run.

    python benchmarks/data.py [--megabytes 50] [--documents 10000000] [--megatron FOLDER]

Tokenising and packing: a text of so many megabytes to blocks of 2,048 tokens, one process each, the tokenizer's own
threads off. The bare tokenizer encodes the same texts and does nothing else. `datasets.map` tokenises and then groups
into blocks, as is common. Megatron-Core's builder is driven line by line, as its preprocessing tool drives it.

Reading: samples of 2,048 tokens from one pair of .bin and .idx, by both GPT datasets; and the index of so many
documents.

Megatron-Core takes part where it can be imported; FOLDER is one that holds it.
"""

from __future__ import annotations

import os

os.environ["RAYON_NUM_THREADS"] = "1"  # read by the tokenizer when it is loaded

import argparse
import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from llmtrain.config import DataConfig
from llmtrain.data.gpt import GPTDataset, build_gpt_index, plan_passes
from llmtrain.data.indexed import IndexedStore, IndexedWriter
from llmtrain.data.pretraining import BlockDataset, TextEncoder
from llmtrain.data.sources import resolve_sources
from llmtrain.data.tokenise import tokenise

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart"
LENGTH = 2048


def make_texts(file: Path, megabytes: float) -> list[str]:
    """The shipped documents over and over, each time in another order."""
    lines = (QUICKSTART / "data" / "kjv_train.jsonl").read_text(encoding="utf-8").splitlines()
    source = [json.loads(line)["text"] for line in lines]
    random, texts, size = np.random.default_rng(0), [], 0
    while size < megabytes * 1e6:
        for i in random.permutation(len(source)).tolist():
            texts.append(source[i])
            size += len(source[i].encode())
    with file.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    return texts


def ours(file: Path, tokenizer: PreTrainedTokenizerBase, workers: int, folder: Path) -> int:
    settings = DataConfig(
        dataset=str(file), preprocessing_num_workers=workers, tokenized_path=str(folder), overwrite_cache=True
    )
    (source,) = resolve_sources(str(file), "", "data.dataset")
    store = tokenise(source, TextEncoder(tokenizer, source.layout, tokenizer.eos_token_id), tokenizer, settings, "")
    return len(BlockDataset(store, LENGTH))


def with_datasets(file: Path, tokenizer: PreTrainedTokenizerBase, folder: Path) -> int:
    rows = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=str(folder))

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        return {"ids": [[*ids, tokenizer.eos_token_id] for ids in tokenizer(batch["text"])["input_ids"]]}

    def group(batch: dict[str, list[list[int]]]) -> dict[str, Any]:
        joined = [token for ids in batch["ids"] for token in ids]
        return {"ids": [joined[i : i + LENGTH] for i in range(0, len(joined) - LENGTH + 1, LENGTH)]}

    encoded = rows.map(encode, batched=True, remove_columns=rows.column_names)
    return len(encoded.map(group, batched=True))


def with_megatron(file: Path, tokenizer: PreTrainedTokenizerBase, prefix: str) -> int:
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    count = 0
    with file.open(encoding="utf-8") as stream:
        for line in stream:
            ids = [*tokenizer(json.loads(line)["text"])["input_ids"], tokenizer.eos_token_id]
            builder.add_document(ids, [len(ids)])
            count += len(ids)
    builder.finalize(f"{prefix}.idx")
    return count // LENGTH


def seconds(act: Callable[[], Any], times: int = 3) -> float:
    """The best of some runs: on a shared machine the others measure the neighbours."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - start)
    return best


def tokenising(folder: Path, megabytes: float, megatron: bool) -> None:
    file = folder / "texts.jsonl"
    texts = make_texts(file, megabytes)
    tokenizer = AutoTokenizer.from_pretrained(QUICKSTART / "tokenizer")
    core = tokenizer.backend_tokenizer
    size = file.stat().st_size / 1e6

    def bare() -> None:
        for first in range(0, len(texts), 1000):
            core.encode_batch(texts[first : first + 1000])

    found = {
        "llmtrain, 1 process": seconds(lambda: ours(file, tokenizer, 1, folder / "one")),
        "llmtrain, 2 processes": seconds(lambda: ours(file, tokenizer, 2, folder / "two")),
        "bare tokenizer": seconds(bare),
        "datasets.map": seconds(lambda: with_datasets(file, tokenizer, Path(tempfile.mkdtemp(dir=folder)))),
    }
    if megatron:
        found["megatron-core's builder"] = seconds(lambda: with_megatron(file, tokenizer, str(folder / "peer")), 1)
    one = found["llmtrain, 1 process"]
    print(f"\ntokenising and packing {size:.0f} MB in {len(texts):,} documents\n")
    print("| | MB/s | llmtrain in one process is |\n|---|---|---|")
    for name, took in found.items():
        print(f"| {name} | {size / took:.1f} | {took / one:.2f} times as fast |")


def reading(folder: Path, megatron: bool, samples: int = 20_000) -> None:
    random = np.random.default_rng(0)
    with IndexedWriter(str(folder / "pair"), "uint16") as writer:
        for _ in range(40):
            lengths = random.integers(100, 2000, 1000)
            writer.add(random.integers(0, 4096, int(lengths.sum())), lengths)
    store = IndexedStore(str(folder / "pair"))
    documents = np.arange(len(store.lengths), dtype=np.int32)
    mine = GPTDataset(store, documents, LENGTH, samples, 1, cache=folder)
    found = {"llmtrain": seconds(lambda: [mine[i] for i in range(samples)])}
    if megatron:
        from megatron.core.datasets.gpt_dataset import GPTDataset as Peer
        from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
        from megatron.core.datasets.indexed_dataset import IndexedDataset
        from megatron.core.datasets.utils import Split

        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=LENGTH,
            blend=([str(folder / "pair")], None),
            split="1",
            tokenizer=SimpleNamespace(eod=0, pad=-1, vocab_size=4096, unique_identifiers={}),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        reader = IndexedDataset(str(folder / "pair"), multimodal=False)
        peer = Peer(reader, str(folder / "pair"), documents, samples, Split.train, config)
        found["megatron-core"] = seconds(lambda: [peer[i] for i in range(samples)])
    print(f"\nreading {samples:,} samples of {LENGTH:,} tokens\n")
    print("| | samples/s | llmtrain is |\n|---|---|---|")
    for name, took in found.items():
        print(f"| {name} | {samples / took:,.0f} | {took / found['llmtrain']:.2f} times as fast |")


def indexing(documents: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 2000, documents, dtype=np.int32)
    numbers = np.arange(documents, dtype=np.int32)
    start = time.perf_counter()
    passes = plan_passes(int(lengths.sum(dtype=np.int64)), LENGTH, None)
    index = build_gpt_index(lengths, numbers, LENGTH, passes, 1)
    took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\nindex of {documents:,} documents, {len(index.shuffle):,} samples: {took:.1f} s, at most {peak:.1f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--megatron", help="folder that holds the package megatron")
    options = parser.parse_args()
    if options.megatron:
        sys.path.insert(0, options.megatron)
    warnings.simplefilter("ignore")
    datasets.disable_progress_bars()
    try:
        import megatron.core.datasets.gpt_dataset
    except ImportError:
        print("Megatron-Core cannot be imported and is not compared with.")
        megatron = False
    else:
        megatron = True
    with tempfile.TemporaryDirectory() as name:
        tokenising(Path(name), options.megabytes, megatron)
        reading(Path(name), megatron)
    indexing(options.documents)


if __name__ == "__main__":
    main()
