"""Makes the quickstart's texts: the King James Bible, one chapter a line, 1 chapter in 20 held out.

    apt-get install bible-kjv bible-kjv-text
    python scripts/quickstart_data/make_text.py
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

OUT = Path(__file__).parents[2] / "configs" / "quickstart" / "data"
VERSE = re.compile(r"(\d?[A-Za-z]+)(\d+):(\d+) (.*)")


def bible(*words: str) -> str:
    """What Debian's `bible` prints for a passage."""
    return subprocess.run(["bible", *words], check=True, capture_output=True, text=True, errors="replace").stdout


def chapters() -> list[tuple[str, str]]:
    """(heading, verses joined by spaces) in the book's order."""
    texts: dict[tuple[str, str], list[str]] = {}
    for line in bible("-f", "gen1:1-rev22:21").splitlines():
        match = VERSE.fullmatch(line.strip())
        if match is None:
            raise SystemExit(f"not a verse: {line!r}")
        book, chapter, _, text = match.groups()
        texts.setdefault((book, chapter), []).append(text.strip())
    names = {}
    for book, _ in texts:
        if book not in names:
            heading = next(line for line in bible(f"{book}1:1").splitlines() if line.strip())
            names[book] = heading.strip().rsplit(" ", 1)[0]
    return [(f"{names[book]} {chapter}", " ".join(verses)) for (book, chapter), verses in texts.items()]


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"text": f"{heading}\n{text}"}) + "\n" for heading, text in chapters()]
    (OUT / "kjv_heldout.jsonl").write_text("".join(row for i, row in enumerate(rows) if i % 20 == 10))
    (OUT / "kjv_train.jsonl").write_text("".join(row for i, row in enumerate(rows) if i % 20 != 10))


if __name__ == "__main__":
    main()
