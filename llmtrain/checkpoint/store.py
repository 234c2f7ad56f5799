"""The checkpoints of one run: `OUTPUT/checkpoints/step-N`, each complete or not there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, FileSystemWriter

from llmtrain.checkpoint.files import crc32, find_damage, publish, write_manifest, write_synced
from llmtrain.errors import UserError
from llmtrain.runtime.world import World

_NAME = re.compile(r"step-(\d+)")
STATE = "state.json"


class CheckpointStore:
    """Saves, finds, verifies and retires checkpoints below one folder."""

    def __init__(self, folder: Path, world: World, keep: int | None) -> None:
        """`keep`: how many to keep, None for all."""
        self.folder = folder
        self.world = world
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps that have a folder, in order of number, whole or not."""
        if not self.folder.is_dir():
            return []
        return sorted(int(m.group(1)) for p in self.folder.iterdir() if (m := _NAME.fullmatch(p.name)))

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def save(self, step: int, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> Path:
        """Writes aside, synced, then renames; every rank calls it with its shards, `state` counts from rank 0.

        Raises:
            UserError: on every rank, when any rank cannot write; earlier checkpoints are untouched.
        """
        final = self.path(step)
        partial = final.with_name(f"{final.name}.partial")
        error = None
        if self.world.is_main:
            error = _attempt(lambda: _make_empty(partial))
        self._agree(error, final)
        self._agree(_attempt(lambda: self._write_shards(partial, tensors)), final, partial)
        sums = _attempt_value(lambda: {p.name: crc32(p) for p in partial.glob(f"__{self.world.rank}_*")})
        self._agree(sums if isinstance(sums, Exception) else None, final, partial)
        merged = {name: value for part in self.world.gather(sums) for name, value in part.items()}
        if self.world.is_main:
            error = _attempt(lambda: self._finish(partial, final, merged, state))
        self._agree(error, final, partial)
        if self.world.is_main:
            self._retire(step)
        self.world.barrier()
        return final

    def load(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        """Reads into `tensors` in place, resharding as needed.

        Raises:
            UserError: a tensor that is missing or of another shape.
        """
        try:
            dcp.load(tensors, storage_reader=FileSystemReader(folder), process_group=self.world.host_group)
        except (CheckpointException, RuntimeError, ValueError, KeyError) as error:
            raise UserError(f"{folder} does not fit this run's model or optimizer: {_root_cause(error)}") from error

    def read_state(self, folder: Path) -> dict[str, Any]:
        return json.loads((folder / STATE).read_text(encoding="utf-8"))

    def read_shapes(self, folder: Path) -> dict[str, torch.Size]:
        """Shapes of the tensors in a checkpoint, by key."""
        metadata = FileSystemReader(folder).read_metadata()
        return {key: entry.size for key, entry in metadata.state_dict_metadata.items() if hasattr(entry, "size")}

    def newest_whole(self) -> tuple[Path | None, list[str]]:
        """The newest checkpoint that is whole, and a line for each newer one that is not; all ranks read a share."""
        notices: list[str] = []
        for step in reversed(self.world.broadcast(self.steps())):
            damage = self.damage(self.path(step))
            if damage is None:
                return self.path(step), notices
            notices.append(f"{self.path(step)} is passed over: {damage}.")
        return None, notices

    def damage(self, folder: Path) -> str | None:
        """What is wrong with a checkpoint, or None; the ranks share the reading and all get the answer."""
        found = self.world.gather(find_damage(folder, share=self.world.rank, of=self.world.size))
        return next((line for line in found if line is not None), None)

    def resolve(self, wanted: str) -> tuple[Path | None, list[str]]:
        """The checkpoint `training.resume_from_checkpoint` names: `latest`, a step's folder, or a run's folder.

        Returns None for `latest` where there is none yet.

        Raises:
            UserError: no checkpoint there, or a damaged one, with the newest whole one named.
        """
        if wanted == "latest":
            return self.newest_whole()
        folder = Path(wanted)
        if not _NAME.fullmatch(folder.name) and folder.is_dir():
            inside = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
            found, notices = CheckpointStore(inside, self.world, self.keep).newest_whole()
            if found is None:
                raise UserError(
                    " ".join([f"training.resume_from_checkpoint: {wanted} holds no whole checkpoint.", *notices])
                )
            return found, notices
        damage = self.damage(folder) if folder.is_dir() else "there is no such folder"
        if damage is not None:
            other, _ = CheckpointStore(folder.parent, self.world, self.keep).newest_whole()
            offer = f" The newest whole one is {other}." if other else " There is no whole one beside it."
            raise UserError(f"training.resume_from_checkpoint: {wanted} cannot be used: {damage}.{offer}")
        return folder, []

    def _write_shards(self, partial: Path, tensors: dict[str, torch.Tensor]) -> None:
        writer = FileSystemWriter(partial, sync_files=True)
        dcp.save(tensors, storage_writer=writer, process_group=self.world.host_group)

    def _finish(self, partial: Path, final: Path, sums: dict[str, int], state: dict[str, Any]) -> None:
        write_synced(partial / STATE, json.dumps(state, indent=1, ensure_ascii=False))
        for name in (STATE, ".metadata"):
            sums[name] = crc32(partial / name)
        write_manifest(partial, sums)
        publish(partial, final)

    def _retire(self, current: int) -> None:
        """Removes the oldest beyond the limit, by number; later steps than this one belong to a run resumed earlier."""
        if self.keep is None:
            return
        older = [step for step in self.steps() if step < current]
        for step in older[: max(0, len(older) - (self.keep - 1))]:
            doomed = self.path(step).with_name(f"step-{step}.removed")
            self.path(step).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def _agree(self, error: Exception | None, final: Path, partial: Path | None = None) -> None:
        """Turns any rank's failure into the same error everywhere, and clears away what was half written."""
        lines = self.world.gather(_root_cause(error) if error else None)
        reason = next((line for line in lines if line is not None), None)
        if reason is None:
            return
        if partial is not None and self.world.is_main:
            shutil.rmtree(partial, ignore_errors=True)
        kept = [str(self.path(s)) for s in self.steps()[-1:]]
        rest = f"The newest checkpoint is {kept[0]}." if kept else "There is no earlier checkpoint."
        raise UserError(f"The checkpoint {final} could not be written: {reason}. {rest}") from error


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _attempt(action: Any) -> Exception | None:
    result = _attempt_value(action)
    return result if isinstance(result, Exception) else None


def _attempt_value(action: Any) -> Any:
    """The action's result, or the exception it raised, to be told to the other ranks."""
    try:
        return action()
    except (OSError, RuntimeError, CheckpointException) as error:
        return error


def _root_cause(error: BaseException) -> str:
    """One line that says what happened at the bottom of a chain of wrappers."""
    if isinstance(error, CheckpointException) and error.failures:
        inner, _ = next(iter(error.failures.values()))
        return _root_cause(inner)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
