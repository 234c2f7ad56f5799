"""Megatron's files and its GPT dataset: read, written, refused; samples, splits and blends by their definition."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmtrain.data.gpt import blend, build_gpt_index, exhaustive_blend, plan_passes, split_documents
from llmtrain.data.indexed import IndexedStore, IndexedWriter, InstructionStore
from llmtrain.data.sample import IGNORED
from llmtrain.errors import UserError
from tests.data.conftest import Build, read
from tests.tiny import WORDS, write_jsonl

DOCUMENTS = [[1, 2, 3], [4], [5, 6, 7, 8]]
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write(prefix: Path, documents: list[list[int]] = DOCUMENTS, dtype: str = "int32") -> str:
    with IndexedWriter(str(prefix), dtype) as writer:
        for document in documents:
            writer.add(np.array(document), np.array([len(document)]))
    return str(prefix)


def contents(store: IndexedStore) -> list[list[int]]:
    return [store.read(i, 0, int(n)).tolist() for i, n in enumerate(store.lengths)]


@pytest.mark.parametrize("dtype", CODES)
def test_the_header_decides_about_the_type(tmp_path: Path, dtype: str) -> None:
    """The file is laid out by hand, as the format says."""
    sizes = np.array([3, 1, 4], np.int32)
    width = np.dtype(dtype).itemsize
    (tmp_path / "a.bin").write_bytes(np.arange(1, 9).astype(dtype).tobytes())
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[dtype], 3, 4)
    index = head + sizes.tobytes() + np.array([0, 3, 4], np.int64).__mul__(width).tobytes()
    index += np.arange(4, dtype=np.int64).tobytes()
    (tmp_path / "a.idx").write_bytes(index)
    store = IndexedStore(str(tmp_path / "a"))
    assert contents(store) == DOCUMENTS
    assert write(tmp_path / "b", dtype=dtype)
    for suffix in (".idx", ".bin"):
        assert (tmp_path / f"b{suffix}").read_bytes() == (tmp_path / f"a{suffix}").read_bytes()


def spoil(file: Path, place: int, values: bytes) -> None:
    found = bytearray(file.read_bytes())
    found[place : place + len(values)] = values
    file.write_bytes(found)


@pytest.mark.parametrize(
    ("suffix", "change", "message"),
    [
        ("idx", lambda f: spoil(f, 0, b"XX"), "does not begin like an index of Megatron's"),
        ("idx", lambda f: f.write_bytes(b""), "does not begin like an index"),
        ("idx", lambda f: f.write_bytes(f.read_bytes()[:20]), "is cut short: it has 20 bytes"),
        (
            "idx",
            lambda f: f.write_bytes(f.read_bytes()[:-33]),
            "is cut short: it has 69 bytes, and 3 sequences need 102",
        ),
        ("idx", lambda f: spoil(f, 9, b"\x02"), "is of version 2"),
        ("idx", lambda f: spoil(f, 17, b"\x06"), "the tokens are float64; they must be whole numbers"),
        ("idx", lambda f: spoil(f, 17, b"\x07"), "the tokens are float32"),
        ("idx", lambda f: spoil(f, 17, b"\x63"), "of the unknown code 99"),
        ("idx", lambda f: spoil(f, 34, struct.pack("<i", -1)), "is damaged"),
        ("bin", lambda f: f.write_bytes(f.read_bytes()[:-1]), "is cut short: it has 31 bytes, and a.idx needs 32"),
        ("bin", lambda f: f.unlink(), "does not exist"),
    ],
)
def test_files_that_are_no_pair(tmp_path: Path, suffix: str, change: Any, message: str) -> None:
    prefix = write(tmp_path / "a")
    change(tmp_path / f"a.{suffix}")
    with pytest.raises(UserError) as caught:
        IndexedStore(prefix)
    assert message in str(caught.value) and f"a.{suffix}" in str(caught.value)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), IndexedWriter(str(tmp_path / "a"), "int32") as writer:
        writer.add(np.array([1, 2]), np.array([2]))
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []


def brute_force_samples(lengths: np.ndarray, order: np.ndarray, length: int) -> list[list[tuple[int, int]]]:
    """Sample k by its definition: tokens k L to k L + L of the documents end to end, as (document, token)."""
    stream = [(int(document), token) for document in order for token in range(lengths[document])]
    return [stream[k * length : k * length + length + 1] for k in range((len(stream) - 1) // length)]


@pytest.mark.parametrize("seed", range(20))
def test_samples_are_the_stream_of_the_documents_in_pieces(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 9, 30).astype(np.int32)
    documents = np.flatnonzero(random.random(30) < 0.7)
    length, wanted = int(random.integers(2, 9)), int(random.integers(1, 60))
    passes = plan_passes(int(lengths[documents].sum()), length, wanted)
    index = build_gpt_index(lengths, documents, length, passes, seed)
    assert sorted(index.documents.tolist()) == sorted(documents.tolist() * passes.epochs)
    expected = brute_force_samples(lengths, index.documents, length)
    assert len(index.samples) == len(expected) + 1
    assert wanted <= len(expected)
    for (place, token), sample in zip(index.samples.tolist(), expected, strict=False):
        if (place, token) != (0, 0):  # where the first documents are empty
            assert (index.documents[place], token) == sample[0]
    assert sorted(index.shuffle.tolist()) == list(range(len(expected)))


@pytest.mark.parametrize(
    ("samples", "epochs", "separate"),
    [(None, 1, False), (1, 1, False), (9, 1, False), (10, 2, True), (15, 2, True), (16, 2, False), (19, 2, False)],
)
def test_the_last_epoch_comes_last_where_less_than_four_fifths_of_it_are_wanted(
    samples: int | None, epochs: int, separate: bool
) -> None:
    """20 documents of 5 tokens, samples of 10: 9 of the first pass, 19 of two; int(0.8 * 9) = 7 is the border."""
    passes = plan_passes(100, 10, samples)
    assert (passes.epochs, passes.separate_last) == (epochs, separate)
    index = build_gpt_index(np.full(20, 5, np.int32), np.arange(20), 10, passes, 1)
    if separate:
        assert sorted(index.documents[:20].tolist()) == sorted(index.documents[20:].tolist()) == list(range(20))
        assert sorted(index.shuffle[:9].tolist()) == list(range(9))
    elif epochs == 2:
        assert sorted(index.documents[:20].tolist()) != list(range(20))


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("969,30,1", [969, 30, 1]),
        ("100,0,0", [1000, 0, 0]),
        ("8,2", [800, 200, 0]),
        ("1", [1000, 0, 0]),
        ("0.5,0.5", [500, 500, 0]),
    ],
)
def test_splits_are_by_the_documents_place(split: str, expected: list[int]) -> None:
    parts = split_documents(split, 1000)
    assert [len(part) for part in parts] == expected
    assert np.concatenate(parts).tolist() == list(range(1000))


def test_a_blend_is_never_a_whole_sample_behind() -> None:
    weights = np.array([0.1, 0.25, 0.65])
    datasets, numbers = blend(weights.tolist(), 500)
    for place in range(1, 501):
        counts = np.bincount(datasets[:place], minlength=3)
        assert (np.abs(counts - weights * place) <= 1.0 + 1e-9).all()
    for part in range(3):
        assert numbers[datasets == part].tolist() == list(range((datasets == part).sum()))


def test_an_exhaustive_blend_takes_each_sample_once() -> None:
    datasets, numbers = exhaustive_blend([3, 0, 7])
    assert sorted(zip(datasets.tolist(), numbers.tolist(), strict=True)) == [(0, i) for i in range(3)] + [
        (2, i) for i in range(7)
    ]


def corpus(path: Path, first: int, documents: int = 12) -> str:
    """Documents of five words, all different."""
    rows = [[first + 5 * i + k for k in range(5)] for i in range(documents)]
    return write(path, rows, "uint16")


def words_of(samples: Any, count: int) -> list[list[int]]:
    return [samples[i].input_ids.tolist() for i in range(count)]


def test_a_run_over_a_pair(tmp_path: Path, build: Build) -> None:
    prefix = corpus(tmp_path / "a", 7)
    made = build(stage="pt", source=prefix, data_manager_type="mg", cutoff_len=8, steps=10, batch=2)
    assert len(made.train) == 20 and made.whole_run
    # 60 tokens a pass: 7 samples of 8; 20 samples need three passes.
    assert any("12 documents, 60 tokens; 20 of 22 samples of 8, 3 passes" in line for _, line in made.summary)
    for i in range(20):
        sample = made.train[i]
        assert len(sample.input_ids) == 8
        assert sample.targets[:-1].tolist() == sample.input_ids[1:].tolist()
    again = build(stage="pt", source=prefix, data_manager_type="mg", cutoff_len=8, steps=10, batch=2)
    assert words_of(again.train, 20) == words_of(made.train, 20)
    assert again.train.fingerprint() == made.train.fingerprint()
    other = build(stage="pt", source=prefix, data_manager_type="mg", cutoff_len=8, steps=10, batch=2, seed=2)
    assert words_of(other.train, 20) != words_of(made.train, 20)
    assert other.train.fingerprint() != made.train.fingerprint()


def test_the_end_of_a_run_can_be_moved(tmp_path: Path, build: Build) -> None:
    prefix = corpus(tmp_path / "a", 7)
    short, long = (
        build(stage="pt", source=prefix, data_manager_type="mg", cutoff_len=8, steps=steps) for steps in (20, 22)
    )
    assert words_of(short.train, 20) == words_of(long.train, 20)
    assert short.train.fingerprint() == long.train.fingerprint()


@pytest.mark.parametrize("epochs", [1.0, 2.0, 2.5])
def test_a_run_by_passes(tmp_path: Path, build: Build, epochs: float) -> None:
    made = build(stage="pt", source=corpus(tmp_path / "a", 7), data_manager_type="mg", cutoff_len=8, epochs=epochs)
    assert len(made.train) == (epochs * 60 - 1) // 8


def test_documents_apart(tmp_path: Path, build: Build) -> None:
    prefix = corpus(tmp_path / "a", 7)
    made = build(stage="pt", source=prefix, data_manager_type="mg", cutoff_len=8, reset_attention_mask=True)
    for i in range(len(made.train)):
        sample = made.train[i]
        assert sum(sample.lengths) == 8
        borders = np.cumsum(sample.lengths)[:-1] - 1
        assert (sample.targets[borders] == IGNORED).all()
        for piece in np.split(sample.input_ids, borders + 1):
            assert len({(word - 7) // 5 for word in piece.tolist()}) == 1


def test_a_blend_of_pairs_follows_its_weights(tmp_path: Path, build: Build) -> None:
    first, second = corpus(tmp_path / "a", 7), corpus(tmp_path / "b", 67)
    source = f"0.3 {first} 0.7 {second}"
    made = build(stage="pt", source=source, data_manager_type="mg", cutoff_len=8, steps=100)
    kinds = [int(made.train[i].input_ids[0] >= 67) for i in range(100)]
    assert kinds == blend([0.3, 0.7], 100)[0].tolist()
    assert any("a 30.0% (30), b 70.0% (70) of 100 samples a run" in line for _, line in made.summary)


def test_a_dataset_of_weight_0_never_comes(tmp_path: Path, build: Build) -> None:
    first, second, third = corpus(tmp_path / "a", 7), corpus(tmp_path / "b", 67), corpus(tmp_path / "c", 7)
    source = f"1 {first} 0 {second} 3 {third}"
    made = build(stage="pt", source=source, data_manager_type="mg", cutoff_len=8, steps=60)
    assert all((made.train[i].input_ids < 67).all() for i in range(60))
    assert any("a 25.0% (15), c 75.0% (45) of 60 samples a run" in line for _, line in made.summary)
    with pytest.raises(UserError, match="all weights are 0"):
        build(stage="pt", source=f"0 {first} 0 {second}", data_manager_type="mg", cutoff_len=8, steps=6)


def test_a_count_is_no_weight(tmp_path: Path, build: Build) -> None:
    source = {"file_name": corpus(tmp_path / "a", 7), "num_samples": 5}
    with pytest.raises(UserError, match=r"a has num_samples; with data\.data_manager_type mg give it a weight"):
        build(stage="pt", source=source, data_manager_type="mg", cutoff_len=8)


def test_pairs_without_weights_are_all_taken_once_and_then_by_their_tokens(tmp_path: Path, build: Build) -> None:
    source = [corpus(tmp_path / "a", 7), corpus(tmp_path / "b", 67, 6)]
    once = build(stage="pt", source=source, data_manager_type="mg", cutoff_len=8)
    assert len(once.train) == 7 + 3
    more = build(stage="pt", source=source, data_manager_type="mg", cutoff_len=8, steps=30)
    kinds = [int(more.train[i].input_ids[0] >= 67) for i in range(30)]
    assert sum(kinds) == 10  # a third: 30 of 90 tokens


def test_the_shares_of_a_split(tmp_path: Path, build: Build) -> None:
    prefix = corpus(tmp_path / "a", 7, 20)
    made = build(stage="pt", source=prefix, data_manager_type="mg", cutoff_len=4, split="8,1,1")
    seen = {word for i in range(len(made.train)) for word in made.train[i].input_ids.tolist()}
    held = made.evaluation[""]
    held_words = {word for i in range(len(held)) for word in held[i].input_ids.tolist()}
    assert seen <= set(range(7, 7 + 80)) and held_words <= set(range(87, 97))
    assert any("2 documents kept for a test" in line for _, line in made.summary)


def test_texts_are_taken_too(tmp_path: Path, build: Build) -> None:
    rows = [{"text": " ".join(WORDS[7 + 5 * i + k] for k in range(5))} for i in range(12)]
    source = str(write_jsonl(tmp_path / "texts.jsonl", rows))
    made = build(stage="pt", source=source, data_manager_type="mg", cutoff_len=8, append_eod=False)
    pair = build(stage="pt", source=corpus(tmp_path / "a", 7), data_manager_type="mg", cutoff_len=8)
    assert words_of(made.train, len(made.train)) == words_of(pair.train, len(pair.train))


def test_a_pair_is_a_dataset_like_others(tmp_path: Path, build: Build) -> None:
    made = build(stage="pt", source=corpus(tmp_path / "a", 7, 3), cutoff_len=15)
    assert made.train[0].input_ids.tolist() == list(range(7, 22))
    assert any("3 documents, 15 tokens, 1 blocks" in line for _, line in made.summary)


@pytest.mark.parametrize("named", ["a", "a.bin", "a.idx", "", "*", "*.idx"])
def test_ways_to_name_a_pair(tmp_path: Path, build: Build, named: str) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir()
    corpus(folder / "a", 7, 3)
    made = build(stage="pt", source=str(folder / named), cutoff_len=15)
    assert made.train[0].input_ids.tolist() == list(range(7, 22))


def test_several_pairs_of_a_folder_are_datasets_of_their_own(tmp_path: Path, build: Build) -> None:
    folder = tmp_path / "pairs"
    for name, first in (("b", 22), ("a", 7)):
        corpus(folder / name, first, 3)
    made = build(stage="pt", source=str(folder), cutoff_len=15)
    assert [made.train[i].input_ids[0] for i in range(2)] == [7, 22]
    assert [line.split(":")[0] for _, line in made.summary[:2]] == ["a", "b"]


def test_a_share_of_nothing_is_named(tmp_path: Path, build: Build) -> None:
    pairs = [corpus(tmp_path / "a", 7), corpus(tmp_path / "b", 67)]
    with pytest.raises(UserError, match="a holds 0 tokens in 0 documents"):
        build(stage="pt", source=pairs, data_manager_type="mg", cutoff_len=8, split="0,1,0")


def test_tokens_in_plain_arrays(tmp_path: Path, build: Build) -> None:
    """</s> is 1; each one ends a document, and so does a file."""
    np.save(tmp_path / "0.npy", np.array([7, 8, 1, 9, 10], np.uint16))
    np.save(tmp_path / "1.npy", np.array([11, 1], np.int64))
    np.array([12, 13, 1], np.uint16).tofile(tmp_path / "2.bin")
    made = build(stage="pt", source=str(tmp_path / "*.npy"), cutoff_len=4, reset_attention_mask=True)
    assert [read(made.train[i].input_ids) for i in range(2)] == ["w0 w1 </s> w2", "w3 w4 </s>"]
    assert [made.train[i].documents for i in range(2)] == [(3, 1), (1, 2)]
    source = {"file_name": str(tmp_path / "2.bin"), "dtype": "uint16"}
    assert read(build(stage="pt", source=source, cutoff_len=4).train[0].input_ids) == "w5 w6 </s>"
    for bad, message in [
        (str(tmp_path / "2.bin"), "of a type that nothing tells"),
        ({"file_name": str(tmp_path / "2.bin"), "dtype": "int32"}, "6 bytes, which are no whole number of int32"),
    ]:
        with pytest.raises(UserError, match=message):
            build(stage="pt", source=bad, cutoff_len=4)
    np.save(tmp_path / "3.npy", np.array([1.5]))
    with pytest.raises(UserError, match=r"3\.npy holds float64 \[1\]"):
        build(stage="pt", source=str(tmp_path / "3.npy"), cutoff_len=4)
    with pytest.raises(UserError, match="it is for stage pt"):
        build(stage="sft", source=str(tmp_path / "0.npy"), cutoff_len=4)


def test_too_few_tokens_for_one_sample(tmp_path: Path, build: Build) -> None:
    with pytest.raises(UserError, match=r"data\.dataset: a holds 8 tokens in 3 documents, fewer than one sample of 8"):
        build(stage="pt", source=write(tmp_path / "a"), data_manager_type="mg", cutoff_len=8)


def test_conversations_as_pairs(tmp_path: Path, build: Build) -> None:
    """<user> w1 <end> <bot> w2 <end>, of which w2 <end> is learnt; then an end that is learnt in place of a token."""
    user, w1, end, bot, w2 = (WORDS.index(word) for word in ("<user>", "w1", "<end>", "<bot>", "w2"))
    rows = [[user, w1, end, bot, w2, end], [user, w1, bot, w2, user, w1]]
    labels = [[-100, -100, -100, -100, w2, end], [-100, -100, -100, w2, 1, -100]]
    write(tmp_path / "c_packed_input_ids_document", rows)
    write(tmp_path / "c_packed_labels_document", labels)
    made = build(source=str(tmp_path / "c"), cutoff_len=16)
    assert read(made.train[0].targets) == ". . . w2 <end> ."
    assert read(made.train[1].targets) == ". . w2 </s> . ."
    assert isinstance(InstructionStore(str(tmp_path / "c")).fingerprint(), str)
    with pytest.raises(UserError, match="c says itself what is learnt"):
        build(source=str(tmp_path / "c"), cutoff_len=16, mask_history=True)
    write(tmp_path / "c_packed_labels_document", [[0] * 6, [1] * 6], "uint16")
    with pytest.raises(UserError, match="holds uint16, which has no -100"):
        build(source=str(tmp_path / "c"), cutoff_len=16)
    write(tmp_path / "c_packed_labels_document", labels)
    spoil(tmp_path / "c_packed_labels_document.idx", 34 + 8, struct.pack("<qq", 24, 0))
    with pytest.raises(UserError, match="do not follow each other"):
        build(source=str(tmp_path / "c"), cutoff_len=16)
    write(tmp_path / "c_packed_labels_document", labels[:1])
    with pytest.raises(UserError, match="sequences of different lengths"):
        build(source=str(tmp_path / "c"), cutoff_len=16)
