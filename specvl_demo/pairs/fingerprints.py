"""Short hashes of weights, recorded with all that is made with them. Loads no models."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

BLOCK = 1 << 24


def folder_hash(folder: Path) -> str | None:
    """Return a short hash of the weight files of a folder; None if it has none."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    states = [(file, file.stat()) for file in files]
    return (
        _short_hash(*((file, at.st_size, at.st_mtime_ns) for file, at in states)) if files else None
    )


@lru_cache(maxsize=64)
def _short_hash(*files: tuple[Path, int, int]) -> str:
    """Return the short hash of files of this size and time, which are large and often asked for."""
    return sha256(*(file for file, *_ in files))[:12]


def sha256(*files: Path) -> str:
    """Return the SHA-256 of files one after the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while block := opened.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()
