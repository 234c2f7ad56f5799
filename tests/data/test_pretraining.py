"""Documents -> stream -> blocks."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from llmtrain.data.pretraining import BlockDataset
from llmtrain.data.sample import IGNORED
from llmtrain.errors import UserError
from tests.data.conftest import BOS_FIRST, Build, edit_tokenizer, read
from tests.tiny import WORDS, make_tokenizer


class InMemory:
    """Documents of given tokens."""

    def __init__(self, *rows: list[int]) -> None:
        self._rows = rows
        self.lengths = np.array([len(row) for row in rows], np.int64)

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        return np.array(self._rows[document][start:stop], np.int32)

    def fingerprint(self) -> str:
        return repr(self._rows)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9, 10, 64])
def test_every_token_but_the_first_is_predicted_once_by_the_one_before(length: int) -> None:
    stream = list(range(100, 110))
    blocks = BlockDataset(InMemory([100, 101, 102, 103], [104, 105], [], [106, 107, 108], [109]), length)
    pairs = []
    for index in range(len(blocks)):
        sample = blocks[index]
        assert len(sample.input_ids) == len(sample.targets) <= length
        assert sample.input_ids.tolist() == stream[index * length : index * length + len(sample.input_ids)]
        pairs += [(int(i), int(t)) for i, t in zip(sample.input_ids, sample.targets, strict=True) if t != IGNORED]
    assert pairs == list(pairwise(stream))


def test_blocks_survive_the_way_to_a_worker() -> None:
    blocks = BlockDataset(InMemory([1, 2, 3], [4, 5]), 2)
    copy = pickle.loads(pickle.dumps(blocks))
    assert np.array_equal(copy[1].targets, blocks[1].targets)
    assert copy.fingerprint() == blocks.fingerprint()


def test_the_fingerprint_is_of_contents_order_and_blocks() -> None:
    base = BlockDataset(InMemory([1, 2], [3, 4]), 2).fingerprint()
    assert BlockDataset(InMemory([1, 2], [3, 4]), 2).fingerprint() == base
    others = [InMemory([3, 4], [1, 2]), InMemory([1, 2], [3, 5]), InMemory([1, 2], [3])]
    assert base not in {BlockDataset(other, 2).fingerprint() for other in others}
    assert BlockDataset(InMemory([1, 2], [3, 4]), 4).fingerprint() != base
    assert BlockDataset(InMemory([1, 2], [3, 4]), 2, chosen=np.array([1, 0])).fingerprint() != base
    assert BlockDataset(InMemory([1, 2], [3, 4]), 2, isolate=True).fingerprint() != base


def test_isolated_documents_are_told_by_their_lengths_and_do_not_predict_each_other() -> None:
    # The stream a b c | d e | f g h i in blocks of 4: a b c d, e f g h, i.
    blocks = BlockDataset(InMemory([1, 2, 3], [4, 5], [6, 7, 8, 9]), 4, isolate=True)
    first, second = blocks[0], blocks[1]
    assert (first.input_ids.tolist(), first.documents) == ([1, 2, 3, 4], (3, 1))
    assert first.targets.tolist() == [2, 3, IGNORED, 5]
    assert (second.input_ids.tolist(), second.documents) == ([5, 6, 7, 8], (1, 3))
    assert second.targets.tolist() == [IGNORED, 7, 8, 9]


def test_each_document_ends_with_one_end_token(build: Build) -> None:
    rows = [{"text": "w1 w2"}, {"text": "w3 </s>"}, {"text": "w4"}]
    made = build(rows, "pt", cutoff_len=16)
    assert read(made.train[0].input_ids).split()[:8] == ["w1", "w2", "</s>", "w3", "</s>", "w4", "</s>"]
    assert "3 documents, 7 tokens, 1 blocks of 16" in made.summary[0][1]
    assert "</s>" not in read(build(rows[:1], "pt", cutoff_len=16, append_eod=False).train[0].input_ids)


@pytest.mark.parametrize("bos", [False, True])
def test_bos_comes_from_the_post_processor_alone(build: Build, tmp_path: Path, bos: bool) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer")
    if bos:
        edit_tokenizer(folder, post_processor=BOS_FIRST)
    ids = build([{"text": "w1"}, {"text": "w2"}], "pt", tokenizer=folder, cutoff_len=16).train[0].input_ids.tolist()
    assert ids.count(WORDS.index("<s>")) == (2 if bos else 0)


def test_an_end_token_that_is_padding_too_is_learned(build: Build, tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer", pad="</s>")
    train = build([{"text": "w1"}, {"text": "w2"}], "pt", tokenizer=folder, cutoff_len=16).train
    assert [t for t in train[0].targets.tolist() if t != IGNORED].count(WORDS.index("</s>")) == 2


def test_chinese_text_survives(build: Build, tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer")
    core = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    core["model"]["vocab"]["你好"] = core["model"]["vocab"].pop("w1")
    edit_tokenizer(folder, model=core["model"])
    source = tmp_path / "文本.jsonl"
    source.write_text('{"text": "你好 w2"}\n', encoding="utf-8")
    train = build(stage="pt", tokenizer=folder, source=str(source), cutoff_len=8).train
    assert train[0].input_ids.tolist()[:2] == [WORDS.index("w1"), WORDS.index("w2")]


def test_too_little_text_is_refused(build: Build) -> None:
    with pytest.raises(UserError, match="nothing to predict"):
        build([{"text": "w1"}], "pt", append_eod=False)


def test_an_empty_document_leaves_no_end_token_and_is_counted(build: Build) -> None:
    made = build([{"text": ""}, {"text": "w1 w2"}, {"text": ""}], "pt", cutoff_len=8)
    assert read(made.train[0].targets).split()[:2] == ["w2", "</s>"]
    assert made.summary[0][1].startswith("1 documents (2 empty left out), 3 tokens")


@pytest.mark.parametrize("text", [None, 5])
def test_a_row_that_is_no_text_is_named(build: Build, text: object) -> None:
    with pytest.raises(UserError, match=r"(?s)data\.dataset: 1 of 2 rows.*rows\.jsonl:2: its text is "):
        build([{"text": "w1"}, {"text": text}], "pt")
