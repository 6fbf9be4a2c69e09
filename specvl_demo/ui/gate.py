"""What of the web server stands open: the routes the page and its two endpoints need, and room for uploads.

Gradio brings more than this page uses: a proxy, a fetcher of addresses, statistics of visitors, an editor.
Given the folder of uploads, answers those with 404 and uploads that do not fit with 413 or 507, before
anything of them is read; passes everything else on. An ASGI middleware; knows nothing of Gradio's own code.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from specvl_demo.ui import words

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

UPLOADS_BYTES = 4 * 2**30
"""All uploads of all visitors together; they are removed when they are old."""
SPARE_BYTES = 32 * 2**20
"""What is left free on the disk."""
FORM_BYTES = 64 * 2**10
"""What a form adds around a file."""

CLOSED = re.compile(
    r"""(?x) /monitoring | /dev/
    | (/gradio_api)? / (
        proxy= | file=https?: | file/ | stream/ | deep_link | dev/ | runs | run-history | run/ | api/
      | custom_component/ | vibe- | undo-vibe- | reset | mcp )"""
)
UPLOAD = re.compile(r"(/gradio_api)?/upload/?")


class Gate:
    """Stands before the app. folder: of uploads; most_bytes: the largest upload; room: of all together."""

    def __init__(self, app: Any, folder: Path, most_bytes: int, room: int = UPLOADS_BYTES) -> None:
        self._app = app
        self._folder = folder
        self._most = most_bytes + FORM_BYTES
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            if CLOSED.match(path):
                await _say(send, 404, "Not found")
                return
            if scope["method"] == "POST" and UPLOAD.fullmatch(path):
                # In a thread: to look at every file takes a while, and nobody else is to wait for it.
                status, sentence = await asyncio.to_thread(self._refusal, scope)
                if status:
                    await _say(send, status, sentence)
                    return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        """Why an upload is not taken; (0, "") where it is. One of undeclared size counts as the largest."""
        told = dict(scope["headers"]).get(b"content-length", b"")
        size = int(told) if told.isdigit() else self._most
        if size > self._most:
            return 413, words.UPLOAD_TOO_LARGE.format(most=self._most >> 20)
        return (0, "") if has_room(self._folder, size, self._room) else (507, words.DISK_FULL)


def has_room(folder: Path, size: int, room: int = UPLOADS_BYTES) -> bool:
    """Whether so many bytes more fit among all uploads together and on the disk."""
    held = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # its visitor has just left
                held += Path(parent, name).lstat().st_size
    if held + size > room:
        return False
    return not folder.exists() or shutil.disk_usage(folder).free - size >= SPARE_BYTES


async def _say(send: Send, status: int, sentence: str) -> None:
    body = sentence.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
