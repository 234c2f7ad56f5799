"""`llmtrain preprocess`: the pairs hold what the run would have made of the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from llmtrain import cli
from llmtrain.data.indexed import IndexedStore
from tests.data.conftest import Build, chat, read
from tests.tiny import WORDS, make_tokenizer, write_jsonl

TEXTS = ["w1 w2", "w3", "", "w4 w5 w6"]


def preprocess(tmp_path: Path, rows: list[dict[str, object]], *words: str) -> Path:
    source = write_jsonl(tmp_path / "source.jsonl", rows)
    tokenizer = make_tokenizer(tmp_path / "words")
    prefix = tmp_path / "out" / "set"
    given = ["--input", str(source), "--output-prefix", str(prefix), "--tokenizer-name-or-path", str(tokenizer)]
    assert cli.main(["preprocess", *given, *words]) == 0
    return prefix


def texts(prefix: str) -> list[str]:
    store = IndexedStore(prefix)
    return [read(store.read(i, 0, int(n))) for i, n in enumerate(store.lengths)]


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("eod", [False, True])
def test_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str], eod: bool, workers: str) -> None:
    words = ["--workers", workers, "--log-interval", "2", *(["--append-eod"] if eod else [])]
    prefix = preprocess(tmp_path, [{"text": text} for text in TEXTS], *words)
    end = " </s>" if eod else ""
    assert texts(f"{prefix}_text_document") == [text + end for text in TEXTS if text]
    assert IndexedStore(f"{prefix}_text_document").dtype == "uint16"
    said = capsys.readouterr().out
    assert "4 rows, " in said and f"3 documents, {9 if eod else 6} tokens" in said and "1 empty ones left out" in said


def test_each_key_is_a_pair(tmp_path: Path) -> None:
    prefix = preprocess(tmp_path, [{"a": "w1", "b": "w2 w3"}], "--json-keys", "a", "b")
    assert texts(f"{prefix}_a_document") == ["w1"]
    assert texts(f"{prefix}_b_document") == ["w2 w3"]


def test_a_run_over_the_pair_is_a_run_over_the_texts(tmp_path: Path, build: Build) -> None:
    rows: list[dict[str, object]] = [{"text": text} for text in TEXTS]
    pair = build(stage="pt", source=f"{preprocess(tmp_path, rows, '--append-eod')}_text_document", cutoff_len=4)
    direct = build(stage="pt", source=str(tmp_path / "source.jsonl"), cutoff_len=4)
    assert len(pair.train) == len(direct.train)
    for i in range(len(pair.train)):
        assert pair.train[i].input_ids.tolist() == direct.train[i].input_ids.tolist()
        assert pair.train[i].targets.tolist() == direct.train[i].targets.tolist()


def test_conversations(tmp_path: Path, build: Build) -> None:
    rows = [chat("w1", "w2", "w3", "w4 w5"), chat("w6", "w7")]
    prefix = preprocess(tmp_path, rows, "--stage", "sft")
    pair = build(source=str(prefix), cutoff_len=32)
    direct = build(source=str(tmp_path / "source.jsonl"), cutoff_len=32)
    for i in range(2):
        assert pair.train[i].input_ids.tolist() == direct.train[i].input_ids.tolist()
        assert pair.train[i].targets.tolist() == direct.train[i].targets.tolist()
    mask = IndexedStore(f"{prefix}_packed_attention_mask_document")
    assert mask.lengths.tolist() == [len(direct.train[i].input_ids) for i in range(2)]
    assert set(mask.tokens.tolist()) == {1}


def test_ends_that_are_learnt_in_place_of_others(tmp_path: Path, build: Build) -> None:
    template = tmp_path / "open.jinja"
    template.write_text(
        "{#- ends: eos\nopen_ends: yes\n-#}\n{% for m in messages %}{% if m.role == 'user' %}<user> {{ m.content }} "
        "<bot> {% else %}{% generation %}{{ m.content }}{% endgeneration %} {% endif %}{% endfor %}"
    )
    prefix = preprocess(tmp_path, [chat("w1", "w2", "w3", "w4")], "--stage", "sft", "--template", str(template))
    assert read(build(source=str(prefix), cutoff_len=32).train[0].targets) == ". . w2 </s> . . w4 </s> ."


@pytest.mark.parametrize(("thinking", "text"), [("true", "yes w2"), ("false", "no w2"), ("null", "w2")])
def test_the_switch_for_thinking(tmp_path: Path, thinking: str, text: str) -> None:
    template = tmp_path / "t.jinja"
    template.write_text(
        "{#- ends: eos\n-#}\n{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{{ '' if enable_thinking is not defined else 'w8 ' if enable_thinking else 'w9 ' }}{{ m.content }} </s>"
        "{% endgeneration %}{% else %}{{ m.content }} {% endif %}{% endfor %}"
    )
    words = ["--stage", "sft", "--template", str(template), "--enable-thinking", thinking]
    prefix = preprocess(tmp_path, [chat("w1", "w2")], *words)
    expected = text.replace("yes", "w8").replace("no", "w9")
    assert texts(f"{prefix}_packed_input_ids_document") == [f"w1 {expected} </s>"]


def test_a_vocabulary_of_gpt2(tmp_path: Path) -> None:
    vocabulary = {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "<|endoftext|>": 4}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    source = write_jsonl(tmp_path / "source.jsonl", [{"text": "ab ba"}])
    words = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(tmp_path / "vocab.json")]
    prefix = tmp_path / "out"
    given = ["preprocess", "--input", str(source), "--output-prefix", str(prefix), "--append-eod", *words]
    assert cli.main(given) == 1
    assert cli.main([*given, "--merge-file", str(tmp_path / "merges.txt")]) == 0
    store = IndexedStore(f"{prefix}_text_document")
    assert store.read(0, 0, 6).tolist() == [2, 3, 1, 0, 4]


def test_rows_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path / "source.jsonl", [{"text": "w1"}, {"text": 5}])
    tokenizer = make_tokenizer(tmp_path / "words")
    given = ["--input", str(source), "--output-prefix", str(tmp_path / "out" / "set")]
    words = ["preprocess", *given, "--tokenizer-name-or-path", str(tokenizer)]
    assert cli.main(words) == 1
    assert "source.jsonl:2: its text is 5 and no text" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []
    assert cli.main([*words, "--on-bad-row", "skip"]) == 0
    assert "1 rows that cannot be used and 0 empty ones left out" in capsys.readouterr().out
    assert texts(str(tmp_path / "out" / "set_text_document")) == ["w1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--input", "/nowhere.jsonl"], "--input: /nowhere.jsonl does not exist"),
        (["--tokenizer-name-or-path", "/nowhere"], "--tokenizer-name-or-path: no tokenizer could be read"),
        (["--stage", "sft", "--template", "qwn"], "did you mean qwen?"),
    ],
)
def test_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: list[str], message: str) -> None:
    source = write_jsonl(tmp_path / "source.jsonl", [{"text": "w1"}])
    given = ["--input", str(source), "--output-prefix", str(tmp_path / "out" / "set")]
    tokenizer = str(make_tokenizer(tmp_path / "words"))
    assert cli.main(["preprocess", *given, "--tokenizer-name-or-path", tokenizer, *change]) == 1
    assert message in capsys.readouterr().err


def test_the_tokenizer_decides_about_the_type(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_tokenizer(tmp_path / "large"))
    tokenizer.add_tokens([f"x{i}" for i in range(65_500 - len(WORDS))])
    tokenizer.save_pretrained(tmp_path / "large")
    prefix = preprocess(tmp_path, [{"text": "w1"}], "--tokenizer-name-or-path", str(tmp_path / "large"))
    assert IndexedStore(f"{prefix}_text_document").dtype == "int32"
