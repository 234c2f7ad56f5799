"""`llmtrain data`: what it prints is what the model is given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from llmtrain import cli
from llmtrain.training.preview import _histogram
from tests.tiny import WORDS, tiny_config, write_jsonl


def config(files: Path, rows: list[dict[str, Any]], **sections: Any) -> str:
    data = {"dataset": str(write_jsonl(files / "shown.jsonl", rows)), "cutoff_len": 16, **sections.pop("data", {})}
    path = files / "preview.yaml"
    path.write_text(yaml.safe_dump(tiny_config(files, "out", data=data, **sections)))
    return str(path)


def chat(user: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]}


def lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert cli.main(["data", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_packed_row_by_hand(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """w1 -> w2 and w3 -> w4 w5: <user> w1 <end> <bot> w2 <end> and so on; the rest of 16 is padding."""
    batch = {"per_device_train_batch_size": 1, "global_batch_size": 1, "disable_shuffling": True}
    path = config(files, [chat("w1", "w2"), chat("w3", "w4 w5")], data={"neat_packing": True}, training=batch)
    (row,) = lines(capsys, path)
    ids = [
        WORDS.index(word)
        for word in [
            "<user>",
            "w1",
            "<end>",
            "<bot>",
            "w2",
            "<end>",
            "<user>",
            "w3",
            "<end>",
            "<bot>",
            "w4",
            "w5",
            "<end>",
        ]
    ]
    assert row["input_ids"][:13] == ids
    learnt = {3: "w2", 4: "<end>", 9: "w4", 10: "w5", 11: "<end>"}
    assert row["labels"] == [WORDS.index(learnt[n]) if n in learnt else -100 for n in range(16)]
    assert row["position_ids"] == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert row["doc_ids"] == [0] * 6 + [1] * 7 + [-1] * 3
    assert (row["step"], row["rank"]) == (1, 0)


@pytest.mark.parametrize("layout", [{}, {"padding_free": True}, {"packing": True}, {"neat_packing": True}])
def test_ranks_together_see_the_global_batch(
    files: Path, capsys: pytest.CaptureFixture[str], layout: dict[str, bool]
) -> None:
    rows = [chat(f"w{i}", " ".join(["w9"] * (1 + i % 5))) for i in range(40)]
    batch = {"per_device_train_batch_size": 2, "global_batch_size": 8}
    path = config(files, rows, data=layout, training=batch)

    def documents(ranks: int) -> list[tuple[int, ...]]:
        found = []
        for rank in range(ranks):
            for row in lines(capsys, path, "--rank", str(rank), "--world-size", str(ranks), "--steps", "2"):
                numbers = np.array(row["doc_ids"])
                for number in range(numbers.max() + 1):
                    found.append((row["step"], *np.array(row["input_ids"])[numbers == number].tolist()))
        return sorted(found)

    assert documents(1) == documents(2) == documents(4)


def test_what_is_learnt_is_marked(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(files, [chat("w1", "w2")] * 8)
    assert cli.main(["data", path]) == 0
    said = capsys.readouterr().out
    assert "»w2 <end>«" in said
    assert "8 conversations" in said
    assert "6 to" in said


def test_ranges_of_lengths_count_every_row_once() -> None:
    said = _histogram(np.array([3, 3, 4, 30]))
    assert sum(int(line.split()[3]) for line in said) == 4
    assert _histogram(np.array([5, 5]))[0].split()[:4] == ["5", "to", "5", "2"]


def test_a_rank_that_is_not_there(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(files, [chat("w1", "w2")] * 8)
    assert cli.main(["data", path, "--rank", "2", "--world-size", "2"]) == 1
    assert "--rank 2" in capsys.readouterr().err


def test_the_verb_runs_as_a_module(files: Path) -> None:
    path = config(files, [chat("w1", "w2")] * 8)
    done = subprocess.run(
        [sys.executable, "-m", "llmtrain.cli", "data", path, "--json"], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == len([json.loads(line) for line in done.stdout.splitlines()]) > 0


def test_a_picture_of_the_lengths(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(files, [chat("w1", " ".join(["w2"] * n)) for n in range(1, 9)])
    assert cli.main(["data", path, "--plot", str(files / "lengths.png")]) == 0
    assert (files / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert "44 supervised tokens (58% of all)" in capsys.readouterr().out
    assert cli.main(["data", path, "--data.streaming", "--training.max_steps", "3", "--plot", "x.png"]) == 1
    assert "--plot: the lengths of a stream's rows" in capsys.readouterr().err


def test_a_stream_is_shown_as_it_is_trained_on(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = {"per_device_train_batch_size": 2, "global_batch_size": 4, "max_steps": 3}
    rows = [chat("w1", " ".join(["w2"] * n)) for n in range(1, 9)]
    path = config(files, rows, data={"streaming": True}, training=batch)
    ranks = [lines(capsys, path, "--steps", "2", "--world-size", "2", "--rank", rank) for rank in ("0", "1")]
    alone = lines(capsys, path, "--steps", "2")
    assert sum(label == WORDS.index("w2") for row in alone for label in row["labels"]) == 36  # 1 + ... + 8
    assert [row for step in (1, 2) for rank in ranks for row in rank if row["step"] == step] == [
        {**row, "rank": place // 2}
        for step in (1, 2)
        for place, row in enumerate(r for r in alone if r["step"] == step)
    ]
    assert cli.main(["data", path]) == 0
    assert "streamed" in capsys.readouterr().out
