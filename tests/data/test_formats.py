"""Rows of every layout -> a text or a conversation; what a row lacks is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmtrain.data.formats import Conversation, RowFormat, read_conversation, read_text
from llmtrain.data.readers import BadRow


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def said(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"conversations": [{"from": who, "value": what} for who, what in pairs]}


CALL = {"name": "add", "arguments": {"a": 1}}
CALLED = {"type": "function", "function": CALL}
TOOL = {"name": "add", "description": "adds", "parameters": {}}

GOOD: list[tuple[str, RowFormat, dict[str, Any], Conversation]] = [
    ("alpaca", RowFormat("alpaca"), {"instruction": "q", "input": "", "output": "a"},
     Conversation([user("q"), assistant("a")])),
    ("alpaca-input", RowFormat(), {"instruction": "q", "input": "x", "output": "a"},
     Conversation([user("q\nx"), assistant("a")])),
    ("alpaca-whole", RowFormat("alpaca"),
     {"instruction": "q", "output": "a", "system": "s", "history": [["q0", "a0"]]},
     Conversation([system("s"), user("q0"), assistant("a0"), user("q"), assistant("a")])),
    ("alpaca-columns", RowFormat("alpaca", {"prompt": "question", "response": "answer"}),
     {"question": "q", "answer": "a"}, Conversation([user("q"), assistant("a")])),
    ("sharegpt", RowFormat("sharegpt"), said(("system", "s"), ("human", "q"), ("gpt", "a")),
     Conversation([system("s"), user("q"), assistant("a")])),
    ("sharegpt-told-by-its-columns", RowFormat(), said(("human", "q"), ("gpt", "a")),
     Conversation([user("q"), assistant("a")])),
    ("sharegpt-tags", RowFormat("sharegpt", {"messages": "talk"}, {"role_tag": "who", "content_tag": "what",
                                                                   "user_tag": "me", "assistant_tag": "you"}),
     {"talk": [{"who": "me", "what": "q"}, {"who": "you", "what": "a"}]}, Conversation([user("q"), assistant("a")])),
    ("sharegpt-tools", RowFormat("sharegpt"),
     {**said(("human", "q"), ("function_call", json.dumps(CALL)), ("observation", "2"), ("gpt", "a")),
      "tools": json.dumps([TOOL]), "system": "s"},
     Conversation([system("s"), user("q"), assistant("", tool_calls=[CALLED]), {"role": "tool", "content": "2"},
                   assistant("a")], [{"type": "function", "function": TOOL}])),
    ("openai", RowFormat("openai"), {"messages": [system("s"), user("q"), assistant("a")]},
     Conversation([system("s"), user("q"), assistant("a")])),
    ("openai-under-sharegpts-name", RowFormat("sharegpt", {"messages": "messages"},
     {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}),
     {"messages": [user("q"), assistant("a")]}, Conversation([user("q"), assistant("a")])),
    ("openai-parts", RowFormat(), {"messages": [user([{"type": "text", "text": "q"}, {"type": "text", "text": "r"}]),
                                                assistant("a")]},  # type: ignore[arg-type]
     Conversation([user("qr"), assistant("a")])),
    ("openai-tools", RowFormat(),
     {"messages": [user("q"), {"role": "assistant", "content": None, "tool_calls": [
         {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
         {"role": "tool", "tool_call_id": "1", "content": "2"}, assistant("a", reasoning_content="r")],
      "tools": [{"type": "function", "function": TOOL}]},
     Conversation([user("q"), assistant("", tool_calls=[{"id": "1", **CALLED}]),
                   {"role": "tool", "tool_call_id": "1", "content": "2"}, assistant("a", reasoning_content="r")],
                  [{"type": "function", "function": TOOL}])),
    ("nulls-of-a-table", RowFormat(),
     {"messages": [{**user("q"), "name": None}, {**assistant("a"), "tool_calls": None}], "tools": None, "system": None},
     Conversation([user("q"), assistant("a")])),
    ("pair-alpaca", RowFormat("alpaca", ranking=True), {"instruction": "q", "chosen": "a", "rejected": "b"},
     Conversation([user("q"), assistant("a")], rejected=assistant("b"))),
    ("pair-sharegpt", RowFormat("sharegpt", ranking=True),
     {**said(("human", "q")), "chosen": {"from": "gpt", "value": "a"}, "rejected": {"from": "gpt", "value": "b"}},
     Conversation([user("q"), assistant("a")], rejected=assistant("b"))),
    ("kto-good", RowFormat("alpaca", {"kto_tag": "label"}), {"instruction": "q", "output": "a", "label": True},
     Conversation([user("q"), assistant("a")])),
    ("kto-bad", RowFormat("alpaca", {"kto_tag": "label"}), {"instruction": "q", "output": "a", "label": False},
     Conversation([user("q")], rejected=assistant("a"))),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "row", "expected"), [case[1:] for case in GOOD], ids=[case[0] for case in GOOD])
def test_a_row_is_read(layout: RowFormat, row: dict[str, Any], expected: Conversation) -> None:
    assert read_conversation(row, layout) == expected


BAD: list[tuple[RowFormat, dict[str, Any], str]] = [
    (RowFormat(), {"x": 1}, "has no column 'messages'; it has x"),
    (RowFormat("alpaca"), {"output": "a"}, "has no column 'instruction'"),
    (RowFormat("alpaca"), {"instruction": "q"}, "has no column 'output'"),
    (RowFormat("alpaca"), {"instruction": "q", "output": None}, "its output is None and no text"),
    (RowFormat("alpaca"), {"instruction": 3, "output": "a"}, "its instruction is 3 and no text"),
    (RowFormat("alpaca"), {"instruction": "q", "output": "a", "input": 3}, "its input is 3 and no text"),
    (RowFormat("alpaca"), {"instruction": "q", "output": "a", "history": "h"}, "its history is 'h' and no list"),
    (RowFormat("alpaca"), {"instruction": "q", "output": "a", "history": [["h"]]}, "turn 1 of its history is no pair"),
    (RowFormat("alpaca"), {"instruction": "q", "output": "a\ud800"}, "its output is not UTF-8"),
    (RowFormat("sharegpt"), {"conversations": []}, "messages is empty or no list"),
    (RowFormat("sharegpt"), {"conversations": "x"}, "messages is empty or no list"),
    (RowFormat("sharegpt"), said(("human", "q"), ("bot", "a")), "message 2 is from 'bot'; known are system, human"),
    (RowFormat("sharegpt"), {"conversations": [{"value": "q"}]}, "message 1 has no from"),
    (RowFormat("sharegpt"), {"conversations": [{"from": "human", "value": 1}]}, "message 1 has no text in value"),
    (RowFormat("sharegpt"), said(("gpt", "a")), "message 1 is the assistant's, out of turn"),
    (RowFormat("sharegpt"), said(("human", "q"), ("human", "q")), "message 2 is the user's, out of turn"),
    (RowFormat("sharegpt"), said(("human", "q"), ("system", "s")), "message 2 is the system's, out of turn"),
    (RowFormat("sharegpt"), said(("human", "q"), ("function_call", "{")), "message 2 has a tool call that is not JSON"),
    (RowFormat("sharegpt"), said(("human", "q"), ("function_call", "{}")), "message 2 has a tool call without a name"),
    (RowFormat(), {"messages": ["q"]}, "message 1 has no role"),
    (RowFormat(), {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "a part of type 'image'"),
    (RowFormat(), {"messages": [{"role": "user", "content": None}]}, "message 1 has no text in content"),
    (RowFormat(), {"messages": [user("q"), assistant("", tool_calls=[{"function": {}}])]}, "tool call without a name"),
    (RowFormat(), {"messages": [user("q"), assistant("", tool_calls=[{"function": {"name": "f", "arguments": "["}}])]},
     "message 2 has a tool call that is not JSON"),
    (RowFormat(), {"messages": [user("q"), assistant("", tool_calls=[{"function": {"name": "f", "arguments": [1]}}])]},
     r"whose arguments are \[1\] and no mapping"),
    (RowFormat(), {"messages": [user("q"), assistant("a", reasoning_content=3)]}, "the reasoning of message 2 is 3"),
    (RowFormat(), {"messages": [user("q"), assistant("a")], "tools": "{"}, "its tools are not JSON"),
    (RowFormat(), {"messages": [user("q"), assistant("a")], "tools": [{}]}, "one of its tools has no name"),
    (RowFormat(), {"messages": [user("q"), assistant("a")], "tools": 3}, "its tools is 3 and no list"),
    (RowFormat("alpaca", ranking=True), {"instruction": "q", "chosen": "a"}, "has no rejected answer"),
    (RowFormat("sharegpt", ranking=True),
     {**said(("human", "q")), "chosen": {"from": "human", "value": "a"}, "rejected": "b"}, "its chosen answer is"),
    (RowFormat("alpaca", {"kto_tag": "label"}), {"instruction": "q", "output": "a", "label": "x"}, "its label is 'x'"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "row", "reason"), BAD)
def test_a_row_that_cannot_be_used_says_why(layout: RowFormat, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        read_conversation(row, layout)


def test_the_text_of_a_document_stands_in_the_column_that_is_named() -> None:
    assert read_text({"text": "t", "body": "b"}, RowFormat()) == "t"
    assert read_text({"text": "t", "body": "b"}, RowFormat(columns={"text": "body"})) == "b"
    assert read_text({"text": "t", "body": "b"}, RowFormat(columns={"prompt": "body"})) == "b"
