"""A conversation -> its ids by the tokenizer's chat template, and the spans of them that are the assistant's.

A span is everything that the model would have to write after its prompt, up to and with the one token that ends the
turn. What follows that token (a newline, the next turn's header) is not the model's. Spans come from the template's own
`{% generation %}` marks; without such, from renders of the same conversation whose agreement proves both borders.
Nothing is guessed: where there is no proof, the conversation is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jinja2
import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from llmtrain.data.chat_templates import Header, end_ids, read_header
from llmtrain.data.formats import Message
from llmtrain.data.readers import BadRow

# Stands for an answer's text in a render; no template treats it in a special way, and no text contains it.
_PLACEHOLDER = "\ue000answer\ue001"
# Stands within a special token that a text only spells, so that it is none.
_BREAK = "\ue002"
# The names by which templates know a thought; transformers gives it to them under each.
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


class Span(NamedTuple):
    """Tokens [start, stop) are an answer. `open_end`: no end token closes it, and token `stop` stands in its place."""

    start: int
    stop: int
    open_end: bool = False


@dataclass(frozen=True)
class ChatFormat:
    """A tokenizer with a chat template.

    switches: passed on to the template (`enable_thinking`).
    default_system: the system prompt of conversations that have none.
    """

    tokenizer: PreTrainedTokenizerBase
    switches: dict[str, Any] = field(default_factory=dict)
    default_system: str | None = None

    def encode(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> tuple[list[int], list[Span]]:
        """The ids of the whole conversation, as `apply_chat_template` gives them, and the span of each answer.

        Where the template ends with an answer and no token to stop at, the end-of-sequence token follows.

        Raises:
            BadRow: the template refuses the conversation or has no place for a part of it, or the borders of an answer
                cannot be proved.
        """
        if self.default_system is not None and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": self.default_system}, *messages]
        if self._header.ends:  # one of the named ones, which know one kind of system prompt
            messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        self._refuse_unwritten(messages, tools)
        if self._splits:
            messages, tools = self._broken(messages), self._broken(tools)
        try:
            marked = self._marks_answers(self._template(tools))
            ids, spans = (self._marked_spans if marked else self._proved_spans)(messages, tools)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise BadRow(f"the chat template refuses it: {error}") from error
        for span in spans:
            end = self.tokenizer.eos_token_id if span.open_end else ids[span.stop - 1]
            if ids[span.start : span.stop].count(end) != (0 if span.open_end else 1):
                token = self.tokenizer.decode([end])
                raise BadRow(
                    f"an answer holds {token!r}, the token that ends it, in its text; a model would stop there"
                )
        return ids, spans

    def _refuse_unwritten(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> None:
        """What the template does not mention would be lost without a word."""
        held = {"tools": bool(tools)} | {
            part: any(message.get(part) for message in messages) for part in ("tool_calls", "reasoning_content")
        }
        template = self._template(tools)
        for part, present in held.items():
            names = _THOUGHTS if part == "reasoning_content" else (part,)
            if present and not any(name in template for name in names):
                raise BadRow(
                    f"has {part}, for which the chat template has no place; choose one that has (data.template)"
                )

    def _template(self, tools: list[dict[str, Any]] | None) -> str:
        """A tokenizer may have one of its own for conversations with tools."""
        return str(self.tokenizer.get_chat_template(tools=tools))

    @cached_property
    def _header(self) -> Header:
        return read_header(self._template(None))

    def _marks_answers(self, template: str) -> bool:
        return self.tokenizer.is_fast and re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        """What may end a turn; not the unknown token, which stands for any text (unless it is eos as well)."""
        added = self.tokenizer.added_tokens_decoder
        special = set(self.tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
        ends = {self.tokenizer.eos_token_id, *end_ids(self.tokenizer)}
        return frozenset((special - {self.tokenizer.unk_token_id}) | ends)

    def _render(self, messages: list[Message], tools: list[dict[str, Any]] | None, prompt: bool = False) -> str:
        text = self.tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=prompt, **self.switches
        )
        assert isinstance(text, str)
        return text

    @cached_property
    def _splits(self) -> bool:
        """Whether special tokens in a conversation are text (`split_special_tokens`); the template's never are."""
        return bool(getattr(self.tokenizer, "split_special_tokens", False))

    @cached_property
    def _special_texts(self) -> list[str]:
        added = self.tokenizer.added_tokens_decoder.values()
        texts = {*self.tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
        return sorted(texts, key=len, reverse=True)

    def _broken(self, value: Any) -> Any:
        """The same with a mark in each special token of its texts."""
        if isinstance(value, str):
            pattern = "|".join(map(re.escape, self._special_texts))
            return re.sub(pattern, lambda found: found[0][:1] + _BREAK + found[0][1:], value)
        if isinstance(value, dict):
            return {key: inner if key == "role" else self._broken(inner) for key, inner in value.items()}
        return [self._broken(inner) for inner in value] if isinstance(value, list) else value

    def _pieces(self, text: str) -> list[tuple[int, str, bool]]:
        """Where each piece of a rendered text begins, its text, and whether special tokens in it are text."""
        if not self._splits:
            return [(0, text, False)]
        spelt = "|".join(re.escape(token[:1] + _BREAK + token[1:]) for token in self._special_texts)
        pieces, place = [], 0
        for piece in re.split(f"({spelt})", text):
            if piece:
                pieces.append((place, piece, _BREAK in piece))
            place += len(piece)
        return pieces

    def _tokens(self, text: str, offsets: bool) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a rendered text, and the characters of each where `offsets` asks for them."""
        ids: list[int] = []
        places: list[tuple[int, int]] = []
        for begin, piece, spelt in self._pieces(text):
            options: dict[str, Any] = {"split_special_tokens": spelt} if self._splits else {}
            # The template writes the special tokens itself; a second BOS must not come from the tokenizer.
            encoded = self.tokenizer(
                piece.replace(_BREAK, "") if spelt else piece,
                add_special_tokens=False,
                return_offsets_mapping=offsets,
                return_attention_mask=False,
                verbose=False,
                **options,
            )
            ids += encoded["input_ids"]
            if offsets:
                places += [(begin + first, begin + last) for first, last in encoded["offset_mapping"]]
        return ids, places

    def _ids(self, text: str) -> list[int]:
        return self._tokens(text, offsets=False)[0]

    def _marked_spans(
        self, messages: list[Message], tools: list[dict[str, Any]] | None
    ) -> tuple[list[int], list[Span]]:
        """A token is an answer's where any of its characters is."""
        rendered: Any = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=self._template(tools),
            return_assistant_tokens_mask=True,
            **{**self.tokenizer.special_tokens_map, **self.switches},
        )
        (text,), (marks,) = rendered
        answers = sum(message["role"] == "assistant" for message in messages)
        if len(marks) != answers:
            raise BadRow(f"the chat template's {{% generation %}} marks {len(marks)} of its {answers} answers")
        ids, places = self._tokens(text, offsets=True)
        firsts, lasts = np.array(places, np.int64).reshape(-1, 2).T
        spans = []
        for number, (begin, end) in enumerate(marks, 1):
            inside = np.flatnonzero((lasts > begin) & (firsts < end))
            if not len(inside):
                raise BadRow(f"the chat template's {{% generation %}} marks nothing of answer {number}")
            spans.append((int(inside[0]), int(inside[-1]) + 1))
        return ids, [self._closed(ids, start, stop) for start, stop in spans]

    def _closed(self, ids: list[int], start: int, stop: int) -> Span:
        """The mark may reach up to the end token, to just before it, or over blanks that follow it."""
        last = stop - 1
        while last > start and self._is_blank(ids[last]):
            last -= 1
        if ids[last] in self._special_ids:
            return Span(start, last + 1)
        if self._header.open_ends:
            return self._past_open_end(ids, start, stop)
        while stop < len(ids) and self._is_blank(ids[stop]):
            stop += 1
        return Span(start, self._past_end_token(ids, stop))

    def _past_open_end(self, ids: list[int], start: int, stop: int) -> Span:
        if stop == len(ids) or ids[stop] == self.tokenizer.eos_token_id:
            return Span(start, self._past_end_token(ids, stop))
        return Span(start, stop, open_end=True)

    def _proved_spans(
        self, messages: list[Message], tools: list[dict[str, Any]] | None
    ) -> tuple[list[int], list[Span]]:
        full = self._render(messages, tools)
        ids = self._ids(full)
        spans = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                prove = self._span_of_calls if message.get("tool_calls") else self._span_of_text
                spans.append(prove(messages, tools, index, full, ids))
        return ids, spans

    def _span_of_text(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, index: int, full: str, ids: list[int]
    ) -> Span:
        """The span of one answer.

        Its beginning: the render up to the answer with the generation prompt, which is what the model is given when
        it is used; where the template writes earlier turns in another way, the text before the answer's own. Its end:
        the token at which the text after the answer's own begins. Both come from renders that must agree with the
        full one, character by character and token by token.
        """
        number = index + 1
        held = {**messages[index], "content": _PLACEHOLDER}
        changed = self._render([*messages[:index], held, *messages[index + 1 :]], tools)
        before, found, after = changed.partition(_PLACEHOLDER)
        if not found or _PLACEHOLDER in after or not full.endswith(after):
            raise BadRow(f"the chat template does not show where message {number} ends")
        starts = [before]
        if index:
            prompt = self._render(messages[:index], tools, prompt=True)
            # A template without a generation prompt leaves the header to the answer; it is not the model's to write.
            starts.insert(0 if prompt != self._render(messages[:index], tools) else 1, prompt)
        stop_text = full[: len(full) - len(after.lstrip())]
        stop = self._border(stop_text, ids)
        for text in starts:
            start = self._border(text, ids) if stop_text.startswith(text) else None
            if start is not None and stop is not None and start <= stop:
                return Span(start, self._past_end_token(ids, stop))
        raise BadRow(f"no token borders the answer in message {number}, as the chat template writes it")

    def _span_of_calls(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, index: int, full: str, ids: list[int]
    ) -> Span:
        """The span of an answer that calls tools: between the render before it and the one up to it, where both begin
        the full one."""
        number = index + 1
        prompt = self._render(messages[:index], tools, prompt=True)
        upto = self._render(messages[: index + 1], tools).rstrip()
        if full.startswith(upto) and upto.startswith(prompt):
            start, stop = self._border(prompt, ids), self._border(upto, ids)
            if start is not None and stop is not None and start < stop and ids[stop - 1] in self._special_ids:
                return Span(start, stop)
        raise BadRow(
            f"message {number} calls tools, and the chat template does not show where the call begins and ends; use "
            f"one with {{% generation %}} marks, or a named one (data.template)"
        )

    def _border(self, text: str, ids: list[int]) -> int | None:
        """How many of `ids` are `text`; None where a token reaches across its end."""
        head = self._ids(text)
        return len(head) if ids[: len(head)] == head else None

    def _past_end_token(self, ids: list[int], index: int) -> int:
        if index == len(ids):
            ids.append(self.tokenizer.eos_token_id)
        if ids[index] not in self._special_ids:
            raise BadRow(
                f"the chat template ends an answer with {self.tokenizer.decode([ids[index]])!r}, which is no special "
                f"token, so a model would not learn to stop"
            )
        return index + 1

    def _is_blank(self, token: int) -> bool:
        return not str(self.tokenizer.decode([token])).strip()
