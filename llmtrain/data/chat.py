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
                digest.update(np.ascontiguousarray(array, dtype=np.int64).view(np.uint8))
                digest.update(b"|")
        return digest.hexdigest()


def build_chat(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, settings: DataConfig, field: str
) -> tuple[ChatDataset, list[tuple[str, str]]]:
    """Renders and masks `rows` (column `messages`); returns the samples with lines for the header.

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
    choices = {
        "cutoff_len": settings.cutoff_len,
        "train_on_prompt": settings.train_on_prompt,
        "mask_history": settings.mask_history,
        "enable_thinking": settings.enable_thinking,
    }
    encoded = cached_map(
        rows.add_column("row", range(len(rows))),
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
        lines.append(("", f"{dropped} of {len(encoded)} conversations left out: no supervised token within {settings.cutoff_len} tokens"))
    if cut:
        lines.append(("", f"{cut} conversations cut at {settings.cutoff_len} tokens"))
    return dataset, lines


def _refuse_malformed(rows: Dataset, field: str, shown: int = 3) -> None:
    problems, count = [], 0
    for number, row in enumerate(rows):
        reason = _malformed(row["messages"])
        if reason is not None:
            count += 1
            if len(problems) < shown:
                problems.append(f"row {number + 1}: {reason}")
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
    if not any(m["role"] == "assistant" for m in messages):
        return "there is no message of the assistant"
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
    options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    for messages, number in zip(batch["messages"], batch["row"], strict=True):
        # Arrow fills keys that other rows have with null; a template would print them.
        clean = [{k: v for k, v in message.items() if v is not None} for message in messages]
        try:
            ids, mask = encode_conversation(tokenizer, clean, options)
        except Unprovable as reason:
            raise UserError(f"{field}: row {number + 1}: {reason}") from reason
        learnt = np.ones(len(ids), dtype=bool) if train_on_prompt else np.asarray(mask, dtype=bool)
        if mask_history:
            learnt = _last_run(learnt)
        inputs = np.asarray(ids[:cutoff_len], dtype=np.int32)
        # A token cut away is not predicted; the last kept one then ends in the middle and is taught no end.
        targets = np.full(len(inputs), IGNORED, dtype=np.int32)
        targets[:-1] = np.where(learnt[1 : len(inputs)], inputs[1:], IGNORED)
        out["input_ids"].append(inputs)
        out["targets"].append(targets)
        out["supervised"].append(int((targets != IGNORED).sum()))
        out["cut"].append(len(ids) > cutoff_len)
    return out


def _last_run(mask: np.ndarray) -> np.ndarray:
    """Only the last unbroken run of trues."""
    ends = np.flatnonzero(mask)
    if len(ends) == 0:
        return mask
    breaks = np.flatnonzero(~mask[: ends[-1]])
    only = np.zeros_like(mask)
    only[(breaks[-1] + 1 if len(breaks) else 0) : ends[-1] + 1] = True
    return only


class Unprovable(ValueError):
    """It cannot be shown which tokens are the assistant's."""


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], options: dict[str, Any]
) -> tuple[list[int], list[int]]:
    """Token ids of the whole conversation, and 1 for each of the assistant's tokens (its end-of-turn token included).

    The mask comes from the template's `{% generation %}` marks, else from renders of growing prefixes of the
    conversation, which must be prefixes of one another token by token.

    Raises:
        Unprovable: the template rewrites earlier turns, or has marks around nothing.
    """
    template = tokenizer.get_chat_template()
    if "generation %}" in template or "generation -%}" in template:
        encoded = tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **options
        )
        mask = list(encoded["assistant_masks"])
        if not any(mask):
            raise Unprovable("the chat template's generation marks hold no token")
        return list(encoded["input_ids"]), mask
    whole = _render(tokenizer, messages, options)
    mask = [0] * len(whole)
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        start = len(_prefix(tokenizer, messages[:index], whole, options, prompt=True))
        through = _prefix(tokenizer, messages[: index + 1], whole, options, prompt=False)
        end = _turn_end(tokenizer, through, start, message)
        mask[start:end] = [1] * (end - start)
    return whole, mask


def _render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], options: dict[str, Any], *, prompt: bool = False) -> list[int]:
    encoded = tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=True, add_generation_prompt=prompt, **options
    )
    return list(encoded["input_ids"])


def _prefix(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    whole: list[int],
    options: dict[str, Any],
    *,
    prompt: bool,
) -> list[int]:
    part = _render(tokenizer, messages, options, prompt=prompt) if messages else []
    if whole[: len(part)] != part:
        raise Unprovable(
            "the chat template renders the beginning of this conversation otherwise once more turns follow, so the "
            "assistant's tokens cannot be told for sure. Use a template with {% generation %} marks"
        )
    return part


def _turn_end(tokenizer: PreTrainedTokenizerBase, rendered: list[int], start: int, message: dict[str, Any]) -> int:
    """One past the turn's last special token (its end token); text behind it, such as a newline, is the next turn's."""
    special = set(tokenizer.all_special_ids)
    for position in range(len(rendered) - 1, start - 1, -1):
        if rendered[position] in special:
            return position + 1
    raise Unprovable(
        "the chat template closes an assistant's turn without a special token of its own, so a model could not learn to "
        "stop. Use a template with {% generation %} marks around the answer and its end token"
    )
