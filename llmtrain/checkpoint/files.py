"""Publishing folders so that they are whole or not there, and telling a whole one from a damaged one."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path

MANIFEST = "manifest.json"
_CHUNK = 1 << 22


def crc32(path: Path) -> int:
    """CRC-32 of a file's bytes."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def write_synced(path: Path, text: str) -> None:
    """Writes a small file and waits until the disk has it."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Waits until the disk has the folder's entries, so that a rename survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(partial: Path, final: Path) -> None:
    """Renames a finished folder into its place; what stood there before goes only after that."""
    sync_folder(partial)
    old = final.with_name(f"{final.name}.replaced")
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    partial.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def write_manifest(folder: Path, sums: dict[str, int]) -> None:
    """Lists every file with its size and CRC-32; a folder without this list is not whole."""
    entries = {name: {"bytes": (folder / name).stat().st_size, "crc32": value} for name, value in sorted(sums.items())}
    write_synced(folder / MANIFEST, json.dumps({"files": entries}, indent=1))


def find_damage(folder: Path, *, share: int = 0, of: int = 1) -> str | None:
    """What is wrong with a published folder, or None.

    Sizes of all files are compared, and the CRC-32 of every `of`-th file from `share` on: ranks read a part each.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return f"it has no {MANIFEST}: the save did not finish"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {MANIFEST} cannot be read ({error})"
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["bytes"]:
            return f"{name} has {path.stat().st_size} bytes, not {entry['bytes']}"
    for name, entry in list(files.items())[share::of]:
        if crc32(folder / name) != entry["crc32"]:
            return f"the contents of {name} have changed since it was written"
    return None
