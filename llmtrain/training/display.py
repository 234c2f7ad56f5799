"""What a person sees of a run: a header, a progress line, a summary. Rank 0 only."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


class Display:
    """A progress bar where there is a terminal, plain lines where there is none, nothing on other ranks."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        # Without a terminal there is no width to fit into: lines are kept whole for whoever greps them.
        interactive = sys.stdout.isatty()
        self._console = Console(highlight=False, soft_wrap=not interactive)
        self._progress: Progress | None = None
        self._task: Any = None

    def header(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """A two-column table: what, value."""
        if not self._enabled:
            return
        if not self._console.is_terminal:
            self._console.print(title)
            width = max(len(name) for name, _ in rows)
            for name, value in rows:
                self._console.print(f"  {name:<{width}}  {value}", markup=False)
            return
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(name, value)
        self._console.print(table)

    def say(self, text: str) -> None:
        if self._enabled:
            self._console.print(text, markup=False)

    def start(self, done: int, total: int) -> None:
        if not self._enabled or not self._console.is_terminal:
            return
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[line]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task("train", completed=done, total=total, line="")
        self._progress.start()

    def step(self, row: dict[str, Any], total: int, eta_seconds: float) -> None:
        """One logged step."""
        if not self._enabled:
            return
        line = (
            f"loss {row['loss']:.4f}  lr {row['lr']:.2e}  norm {row['grad_norm']:.2f}  "
            f"{row['tokens_per_second']:,.0f} tok/s  MFU {row['mfu']:.1%}  {row['peak_memory_gib']:.2f} GiB"
        )
        if row["skipped_steps"]:
            line += f"  skipped {row['skipped_steps']}"
        if self._progress is not None:
            self._progress.update(self._task, completed=row["step"], line=line)
        else:
            self.say(f"step {row['step']}/{total}  {line}  ETA {format_seconds(eta_seconds)}")

    def finish(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def format_seconds(seconds: float) -> str:
    """`3:07:45`, `12:30`."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def format_count(number: float) -> str:
    """`7.62 M`, `1.30 B`."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.0f}"
