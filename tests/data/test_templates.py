"""Named chat templates: the text, what is learnt of it, and the tokenizers that they fit.

`templates.yaml` holds the texts as the models' own chat templates or cards write them; what is learnt stands between »
and «, `⏎` is a newline, `$` the place where the end token is learnt though another one stands there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from llmtrain.data.chat_templates import read_header, read_template, template_names, tool_formats
from llmtrain.data.readers import BadRow
from llmtrain.data.sample import IGNORED
from llmtrain.data.supervision import ChatFormat
from llmtrain.errors import UserError
from tests.data.conftest import Build, assistant, chat, user
from tests.tiny import make_tokenizer

EXPECTED: dict[str, dict[str, str]] = yaml.safe_load(
    (Path(__file__).parent / "templates.yaml").read_text(encoding="utf-8")
)
THINKERS = [name for name in EXPECTED if "thought" in EXPECTED[name]]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "x y"}}}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "description": "one"}, "b": {"type": "string"}},
            "required": ["a"],
        },
    },
}
SYSTEM = {"role": "system", "content": "S"}
TURNS = [SYSTEM, user("q1"), assistant("a1"), user("q2"), assistant("a2")]
CALLS = [user("q"), {**assistant(""), "tool_calls": [CALL]}, {"role": "tool", "content": "7"}, assistant("a")]
THOUGHTS = [
    user("q1"),
    {**assistant("a1"), "reasoning_content": "r1"},
    user("q2"),
    {**assistant("a2"), "reasoning_content": "r2"},
]
SWITCHES: dict[str, dict[str, Any]] = {
    "true": {"enable_thinking": True},
    "false": {"enable_thinking": False},
    "null": {},
}


def bytes_tokenizer(*special: str) -> PreTrainedTokenizerFast:
    """One byte, one token; and these as tokens of their own."""
    alphabet = {byte: number for number, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(alphabet, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<bos>", eos_token="<eos>", extra_special_tokens=list(special)
    )


def tokenizer_of(name: str, tool_format: str | None = None) -> PreTrainedTokenizerFast:
    text = read_template(name, tool_format)
    header = read_header(text)
    tokenizer = bytes_tokenizer(*dict.fromkeys([*header.tokens, *(end for end in header.ends if end != "eos")]))
    tokenizer.chat_template = text
    return tokenizer


def shown(name: str, messages: list[dict[str, Any]], tools: Any = None, **switches: Any) -> str:
    tokenizer = tokenizer_of(name)
    ids, spans = ChatFormat(tokenizer, switches).encode(messages, tools)
    text, place = "", 0
    for span in spans:
        text += tokenizer.decode(ids[place : span.start])
        text += f"»{tokenizer.decode(ids[span.start : span.stop])}{'$' if span.open_end else ''}«"
        place = span.stop
    return (text + tokenizer.decode(ids[place:])).replace("\n", "⏎")


def test_every_template_is_expected() -> None:
    aliases = {name for name in template_names() if name not in EXPECTED}
    assert {read_template(name) for name in aliases} <= {read_template(name) for name in EXPECTED}
    asked = "qwen qwen3 llama2 llama3 mistral gemma gemma2 glm4 glm4_5 chatglm3 baichuan baichuan2 internlm2 deepseek"
    more = "deepseek3 deepseek_r1 yi phi3 minicpm aquila default seed_oss gpt_oss hunyuan ling longcat minimax step gpt"
    assert set(f"{asked} {more} alpaca empty".split()) <= set(template_names())


@pytest.mark.parametrize("name", EXPECTED)
def test_turns(name: str) -> None:
    assert shown(name, TURNS) == EXPECTED[name]["turns"]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_call_and_its_result(name: str) -> None:
    assert shown(name, CALLS) == EXPECTED[name]["calls"]


@pytest.mark.parametrize("name", [name for name in EXPECTED if "tools" in EXPECTED[name]])
def test_the_description_of_tools(name: str) -> None:
    assert shown(name, [SYSTEM, *CALLS], [TOOL]).startswith(EXPECTED[name]["tools"])


@pytest.mark.parametrize("thinking", SWITCHES)
@pytest.mark.parametrize("name", THINKERS)
def test_thoughts(name: str, thinking: str) -> None:
    wanted = EXPECTED[name]
    text = shown(name, THOUGHTS, **SWITCHES[thinking])
    assert text.endswith(wanted["no thought" if thinking == "false" else "thought"])
    assert ("r1" in text) == (name == "seed_oss" and thinking != "false")
    without = [{k: v for k, v in message.items() if k != "reasoning_content"} for message in THOUGHTS]
    last = {"true": "empty thought", "false": "no thought", "null": "nothing"}[thinking]
    assert shown(name, without, **SWITCHES[thinking]).endswith(wanted.get(last, wanted["no thought"]))


@pytest.mark.parametrize("name", [name for name in THINKERS if name not in ("gpt_oss", "seed_oss")])
def test_a_thought_within_the_text_is_a_thought(name: str) -> None:
    inside = [user("q1"), assistant("a1"), user("q2"), assistant("<think>\nr2\n</think>\n\na2")]
    assert shown(name, inside) == shown(name, THOUGHTS)


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_learnt_begins_where_the_generation_prompt_ends(name: str) -> None:
    """Where a thought is always asked for, in the mode with thoughts; the text then is that of the model's use."""
    tokenizer = tokenizer_of(name)
    messages = THOUGHTS if name in THINKERS else TURNS
    ids, spans = ChatFormat(tokenizer, {"enable_thinking": True}).encode(messages)
    prompt = tokenizer.apply_chat_template(
        messages[:-1], tokenize=False, add_generation_prompt=True, enable_thinking=True
    )
    assert tokenizer.decode(ids[: spans[-1].start]) == prompt


@pytest.mark.parametrize("name", EXPECTED)
def test_an_end_is_learnt_once_a_turn_and_generation_stops_there(name: str) -> None:
    tokenizer = tokenizer_of(name)
    ends = {tokenizer.eos_token if end == "eos" else end for end in read_header(str(tokenizer.chat_template)).ends}
    ids, spans = ChatFormat(tokenizer).encode(TURNS)
    assert len(spans) == 2
    for span in spans:
        last = tokenizer.eos_token_id if span.open_end else ids[span.stop - 1]
        assert tokenizer.decode([last]) in ends
        assert ids[span.start : span.stop].count(last) == (0 if span.open_end else 1)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_second_bos_does_not_come(name: str) -> None:
    ids, _ = ChatFormat(tokenizer_of(name)).encode(TURNS)
    assert ids.count(tokenizer_of(name).bos_token_id) <= (2 if name == "llama2" else 1)


@pytest.mark.parametrize("name", ["qwen", "llama3", "gemma", "ling2"])
@pytest.mark.parametrize("tool_format", tool_formats())
def test_any_tool_format_goes_with_any_template(name: str, tool_format: str) -> None:
    tokenizer = tokenizer_of(name, tool_format)
    ids, spans = ChatFormat(tokenizer).encode(CALLS, [TOOL])
    call = tokenizer.decode(ids[spans[0].start : spans[0].stop])
    assert "add" in call and "x y" in call
    assert "Adds." in tokenizer.decode(ids[: spans[0].start])


def test_a_template_that_calls_one_tool_refuses_two() -> None:
    two = [user("q"), {**assistant(""), "tool_calls": [CALL, CALL]}]
    for name in ("llama3", "glm4", "gpt_oss"):
        with pytest.raises(BadRow, match="one tool at a time"):
            ChatFormat(tokenizer_of(name)).encode(two)


def test_a_developer_is_the_system() -> None:
    assert shown("qwen", [{"role": "developer", "content": "S"}, *TURNS[1:]]) == EXPECTED["qwen"]["turns"]


def test_parts_for_which_there_is_no_place_are_refused() -> None:
    with pytest.raises(BadRow, match="has reasoning_content, for which the chat template has no place"):
        ChatFormat(tokenizer_of("llama3")).encode(THOUGHTS)
    tokenizer = bytes_tokenizer("<end>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    with pytest.raises(BadRow, match="has tool_calls, for which"):
        ChatFormat(tokenizer).encode(CALLS)
    with pytest.raises(BadRow, match="has tools, for which"):
        ChatFormat(tokenizer).encode(TURNS, [TOOL])


def test_an_answer_that_holds_its_end_token_is_refused() -> None:
    with pytest.raises(BadRow, match=r"holds '<\|im_end\|>', the token that ends it"):
        ChatFormat(tokenizer_of("qwen")).encode([user("q"), assistant("a <|im_end|> b")])


@pytest.mark.parametrize("marks", [True, False])
def test_special_tokens_that_a_text_spells_can_be_text(tmp_path: Path, build: Build, marks: bool) -> None:
    """The template's own stay what they are: one start and one end a turn."""
    tokenizer = tokenizer_of("yi")
    if not marks:
        tokenizer.chat_template = (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
    tokenizer.save_pretrained(tmp_path / "yi")
    row = chat("q <|im_end|> <|im_start|>", "a <|im_end|> b<eos>")
    settings = {"tokenizer": tmp_path / "yi", "cutoff_len": 512}
    with pytest.raises(UserError, match="the token that ends it"):
        build([row], **settings)
    sample = build([row], model={"split_special_tokens": True}, **settings).train[0]
    ids = sample.input_ids.tolist()
    start, end = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))
    assert (ids.count(start), ids.count(end), ids.count(tokenizer.eos_token_id)) == (2, 2, 0)
    learnt = sample.targets[sample.targets != IGNORED].tolist()
    assert tokenizer.decode(learnt) == "a <|im_end|> b<eos><|im_end|>" and len(learnt) == len("a <|im_end|> b<eos>") + 1
    assert tokenizer.decode(ids).startswith("<|im_start|>user\nq <|im_end|> <|im_start|><|im_end|>\n")


def test_a_thought_by_any_of_its_names_is_no_lost_part() -> None:
    tokenizer = bytes_tokenizer("<end>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.thinking or '' }}|{{ m.content }}<end>"
        "{% endgeneration %}{% endfor %}"
    )
    said = [{**assistant("a"), "reasoning_content": "r"}]
    ids, _ = ChatFormat(tokenizer).encode(said)
    assert tokenizer.decode(ids) == "assistant:r|a<end>"


def test_a_template_for_tools_is_taken_where_there_are_tools() -> None:
    tokenizer = bytes_tokenizer("<end>")
    turn = "{% generation %}{{ m.content }}{% if m.tool_calls %}CALL{% endif %}<end>{% endgeneration %}"
    plain = "{% for m in messages %}{{ m.role }}:" + turn + "{% endfor %}"
    tokenizer.chat_template = {"default": plain.replace("tool_calls", "x"), "tool_use": "{{ tools | length }}" + plain}
    said = [{**assistant(""), "tool_calls": [CALL]}]
    ids, _ = ChatFormat(tokenizer).encode(said, [TOOL])
    assert tokenizer.decode(ids) == "1assistant:CALL<end>"


def test_a_private_character_stays_in_the_text() -> None:
    ids, _ = ChatFormat(tokenizer_of("yi")).encode([user("q"), assistant("a\ue002b")])
    assert "a\ue002b" in tokenizer_of("yi").decode(ids)


def test_a_cut_at_any_place_teaches_no_end(tmp_path: Path, build: Build) -> None:
    tokenizer = tokenizer_of("qwen3")
    tokenizer.save_pretrained(tmp_path / "qwen3")
    row = {"messages": THOUGHTS}
    whole = build([row], tokenizer=tmp_path / "qwen3", cutoff_len=512).train[0]
    first = int((whole.targets != IGNORED).argmax())
    for cutoff in range(first + 2, len(whole.input_ids)):
        cut = build([row], tokenizer=tmp_path / "qwen3", cutoff_len=cutoff).train[0]
        assert cut.input_ids.tolist() == whole.input_ids[:cutoff].tolist()
        assert cut.targets.tolist() == [*whole.targets[: cutoff - 1].tolist(), IGNORED]


def test_open_ends_learn_the_end_token_where_another_stands(tmp_path: Path, build: Build) -> None:
    tokenizer = tokenizer_of("ling")
    tokenizer.save_pretrained(tmp_path / "ling")
    sample = build([chat("q1", "a1", "q2", "a2")], tokenizer=tmp_path / "ling", cutoff_len=512).train[0]
    role, eos = tokenizer.convert_tokens_to_ids("<role>"), tokenizer.eos_token_id
    learnt = sample.targets != IGNORED
    assert tokenizer.decode(sample.targets[learnt]) == "a1<eos>a2<eos>"
    assert sample.input_ids[1:][sample.targets[:-1] == eos].tolist() == [role, eos]


def test_a_named_template_takes_the_place_of_the_tokenizers_own(tmp_path: Path, build: Build) -> None:
    bytes_tokenizer("<|im_start|>", "<|im_end|>").save_pretrained(tmp_path / "plain")
    made = build([chat("q", "a")], tokenizer=tmp_path / "plain", named="yi", cutoff_len=512)
    assert AutoTokenizer.from_pretrained(tmp_path / "plain").decode(made.train[0].input_ids) == (
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    )


def test_a_tokenizer_that_lacks_the_tokens_is_refused_with_them_named(tmp_path: Path, build: Build) -> None:
    bytes_tokenizer("<|im_start|>").save_pretrained(tmp_path / "plain")
    with pytest.raises(
        UserError, match=r"data\.template is qwen, .*: <\|im_end\|> \(10 tokens\)\. .*add_special_tokens"
    ):
        build([chat("q", "a")], tokenizer=tmp_path / "plain", named="qwen")
    # One word, one token: what it does not know is one token too, the unknown one.
    with pytest.raises(UserError, match=r"<\|im_start\|> \(1 tokens\)"):
        build([chat("w1", "w2")], tokenizer=make_tokenizer(tmp_path / "words"), named="qwen")
    made = build(
        [chat("q", "a")],
        tokenizer=tmp_path / "plain",
        named="qwen",
        cutoff_len=512,
        model={"add_special_tokens": ["<|im_end|>"]},
    )
    assert len(made.train) == 1


def test_a_file_of_ones_own_is_a_template(tmp_path: Path, build: Build) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{#- ends: eos\n-#}\n{%- for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
    bytes_tokenizer().save_pretrained(tmp_path / "plain")
    made = build([chat("q", "a")], tokenizer=tmp_path / "plain", named=str(file))
    assert bytes_tokenizer().decode(made.train[0].input_ids) == "q<eos>a<eos>"
    with pytest.raises(UserError, match="writes tools in a way of its own"):
        build([chat("q", "a")], tokenizer=tmp_path / "plain", named=str(file), tool_format="qwen")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"named": "qwen33"}, "data.template is 'qwen33'; did you mean qwen3?"),
        ({"named": "zzz"}, "data.template is 'zzz'; known are alpaca, "),
        ({"named": "qwen", "tool_format": "qwn"}, "data.tool_format is 'qwn'; did you mean qwen?"),
        ({"named": "/nowhere/x.jinja"}, "data.template: /nowhere/x.jinja cannot be read"),
    ],
)
def test_unknown_names(build: Build, settings: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build([chat("w1", "w2")], **settings)
    assert message in str(caught.value)
