"""Writes configs/quickstart/data/kjv_train.jsonl and kjv_heldout.jsonl: the King James Bible, one chapter a line.

The text comes from Debian's packages bible-kjv (the reader) and bible-kjv-text (its data):

    apt-get install bible-kjv bible-kjv-text
    python scripts/quickstart_data/make_text.py

The files are the same, byte for byte, on every run.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "configs" / "quickstart" / "data"
CHAPTERS, VERSES = 1189, 31102
HELD_OUT_EVERY, HELD_OUT_FIRST = 20, 10

_HEADING = re.compile(r"(?P<book>\S.*) (?P<chapter>\d+)")
_VERSE = re.compile(r" +\d+ (?P<text>.*)")


def read_bible() -> str:
    """The whole Bible as `bible` prints it: a heading line a chapter, then an indented, numbered line a verse."""
    # Wider than any verse, so that none is wrapped.
    command = ["bible", "-l100000", "Genesis1:1-Revelation22:21"]
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout


def chapters(printed: str) -> list[str]:
    """Heading, blank line and the verses as one paragraph of prose, for each chapter in order.

    Raises:
        ValueError: a line of an unknown kind, or another number of chapters or verses than the King James Bible has.
    """
    found: list[tuple[str, list[str]]] = []
    for line in filter(None, printed.splitlines()):
        if verse := _VERSE.fullmatch(line):
            found[-1][1].append(" ".join(verse["text"].split()))
        elif heading := _HEADING.fullmatch(line):
            # One poem of the Book of Psalms is a psalm.
            book = "Psalm" if heading["book"] == "Psalms" else heading["book"]
            found.append((f"{book} {heading['chapter']}", []))
        else:
            raise ValueError(f"neither a heading nor a verse: {line!r}")
    verses = sum(len(lines) for _, lines in found)
    if (len(found), verses) != (CHAPTERS, VERSES):
        raise ValueError(f"{len(found)} chapters with {verses} verses; expected {CHAPTERS} with {VERSES}")
    return [f"{title}\n\n{' '.join(lines)}" for title, lines in found]


def write_jsonl(path: Path, texts: list[str]) -> None:
    """One {"text": ...} a line."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    print(f"{path.name}: {len(texts):,} chapters, {path.stat().st_size:,} bytes")


def main() -> None:
    texts = chapters(read_bible())
    held_out = set(range(HELD_OUT_FIRST, len(texts), HELD_OUT_EVERY))
    DATA.mkdir(parents=True, exist_ok=True)
    write_jsonl(DATA / "kjv_train.jsonl", [text for index, text in enumerate(texts) if index not in held_out])
    write_jsonl(DATA / "kjv_heldout.jsonl", [texts[index] for index in sorted(held_out)])


if __name__ == "__main__":
    main()
