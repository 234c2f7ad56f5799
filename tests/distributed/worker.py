"""Runs a list of training cases on the ranks of one torchrun, so that start-up is paid once.

    torchrun --nproc_per_node 2 -m tests.distributed.worker CASES.json

Each case: {"name", "config"} and optionally "stop_at" (the step after which this rank gets SIGTERM), "mutation" (a
fault to put in, see mutations.py), "observe" (names of observers.py), "fails" (an error is expected). What a case
leaves is in its output folder; errors go to NAME.error in the folder of CASES.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from unittest import mock

from llmtrain.config import Config, Resolved
from llmtrain.errors import UserError
from llmtrain.runtime.world import close_world, open_world
from llmtrain.training import state
from llmtrain.training.train import train
from tests.distributed.mutations import MUTATIONS
from tests.distributed.observers import OBSERVERS


def stopping_at(step: int):
    advance = state.Progress.advance

    def stop(self, position, tokens):
        advance(self, position, tokens)
        if self.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return mock.patch.object(state.Progress, "advance", stop)


def main() -> None:
    cases_file = Path(sys.argv[1])
    world = open_world()
    for case in json.loads(cases_file.read_text()):
        patches = [stopping_at(case["stop_at"])] if "stop_at" in case else []
        patches += MUTATIONS[case["mutation"]]() if "mutation" in case else []
        for patch in patches:
            patch.start()
        for name in case.get("observe", []):  # one wraps what the one before has put in place
            for patch in OBSERVERS[name]():
                patches.append(patch)
                patch.start()
        try:
            train(Resolved(Config.from_dict(case["config"]), {}, []), world)
        except UserError as error:
            if not case.get("fails"):
                raise
            (cases_file.parent / f"{case['name']}.error").write_text(str(error))
        finally:
            for patch in reversed(patches):
                patch.stop()
    close_world()


if __name__ == "__main__":
    main()
