"""Ctrl-C and SIGTERM ask the run to save and end; a third Ctrl-C ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class StopRequest:
    """Notes the signals while it is open. torchrun passes one signal on several times, so repeats are no impatience."""

    IMPATIENT = 3

    def __init__(self) -> None:
        self.reason: str | None = None
        self._interrupts = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.reason = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts >= self.IMPATIENT:
                raise KeyboardInterrupt
