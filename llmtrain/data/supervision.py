"""A conversation -> its ids by the tokenizer's chat template, and the spans of them that are the assistant's.

A span is everything the model would have to write after its prompt, up to and with the one token that ends the turn.
What follows that token (a newline, the next turn's header) is not the model's. Spans come from the template's own
`{% generation %}` marks; without such, from renders of the same conversation whose agreement proves both borders.
Nothing is guessed: where there is no proof, the conversation is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
Span = tuple[int, int]

# Stands for an answer's text in a render; no template treats it in a special way, and no text contains it.
_PLACEHOLDER = "\ue000answer\ue001"


class Unusable(Exception):
    """Why a conversation cannot be used."""


@dataclass(frozen=True)
class ChatFormat:
    """A tokenizer with a chat template, and the switch that is passed on to it (None: not passed)."""

    tokenizer: PreTrainedTokenizerBase
    enable_thinking: bool | None

    def encode(self, messages: list[Message]) -> tuple[list[int], list[Span]]:
        """The ids of the whole conversation, as `apply_chat_template` gives them, and the span of each answer.

        Raises:
            Unusable: the template refuses the conversation, or the borders of an answer cannot be proved.
        """
        try:
            return self._marked_spans(messages) if self._marks_answers else self._proved_spans(messages)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise Unusable(f"the chat template refuses it: {error}") from error

    @cached_property
    def _marks_answers(self) -> bool:
        template = self.tokenizer.get_chat_template()
        return self.tokenizer.is_fast and re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        """What may end a turn; not the unknown token, which stands for any text (unless it is eos as well)."""
        added = self.tokenizer.added_tokens_decoder
        special = set(self.tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
        return frozenset((special - {self.tokenizer.unk_token_id}) | {self.tokenizer.eos_token_id})

    @property
    def _switches(self) -> dict[str, Any]:
        return {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}

    def _render(self, messages: list[Message], prompt: bool = False) -> str:
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=prompt, **self._switches
        )
        assert isinstance(text, str)
        return text

    def _ids(self, text: str) -> list[int]:
        # The template writes the special tokens itself; a second BOS must not come from the tokenizer.
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _marked_spans(self, messages: list[Message]) -> tuple[list[int], list[Span]]:
        encoded: Any = self.tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **self._switches
        )
        ids = list(encoded["input_ids"])
        marks = "".join("1" if mark else "0" for mark in encoded["assistant_masks"])
        runs = [match.span() for match in re.finditer("1+", marks)]
        answers = sum(message["role"] == "assistant" for message in messages)
        if len(runs) != answers:
            raise Unusable(f"the chat template's {{% generation %}} marks {len(runs)} of its {answers} answers")
        return ids, [(start, self._end_of_marked(ids, start, stop)) for start, stop in runs]

    def _end_of_marked(self, ids: list[int], start: int, stop: int) -> int:
        """The mark may reach up to the end token, to just before it, or over blanks that follow it."""
        last = stop - 1
        while last > start and self._is_blank(ids[last]):
            last -= 1
        if ids[last] in self._special_ids:
            return last + 1
        while stop < len(ids) and self._is_blank(ids[stop]):
            stop += 1
        return self._past_end_token(ids, stop)

    def _proved_spans(self, messages: list[Message]) -> tuple[list[int], list[Span]]:
        full = self._render(messages)
        ids = self._ids(full)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        return ids, [self._proved_span(messages, i, full, ids) for i in answers]

    def _proved_span(self, messages: list[Message], index: int, full: str, ids: list[int]) -> Span:
        """The span of one answer.

        Its beginning: the render up to the answer with the generation prompt, which is what the model is given when
        it is used; where the template writes earlier turns in another way, the text before the answer's own. Its end:
        the token at which the text after the answer's own begins. Both come from renders that must agree with the
        full one, character by character and token by token.
        """
        number = index + 1
        if messages[index].get("tool_calls"):
            raise Unusable(f"message {number} calls tools; that needs a chat template with {{% generation %}}")
        held = {**messages[index], "content": _PLACEHOLDER}
        before, found, after = self._render([*messages[:index], held, *messages[index + 1 :]]).partition(_PLACEHOLDER)
        if not found or _PLACEHOLDER in after or not full.endswith(after):
            raise Unusable(f"the chat template does not show where message {number} ends")
        starts = [before]
        if index:
            prompt = self._render(messages[:index], prompt=True)
            # A template without a generation prompt leaves the header to the answer; it is not the model's to write.
            starts.insert(0 if prompt != self._render(messages[:index]) else 1, prompt)
        stop_text = full[: len(full) - len(after.lstrip())]
        stop = self._border(stop_text, ids)
        for text in starts:
            start = self._border(text, ids) if stop_text.startswith(text) else None
            if start is not None and stop is not None and start <= stop:
                return start, self._past_end_token(ids, stop)
        raise Unusable(f"no token borders the answer in message {number}, as the chat template writes it")

    def _border(self, text: str, ids: list[int]) -> int | None:
        """How many of `ids` are `text`; None where a token reaches across its end."""
        head = self._ids(text)
        return len(head) if ids[: len(head)] == head else None

    def _past_end_token(self, ids: list[int], index: int) -> int:
        if index == len(ids):
            raise Unusable(
                "the chat template writes no end-of-turn token after the last answer, so a model would not learn to "
                "stop"
            )
        if ids[index] not in self._special_ids:
            raise Unusable(
                f"the chat template ends an answer with {self.tokenizer.decode([ids[index]])!r}, which is no special "
                f"token, so a model would not learn to stop"
            )
        return index + 1

    def _is_blank(self, token: int) -> bool:
        return not str(self.tokenizer.decode([token])).strip()
