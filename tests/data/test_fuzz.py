"""Rows and files with random faults: each row is used, empty, or counted out with a reason; nothing else is raised."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from llmtrain.data.chat import ChatEncoder
from llmtrain.data.formats import RowFormat
from llmtrain.data.indexed import IndexedStore
from llmtrain.data.pretraining import TextEncoder
from llmtrain.data.readers import parse, read_file
from llmtrain.data.supervision import ChatFormat
from llmtrain.data.tokenise import Encoder, encode_batch, encode_row_batch
from llmtrain.errors import UserError
from tests.data.test_chat import PLAIN
from tests.data.test_megatron import write as write_pair
from tests.tiny import TEMPLATE, make_tokenizer

# 500 examples of 20 rows are 10,000.
OFTEN = settings(
    max_examples=500, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
FILES = settings(OFTEN, max_examples=200)

KINDS = ["texts", "marked", "proved", "pairs"]
TURNS = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3"}]
CALL = {"function": {"name": "f", "arguments": '{"a": 1}'}}
VALID: list[dict[str, Any]] = [
    {"text": "w1 w2"},
    {"messages": TURNS},
    {"messages": [TURNS[0], {"role": "assistant", "content": None, "tool_calls": [CALL]}], "tools": [{"name": "f"}]},
    {"messages": [{"role": "system", "content": [{"type": "text", "text": "w4"}]}, *TURNS]},
    {"conversations": [{"from": "human", "value": "w1"}, {"from": "gpt", "value": "w2"}], "system": "w5"},
    {"instruction": "w1", "input": "w2", "output": "w3", "history": [["w4", "w5"]]},
    {"prompt": "w1", "chosen": "w2", "rejected": "w3"},
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["", "w1", "\ud800", "<end>"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def spoiled(draw: st.DrawFn) -> dict[str, Any]:
    """A valid row in which up to three places were changed, lost or added."""
    row = json.loads(json.dumps(draw(st.sampled_from(VALID))))
    for _ in range(draw(st.integers(0, 3))):
        node: Any = row
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and draw(st.booleans()):
                node = node[key]
                continue
            change = draw(st.sampled_from(["value", "lose", "add"]))
            if change == "value":
                node[key] = draw(VALUES)
            elif change == "lose":
                del node[key]
            elif isinstance(node, dict):
                node[draw(st.sampled_from(["text", "messages", "tools", "tool_calls", "role", "x"]))] = draw(VALUES)
            else:
                node.append(draw(VALUES))
            break
    return row


def raw_rows() -> st.SearchStrategy[Any]:
    """As a table gives them, as lines of JSON, as lines with a fault, as any bytes."""
    as_line = spoiled().map(lambda row: json.dumps(row).encode("utf-8", "surrogatepass"))
    cut = st.tuples(as_line, st.floats(0, 1)).map(lambda pair: pair[0][: int(len(pair[0]) * pair[1])])
    return st.one_of(spoiled(), as_line, cut, st.binary(max_size=20))


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Encoder]:
    folder = make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    tokenizers = [AutoTokenizer.from_pretrained(folder) for _ in range(2)]
    for tokenizer, template in zip(tokenizers, (TEMPLATE, PLAIN), strict=True):
        tokenizer.chat_template = template
    ranked = RowFormat("alpaca", {"prompt": "prompt"}, ranking=True)
    return {
        "texts": TextEncoder(tokenizers[0], RowFormat(), 1),
        "marked": ChatEncoder(ChatFormat(tokenizers[0]), RowFormat()),
        "proved": ChatEncoder(ChatFormat(tokenizers[1]), RowFormat()),
        "pairs": ChatEncoder(ChatFormat(tokenizers[0]), ranked),
    }


@OFTEN
@given(
    rows=st.lists(raw_rows(), min_size=20, max_size=20), kind=st.sampled_from(["texts", "marked", "proved", "pairs"])
)
def test_ten_thousand_rows(encoders: dict[str, Encoder], rows: list[Any], kind: str) -> None:
    batch = encode_batch(encoders[kind], rows)
    assert len(batch.encoded.lengths) + batch.empty + len(batch.rejected) == batch.rows == len(rows)
    assert int(batch.encoded.lengths.sum()) == len(batch.encoded.tokens)
    assert all(reason and "\n" not in reason for _, reason in batch.rejected)
    assert len(encode_row_batch(encoders[kind], rows)) == len(rows)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A sound file of each kind."""
    folder = tmp_path_factory.mktemp("files")
    rows = [{"text": f"w{n} ü", "n": n} for n in range(30)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    table = pa.Table.from_pylist(rows)
    pa.parquet.write_table(table, folder / "a.parquet", row_group_size=7)
    with pa.ipc.new_file(str(folder / "a.arrow"), table.schema) as sink:
        sink.write_table(table)
    tables = "text,n\n" + "".join(f'"{row["text"]}",{row["n"]}\n' for row in rows)
    return {
        "a.jsonl": lines,
        "a.jsonl.gz": gzip.compress(lines),
        "a.json": json.dumps(rows).encode(),
        "a.csv": tables.encode(),
        "a.tsv": tables.replace(",", "\t").encode(),
        "a.txt": lines,
        "a.parquet": (folder / "a.parquet").read_bytes(),
        "a.arrow": (folder / "a.arrow").read_bytes(),
    }


@st.composite
def damage(draw: st.DrawFn) -> Any:
    """What is done to a file: cut short, bytes changed, bytes put in."""
    cut = draw(st.one_of(st.none(), st.floats(0, 1)))
    changes = draw(
        st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=4)), max_size=4)
    )
    inserted = draw(st.one_of(st.none(), st.tuples(st.floats(0, 1), st.binary(max_size=8))))
    return cut, changes, inserted


def damaged(content: bytes, how: Any) -> bytes:
    cut, changes, inserted = how
    found = bytearray(content)
    for place, values in changes:
        start = int(place * len(found))
        found[start : start + len(values)] = values
    if inserted is not None:
        start = int(inserted[0] * len(found))
        found[start:start] = inserted[1]
    return bytes(found if cut is None else found[: int(cut * len(found))])


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.csv", "a.tsv", "a.txt", "a.parquet", "a.arrow"])
@FILES
@given(how=damage())
def test_damaged_files(
    originals: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, name: str, how: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / f"fuzzed-{name}"
    file.write_bytes(damaged(originals[name], how))
    numbers = []
    try:
        for number, raw in read_file(str(file)):
            numbers.append(number)
            if not isinstance(raw, Exception):
                try:
                    parse(raw)
                except Exception as error:
                    assert type(error).__name__ == "BadRow"
    except UserError as error:
        assert str(file) in str(error)
    assert numbers == sorted(set(numbers))


@FILES
@given(how=damage(), part=st.sampled_from([".idx", ".bin"]))
def test_damaged_pairs(tmp_path_factory: pytest.TempPathFactory, how: Any, part: str) -> None:
    prefix = Path(write_pair(tmp_path_factory.getbasetemp() / "fuzzed-pair"))
    file = Path(f"{prefix}{part}")
    file.write_bytes(damaged(file.read_bytes(), how))
    try:
        store = IndexedStore(str(prefix))
        read = [store.read(i, 0, int(length)) for i, length in enumerate(store.lengths)]
        assert [len(tokens) for tokens in read] == store.lengths.tolist()
    except UserError as error:
        assert str(prefix) in str(error)
