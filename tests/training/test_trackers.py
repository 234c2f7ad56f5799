"""Trackers get the numbers of metrics.jsonl, and a restarted run goes on in the same tracker run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmtrain.errors import UserError
from tests.distributed.launch import metrics
from tests.tiny import tiny_config


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of each series in the event files below `folder`; one tracker run is one folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    series: dict[str, list[tuple[int, float]]] = {}
    for directory in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(directory))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            series.setdefault(tag, []).extend((e.step, e.value) for e in events.Scalars(tag))
    return series


def test_tensorboard_gets_what_the_metrics_file_gets(run: Callable[..., Any], files: Path) -> None:
    settings: dict[str, Any] = {"max_steps": 4, "eval_steps": 2, "report_to": ["tensorboard"]}
    run(tiny_config(files, "out", data={"val_size": 4}, training=settings))
    rows, series = metrics(files / "out"), scalars(files / "out")
    for name in ("loss", "grad_norm", "lr", "tokens_per_second", "eval_loss"):
        written = [(row["step"], row[name]) for row in rows if name in row]
        assert [step for step, _ in series[name]] == [step for step, _ in written]
        assert [value for _, value in series[name]] == pytest.approx([value for _, value in written], rel=1e-6)


def test_a_restarted_run_goes_on_in_the_same_tracker_run(run: Callable[..., Any], files: Path) -> None:
    settings = {"save_steps": 2, "report_to": ["tensorboard"], "resume_from_checkpoint": "latest", "lr": 0.001}
    for steps in (2, 4):
        run(tiny_config(files, "out", training={**settings, "max_steps": steps}))
    assert [step for step, _ in scalars(files / "out" / "out")["loss"]] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "message"), [("tensorbord", "no tracker; there are .*tensorboard"), ("comet_ml", "comet_ml cannot start")]
)
def test_a_tracker_that_cannot_start_is_named(run: Callable[..., Any], files: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(tiny_config(files, "out", training={"report_to": [name]}))
