"""What the trainer costs over a bare FSDP2 loop: same model, data, optimizer, clipping, a logged line a step in both.

    python benchmarks/overhead.py [--ranks 1 2] [--rounds 5]

The two run in turns, since a shared machine's speed drifts; the ratio of tokens/s is taken from the median step of
each, over all rounds. 1.00 means the trainer costs nothing. What a machine does beside the benchmark only ever adds to
a step: where the rounds disagree, the ratio of the fastest steps says more, and is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
DATA = REPOSITORY / "configs" / "quickstart"
LENGTH, BATCH, WARM, STEPS = 256, 8, 3, 20
SIZES = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 768,
    "tie_word_embeddings": False,
}


def bare(output: Path) -> None:
    """A loop one would write by hand."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tokenizer = AutoTokenizer.from_pretrained(DATA / "tokenizer")
    texts = [json.loads(line)["text"] for line in (DATA / "data" / "kjv_train.jsonl").open()][:200]
    ids = [i for row in tokenizer(texts)["input_ids"] for i in [*row, tokenizer.eos_token_id]]
    stream = torch.tensor(ids)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **SIZES), dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, weight_decay=0.01)
    marks = [time.perf_counter()]
    for step in range(WARM + STEPS):
        start = (step * ranks + rank) * BATCH * LENGTH
        window = stream[start : start + BATCH * LENGTH + 1]
        logits = model(input_ids=window[:-1].view(BATCH, LENGTH), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), window[1:])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        line = f"step {step + 1} loss {loss.item():.4f} norm {norm.full_tensor().item():.3f}"
        marks.append(time.perf_counter())
        if rank == 0:
            print(line)
    if rank == 0:
        output.write_text(json.dumps([after - before for before, after in pairwise(marks[WARM:])]))
    dist.destroy_process_group()


def trainer_arguments(output: Path) -> list[str]:
    settings = {
        "model.model_type": "qwen3",
        "model.tokenizer_name_or_path": str(DATA / "tokenizer"),
        "model.config_overrides": json.dumps(SIZES),
        "data.dataset": str(DATA / "data" / "kjv_train.jsonl"),
        "data.cutoff_len": LENGTH,
        "data.max_samples": 200,
        "parallel.param_dtype": "fp32",
        "training.stage": "pt",
        "training.output_dir": str(output),
        "training.per_device_train_batch_size": BATCH,
        "training.max_steps": WARM + STEPS,
        "training.lr": 1e-3,
        "training.lr_scheduler_type": "constant",
        "training.warmup_steps": 0,
        "training.disable_shuffling": "true",
        "training.save_steps": 0,
        "training.save_epochs": 0,
        "training.save_hf_weights": "false",
        "training.deterministic": "false",
    }
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def measure(contender: str, ranks: int, threads: int, folder: Path) -> list[float]:
    """Seconds of each step of one run, after the warm-up steps."""
    output = folder / f"{contender}-{ranks}-{time.monotonic_ns()}"
    words = [str(Path(__file__).resolve()), "--bare", str(output)]
    if contender == "trainer":
        words = [str(REPOSITORY / "train_fsdp2.py"), *trainer_arguments(output)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    subprocess.run([*launcher, *words], check=True, env=environment, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    if contender == "bare":
        return list(json.loads(output.read_text()))
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()][WARM:]
    return [row["step_seconds"] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare is not None:
        bare(arguments.bare)
        return
    cores = os.cpu_count() or 1
    for ranks in arguments.ranks:
        steps: dict[str, list[float]] = {"bare": [], "trainer": []}
        with tempfile.TemporaryDirectory() as folder:
            for number in range(arguments.rounds):
                for name in ("bare", "trainer") if number % 2 == 0 else ("trainer", "bare"):
                    steps[name] += measure(name, ranks, max(1, cores // ranks), Path(folder))
                print(f"{ranks} ranks, {number + 1} of {arguments.rounds} rounds: {compare(steps, ranks)}", flush=True)


def compare(steps: dict[str, list[float]], ranks: int) -> str:
    rate = {name: BATCH * LENGTH * ranks / statistics.median(seconds) for name, seconds in steps.items()}
    return (
        f"bare {rate['bare']:,.0f} tokens/s, trainer {rate['trainer']:,.0f}, ratio {rate['trainer'] / rate['bare']:.3f}"
        f" (fastest steps {min(steps['bare']) / min(steps['trainer']):.3f})"
    )


if __name__ == "__main__":
    main()
