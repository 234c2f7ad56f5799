"""Named chat templates: Jinja files with `{% generation %}` marks, and a comment on top about the tokens they need.

`templates/NAME.jinja` is a family's format; `templates/tools/FORMAT.jinja` is how tools and calls are written. Both are
joined to one text, which becomes the tokenizer's chat template: transformers renders it, and an export carries it
along, comment and all.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from llmtrain.errors import UserError

_FOLDER = Path(__file__).parent / "templates"
_HEADER = re.compile(r"\s*\{#-?(.*?)-?#\}", re.DOTALL)
# Other names of the same formats.
_ALIASES = {
    "chatml": "yi",
    "gemma2": "gemma",
    "gemma3": "gemma",
    "gpt": "gpt_oss",
    "internlm3": "internlm2",
    "bailing": "ling",
    "bailing_v2": "ling2",
    "glm4_moe": "glm4_5",
    "minimax2": "minimax",
    "deepseekr1": "deepseek_r1",
    "deepseek_v3": "deepseek3",
}


@dataclass(frozen=True)
class Header:
    """What the comment on top of a template says.

    tokens: must each be one token of the tokenizer. ends: tokens at which generation must stop, `eos` for the
    tokenizer's own. open_ends: no end token is written between turns, and the model learns to write its own there.
    tools: the format in which tools are written.
    """

    tokens: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    open_ends: bool = False
    tools: str | None = None


def read_header(template: str) -> Header:
    """The header of a chat template; an empty one where there is none."""
    found = _HEADER.match(template)
    values = dict(re.findall(r"^ *(tokens|ends|open_ends|tools): *(.*?) *$", found[1] if found else "", re.MULTILINE))
    return Header(
        tuple(values.get("tokens", "").split()),
        tuple(values.get("ends", "").split()),
        values.get("open_ends") == "yes",
        values.get("tools"),
    )


def template_names() -> list[str]:
    """All names that `data.template` takes."""
    return sorted([*(file.stem for file in _FOLDER.glob("*.jinja") if file.stem != "common"), *_ALIASES])


def tool_formats() -> list[str]:
    """All names that `data.tool_format` takes."""
    return sorted(file.stem for file in (_FOLDER / "tools").glob("*.jinja"))


def read_template(name: str, tool_format: str | None = None) -> str:
    """The Jinja text of a named template, or of a file of the user's; `tool_format` replaces the family's own.

    Raises:
        UserError: no template or tool format of that name, or a file that has no place for tools.
    """
    if name.endswith(".jinja"):
        try:
            text = Path(name).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"data.template: {name} cannot be read ({error}).") from error
    else:
        file = _FOLDER / f"{_ALIASES.get(name, name)}.jinja"
        if name not in template_names():
            raise UserError(f"data.template is {name!r}; {_nearest(name, template_names())}")
        text = file.read_text(encoding="utf-8")
    tools = read_header(text).tools
    if tool_format is not None:
        if tools is None:
            raise UserError(f"data.tool_format: {name} writes tools in a way of its own; leave tool_format out.")
        if tool_format not in tool_formats():
            raise UserError(f"data.tool_format is {tool_format!r}; {_nearest(tool_format, tool_formats())}")
        text = text.replace(f"\ntools: {tools}", f"\ntools: {tool_format}", 1)
        tools = tool_format
    if tools is None:
        return text
    if tools not in tool_formats():
        raise UserError(f"data.template: {name} names the tool format {tools!r}; {_nearest(tools, tool_formats())}")
    found = _HEADER.match(text)
    assert found is not None
    macros = [(_FOLDER / part).read_text(encoding="utf-8") for part in (f"tools/{tools}.jinja", "common.jinja")]
    return text[: found.end()] + "\n" + "".join(macros).rstrip("\n") + text[found.end() :].rstrip("\n")


def check_template(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """That the tokenizer has the tokens which its chat template writes.

    Raises:
        UserError: it lacks some, so the template is another model's.
    """
    header = read_header(str(tokenizer.get_chat_template()))
    written = [*header.tokens, *(end for end in header.ends if end != "eos")]
    lacking = {}
    for token in dict.fromkeys(written):
        ids = tokenizer(token, add_special_tokens=False, split_special_tokens=False)["input_ids"]
        if len(ids) != 1 or (ids[0] == tokenizer.unk_token_id and token != tokenizer.unk_token):
            lacking[token] = len(ids)
    if lacking:
        parts = ", ".join(f"{token} ({count} tokens)" for token, count in lacking.items())
        names = "[" + ", ".join(f'"{token}"' for token in lacking) + "]"
        raise UserError(
            f"data.template is {name}, which needs tokens that this tokenizer does not have as one: {parts}. Choose "
            f"the template of this model, null for the tokenizer's own, or add the tokens: model.add_special_tokens: "
            f"{names}"
        )


def end_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens at which generation must stop, as the template's header names them."""
    ends = read_header(str(tokenizer.chat_template or "")).ends
    ids = [tokenizer.eos_token_id if end == "eos" else tokenizer.convert_tokens_to_ids(end) for end in ends]
    return [token for token in ids if isinstance(token, int)]


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}."
