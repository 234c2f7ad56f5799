"""Small stand-ins: a tokenizer of words, texts and conversations, a Qwen3-shaped model of 128 tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

VOCAB = 128
SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", "<user>", "<bot>", "<end>"]
WORDS = SPECIAL + [f"w{i}" for i in range(VOCAB - len(SPECIAL))]
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<bot> {% generation %}{{ m['content'] }} <end>"
    "{% endgeneration %} {% else %}<user> {{ m['content'] }} <end> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<bot> {% endif %}"
)
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
}


def make_tokenizer(
    folder: Path, *, pad: str | None = "<pad>", eos: str | None = "</s>", template: str | None = TEMPLATE
) -> Path:
    """A folder that AutoTokenizer loads: one word, one token."""
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        **{k: v for k, v in {"pad_token": pad, "eos_token": eos}.items() if v},
        extra_special_tokens=["<user>", "<bot>", "<end>"],
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def words(count: int, rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS[len(SPECIAL) :]) for _ in range(count))


def make_texts(path: Path, documents: int = 40, seed: int = 0) -> Path:
    """Documents of 5 to 60 words."""
    rng = random.Random(seed)
    return write_jsonl(path, [{"text": words(rng.randint(5, 60), rng)} for _ in range(documents)])


def make_chats(path: Path, conversations: int = 48, seed: int = 0) -> Path:
    """One- and two-turn conversations whose answers have 1 to 20 words: ranks get unequal numbers of labels."""
    rng = random.Random(seed)
    rows = []
    for _ in range(conversations):
        messages = []
        for _ in range(rng.choice([1, 1, 2])):
            messages.append({"role": "user", "content": words(rng.randint(1, 8), rng)})
            messages.append({"role": "assistant", "content": words(rng.choice([1, 2, 7, 20]), rng)})
        rows.append({"messages": messages})
    return write_jsonl(path, rows)


def tiny_config(root: Path, output: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """A config over the files that `make_tokenizer` and `make_chats` left in `root`; sections are laid over it."""
    config: dict[str, dict[str, Any]] = {
        "model": {
            "model_type": "qwen3",
            "tokenizer_name_or_path": str(root / "tokenizer"),
            "config_overrides": dict(SIZES),
        },
        "data": {"dataset": str(root / "chats.jsonl"), "cutoff_len": 64},
        "parallel": {"param_dtype": "fp32", "reduce_dtype": "fp32"},
        "training": {
            "output_dir": str(root / output),
            "stage": "sft",
            "global_batch_size": 8,
            "per_device_train_batch_size": 2,
            "max_steps": 20,
            "lr": 0.01,
            "weight_decay": 0.1,
            "warmup_steps": 0,
            "lr_scheduler_type": "constant",
            "save_steps": 0,
            "save_epochs": 0,
            "save_hf_weights": False,
        },
    }
    for section, values in sections.items():
        config.setdefault(section, {})
        for key, value in values.items():
            if isinstance(value, dict) and isinstance(config[section].get(key), dict):
                config[section][key] = {**config[section][key], **value}
            else:
                config[section][key] = value
    return config
