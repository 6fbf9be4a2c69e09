"""Whose uploaded files are whose: they are removed when the last visitor who asked about them has left.

Given the upload folder and what pages ask; knows nothing of what a question means. Gradio names an upload
after its content, so two visitors may share one file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from specvl_demo.ui.serve.uploads import located

MOST_VISITS = 4096
"""Beyond it the oldest is forgotten; its files then go with the folder's timed cleaning."""


class Sessions:
    """Files by visit. folder: only what lies below it is ever removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._files: OrderedDict[str, set[Path]] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, visit: str | None, asked: Any) -> None:
        """Note the files of a question, as a page sent it."""
        found = {path for raw in _paths(asked) if (path := located(raw, [self._folder])) is not None}
        found.discard(self._folder)
        if visit is None or not found:
            return
        with self._lock:
            self._files.setdefault(visit, set()).update(found)
            while len(self._files) > MOST_VISITS:
                self._files.popitem(last=False)

    def leave(self, visit: str | None) -> None:
        """The visit is over: remove its files that nobody else asked about, and folders they leave empty."""
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
