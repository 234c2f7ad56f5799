"""Keys for tokenised data: a cache is used only where nothing that made it has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

# Raise it when the code that makes tokens changes its mind.
CODE_VERSION = 2


def tokenizer_signature(tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of all that decides how text becomes ids: the model, special tokens, the chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = [
        backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items())),
        json.dumps({k: str(v) for k, v in tokenizer.special_tokens_map.items()}, sort_keys=True),
        json.dumps(tokenizer.chat_template, sort_keys=True),
        str(getattr(tokenizer, "split_special_tokens", False)),
    ]
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def cached_map(
    rows: Dataset,
    function: Callable[..., dict[str, list[Any]]],
    tokenizer: PreTrainedTokenizerBase,
    settings: dict[str, Any],
    *,
    batch_size: int,
    workers: int | None,
    fresh: bool,
) -> Dataset:
    """`rows.map(function)`, cached under (rows, tokenizer, settings, code version).

    The library's own key is a pickle of the function, which changes with the tokenizer's inner state and not with a
    template's file; ours names what matters.
    """
    key = json.dumps([rows._fingerprint, tokenizer_signature(tokenizer), settings, CODE_VERSION], sort_keys=True)
    return rows.map(
        function,
        batched=True,
        batch_size=batch_size,
        num_proc=workers,
        remove_columns=rows.column_names,
        load_from_cache_file=not fresh,
        new_fingerprint=hashlib.sha256(key.encode()).hexdigest()[:32],
        desc="tokenising",
    )
