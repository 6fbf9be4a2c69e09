"""The folder of uploads: how much is kept, who has the files, what is removed and when."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from specvl_demo.ui import messages

UPLOADS_BYTES = 4 * 2**30
"""All uploads of all visitors together."""
SPARE_BYTES = 32 * 2**20
"""What is left free on the disk."""
MAX_AGE_S = 2 * 3600
"""Files that nobody has asked about for so long are removed, whoever left them."""
MAX_HOLDERS = 4096
"""Beyond it the oldest holder is forgotten; its files are removed by their age."""
MAX_PATH, MAX_LEVELS = 1024, 64
"""Characters and folders of a file's path, each of which the system looks up."""


class StoredFile(NamedTuple):
    written: float
    path: Path
    size: int


def path_within(raw: str, folders: Sequence[Path]) -> Path | None:
    """Return the path, with links followed, if it is in one of the folders; it need not exist. It
    may begin with the name of a folder.
    """
    if len(raw) > MAX_PATH or raw.count("/") > MAX_LEVELS:
        return None
    try:
        first = raw.partition("/")[0]
        path = next((folder.parent for folder in folders if folder.name == first), Path()) / raw
        path = path.resolve()
        return path if any(path.is_relative_to(folder.resolve()) for folder in folders) else None
    except (OSError, ValueError, RuntimeError):
        return None  # a zero byte, an incomplete character, a cycle of links


def sweep_old_files(folder: Path) -> list[StoredFile]:
    """Remove old files and emptied folders, also below; return the others that are complete, oldest
    first.
    """
    left = []
    for path in sorted(folder.rglob("*"), reverse=True):  # a folder after what is in it
        with suppress(OSError):  # its visitor has just left, or a folder is not empty
            info = path.lstat()
            if info.st_mtime < time.time() - MAX_AGE_S:
                path.rmdir() if path.is_dir() else path.unlink()
            elif path.is_file() and path.parent != folder:
                left.append(StoredFile(info.st_mtime, path, info.st_size))
    return sorted(left)


class Uploads:
    """Files by holder: a visit, a bench, a request; of at most `room` bytes. Gradio names an upload
    after its content, so several may have the same file: it is removed when the last has ended.
    """

    def __init__(self, folder: Path, room: int = UPLOADS_BYTES) -> None:
        self.folder = folder.resolve()
        self._room = room
        self._held: OrderedDict[str, set[Path]] = OrderedDict()
        self._of_programs: set[Path] = set()
        self._reserved = 0
        self._lock = threading.Lock()

    def reserve_bytes(self, size: int) -> str | None:
        """Reserve room for so many bytes until `release_bytes`: the oldest files that no holder has
        used make it. Return the reason if there is none.
        """
        place = next(folder for folder in (self.folder, *self.folder.parents) if folder.exists())
        if not os.access(place, os.W_OK | os.X_OK):
            return messages.NOT_KEPT
        with self._lock:
            files = sweep_old_files(self.folder)
            self._of_programs &= {file.path for file in files}
            coming = self._reserved + size
            over = sum(file.size for file in files) + coming - self._room
            short = coming + SPARE_BYTES - shutil.disk_usage(place).free
            if not self._make_room(max(over, short), files):
                return messages.DISK_FULL
            self._reserved += size
        return None

    def release_bytes(self, size: int, holder: str | None, paths: Collection[str] = ()) -> None:
        """Release a reservation: the bytes have arrived, as these files of a holder, or will not.
        Without a holder a program sent them, which may ask about them more than once.
        """
        with self._lock:
            self._reserved -= size
            if not holder:
                self._of_programs |= self._files_here(paths)
        self.hold_files(holder, paths)

    def write_file(self, holder: str | None, name: str, content: bytes) -> Path:
        """Write a file that the page makes, removed with its holder; ValueError without room."""
        if sentence := self.reserve_bytes(len(content)):
            raise ValueError(sentence)
        path = self.folder / os.urandom(16).hex() / name
        try:
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
        except OSError as fault:
            _remove_files([path])
            full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
            raise ValueError(messages.DISK_FULL if full else messages.NOT_KEPT) from None
        finally:
            self.release_bytes(len(content), holder, [str(path)])
        return path

    def is_held(self, path: str, holder: str | None) -> bool:
        """Whether a holder has this file. path: With links followed."""
        with self._lock:
            return Path(path) in self._held.get(holder or "", ())

    def hold_files(self, holder: str | None, paths: Iterable[str]) -> None:
        """Record that a holder has these files, whose age begins anew. Those of other folders are
        ignored.
        """
        files = self._files_here(paths)
        if not holder or not files:
            return
        with self._lock:
            with suppress(OSError):  # one is not there
                [*map(os.utime, files)]
            self._held.setdefault(holder, set()).update(files)
            while len(self._held) > MAX_HOLDERS:
                self._held.popitem(last=False)

    def release_files(self, holder: str | None) -> None:
        """Remove a holder's files that nobody else has, and folders that they leave empty."""
        with self._lock:
            gone = self._held.pop(holder or "", set())
            _remove_files(gone.difference(self._of_programs, *self._held.values()))

    def _files_here(self, paths: Iterable[str]) -> set[Path]:
        """Return those of these paths that are in the folder."""
        within = {path_within(path, [self.folder]) for path in paths}
        return {path for path in within if path not in (None, self.folder)}

    def _make_room(self, lacking: int, files: Sequence[StoredFile]) -> bool:
        """Remove the oldest of these files that nobody holds until so many bytes are free, or
        none.
        """
        held = set().union(*self._held.values())
        unused = [file for file in files if file.path not in held]
        if lacking > sum(file.size for file in unused):
            return False
        while lacking > 0:
            oldest = unused.pop(0)
            _remove_files([oldest.path])
            lacking -= oldest.size
        return True


def _remove_files(files: Collection[Path]) -> None:
    for path in files:
        with suppress(OSError):  # removed already, or its folder is not empty
            path.unlink(missing_ok=True)
            path.parent.rmdir()
