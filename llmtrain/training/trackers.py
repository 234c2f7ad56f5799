"""Experiment trackers (TensorBoard, wandb, ...) through accelerate; metrics.jsonl is written in any case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, filter_trackers

from llmtrain.errors import UserError


class Trackers:
    """The trackers of rank 0; on other ranks, and without `report_to`, there are none."""

    def __init__(self, trackers: list[GeneralTracker]) -> None:
        self._trackers = trackers

    @classmethod
    def start(cls, names: list[str], run_name: str, folder: Path, config: dict[str, Any], on_cpu: bool) -> Trackers:
        """Starts each tracker by name. A resumed run of the same folder goes on in the same tracker run.

        Raises:
            UserError: a name accelerate does not know, or whose package is not installed.
        """
        if not names:
            return cls([])
        PartialState(cpu=on_cpu)  # accelerate's trackers ask it for the main process
        trackers = []
        for name in names:
            if name not in LOGGER_TYPE_TO_CLASS:
                raise UserError(
                    f"training.report_to: {name!r} is no tracker; there are {', '.join(LOGGER_TYPE_TO_CLASS)}."
                )
            try:
                chosen = filter_trackers([name], folder)
                kind = LOGGER_TYPE_TO_CLASS[name] if chosen else None
                if kind is None:
                    raise ImportError(f"no package for {name}")
                options: dict[str, Any] = {"logging_dir": folder} if kind.requires_logging_directory else {}
                if name == "wandb":
                    # One id per output folder: restarting continues the curve in place of beginning another.
                    options |= {"id": _run_id(folder), "resume": "allow", "dir": str(folder)}
                tracker = kind(run_name, **options)
                tracker.start() if hasattr(tracker, "start") else None
                tracker.store_init_configuration(_flat(config))
            except (ImportError, ValueError) as error:
                raise UserError(
                    f"training.report_to: {name} cannot start ({error}); install its package or leave it out."
                ) from error
            trackers.append(tracker)
        return cls(trackers)

    def log(self, row: dict[str, Any]) -> None:
        values = {k: v for k, v in row.items() if isinstance(v, int | float) and k != "step"}
        for tracker in self._trackers:
            tracker.log(values, step=row["step"])

    def finish(self) -> None:
        for tracker in self._trackers:
            tracker.finish()


def _run_id(folder: Path) -> str:
    """The tracker run's id, made once and kept beside the outputs."""
    path = folder / "tracker_run_id"
    if not path.exists():
        import uuid

        path.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names and plain values, the form every tracker takes."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value if isinstance(value, int | float | str | bool) else str(value)
    return out
