"""The smoothed curve neither lags behind a trend nor moves its ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from llmtrain.training.plot import plot_loss, smooth


@pytest.mark.parametrize("count", [1, 2, 24, 500])
def test_a_straight_line_stays_where_it_is(count: int) -> None:
    line = np.linspace(8.0, 3.0, count)
    assert smooth(line) == pytest.approx(line)


def test_noise_is_averaged() -> None:
    noise = np.resize([1.0, -1.0], 500)
    assert np.abs(smooth(noise)[100:400]).max() == pytest.approx(1 / 21)


def test_a_picture_is_drawn_where_there_is_something_to_draw(tmp_path: Path) -> None:
    plot_loss([{"step": 0, "eval_loss": 4.8}], tmp_path / "none.png", "run")
    assert not (tmp_path / "none.png").exists()
    plot_loss([{"step": 1, "loss": 4.8}, {"step": 2, "loss": float("nan")}], tmp_path / "loss.png", "run")
    assert Image.open(tmp_path / "loss.png").size == (960, 540)
