"""Conversations: which tokens are learned, which rows are not used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from llmtrain.data.sample import IGNORED
from llmtrain.errors import UserError
from tests.data.conftest import BOS_FIRST, Build, assistant, chat, edit_tokenizer, read, user
from tests.tiny import TEMPLATE, WORDS, make_tokenizer

PLAIN = (
    "{% for m in messages %}{{ '<bot> ' if m['role'] == 'assistant' else '<user> ' }}{{ m['content'] }} <end> "
    "{% endfor %}{% if add_generation_prompt %}<bot> {% endif %}"
)
MARK_BEFORE_END = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<bot> {% generation %}{{ m['content'] }}"
    "{% endgeneration %} <end> {% else %}<user> {{ m['content'] }} <end> {% endif %}{% endfor %}"
)
CLOSED_BY_NEXT = (
    "{% for m in messages %}{% if not loop.first %}<end> {% endif %}"
    "{{ '<bot> ' if m['role'] == 'assistant' else '<user> ' }}{{ m['content'] }} {% endfor %}<end> "
    "{% if add_generation_prompt %}<bot> {% endif %}"
)
NEVER_CLOSED = PLAIN.replace("{{ m['content'] }} <end> ", "{{ m['content'] }} ")
THINKS_LAST = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<bot> {% set parts = m['content'].split(' w91 ') %}"
    "{% if loop.last %}w90 {{ parts[0] if parts | length > 1 else '' }} w91 {% endif %}{{ parts[-1] }} <end> "
    "{% else %}<user> {{ m['content'] }} <end> {% endif %}{% endfor %}{% if add_generation_prompt %}<bot> "
    "{% if enable_thinking is defined and not enable_thinking %}w90 w91 {% endif %}{% endif %}"
)
TWO_TURNS = chat("w1", "w2 w3", "w4", "w5")


def learned(sample: Any) -> str:
    return read(t for t in sample.targets if t != IGNORED)


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN, MARK_BEFORE_END, CLOSED_BY_NEXT])
def test_each_answer_is_learned_with_its_one_end_token(build: Build, template: str) -> None:
    sample = build([TWO_TURNS], template=template).train[0]
    assert read(sample.input_ids) == "<user> w1 <end> <bot> w2 w3 <end> <user> w4 <end> <bot> w5 <end>"
    assert read(sample.targets) == ". . . w2 w3 <end> . . . . w5 <end> ."


def test_an_earlier_turn_that_is_rewritten_is_learned_as_it_stands(build: Build) -> None:
    sample = build([chat("w1", "w7 w91 w2", "w4", "w8 w91 w5")], template=THINKS_LAST).train[0]
    assert learned(sample) == "w2 <end> w90 w8 w91 w5 <end>"


def test_what_the_generation_prompt_writes_is_not_learned(build: Build) -> None:
    sample = build([TWO_TURNS], template=THINKS_LAST, enable_thinking=False).train[0]
    assert learned(sample) == "w2 w3 <end> w5 <end>"
    assert learned(build([TWO_TURNS], template=THINKS_LAST, enable_thinking=None).train[0]).endswith("w90 w91 w5 <end>")


@pytest.mark.parametrize("answer", ["w2", "w2 <end> w3", "zzz", "w2 <end>"])
def test_a_turn_that_ends_with_a_word_is_refused_by_row(build: Build, answer: str) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl:1: .*learn to stop"):
        build([chat("w1", answer)], template=NEVER_CLOSED + "zzz")


@pytest.mark.parametrize("answer", ["w2", "w2 <end> w3", "w2 <end>"])
def test_after_the_last_answer_without_an_end_token_comes_that_of_the_tokenizer(build: Build, answer: str) -> None:
    sample = build([chat("w1", answer)], template=NEVER_CLOSED).train[0]
    assert learned(sample) == f"{answer} </s>"
    assert read(sample.input_ids).endswith(f"{answer} </s>")


def test_a_turn_that_the_next_ones_token_ends_learns_to_stop_there(build: Build) -> None:
    assert learned(build([TWO_TURNS], template=NEVER_CLOSED).train[0]) == "w2 w3 <user> w5 </s>"


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN])
def test_an_answer_that_holds_its_end_token_is_refused_by_row(build: Build, template: str) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl:1: an answer holds '<end>', the token that ends it"):
        build([chat("w1", "w2 <end> w3")], template=template)


def test_a_template_that_hides_the_answer_is_refused_by_row(build: Build) -> None:
    template = PLAIN.replace("{{ m['content'] }}", "{{ m['content'] | length }}")
    with pytest.raises(UserError, match=r"rows\.jsonl:1: .*does not show where message 2 ends"):
        build([chat("w1", "w2")], template=template)


def test_an_answer_whose_first_token_reaches_into_its_prompt_is_refused_by_row(build: Build) -> None:
    template = PLAIN.replace("'<bot> '", "'<bot> w8'").replace("%}<bot> {%", "%}<bot> w8{%")
    with pytest.raises(UserError, match=r"rows\.jsonl:1: no token borders the answer in message 2"):
        build([chat("w1", "w2")], template=template)


def test_a_template_that_refuses_a_conversation_is_no_stack_trace(build: Build) -> None:
    template = "{% if messages | length > 2 %}{{ raise_exception('one turn only') }}{% endif %}" + PLAIN
    with pytest.raises(UserError, match=r"rows\.jsonl:2: .*one turn only"):
        build([chat("w1", "w2"), TWO_TURNS], template=template)


def test_a_template_without_generation_prompt_leaves_the_header_out(build: Build) -> None:
    sample = build([TWO_TURNS], template=PLAIN.partition("{% if add_generation_prompt")[0]).train[0]
    assert learned(sample) == "w2 w3 <end> w5 <end>"


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN])
def test_history_can_be_left_out(build: Build, template: str) -> None:
    sample = build([TWO_TURNS], template=template, mask_history=True).train[0]
    assert read(sample.targets) == ". . . . . . . . . . w5 <end> ."


def test_the_prompt_can_be_learned_too(build: Build) -> None:
    sample = build([TWO_TURNS], train_on_prompt=True).train[0]
    assert read(sample.targets) == "w1 <end> <bot> w2 w3 <end> <user> w4 <end> <bot> w5 <end> ."


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN])
def test_a_cut_answer_keeps_its_tokens_and_is_taught_no_end(build: Build, template: str) -> None:
    # Six tokens of prompt (<user> w1 w1 w1 <end> <bot>), ten of the answer, the end.
    row = chat("w1 w1 w1", " ".join(["w2"] * 10))
    whole = build([row], template=template, cutoff_len=64).train[0]
    assert learned(whole).split() == ["w2"] * 10 + ["<end>"]
    made = build([row], template=template, cutoff_len=12)
    assert learned(made.train[0]).split() == ["w2"] * 6
    assert len(made.train[0].input_ids) <= 12
    assert any("1 conversations cut at 12" in line for _, line in made.summary)


def test_rows_without_a_learned_token_are_dropped_and_counted(build: Build) -> None:
    long = chat(" ".join(["w1"] * 30), "w2")
    unanswered = {"messages": [user("w1")]}
    made = build([chat("w1", "w2"), long, chat("w1", "w3"), unanswered, chat("w1", "w4")], cutoff_len=16)
    assert [learned(made.train[i]) for i in range(len(made.train))] == ["w2 <end>", "w3 <end>", "w4 <end>"]
    assert any("2 of 5 conversations left out" in line for _, line in made.summary)
    with pytest.raises(UserError, match="2 of 2 conversations have no supervised token"):
        build([long, unanswered], cutoff_len=16)


def test_one_learned_token_keeps_a_row(build: Build) -> None:
    rows = [chat("w1", "w2"), chat("w1 w1", "w2")]  # the answer is token 5 and token 6
    made = build(rows, cutoff_len=5)
    assert [learned(made.train[i]) for i in range(len(made.train))] == ["w2"]


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN])
def test_an_end_token_that_is_padding_too_is_learned(build: Build, tmp_path: Path, template: str) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer", pad="<end>", eos="<end>", template=template)
    train = build([TWO_TURNS, chat("w1", "w2")], tokenizer=folder).train
    assert [learned(train[i]).split().count("<end>") for i in range(2)] == [2, 1]


@pytest.mark.parametrize("post_processor", [False, True])
@pytest.mark.parametrize("in_template", [False, True])
@pytest.mark.parametrize("template", [TEMPLATE, PLAIN])
def test_bos_comes_from_the_template_alone(
    build: Build, tmp_path: Path, template: str, in_template: bool, post_processor: bool
) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer", template=("<s> " if in_template else "") + template)
    if post_processor:
        edit_tokenizer(folder, post_processor=BOS_FIRST)
    ids = build([TWO_TURNS], tokenizer=folder).train[0].input_ids.tolist()
    assert ids.count(WORDS.index("<s>")) == int(in_template)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert ids == tokenizer.apply_chat_template(TWO_TURNS["messages"], return_dict=False)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty"),
        ("w1", "no list"),
        ([{"content": "w1"}], "message 1 has no role"),
        ([user("w1"), {"role": "assistant"}], "message 2 has no text"),
        ([user("w1"), {"role": "assistant", "content": 5}], "message 2 has no text"),
        ([user("w1"), {"role": "bot", "content": "w2"}], "unknown role 'bot'"),
    ],
)
def test_a_malformed_row_is_named_with_its_reason(build: Build, messages: Any, reason: str) -> None:
    with pytest.raises(UserError, match=rf"(?s)1 of 2 rows.*rows\.jsonl:2: .*{reason}"):
        build([chat("w1", "w2"), {"messages": messages}])


def test_the_first_three_kinds_of_malformed_rows_are_shown_and_all_are_counted(build: Build) -> None:
    bad: list[Any] = [[], "w1", [{"content": "w1"}], [{"role": "bot", "content": "w1"}], [], [{"content": "w2"}]]
    with pytest.raises(UserError) as caught:
        build([chat("w1", "w2"), *({"messages": messages} for messages in bad)])
    first, *lines = str(caught.value).splitlines()
    assert "6 of 7 rows of rows cannot be used" in first
    assert [line.partition("rows.jsonl:")[2].partition(": ")[0] for line in lines[:3]] == ["2", "4", "5"]
    assert "messages is empty or no list (3 such rows)" in lines[0]
    assert lines[3:] == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_keep_their_numbers_where_some_are_held_out(build: Build, seed: int) -> None:
    rows = [chat("w1", "w2") for _ in range(9)] + [{"messages": [{"role": "bot", "content": "w1"}]}]
    with pytest.raises(UserError, match=r"rows\.jsonl:10: "):
        build(rows, val_size=4, seed=seed)
    template = "{% if messages | length > 2 %}{{ raise_exception('no') }}{% endif %}" + PLAIN
    with pytest.raises(UserError, match=r"rows\.jsonl:10: "):
        build([*rows[:9], TWO_TURNS], val_size=4, seed=seed, template=template)


def test_extra_keys_of_one_row_do_not_reach_the_template_of_another(build: Build) -> None:
    template = PLAIN.replace("{{ m['content'] }}", "{% if m.name is defined %}w9 {% endif %}{{ m['content'] }}")
    rows = [{"messages": [{**user("w1"), "name": "x"}, assistant("w2")]}, chat("w1", "w2")]
    train = build(rows, template=template).train
    assert [read(train[i].input_ids).count("w9") for i in range(2)] == [1, 0]


def test_a_tokenizer_without_template_is_refused(build: Build) -> None:
    with pytest.raises(UserError, match="no chat template"):
        build([TWO_TURNS], template=None)
