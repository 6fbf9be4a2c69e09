"""Which routes of the web server are open, to whom, and how much of a request is read: an ASGI
middleware.

Only the routes that the page and its endpoints need exist (Gradio brings a proxy, a fetcher of
addresses, an editor and more). Host, origin and login are checked before anything is read, bodies
are counted as they arrive, and JSON is checked before the app sees it. Knows nothing of Gradio's
own code.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from specvl_demo.ui import messages
from specvl_demo.ui.serve.request_check import (
    RefusedRequest,
    host_refusal,
    origin_refusal,
    read_body,
)
from specvl_demo.ui.serve.response import Receive, Response, Send
from specvl_demo.ui.serve.uploads import MOST_PATH, Uploads

Scope = MutableMapping[str, Any]

FORM_BYTES = 64 * 2**10
"""What a form adds around a file; also the limit of a login."""
CHAT_BYTES = 16 * 2**20
"""The same, with pictures in it as data URLs."""
JSON_BYTES = 2 * 2**20
"""A conversation of seventeen turns of 20,000 characters each way, in most alphabets."""
BODY_S = 20.0
"""Seconds for which the next bytes of a body may be missing."""
MOST_NAME = 255
"""Bytes of a name in a path: no file has a longer one."""

FORM = r"""/ | /(static|svelte|assets)/.* | /theme\.css | /favicon\.ico | /robots\.txt
    | /manifest\.json | /pwa_icon | /gradio_api/(startup-events | theme\.css)"""
"""The form that asks for a login, what it is drawn with, the health check."""
PUBLIC = re.compile(rf"(?x) /login/? | {FORM}")
"""Open without a login."""
READ = re.compile(
    rf"""(?x) {FORM} | /(config|info|login_check|logout)/? | /v1/models(/.*)?
    | /gradio_api/( (config|info|user|token|app_id|login_check)/? | openapi\.json
      | queue/(data|status) | upload_progress | heartbeat/\w+ | file=(?!https?:).*
      | call/(v2/)?(generate|race)/\w+ )"""
)
CHAT = re.compile(r"/v1/.*")
"""What programs in OpenAI's form ask for."""
WRITE_JSON = re.compile(
    r"/v1/chat/completions|/gradio_api/(queue/join|cancel|component_server/?"
    r"|call/(v2/)?(generate|race)/?)"
)
LOGIN = re.compile(r"/login/?")
UPLOAD = re.compile(r"/gradio_api/upload/?")
CALL = re.compile(r"/gradio_api/call/(v2/)?(\w+)/?")
LISTENING = re.compile(r"/gradio_api/call/(?:v2/)?\w+/(\w+)")
FILE = re.compile(r"/gradio_api/file=(\w+)/(.*)")
FORWARDED = (b"x-forwarded-host", b"x-gradio-server")
"""Headers in which a proxy names the requested host."""


@dataclass(frozen=True)
class Site:
    """What is behind the filter.

    Attributes:
        folders: Where files of visitors may be, the first that of uploads.
        most_bytes: The largest upload.
        hosts: Host names that the page answers to, `*` for any.
        arguments: Of every named endpoint, in order.
        events, components: Numbers that a request may name.
        places: Folders whose files are fetched by the name of the place.
        listeners: Counts the connected listeners, by event or session.
        admitted: Whether a request comes from a logged-in visitor.
    """

    uploads: Uploads
    folders: Sequence[Path]
    most_bytes: int
    hosts: Sequence[str] = ("*",)
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    events: frozenset[int] = frozenset()
    components: frozenset[int] = frozenset()
    places: Mapping[str, Path] = field(default_factory=dict)
    listeners: Counter[str | None] = field(default_factory=Counter)
    admitted: Callable[[Scope], bool] = lambda _: True


class RouteFilter:
    """The middleware in front of the app."""

    def __init__(self, app: Any, site: Site) -> None:
        self._app = app
        self._site = site
        self._max_bytes = site.most_bytes + FORM_BYTES
        self._too_large = messages.UPLOAD_TOO_LARGE.format(most=self._max_bytes >> 20)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        client = str((scope.get("client") or ("",))[0])
        logging_in, uploading = bool(LOGIN.fullmatch(path)), bool(UPLOAD.fullmatch(path))
        # A login's own response is shown to the person who logs in; chat programs get errors in
        # their own form.
        chat = bool(CHAT.fullmatch(path))
        sentences = {} if logging_in or chat else messages.BY_STATUS
        answer = Response(send, sentences, keep=uploading, openai=chat)
        try:
            scope = self._without_strangers(scope, path)
            receive = await self._checked(scope, path, receive, answer)
            size = await self._expect(scope) if uploading else 0
        except RefusedRequest as refused:
            await answer.say(*refused.args)
            return
        listened = _listened(scope, path)
        _add(self._site.listeners, listened, 1)
        try:
            await self._app(scope, receive, answer.send)
        except Exception as fault:  # noqa: BLE001 - a bug of this program, or of a library
            await answer.fail()
            if not isinstance(fault.__cause__ or fault, HTTPException | MultiPartException):
                logging.getLogger(__name__).exception("A request to %r failed", path[:100])
        finally:
            _add(self._site.listeners, listened, -1)
            if uploading:
                self._site.uploads.release(client, size, _paths(answer))

    def _without_strangers(self, scope: Scope, path: str) -> Scope:
        """Return the request as the app may see it.

        Raises:
            RefusedRequest: If its host is foreign, or it comes from another site, or without a
                login.
        """
        site = self._site
        texts = {key: value.decode("latin-1") for key, value in scope["headers"]}
        if sentence := host_refusal(texts.get(b"host", ""), site.hosts):
            raise RefusedRequest(421, sentence)
        # Any client can send such a header: it counts only if it names one of the page's own hosts.
        named = [host for host in site.hosts if host != "*"]
        forged = {key for key in FORWARDED if host_refusal(texts.get(key, ""), named)}
        hosts = [texts.get(key, "") for key in (b"host", *FORWARDED[:1]) if key not in forged]
        if sentence := origin_refusal(texts.get(b"origin", ""), hosts, site.hosts):
            raise RefusedRequest(403, sentence)
        if not (PUBLIC.fullmatch(path) or site.admitted(scope)):
            raise RefusedRequest(401, messages.NOT_LOGGED_IN)
        headers = [(key, value) for key, value in scope["headers"] if key not in forged]
        return {**scope, "headers": headers}

    async def _checked(
        self, scope: Scope, path: str, receive: Receive, answer: Response
    ) -> Receive:
        """Return how the app reads the body of an admitted request; RefusedRequest if it is not
        valid.
        """
        method = scope["method"]
        if len(path) > MOST_PATH or any(len(part.encode()) > MOST_NAME for part in path.split("/")):
            raise RefusedRequest(404, messages.NOT_FOUND)
        if method in ("GET", "HEAD", "OPTIONS") and READ.fullmatch(path):
            if file := FILE.fullmatch(path):
                self._place(scope, *file.groups())
            return receive
        if method != "POST":
            raise RefusedRequest(404, messages.NOT_FOUND)
        if UPLOAD.fullmatch(path):
            return answer.limited(in_time(receive), self._max_bytes, self._too_large)
        if LOGIN.fullmatch(path):
            too_large = messages.BODY_TOO_LARGE.format(most=FORM_BYTES)
            return answer.limited(in_time(receive), FORM_BYTES, too_large)
        if not WRITE_JSON.fullmatch(path):
            raise RefusedRequest(404, messages.NOT_FOUND)
        if dict(scope["headers"]).get(b"content-type", b"").startswith(b"multipart/"):
            raise RefusedRequest(415, messages.NOT_JSON)
        max_bytes = CHAT_BYTES if CHAT.fullmatch(path) else JSON_BYTES
        body = await _read(in_time(receive), _declared(scope) or 0, max_bytes)
        called = CALL.fullmatch(path)
        names = self._site.arguments.get(called[2]) if called else None
        by_name = bool(called and called[1])
        # In a thread, so that other requests do not wait for a large one.
        data = await asyncio.to_thread(read_body, body, self._site.folders, names, by_name)
        if path.endswith("queue/join"):
            _one_of(data.get("fn_index"), self._site.events)
        elif "component_server" in path:
            _one_of(data.get("component_id"), self._site.components)
            scope.setdefault("state", {})["visit"] = str(data.get("session_hash"))
        return _replay(body, receive)

    async def _expect(self, scope: Scope) -> int:
        """Reserve room for an upload, and return its expected number of bytes."""
        size = _declared(scope)
        # An upload of undeclared size may be the largest.
        size = self._max_bytes if size is None else size
        if size > self._max_bytes:
            raise RefusedRequest(413, self._too_large)
        # In a thread, since examining every file takes a while.
        if sentence := await asyncio.to_thread(self._site.uploads.expect, size):
            raise RefusedRequest(507, sentence)
        return size

    def _place(self, scope: Scope, place: str, rest: str) -> None:
        """Make the app serve a file of one of the places."""
        if (folder := self._site.places.get(place)) is not None:
            root = scope.get("root_path", "")
            scope["path"] = f"{root}/gradio_api/file={folder / rest.lstrip('/')}"


def _add(counter: Counter[Any], key: Any, step: int) -> None:
    counter[key] += step
    if not counter[key]:
        del counter[key]


def _one_of(number: Any, numbers: frozenset[int]) -> None:
    if not isinstance(number, int) or number not in numbers:
        raise RefusedRequest(404, messages.NOT_FOUND)


def _declared(scope: Scope) -> int | None:
    """Return the size of the body, if the request declares it."""
    length = dict(scope["headers"]).get(b"content-length", b"").decode("latin-1")
    return int(length) if length.isdecimal() and len(length) < 20 else None


def _paths(answer: Response) -> list[str]:
    """Return the files that an upload has become."""
    paths = orjson.loads(answer.body) if answer.status == 200 else []
    return [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []


def in_time(receive: Receive) -> Receive:
    """Receive a body; a client whose next bytes are missing for BODY_S counts as gone."""

    async def timed() -> Any:
        try:
            return await asyncio.wait_for(receive(), BODY_S)
        except asyncio.TimeoutError:  # noqa: UP041 - not yet the built-in one in Python 3.10
            return {"type": "http.disconnect"}

    return timed


async def _read(receive: Receive, declared: int, max_bytes: int) -> bytes:
    """Return the whole body; RefusedRequest as soon as it is, or is declared to be, more than
    `most` bytes.
    """
    body, more = bytearray(), True
    while max(declared, len(body)) <= max_bytes:
        if not more:
            return bytes(body)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedRequest(400, messages.NOT_JSON)
        body += message.get("body", b"")
        more = message.get("more_body", False)
    raise RefusedRequest(413, messages.BODY_TOO_LARGE.format(most=max_bytes))


def _replay(body: bytes, receive: Receive) -> Receive:
    """Replay a body that was read, then pass on whatever follows."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    return again


def _listened(scope: Scope, path: str) -> str | None:
    """Return the event or the session that a request listens to."""
    if match := LISTENING.fullmatch(path):
        return match[1]
    if path == "/gradio_api/queue/data":
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        return query.get("session_hash", [None])[0]
    return None
