"""The folder of uploads: what can be kept there, whose the files are, what is removed and when.

Given the folder and what pages ask; knows nothing of what a question means.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from specvl_demo.ui import messages

UPLOADS_BYTES = 4 * 2**30
"""All uploads of all visitors together."""
SPARE_BYTES = 32 * 2**20
"""What is left free on the disk."""
MOST_AGE_S = 2 * 3600.0
"""Older files are removed, whoever left them: a visitor, an upload that was cut off, an earlier
server.
"""
MOST_VISITS = 4096
"""Beyond it the oldest is forgotten; its files then go with the folder's timed cleaning."""
MOST_PATH, MOST_LEVELS = 1024, 64
"""Characters and folders of a file's path: the system looks each of them up."""


def located(raw: str, folders: Sequence[Path]) -> Path | None:
    """The path, links followed, where it lies in one of the folders; it need not exist."""
    if len(raw) > MOST_PATH or raw.count("/") > MOST_LEVELS:
        return None
    try:
        path = Path(raw).resolve()
        return path if any(path.is_relative_to(folder.resolve()) for folder in folders) else None
    except (
        OSError,
        ValueError,
        RuntimeError,
    ):  # a zero byte, half a character, links that go round
        return None


def sweep(folder: Path) -> int:
    """Remove what is older than MOST_AGE_S, and folders that are empty then; the bytes that are
    left.
    """
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
    """Why so many bytes more cannot be kept, old ones removed: all uploads together, the disk, a
    folder that cannot be written. None where they can."""
    place = next(one for one in (folder, *folder.parents) if one.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        return messages.NOT_KEPT
    fits = sweep(folder) + size <= room and shutil.disk_usage(place).free - size >= SPARE_BYTES
    return None if fits else messages.DISK_FULL


def reason(fault: OSError) -> str:
    return messages.DISK_FULL if fault.errno in (errno.ENOSPC, errno.EDQUOT) else messages.NOT_KEPT


class Sessions:
    """Files by visit: they are removed when the last visitor who asked about them has left. Gradio
    names an upload after its content, so two visitors may share one file.

    folder: only what lies below it is ever removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._files: OrderedDict[str, set[Path]] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, visit: str | None, asked: Any) -> None:
        """Note the files of a question, as a page sent it."""
        found = {
            path for raw in _paths(asked) if (path := located(raw, [self._folder])) is not None
        }
        found.discard(self._folder)
        if visit is None or not found:
            return
        with self._lock:
            self._files.setdefault(visit, set()).update(found)
            while len(self._files) > MOST_VISITS:
                self._files.popitem(last=False)

    def leave(self, visit: str | None) -> None:
        """The visit is over: remove its files that nobody else asked about, and folders they leave
        empty.
        """
        with self._lock:
            gone = self._files.pop(visit or "", set())
            gone -= {path for files in self._files.values() for path in files}
            for path in gone:
                with suppress(OSError):  # gone already, or more lies in its folder
                    path.unlink()
                    path.parent.rmdir()


def _paths(asked: Any) -> Iterator[str]:
    """Everything in a question that may name a file."""
    if not isinstance(asked, Mapping):
        return
    turns = asked.get("history")
    for holder in (asked, *(turns if isinstance(turns, list) else [])):
        media = holder.get("media") if isinstance(holder, Mapping) else None
        for item in media if isinstance(media, list) else []:
            if isinstance(item, Mapping) and isinstance(item.get("path"), str):
                yield item["path"]
