"""The oracle: one process, stock transformers, plain PyTorch. Imports nothing of the trainer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass
class Curve:
    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]


def chat_samples(folder: Path) -> list[tuple[list[int], list[int]]]:
    """(ids, labels) of each conversation in file order; -100 outside of the assistant's tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    samples = []
    for line in (folder / "chats.jsonl").read_text().splitlines():
        out = tokenizer.apply_chat_template(
            json.loads(line)["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        labels = [i if m else -100 for i, m in zip(out["input_ids"], out["assistant_masks"], strict=True)]
        samples.append((out["input_ids"][:64], labels[:64]))
    return samples


def text_samples(folder: Path, length: int) -> list[tuple[list[int], list[int]]]:
    """Windows of the concatenated documents, each ended by </s>; a window also predicts the first token behind it."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    rows = [json.loads(line)["text"] for line in (folder / "texts.jsonl").read_text().splitlines()]
    stream = [i for row in rows for i in [*tokenizer(row)["input_ids"], tokenizer.eos_token_id]]
    windows = [stream[i : i + length + 1] for i in range(0, len(stream) - 1, length)]
    return [(window, window) for window in windows]


def train(
    model_folder: Path,
    samples: list[tuple[list[int], list[int]]],
    optimizer: str,
    learning_rates: list[float],
    batch: int = 8,
    clip: float = 1.0,
) -> Curve:
    """Steps over the samples in order, the whole global batch in one sum, one sample at a time."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    model.train()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    groups = [
        {"params": decayed, "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    kinds = {"sgd": torch.optim.SGD, "adamw": lambda g, lr: torch.optim.AdamW(g, lr=lr, betas=(0.9, 0.95), eps=1e-8)}
    opt = kinds[optimizer](groups, lr=1.0)
    curve, start = Curve([], [], {}), 0
    for lr in learning_rates:
        chosen, start = samples[start : start + batch], start + batch
        start = 0 if start >= len(samples) else start
        losses, count = torch.zeros(()), 0
        for ids, labels in chosen:
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
            target = torch.tensor(labels[1:])
            losses = losses + torch.nn.functional.cross_entropy(logits, target, ignore_index=-100, reduction="sum")
            count += int((target != -100).sum())
        loss = losses / count
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters())).item()
        for p in model.parameters():
            p.grad *= min(1.0, clip / norm)
        for group in opt.param_groups:
            group["lr"] = lr
        opt.step()
        opt.zero_grad()
        curve.losses.append(loss.item())
        curve.norms.append(norm)
    curve.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return curve
