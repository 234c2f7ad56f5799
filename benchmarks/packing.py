"""What packing brings: real tokens a second of the shipped chat set, forward and backward.

    python benchmarks/packing.py [--length 4096] [--seconds 60]

One small Qwen3 in three ways, in turns, over the same conversations: each by itself in padded batches of as many tokens
(`padded`), packed with documents attended one by one (`packed`), and the same packed rows with one block-diagonal mask
over the whole row (`dense mask`). Padding counts as no token. The ratios are to the padded batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from llmtrain.config import Config
from llmtrain.data.build import build_datasets
from llmtrain.data.sample import MicroBatch, Sample, collate
from llmtrain.data.tokenizer import load_tokenizer
from llmtrain.models.attention import choose_attention
from llmtrain.training.loss import batch_loss, summed_loss

DATA = Path(__file__).parents[1] / "configs" / "quickstart"
SIZES = {
    "vocab_size": 4096, "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 32, "intermediate_size": 768, "max_position_embeddings": 8192,
}  # fmt: skip
Loss = Callable[[PreTrainedModel, MicroBatch], torch.Tensor]


def samples(length: int, **packing: bool) -> list[Sample]:
    config = Config.from_dict(
        {
            "model": {"model_type": "qwen3", "tokenizer_name_or_path": str(DATA / "tokenizer")},
            "data": {"dataset": str(DATA / "data" / "wordnet_chat.jsonl"), "cutoff_len": length, **packing},
            "training": {"stage": "sft", "output_dir": "unused"},
        }
    )
    mixture = build_datasets(config, load_tokenizer(config), global_batch=1, main_first=nullcontext, is_main=True).train
    return [mixture[index] for index in mixture.order(0, shuffle=True, seed=0).tolist()]


def model(packed: bool) -> PreTrainedModel:
    config = AutoConfig.for_model("qwen3", **SIZES)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=choose_attention(config, None, packed=packed))


def dense_mask_loss(network: PreTrainedModel, batch: MicroBatch) -> torch.Tensor:
    """The usual way: a mask [1, 1, tokens, tokens], true within a document at or before a token."""
    assert batch.documents is not None
    document = torch.arange(len(batch.documents)).repeat_interleave(torch.tensor(batch.documents))
    mask = (document[:, None] == document[None, :]).tril()[None, None]
    output = network(input_ids=batch.input_ids, position_ids=batch.position_ids, attention_mask=mask, use_cache=False)
    return summed_loss(output.logits, batch.targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=60, help="of each way, about")
    arguments = parser.parse_args()
    plain, rows = samples(arguments.length), samples(arguments.length, neat_packing=True)
    mean = sum(len(sample.input_ids) for sample in plain) / len(plain)
    together = max(1, round(arguments.length / mean))
    padded = [collate(plain[i : i + together], range(together), 0) for i in range(0, len(plain), together)]
    flat = [collate([row], [0], 0, "flat") for row in rows]
    ways: dict[str, tuple[PreTrainedModel, list[MicroBatch], Loss]] = {
        "padded": (model(packed=False), padded, batch_loss),
        "packed": (model(packed=True), flat, batch_loss),
        "dense mask": (model(packed=False), flat, dense_mask_loss),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    spent = dict.fromkeys(ways, 0.0)
    turn = 0
    while min(spent.values()) < arguments.seconds:
        for name, (network, batches, loss) in ways.items():
            batch = batches[turn % len(batches)]
            start = time.perf_counter()
            loss(network, batch).backward()
            seconds = time.perf_counter() - start
            network.zero_grad()
            spent[name] += seconds
            if turn:  # the first one warms up
                rates[name].append(batch.tokens / seconds)
        turn += 1
    medians = {name: statistics.median(found) for name, found in rates.items()}
    density = sum(len(row.input_ids) for row in rows) / (len(rows) * arguments.length)
    room = sum(batch.input_ids.numel() for batch in padded)
    print(f"{len(plain):,} conversations of {mean:.0f} tokens; rows of {arguments.length:,} are {density:.1%} full, "
          f"padded batches {sum(batch.tokens for batch in padded) / room:.1%}")  # fmt: skip
    for name, rate in medians.items():
        print(f"{name:<11} {rate:>8,.0f} tokens/s  {rate / medians['padded']:.2f}")


if __name__ == "__main__":
    main()
