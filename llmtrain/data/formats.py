"""A row -> a text, or a conversation in the one form that chat templates take. What a row lacks is said in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llmtrain.config.data import COLUMNS, TAGS
from llmtrain.data.readers import BadRow

Message = dict[str, Any]
Formatting = Literal["alpaca", "sharegpt", "openai"]

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class RowFormat:
    """How the rows of one source are laid out. `formatting` None: told by each row's columns."""

    formatting: Formatting | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    ranking: bool = False

    def column(self, name: str) -> str:
        if name == "messages" and name not in self.columns and self.formatting == "sharegpt":
            return "conversations"
        return self.columns.get(name, COLUMNS[name])

    def tag(self, name: str) -> str:
        return self.tags.get(name, TAGS[name])


@dataclass(frozen=True)
class Conversation:
    """Messages and tools as `apply_chat_template` takes them; `rejected` is the answer that a pair ranks lower."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    rejected: Message | None = None


def read_text(row: dict[str, Any], layout: RowFormat) -> str:
    """The document of a row, for pretraining.

    Raises:
        BadRow: no such column, or no text in it.
    """
    # Pretraining files of dataset_info.json name their text `prompt`.
    name = layout.columns.get("text") or layout.columns.get("prompt") or COLUMNS["text"]
    if name not in row:
        raise BadRow(_no_column(row, name, "text"))
    return _text(row[name], f"its {name}")


def read_conversation(row: dict[str, Any], layout: RowFormat) -> Conversation:
    """The conversation of a row, for fine-tuning; of a preference pair, the one that was chosen.

    Raises:
        BadRow: what is missing, of the wrong kind or in the wrong order.
    """
    formatting = layout.formatting or _formatting_of(row, layout)
    if formatting == "alpaca":
        messages = _alpaca(row, layout)
    else:
        name = layout.column("messages")
        if layout.formatting is None and name not in row:
            name = "conversations"
        if name not in row:
            raise BadRow(_no_column(row, name, "messages"))
        messages = _messages(row[name], layout, sharegpt=formatting == "sharegpt")
    system = row.get(layout.column("system"))
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": _text(system, f"its {layout.column('system')}")})
    rejected = None
    if layout.ranking:
        chosen, rejected = (_ranked(row, layout, which, formatting) for which in ("chosen", "rejected"))
        messages.append(chosen)
    elif "kto_tag" in layout.columns:
        tag = row.get(layout.column("kto_tag"))
        if not isinstance(tag, bool):
            raise BadRow(f"its {layout.column('kto_tag')} is {_shown(tag)} and no switch")
        if not tag:
            rejected = messages.pop()
    return Conversation(messages, _tools(row.get(layout.column("tools"))), rejected)


def _formatting_of(row: dict[str, Any], layout: RowFormat) -> Formatting:
    name = layout.column("messages")
    messages = row.get(name, row.get("conversations"))
    if name in row or "conversations" in row:
        first = messages[0] if isinstance(messages, list) and messages else None
        return "sharegpt" if isinstance(first, dict) and layout.tag("role_tag") in first else "openai"
    if layout.column("prompt") in row:
        return "alpaca"
    raise BadRow(_no_column(row, name, "messages"))


def _no_column(row: dict[str, Any], name: str, what: str) -> str:
    return (
        f"has no column {name!r}; it has {', '.join(map(str, row)) or 'none'}. Name the right one with "
        f"{{file_name: ..., columns: {{{what}: NAME}}}}"
    )


def _alpaca(row: dict[str, Any], layout: RowFormat) -> list[Message]:
    prompt, query, response = (layout.column(name) for name in ("prompt", "query", "response"))
    if prompt not in row:
        raise BadRow(_no_column(row, prompt, "prompt"))
    messages: list[Message] = []
    for number, turn in enumerate(_list(row.get(layout.column("history")), f"its {layout.column('history')}"), 1):
        if not isinstance(turn, list | tuple) or len(turn) != 2:
            raise BadRow(f"turn {number} of its {layout.column('history')} is no pair of question and answer")
        question, answer = (_text(part, f"turn {number} of its {layout.column('history')}") for part in turn)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    parts = [_text(row[prompt], f"its {prompt}")]
    if row.get(query):
        parts.append(_text(row[query], f"its {query}"))
    messages.append({"role": "user", "content": "\n".join(part for part in parts if part)})
    if layout.ranking:
        return messages
    if response not in row:
        raise BadRow(_no_column(row, response, "response"))
    messages.append({"role": "assistant", "content": _text(row[response], f"its {response}")})
    return messages


def _messages(value: Any, layout: RowFormat, *, sharegpt: bool) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise BadRow("messages is empty or no list")
    read = _from_sharegpt if sharegpt else _from_openai
    messages = [read(message, number, layout) for number, message in enumerate(value, 1)]
    if sharegpt:
        _refuse_disorder(messages)
    return messages


def _from_openai(message: Any, number: int, layout: RowFormat) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRow(f"message {number} has no role")
    role = message["role"]
    if role not in ROLES:
        raise BadRow(f"message {number} has the unknown role {role!r}")
    # Arrow fills keys that other rows have with null; a template would print them.
    kept = {key: value for key, value in message.items() if value is not None}
    if "tool_calls" in kept:
        kept["tool_calls"] = _calls(kept["tool_calls"], number)
    if "reasoning_content" in kept:
        kept["reasoning_content"] = _text(kept["reasoning_content"], f"the reasoning of message {number}")
    content = kept.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, number) for part in content)
    if content is None and kept.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise BadRow(f"message {number} has no text in content")
    return {**kept, "content": _text(content, f"message {number}")}


def _part(part: Any, number: int) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else _shown(part)
    raise BadRow(f"message {number} has a part of type {kind!r}; only text can be used")


def _from_sharegpt(message: Any, number: int, layout: RowFormat) -> Message:
    role_tag, content_tag = layout.tag("role_tag"), layout.tag("content_tag")
    if not isinstance(message, dict) or not isinstance(message.get(role_tag), str):
        raise BadRow(f"message {number} has no {role_tag}")
    roles = {
        layout.tag("system_tag"): "system",
        layout.tag("user_tag"): "user",
        layout.tag("assistant_tag"): "assistant",
        layout.tag("observation_tag"): "tool",
        layout.tag("function_tag"): "function",
    }
    role = roles.get(message[role_tag])
    if role is None:
        raise BadRow(f"message {number} is from {message[role_tag]!r}; known are {', '.join(roles)}")
    content = message.get(content_tag)
    if not isinstance(content, str):
        raise BadRow(f"message {number} has no text in {content_tag}")
    content = _text(content, f"message {number}")
    if role == "function":
        return {"role": "assistant", "content": "", "tool_calls": _calls(_json(content, number), number)}
    return {"role": role, "content": content}


def _refuse_disorder(messages: list[Message]) -> None:
    """Turns of a ShareGPT row alternate, after a system message or none."""
    expected: tuple[str, ...] = ("user", "tool")
    for number, message in enumerate(messages, 1):
        if message["role"] == "system" and number == 1:
            continue
        if message["role"] not in expected:
            raise BadRow(f"message {number} is the {message['role']}'s, out of turn")
        expected = ("assistant",) if expected[0] == "user" else ("user", "tool")


def _calls(value: Any, number: int) -> list[dict[str, Any]]:
    calls = value if isinstance(value, list) else [value]
    out = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRow(f"message {number} has a tool call without a name")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            # Templates print arguments as JSON; a text would be quoted once more.
            arguments = _json(arguments or "{}", number)
        if not isinstance(arguments, dict):
            raise BadRow(f"message {number} has a tool call whose arguments are {_shown(arguments)} and no mapping")
        known = {key: call[key] for key in ("id",) if call.get(key) is not None}
        out.append({**known, "type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return out


def _tools(value: Any) -> list[dict[str, Any]] | None:
    """Tools as a list or as its JSON; each one a function's description, wrapped or bare."""
    if not value:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise BadRow("its tools are not JSON") from None
    tools = []
    for tool in _list(value, "its tools"):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRow("one of its tools has no name")
        tools.append({"type": "function", "function": function})
    return tools or None


def _ranked(row: dict[str, Any], layout: RowFormat, which: str, formatting: Formatting) -> Message:
    name = layout.column(which)
    value = row.get(name)
    if value is None:
        raise BadRow(f"has no {name} answer")
    if isinstance(value, str):
        return {"role": "assistant", "content": _text(value, f"its {name}")}
    read = _from_sharegpt if formatting == "sharegpt" else _from_openai
    message = read(value, 1, layout)
    if message["role"] != "assistant":
        raise BadRow(f"its {name} answer is the {message['role']}'s")
    return message


def _json(text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadRow(f"message {number} has a tool call that is not JSON") from None


def _list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRow(f"{what} is {_shown(value)} and no list")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise BadRow(f"{what} is {_shown(value)} and no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRow(f"{what} is not UTF-8") from None
    return value


def _shown(value: Any, most: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."
