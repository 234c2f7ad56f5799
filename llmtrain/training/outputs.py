"""The output folder of a run: what lies where, and that nothing of another run is overwritten."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llmtrain.checkpoint.store import CheckpointStore
from llmtrain.config import Config
from llmtrain.errors import UserError
from llmtrain.runtime.world import World


@dataclass(frozen=True)
class Outputs:
    """Paths below `training.output_dir`."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def hf(self) -> Path:
        return self.folder / "hf"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def plot(self) -> Path:
        return self.folder / "loss.png"

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def refuse_foreign_results(self, store: CheckpointStore) -> None:
        """A new run does not start on top of another one's checkpoints or export.

        Raises:
            UserError: naming what lies there and how to continue it.
        """
        steps = store.world.broadcast(store.steps())
        if steps:
            raise UserError(
                f"{self.checkpoints} holds checkpoints of an earlier run (the newest is step {steps[-1]}). Continue it "
                f"with --training.resume_from_checkpoint latest, or choose another training.output_dir."
            )
        if store.world.broadcast(self.hf.exists()):
            raise UserError(
                f"{self.hf} holds the exported model of an earlier run. Choose another training.output_dir, or move it."
            )

    def prepare(self, world: World, config: Config) -> None:
        """Makes the folder and writes the resolved config into it.

        Raises:
            UserError: the folder cannot be written.
        """
        error = None
        if world.is_main:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self.config.write_text(config.to_yaml(), encoding="utf-8")
            except OSError as caught:
                error = UserError(f"training.output_dir: {self.folder} cannot be written ({caught.strerror}).")
        world.agree(error)
