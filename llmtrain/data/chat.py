"""Stage `sft`: conversations -> tokens by the chat template -> targets on the assistant's tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import xxhash
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from llmtrain.config import DataConfig
from llmtrain.data.cache import cached_map
from llmtrain.data.sample import IGNORED, Sample
from llmtrain.data.supervision import ChatFormat, Unusable
from llmtrain.errors import UserError

_ROLES = {"system", "user", "assistant", "tool", "developer"}


class ChatDataset:
    """One conversation a sample."""

    def __init__(self, rows: Dataset) -> None:
        """`rows`: columns `input_ids` and `targets`, lists of one length in each row."""
        self._rows = rows.with_format("numpy")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        row = self._rows[index]
        return Sample(np.asarray(row["input_ids"]), np.asarray(row["targets"]))

    def fingerprint(self) -> str:
        """A digest of all ids and targets in order."""
        digest = xxhash.xxh3_128()
        for index in range(len(self)):
            sample = self[index]
            for array in (sample.input_ids, sample.targets):
                digest.update(np.ascontiguousarray(array, dtype=np.int64).data)
                digest.update(b"|")
        return digest.hexdigest()


def build_chat(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, settings: DataConfig, field: str
) -> tuple[ChatDataset, list[tuple[str, str]]]:
    """Renders and masks `rows` (columns `messages`, `row`); returns the samples with lines for the header.

    Raises:
        UserError: malformed rows (the first three named), a template whose answers cannot be told apart, or no row with
            a supervised token.
    """
    if not tokenizer.chat_template:
        raise UserError(
            "The tokenizer has no chat template, so stage sft cannot render conversations. Use the tokenizer of a chat "
            "model, or put a chat_template.jinja beside it."
        )
    _refuse_malformed(rows, field)
    choices: dict[str, Any] = {
        "cutoff_len": settings.cutoff_len,
        "train_on_prompt": settings.train_on_prompt,
        "mask_history": settings.mask_history,
        "enable_thinking": settings.enable_thinking,
    }
    encoded = cached_map(
        rows,
        partial(_encode_batch, tokenizer=tokenizer, field=field, **choices),
        tokenizer,
        {"stage": "sft", **choices},
        batch_size=settings.preprocessing_batch_size,
        workers=settings.preprocessing_num_workers,
        fresh=settings.overwrite_cache,
    )
    supervised = np.asarray(encoded["supervised"])
    kept = np.flatnonzero(supervised > 0)
    dropped = len(encoded) - len(kept)
    if len(kept) == 0:
        raise UserError(
            f"{field}: {dropped} of {dropped} conversations have no supervised token within data.cutoff_len "
            f"{settings.cutoff_len}. Raise it, or look at whether they have answers."
        )
    cut = int(np.asarray(encoded["cut"])[kept].sum())
    dataset = ChatDataset(encoded.select(kept).select_columns(["input_ids", "targets"]))
    lines = [(field, f"{len(dataset):,} conversations, {int(supervised.sum()):,} supervised tokens")]
    if dropped:
        why = f"no supervised token within {settings.cutoff_len} tokens"
        lines.append(("", f"{dropped} of {len(encoded)} conversations left out: {why}"))
    if cut:
        lines.append(("", f"{cut} conversations cut at {settings.cutoff_len} tokens"))
    return dataset, lines


def _refuse_malformed(rows: Dataset, field: str, shown: int = 3) -> None:
    problems: list[str] = []
    count = 0
    for row in rows:
        reason = _malformed(row["messages"])
        if reason is not None:
            count += 1
            if len(problems) < shown:
                problems.append(f"row {row['row'] + 1}: {reason}")
    if count:
        more = f" ({count - shown} more)" if count > shown else ""
        raise UserError(f"{field}: {count} of {len(rows)} rows are no conversations: {'; '.join(problems)}{more}.")


def _malformed(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "messages is empty or no list"
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"message {number} has no role"
        if message["role"] not in _ROLES:
            return f"message {number} has the unknown role {message['role']!r}"
        if not isinstance(message.get("content"), str):
            return f"message {number} has no text in content"
    return None


def _encode_batch(
    batch: dict[str, list[Any]],
    tokenizer: PreTrainedTokenizerBase,
    field: str,
    cutoff_len: int,
    train_on_prompt: bool,
    mask_history: bool,
    enable_thinking: bool | None,
) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {"input_ids": [], "targets": [], "supervised": [], "cut": []}
    chat = ChatFormat(tokenizer, enable_thinking)
    for messages, number in zip(batch["messages"], batch["row"], strict=True):
        # Arrow fills keys that other rows have with null; a template would print them.
        clean = [{k: v for k, v in message.items() if v is not None} for message in messages]
        try:
            ids, spans = chat.encode(clean)
        except Unusable as reason:
            raise UserError(f"{field}: row {number + 1}: {reason}.") from reason
        learnt = np.full(len(ids), train_on_prompt)
        for start, stop in spans[-1:] if mask_history else spans:
            learnt[start:stop] = True
        inputs = np.asarray(ids[:cutoff_len], dtype=np.int32)
        # A token cut away is not predicted; the last kept one then ends in the middle and is taught no end.
        targets = np.full(len(inputs), IGNORED, dtype=np.int32)
        targets[:-1] = np.where(learnt[1 : len(inputs)], inputs[1:], IGNORED)
        out["input_ids"].append(inputs)
        out["targets"].append(targets)
        out["supervised"].append(int((targets != IGNORED).sum()))
        out["cut"].append(len(ids) > cutoff_len)
    return out
