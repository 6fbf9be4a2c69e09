"""Whether a checkpoint on disk is whole: a download that broke off, a file cut short, one that came damaged.

Given the folder of a checkpoint, or what the hub's client has just fetched; ValueError with one sentence that
says what is missing and what to do. Looks at names and sizes; reads whole files only for the hash.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from pathlib import Path

INDEX = "model.safetensors.index.json"
SHA256 = re.compile(r"[0-9a-f]{64}")
PIECE = 2**20
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
        if file.stat().st_size < _declared(file):
            raise ValueError(f"{name} could not be had: its {file.name} is damaged or cut short. {AGAIN}")


def verify(folder: Path, name: str) -> None:
    """ValueError where a large file in the hub's cache is not what the hub says; it is removed then.

    The cache names a large file by its SHA-256; the client itself compares sizes only.
    """
    for file in folder.glob("*.safetensors"):
        blob = file.resolve()
        if not SHA256.fullmatch(blob.name):
            continue
        found = hashlib.sha256()
        with blob.open("rb") as opened:
            while piece := opened.read(PIECE):
                found.update(piece)
        if found.hexdigest() != blob.name:
            blob.unlink()
            file.unlink(missing_ok=True)
            raise ValueError(
                f"{name} could not be had: {file.name} came damaged (its SHA-256 is not the hub's) and was "
                "removed. Load it again."
            )


def _declared(file: Path) -> int:
    """Bytes a safetensors file has by its own header; more than any file has where that is no header."""
    with file.open("rb") as opened:
        head = opened.read(8)
        if len(head) < 8:
            return 2**63
        (size,) = struct.unpack("<Q", head)
        if size > file.stat().st_size:
            return 2**63
        try:
            tensors = [one for key, one in json.loads(opened.read(size)).items() if key != "__metadata__"]
            return 8 + size + max((one["data_offsets"][1] for one in tensors), default=0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return 2**63
