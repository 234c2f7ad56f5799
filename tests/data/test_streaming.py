"""Streams: the same samples for any ranks and workers, each row once a pass, gone on with at any place."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmtrain.data.loader import Position
from llmtrain.data.sample import IGNORED, MicroBatch
from llmtrain.data.streaming import StreamData, StreamLoader
from llmtrain.errors import UserError
from tests.data.conftest import Build, assistant, chat, read, user
from tests.tiny import WORDS, write_jsonl

START = Position(0, 0)
Steps = list[list[list[int]]]


def loaders(data: StreamData, ranks: int = 1, **changes: Any) -> list[StreamLoader]:
    settings: dict[str, Any] = {"global_batch_size": 8, "micro_batch_size": 2, "pad_id": 2, **changes}
    return [StreamLoader(data, dp_rank=r, dp_size=ranks, **settings) for r in range(ranks)]


def rows(batch: MicroBatch) -> list[list[int]]:
    return [row[: sum(n)].tolist() for row, n in zip(batch.input_ids, batch.lengths, strict=True)]


def steps(
    data: StreamData, count: int, ranks: int = 1, start: Position = START, **changes: Any
) -> tuple[Steps, Position]:
    """Each step's samples by their place in the global batch, and the whole position after them."""
    dealt = loaders(data, ranks, **changes)
    streams = [loader.batches(start) for loader in dealt]
    out: Steps = []
    positions = [start] * ranks
    for _ in range(count):
        samples: dict[int, list[int]] = {}
        for rank, stream in enumerate(streams):
            positions[rank], batches = next(stream)
            for batch in batches:
                samples |= dict(zip(batch.sample_ids, rows(batch), strict=True))
        out.append([samples[slot] for slot in sorted(samples)])
    # What every rank would gather.
    known = [
        ({slot: position.cursors[slot] for slot in loader._slots}, position.sizes)
        for loader, position in zip(dealt, positions, strict=True)
    ]
    whole = [loader.whole_position(p, lambda _: known) for loader, p in zip(dealt, positions, strict=True)]
    assert len(set(whole)) == 1
    return out, Position.from_dict(json.loads(json.dumps(whole[0].to_dict())))


def texts(path: Path, count: int, seed: int = 0) -> str:
    """Documents of 1 to 12 words."""
    random = np.random.default_rng(seed)
    lines = [" ".join(f"w{n}" for n in random.integers(0, 100, random.integers(1, 13))) for _ in range(count)]
    return str(write_jsonl(path, [{"text": line} for line in lines]))


def chats(path: Path, count: int, first: int = 0) -> str:
    """Row n asks with its number in base 100, and is answered with one to four words."""
    rows = [chat(f"w{n // 100} w{n % 100}", " ".join(["w1"] * (1 + n % 4))) for n in range(first, first + count)]
    return str(write_jsonl(path, rows))


def number(sample: list[int]) -> int:
    """The number of the row of `chats`: <user> wA wB ..."""
    return (sample[1] - WORDS.index("w0")) * 100 + sample[2] - WORDS.index("w0")


def stream(build: Build, source: Any, stage: str, **data: Any) -> StreamData:
    made = build(stage=stage, source=source, streaming=True, cutoff_len=16, **{"buffer_size": 10, **data})
    assert isinstance(made.train, StreamData)
    return made.train


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "texts": ("pt", {}),
    "texts apart": ("pt", {"reset_attention_mask": True}),
    "chats": ("sft", {}),
    "packed": ("sft", {"packing": True}),
    "packed apart": ("sft", {"neat_packing": True}),
}


@pytest.fixture(params=KINDS)
def data(request: pytest.FixtureRequest, tmp_path: Path, build: Build) -> StreamData:
    stage, settings = KINDS[request.param]
    make = texts if stage == "pt" else chats
    source = [make(tmp_path / f"{n}.jsonl", 13 + 9 * n, n) for n in range(3)]
    return stream(build, source, stage, **settings)


@pytest.mark.parametrize(("ranks", "micro"), [(1, 8), (1, 1), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1)])
def test_any_ranks_and_micro_batches_see_the_same(data: StreamData, ranks: int, micro: int) -> None:
    assert steps(data, 9, ranks, micro_batch_size=micro) == steps(data, 9)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (1, 3), (2, 2), (4, 8)])
def test_any_workers_see_the_same(data: StreamData, ranks: int, workers: int) -> None:
    assert steps(data, 6, ranks, num_workers=workers) == steps(data, 6)


@pytest.mark.parametrize("done", [1, 2, 5, 9, 10, 14])
def test_a_stream_goes_on_at_any_place_whatever_the_ranks(data: StreamData, done: int) -> None:
    """66 rows: 14 steps of 8 conversations are more than a pass."""
    straight, end = steps(data, 16)
    first, position = steps(data, done, 2)
    data.sources[0].size = 0  # as in a new process
    rest, after = steps(data, 16 - done, 4, position, micro_batch_size=1)
    assert first + rest == straight
    assert after.cursors == end.cursors


def test_with_workers_too(data: StreamData) -> None:
    straight, _ = steps(data, 12)
    _, position = steps(data, 7, 2, num_workers=2)
    assert steps(data, 5, 1, position, num_workers=2)[0] == straight[7:]


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_pass_has_each_row_once(tmp_path: Path, build: Build, shuffle: bool) -> None:
    source = [chats(tmp_path / "a.jsonl", 23), chats(tmp_path / "b.jsonl", 17, 23)]
    data = stream(build, source, "sft")
    for part in data.sources:
        part.shuffle = shuffle
    order = [number(sample) for step in steps(data, 15)[0] for sample in step]  # slot by slot is row by row: 8 | 40
    passes = [order[i : i + 40] for i in range(0, 120, 40)]
    for one in passes:
        assert sorted(one) == list(range(40))
    assert (passes[0] == list(range(40))) != shuffle
    assert (passes[0] == passes[1]) != shuffle
    if shuffle:
        # The rows of a file lie together but for the window at the border, and files change places between passes.
        first = [int(n >= 23) for n in passes[0]]
        assert sum(first[:10]) in (0, 10)
        firsts = {tuple(sorted(order[i : i + 10])) for i in range(0, 120, 40)}
        assert len(firsts) == 2 or firsts <= {tuple(range(10)), tuple(range(23, 33))}


def test_rows_are_shuffled_within_the_buffer(tmp_path: Path, build: Build) -> None:
    data = stream(build, chats(tmp_path / "a.jsonl", 40), "sft", buffer_size=10)
    order = [number(sample) for step in steps(data, 5)[0] for sample in step]
    for i in range(0, 40, 10):
        assert sorted(order[i : i + 10]) == list(range(i, i + 10)) != order[i : i + 10]
    other = stream(build, chats(tmp_path / "a.jsonl", 40), "sft", buffer_size=40)
    order = [number(sample) for step in steps(other, 5)[0] for sample in step]
    assert sorted(order) == list(range(40)) and max(order[:8]) > 20


def test_no_token_of_a_slot_is_lost(tmp_path: Path, build: Build) -> None:
    """The blocks of a slot are its documents end to end, each with </s>; they overlap by the predicted token only."""
    data = stream(build, texts(tmp_path / "a.jsonl", 50), "pt")
    found = list(islice(data.rows(0), 50))
    for slot in range(4):
        expected: list[int] = []
        for _, _, raw in found[slot::4]:
            expected += [WORDS.index(word) for word in json.loads(raw)["text"].split()] + [WORDS.index("</s>")]
        (loader,) = loaders(data, global_batch_size=4)
        seen: list[int] = []
        for _, batches in islice(loader.batches(START), len(expected) // 16 - 1):
            batch = batches[slot // 2]
            row = batch.input_ids[slot % 2].tolist()
            assert batch.targets[slot % 2, :-1].tolist() == row[1:]
            seen += row
        assert seen == expected[: len(seen)] and len(seen) > 16


def test_documents_apart_have_borders_that_are_not_predicted(tmp_path: Path, build: Build) -> None:
    data = stream(build, texts(tmp_path / "a.jsonl", 50), "pt", reset_attention_mask=True)
    (loader,) = loaders(data, collation="flat")
    end = WORDS.index("</s>")
    for _, batches in islice(loader.batches(START), 6):
        for batch in batches:
            ids, targets = batch.input_ids[0].numpy(), batch.targets[0].numpy()
            closed = np.flatnonzero(ids[:32] == end)
            assert (targets[closed] == IGNORED).all()
            assert batch.documents is not None and sum(batch.documents) == len(ids)


def test_packed_rows_hold_whole_conversations_as_long_as_they_fit(tmp_path: Path, build: Build) -> None:
    data = stream(build, chats(tmp_path / "a.jsonl", 64), "sft", neat_packing=True)
    (loader,) = loaders(data, collation="flat")
    seen: list[int] = []
    for _, batches in islice(loader.batches(START), 3):
        for batch in batches:
            for lengths in batch.lengths:
                assert sum(lengths) <= 16 < sum(lengths) + 11  # 7 to 10 tokens each
            starts = np.flatnonzero(batch.input_ids[0].numpy() == WORDS.index("<user>"))
            seen += [number(batch.input_ids[0, s : s + 3].tolist()) for s in starts]
    assert max(Counter(seen).values()) == 1


def test_compressed_files_and_tables_stream(tmp_path: Path, build: Build) -> None:
    plain = Path(chats(tmp_path / "a.jsonl", 30))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    one, two = (stream(build, str(file), "sft") for file in (plain, tmp_path / "b.jsonl.gz"))
    assert steps(one, 5)[0] == steps(two, 5)[0]


def test_datasets_are_mixed_by_weight(tmp_path: Path, build: Build) -> None:
    source = [
        {"file_name": chats(tmp_path / "a.jsonl", 20), "weight": 3},
        {"file_name": chats(tmp_path / "b.jsonl", 20, 100), "weight": 1},
    ]
    data = stream(build, source, "sft", mix_strategy="interleave_under")
    straight, _ = steps(data, 12)
    order = [number(sample) >= 100 for step in straight for sample in step]
    assert sum(order) == 24
    for count in range(1, 97):
        assert abs(sum(order[:count]) - count / 4) <= 1
    _, position = steps(data, 7, 2)
    for part in data.sources:
        part.size = 0
    assert steps(data, 5, 4, position, micro_batch_size=1)[0] == straight[7:]


def test_a_dataset_of_weight_0_never_comes(tmp_path: Path, build: Build) -> None:
    names = [chats(tmp_path / f"{n}.jsonl", 20, 100 * n) for n in range(3)]
    source = [{"file_name": name, "weight": weight} for name, weight in zip(names, (1, 0, 1), strict=True)]
    data = stream(build, source, "sft", mix_strategy="interleave_over")
    assert {number(sample) // 100 for step in steps(data, 8)[0] for sample in step} == {0, 2}


def test_datasets_without_weights_follow_each_other_if_they_are_alike(tmp_path: Path, build: Build) -> None:
    source: list[Any] = [chats(tmp_path / "a.jsonl", 20), chats(tmp_path / "b.jsonl", 20, 20)]
    assert len(stream(build, source, "sft").sources) == 1
    source[1] = {"file_name": source[1], "columns": {"messages": "m"}}
    with pytest.raises(UserError, match="datasets of different forms"):
        stream(build, source, "sft")


BAD = [{"messages": [user("w1"), assistant("w2")]}, {"messages": 5}, {"messages": [user("w3"), assistant("w4")]}]


def test_a_row_that_cannot_be_used_stops_the_run_with_its_place(tmp_path: Path, build: Build) -> None:
    source = str(write_jsonl(tmp_path / "a.jsonl", BAD))
    for workers in (0, 1):
        with pytest.raises(UserError) as caught:
            steps(stream(build, source, "sft"), 1, num_workers=workers)
        assert "a.jsonl:2: messages is empty or no list. Mend it, or set data.on_bad_row: skip" in str(caught.value)
        assert "Traceback" not in str(caught.value)


def test_or_it_is_left_out_and_counted(tmp_path: Path, build: Build) -> None:
    source = str(write_jsonl(tmp_path / "a.jsonl", BAD))
    data = stream(build, source, "sft", on_bad_row="skip")
    (loader,) = loaders(data, global_batch_size=2)
    seen = [row for _, batches in islice(loader.batches(START), 6) for batch in batches for row in rows(batch)]
    assert {read(row[1:2]) for row in seen} == {"w1", "w3"}
    (kind,) = loader.left_out.rejected.values()
    assert kind.count >= 2 and kind.place.endswith("a.jsonl:2")


@pytest.mark.parametrize("stage", ["pt", "sft"])
def test_a_stream_of_nothing_ends(tmp_path: Path, build: Build, stage: str) -> None:
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(UserError, match=r"there is nothing in .*a\.jsonl"):
        steps(stream(build, str(tmp_path / "a.jsonl"), stage), 1)
    write_jsonl(tmp_path / "b.jsonl", [{"text": 5, "messages": 5}] * 3)
    with pytest.raises(UserError, match=r"of 10,000 rows not one can be used; .*b\.jsonl"):
        steps(stream(build, str(tmp_path / "b.jsonl"), stage, on_bad_row="skip"), 1)
    write_jsonl(tmp_path / "c.jsonl", [{"text": "", "messages": [user("w1")]}] * 3)
    with pytest.raises(UserError, match=r"not one can be used"):
        steps(stream(build, str(tmp_path / "c.jsonl"), stage, on_bad_row="skip"), 1)


def test_a_conversation_of_which_nothing_is_learnt_is_left_out(tmp_path: Path, build: Build) -> None:
    long = chat(" ".join(["w1"] * 20), "w2")
    source = str(write_jsonl(tmp_path / "a.jsonl", [chat("w1", "w2"), long]))
    data = stream(build, source, "sft")
    (loader,) = loaders(data, global_batch_size=2)
    for _, batches in islice(loader.batches(START), 3):
        assert all(read(row[1:2]) == "w1" and len(row) == 6 for batch in batches for row in rows(batch))
    assert any("no supervised token" in kind.reason for kind in loader.left_out.rejected.values())


def test_only_the_first_rows(tmp_path: Path, build: Build) -> None:
    data = stream(build, chats(tmp_path / "a.jsonl", 40), "sft", max_samples=16)
    order = [number(sample) for step in steps(data, 4)[0] for sample in step]
    assert sorted(order[:16]) == sorted(order[16:]) == list(range(16))


def test_held_out_data_beside_a_stream(tmp_path: Path, build: Build) -> None:
    held = chats(tmp_path / "held.jsonl", 5, 50)
    made = build(source=chats(tmp_path / "a.jsonl", 20), streaming=True, cutoff_len=16, eval_dataset=held)
    assert len(made.evaluation[""]) == 5


def test_the_fingerprint_tells_streams_apart(tmp_path: Path, build: Build) -> None:
    source = chats(tmp_path / "a.jsonl", 20)
    one = stream(build, source, "sft").fingerprint()
    assert stream(build, source, "sft").fingerprint() == one
    assert stream(build, source, "sft", buffer_size=11).fingerprint() != one
    assert stream(build, source, "sft", mask_history=True).fingerprint() != one
    chats(tmp_path / "a.jsonl", 21)
    assert stream(build, source, "sft").fingerprint() != one


def test_what_holds_tokens_is_not_streamed(tmp_path: Path, build: Build) -> None:
    np.save(tmp_path / "0.npy", np.arange(50))
    with pytest.raises(UserError, match="holds tokens already"):
        stream(build, str(tmp_path / "0.npy"), "pt")


def test_four_files_of_a_hundred_rows_stopped_after_a_hundred(tmp_path: Path, build: Build) -> None:
    """Of 400 rows none is lost and none comes twice, though windows of 64 lie across the place of the stop."""
    source = [chats(tmp_path / f"{n}.jsonl", 100, 100 * n) for n in range(4)]
    data = stream(build, source, "sft", buffer_size=64)
    straight, _ = steps(data, 50)
    first, position = steps(data, 12, 2)
    rest, _ = steps(data, 38, 4, position, micro_batch_size=1)
    assert first + rest == straight
    assert sorted(number(sample) for step in straight for sample in step) == list(range(400))
