"""`llmtrain VERB`; thin. `llmtrain train` is what `train_fsdp2.py` runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from llmtrain.config import Resolved, json_schema, load_config, render_config, render_help
from llmtrain.errors import UserError

USAGE = """\
usage: torchrun [--nproc_per_node N] train_fsdp2.py CONFIG.yaml [--section.field value ...]
       llmtrain train CONFIG.yaml [--section.field value ...]      one process, without torchrun
       llmtrain data CONFIG.yaml [--rank R --world-size N --steps K --json --plot PNG] [--section.field value ...]
                                                                   what the model will see; loads no model
       llmtrain preprocess --input FILE ... --output-prefix PREFIX --tokenizer-name-or-path DIR [--append-eod ...]
                                                                   Megatron's .bin/.idx; --help lists its options

options:
  --print-config   show the resolved config with the origin of each value, and exit
  --help           list every field by section, and exit
  --schema         print the JSON schema of the config, and exit
  --debug          show the stack trace of an error
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The `llmtrain` command."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["train"]:
        return train_command(words[1:])
    if words[:1] == ["data"]:
        return data_command(words[1:])
    if words[:1] == ["preprocess"]:
        return preprocess_command(words[1:])
    sys.stdout.write(USAGE)
    return 0 if words[:1] in (["--help"], ["-h"], []) else 2


def train_command(argv: Sequence[str]) -> int:
    """Parses, builds, trains. Returns the exit code: 0 done (or stopped by a signal with a checkpoint), else 1."""
    return _command(argv, _train)


def _command(argv: Sequence[str], act: Callable[[Resolved], None]) -> int:
    flags = {"--print-config", "--help", "-h", "--schema", "--debug"}
    asked = {word for word in argv if word in flags}
    words = [word for word in argv if word not in flags]
    # The root handlers of torchrun show every rank; one is enough for what all ranks say alike.
    speaks = os.environ.get("RANK", "0") == "0"

    def run() -> None:
        if asked & {"--help", "-h"}:
            return _print(USAGE + "\n" + render_help(), speaks)
        if "--schema" in asked:
            return _print(json.dumps(json_schema(), indent=2), speaks)
        resolved = load_config(words)
        if "--print-config" in asked:
            return _print(render_config(resolved), speaks)
        return act(resolved)

    lost = " before anything was saved since the last checkpoint" if act is _train else ""
    return _reporting(run, debug="--debug" in asked, speaks=speaks, lost=lost)


def _reporting(act: Callable[[], None], *, debug: bool, speaks: bool, lost: str = "") -> int:
    """Acts; tells in a line what the user can mend, or what an interruption has `lost`. Returns the exit code."""
    try:
        act()
        return 0
    except UserError as error:
        if debug:
            raise
        if speaks:
            print(f"\nerror: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        if speaks:
            print(f"\nInterrupted{lost}.", file=sys.stderr, flush=True)
        return 130


def data_command(argv: Sequence[str]) -> int:
    """Shows the data of a config. Returns the exit code."""
    parser = argparse.ArgumentParser("llmtrain data", add_help=False, allow_abbrev=False)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path)
    options, words = parser.parse_known_args(argv)

    def act(resolved: Resolved) -> None:
        from llmtrain.training.preview import preview

        preview(
            resolved.config,
            rank=options.rank,
            world_size=options.world_size,
            steps=options.steps,
            as_json=options.json,
            plot=options.plot,
        )

    return _command(words, act)


def preprocess_command(argv: Sequence[str]) -> int:
    """Writes Megatron's pairs. Returns the exit code."""
    from llmtrain.data.preprocess import add_options, preprocess

    parser = argparse.ArgumentParser("llmtrain preprocess", allow_abbrev=False)
    add_options(parser)
    options = parser.parse_args(argv)
    return _reporting(lambda: preprocess(options), debug=False, speaks=True)


def _train(resolved: Resolved) -> None:
    """Imports what is heavy only here: a wrong key is told without waiting for torch and transformers."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from llmtrain.runtime.world import close_world, open_world
    from llmtrain.training.train import train

    world = open_world()
    try:
        train(resolved, world)
    finally:
        close_world()


def _print(text: str, speaks: bool) -> None:
    if speaks:
        print(text)


if __name__ == "__main__":
    sys.exit(main())
