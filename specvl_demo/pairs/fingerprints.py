"""Short hashes of weights, recorded with all that is made with them. Loads no models."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specvl_demo.pairs import Checkpoint

BLOCK = 1 << 24


def of(checkpoint: Checkpoint) -> str | None:
    """Return its files' hash, or the hub's revision; None if it is not in the hub's cache."""
    if checkpoint.local:
        return of_folder(checkpoint.folder)
    config = cached_config(checkpoint.id)
    # Its snapshot's folder is named after the commit.
    return config.parent.name[:12] if config else None


def of_folder(folder: Path) -> str | None:
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


def cached_config(repo: str) -> Path | None:
    """Return the config.json of a hub repository in the local cache."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - not for the shipped pair

    path = try_to_load_from_cache(repo, "config.json")
    return Path(path) if isinstance(path, str) else None
