"""Whether a checkpoint on disk is whole: a download that broke off, a file cut short, one that came damaged.

ValueError with one sentence that says what is missing and what to do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from specvl_demo import fingerprints

INDEX = "model.safetensors.index.json"
SHA256 = re.compile(r"[0-9a-f]{64}")
AGAIN = "Remove it and load the model again while the hub can be reached."


def check(folder: Path, name: str) -> None:
    """ValueError where files of weights are missing or shorter than their own headers say."""
    index = folder / INDEX
    if index.is_file():
        try:
            files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise ValueError(f"{name} could not be had: its {index.name} is damaged. {AGAIN}") from None
        missing = [file for file in files if not (folder / file).is_file()]
        if missing:
            raise ValueError(
                f"{name} could not be had: {len(missing)} of its {len(files)} files of weights are not "
                "here, a download that broke off. Load it again while the hub can be reached."
            )
    for file in folder.glob("*.safetensors"):
        if not _whole(file):
            raise ValueError(f"{name} could not be had: its {file.name} is damaged or cut short. {AGAIN}")


def verify(folder: Path, name: str, tell: Callable[[str], None] = lambda text: None) -> None:
    """ValueError where a large file in the hub's cache is not what the hub says; it is removed then.

    The cache names a large file by its SHA-256; the client itself compares sizes only.
    """
    for file in sorted(folder.glob("*.safetensors")):
        blob = file.resolve()
        if not SHA256.fullmatch(blob.name):
            continue
        said = f"Checking {name}: {file.name}"
        if fingerprints.sha256(blob, tell=lambda share, said=said: tell(f"{said}, {share:.0%}")) != blob.name:
            blob.unlink()
            file.unlink(missing_ok=True)
            raise ValueError(
                f"{name} could not be had: {file.name} came damaged (its SHA-256 is not the hub's) and was "
                "removed. Load it again."
            )


def _whole(file: Path) -> bool:
    """Whether a safetensors file is as long as its header says; the library checks that when it opens one."""
    try:
        with safe_open(file, framework="np"):
            return True
    except SafetensorError:
        return False
