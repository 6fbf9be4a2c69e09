"""The folder of uploads: what lies in it, what can be kept there, and what is too old to stay."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from specvl_demo.ui import messages

UPLOADS_BYTES = 4 * 2**30
"""All uploads of all visitors together."""
SPARE_BYTES = 32 * 2**20
"""What is left free on the disk."""
MOST_AGE_S = 2 * 3600.0
"""Older files are removed, whoever left them: a visitor, an upload that was cut off, an earlier server."""


MOST_PATH, MOST_LEVELS = 1024, 64
"""Characters and folders of a file's path: the system looks each of them up."""


def located(raw: str, folders: Sequence[Path]) -> Path | None:
    """The path, links followed, where it lies in one of the folders; it need not exist."""
    if len(raw) > MOST_PATH or raw.count("/") > MOST_LEVELS:
        return None
    try:
        path = Path(raw).resolve()
        return path if any(path.is_relative_to(folder.resolve()) for folder in folders) else None
    except (OSError, ValueError, RuntimeError):  # a zero byte, half a character, links that go round
        return None


def sweep(folder: Path) -> int:
    """Remove what is older than MOST_AGE_S, and folders that are empty then; the bytes that are left."""
    held = 0
    oldest = time.time() - MOST_AGE_S
    for parent, _, names in os.walk(folder, topdown=False):
        emptied = False
        for name in names:
            with suppress(OSError):  # its visitor has just left
                path = Path(parent, name)
                info = path.lstat()
                if info.st_mtime < oldest:
                    path.unlink()
                    emptied = True
                else:
                    held += info.st_size
        with suppress(OSError):  # not empty
            if parent != str(folder) and (emptied or Path(parent).lstat().st_mtime < oldest):
                Path(parent).rmdir()
    return held


def refusal(folder: Path, size: int, room: int = UPLOADS_BYTES) -> str | None:
    """Why so many bytes more cannot be kept, old ones removed: all uploads together, the disk, a folder that
    cannot be written. None where they can."""
    place = next(one for one in (folder, *folder.parents) if one.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        return messages.NOT_KEPT
    fits = sweep(folder) + size <= room and shutil.disk_usage(place).free - size >= SPARE_BYTES
    return None if fits else messages.DISK_FULL


def reason(fault: OSError) -> str:
    return messages.DISK_FULL if fault.errno in (errno.ENOSPC, errno.EDQUOT) else messages.NOT_KEPT
