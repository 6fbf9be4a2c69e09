"""What of the web server stands open, to whom, and how much of a request is read: an ASGI
middleware.

Only the routes that the page and its two endpoints need exist (Gradio brings a proxy, a fetcher of
addresses, an editor and more). Host and origin are checked, bodies are counted as they arrive, JSON
is looked at before the app sees it, answers carry security headers, and faults of the libraries are
told in our sentences. Knows nothing of Gradio's own code.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
from starlette.exceptions import HTTPException

from specvl_demo.ui import messages
from specvl_demo.ui.serve import request_check, uploads

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

FORM_BYTES = 64 * 2**10
"""What a form adds around a file; also the most that a login may hold."""
JSON_BYTES = 2 * 2**20
"""A conversation of seventeen turns of 20,000 characters each way, in most alphabets."""
IN_THREAD_BYTES = 64 * 2**10
"""From here on a body is looked at in a thread: nobody else is to wait for it."""

READ = re.compile(
    r"""(?x) / | /(config|info|login_check|logout)/? | /(static|svelte|assets)/.* | /theme\.css
    | /favicon\.ico | /robots\.txt | /manifest\.json | /pwa_icon
    | /gradio_api/( (config|info|user|token|app_id|login_check)/? | openapi\.json | startup-events
      | theme\.css | queue/(data|status) | upload_progress | heartbeat/\w+ | file=(?!https?:).*
      | call/(v2/)?(generate|race)/\w+ )"""
)
WRITE_JSON = re.compile(
    r"/gradio_api/(queue/join|cancel|component_server/?|call/(v2/)?(generate|race)/?)"
)
WRITE_FORM = re.compile(r"/login/?")
UPLOAD = re.compile(r"/gradio_api/upload/?")
CALL = re.compile(r"/gradio_api/call/(v2/)?(\w+)/?")
LISTENING = re.compile(r"/gradio_api/call/(?:v2/)?\w+/(\w+)")

FRAMES = "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space"
"""Who may show the page in a frame: Spaces do."""
HUB = "https://huggingface.co https://*.huggingface.co https://*.hf.co"
"""What the bar above a Space's page is drawn from."""
POLICY = "; ".join(
    (
        "default-src 'self'",
        # Gradio starts its page from inline scripts and makes functions of the text that components
        # bring.
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        f"img-src 'self' data: blob: {HUB}",
        "media-src 'self' data: blob:",
        "font-src 'self' data:",
        f"connect-src 'self' data: blob: {HUB}",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        f"frame-ancestors {FRAMES}",
    )
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
]


class Refused(Exception):
    """(status, sentence): the request goes no further."""


class RouteFilter:
    """Stands before the app.

    folders: where files of visitors may lie, the first that of uploads. most_bytes: the largest
    upload; room: of all together. hosts: names under which the page may be asked for, `*` for any.
    listeners: counts who listens at the moment, by event or session. arguments: of every named
    endpoint, in order.
    """

    def __init__(
        self,
        app: Any,
        folders: Sequence[Path],
        most_bytes: int,
        room: int = uploads.UPLOADS_BYTES,
        hosts: Sequence[str] = ("*",),
        listeners: Counter[str | None] | None = None,
        arguments: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._app = app
        self._arguments = arguments or {}
        self._folders = folders
        self._most = most_bytes + FORM_BYTES
        self._too_large = messages.UPLOAD_TOO_LARGE.format(most=self._most >> 20)
        self._room = room
        self._hosts = hosts
        self._listeners = Counter() if listeners is None else listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        # What a login says is for the person who logs in.
        answer = Answer(send, {} if WRITE_FORM.fullmatch(path) else messages.BY_STATUS)
        try:
            receive = await self._checked(scope, path, receive, answer)
        except Refused as refused:
            await answer.say(*refused.args)
            return
        listened = _listened(scope, path)
        self._listeners[listened] += 1
        try:
            await self._app(scope, receive, answer.send)
        except Exception as fault:  # noqa: BLE001 - a mistake of ours, or of a library
            await answer.fail()
            if not isinstance(fault.__cause__ or fault, HTTPException):
                logging.getLogger(__name__).exception("A request to %r failed", path[:100])
        finally:
            self._listeners[listened] -= 1
            if not self._listeners[listened]:
                del self._listeners[listened]

    async def _checked(self, scope: Scope, path: str, receive: Receive, answer: Answer) -> Receive:
        """How the app reads the body of a request that may pass. Refused where it may not."""
        told = {key: value.decode("latin-1") for key, value in scope["headers"]}
        hosts = [told.get(key, "") for key in (b"host", b"x-forwarded-host")]
        if sentence := request_check.host_refusal(hosts[0], self._hosts):
            raise Refused(421, sentence)
        if sentence := request_check.origin_refusal(told.get(b"origin", ""), hosts, self._hosts):
            raise Refused(403, sentence)
        if scope["method"] in ("GET", "HEAD", "OPTIONS") and READ.fullmatch(path):
            return receive
        declared = told.get(b"content-length", "")
        size = int(declared) if declared.isdecimal() and len(declared) < 20 else None
        if scope["method"] != "POST":
            raise Refused(404, messages.NOT_FOUND)
        if UPLOAD.fullmatch(path):
            # One of undeclared size counts as the largest. In a thread: to look at every file takes
            # a while.
            await asyncio.to_thread(self._check_upload, self._most if size is None else size)
            return answer.limited(receive, self._most, self._too_large)
        if WRITE_FORM.fullmatch(path):
            return answer.limited(
                receive, FORM_BYTES, messages.BODY_TOO_LARGE.format(most=FORM_BYTES)
            )
        if not WRITE_JSON.fullmatch(path):
            raise Refused(404, messages.NOT_FOUND)
        if told.get(b"content-type", "").startswith("multipart/"):
            raise Refused(415, messages.NOT_JSON)
        body = await _read(receive, size or 0)
        called = CALL.fullmatch(path)
        names = self._arguments.get(called[2]) if called else None
        asked = (body, self._folders, names, bool(called and called[1]))
        if len(body) < IN_THREAD_BYTES:
            sentence = request_check.body_refusal(*asked)
        else:
            sentence = await asyncio.to_thread(request_check.body_refusal, *asked)
        if sentence:
            raise Refused(400, sentence)
        return _replay(body, receive)

    def _check_upload(self, size: int) -> None:
        if size > self._most:
            raise Refused(413, self._too_large)
        if sentence := uploads.refusal(self._folders[0], size, self._room):
            raise Refused(507, sentence)


class Answer:
    """The answer to one request: with our headers, and our sentences where the app refuses or
    fails.
    """

    def __init__(self, send: Send, sentences: Mapping[int, str]) -> None:
        self._send = send
        self._sentences = sentences
        self._started = False
        self._replaced = False
        self._excess: str | None = None

    async def send(self, message: Any) -> None:
        if self._replaced:
            return
        if message["type"] == "http.response.start":
            if self._excess:
                await self._replace(413, self._excess)
                return
            if sentence := self._sentences.get(message["status"]):
                await self._replace(message["status"], sentence)
                return
            self._started = True
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
        await self._send(message)

    async def say(self, status: int, sentence: str) -> None:
        """Answer with a sentence, in the form Gradio's clients read a refusal from."""
        self._started = True
        body = orjson.dumps({"detail": sentence})
        kind = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*kind, *HEADERS]}
        )
        await self._send({"type": "http.response.body", "body": body})

    async def fail(self) -> None:
        """The app has raised: say so, where nothing was said yet; end what was begun."""
        if not self._started:
            await self._replace(
                *((413, self._excess) if self._excess else (500, messages.BY_STATUS[500]))
            )
        elif not self._replaced:
            await self._send({"type": "http.response.body", "body": b""})

    def limited(self, receive: Receive, most: int, sentence: str) -> Receive:
        """The body, cut off as soon as more than this has come."""
        come = 0

        async def counted() -> Any:
            nonlocal come
            if self._excess:
                return {"type": "http.disconnect"}
            message = await receive()
            come += len(message.get("body", b""))
            if come > most:
                self._excess = sentence
                return {"type": "http.disconnect"}
            return message

        return counted

    async def _replace(self, status: int, sentence: str) -> None:
        self._replaced = True
        await self.say(status, sentence)


async def _read(receive: Receive, declared: int) -> bytes:
    """The whole body. Refused as soon as it is, or says it is, more than JSON_BYTES."""
    body, more = bytearray(), True
    while more:
        if max(declared, len(body)) > JSON_BYTES:
            raise Refused(413, messages.BODY_TOO_LARGE.format(most=JSON_BYTES))
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, messages.NOT_JSON)
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if len(body) > JSON_BYTES:
        raise Refused(413, messages.BODY_TOO_LARGE.format(most=JSON_BYTES))
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A body that was read, to be read once more; then whatever else comes."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    return again


def _listened(scope: Scope, path: str) -> str | None:
    """The event or the session that a request listens to."""
    if found := LISTENING.fullmatch(path):
        return found[1]
    if path == "/gradio_api/queue/data":
        return parse_qs(scope.get("query_string", b"").decode("latin-1")).get(
            "session_hash", [None]
        )[0]
    return None
