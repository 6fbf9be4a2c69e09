"""Which routes of the web server are open, to whom, and how much of a request is read: an ASGI
middleware.

Only the routes that the page and its endpoints need exist (Gradio brings a proxy, a fetcher of
addresses, an editor and more). Host, origin and login are checked before anything is read, bodies
are counted as they arrive, and JSON is checked before the app sees it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from specvl_demo.ui import messages
from specvl_demo.ui.serve.response import (
    PageResponse,
    Receive,
    RefusedRequest,
    Send,
    security_headers,
)
from specvl_demo.ui.serve.uploads import MAX_PATH, Uploads, path_within

Scope = MutableMapping[str, Any]

FORM_BYTES = 64 * 2**10
"""What a form adds around a file; also the limit of a login."""
CHAT_BYTES = 16 * 2**20
"""The same, with pictures in it as data URLs."""
JSON_BYTES = 2 * 2**20
"""A conversation of seventeen turns of 20,000 characters each way, in most alphabets."""
BODY_S = 20.0
"""Seconds for which the next bytes of a body may be missing."""
MAX_NAME = 255
"""Bytes of a name in a path: no file has a longer one."""
MAX_CONTAINERS = 2000
"""Lists and objects of one body; a page with a full conversation sends about two hundred."""
MAX_DEPTH = 32
MAX_PATHS = 32
"""Files of one body: a conversation has half as many."""
MAX_MARKS = 200_000
"""Brackets and commas of one body, counted before it is parsed."""
LOCAL = ("127.0.0.1", "localhost", "[::1]", "::1")

FORM = r"""/ | /(static|svelte|assets)/.* | /theme\.css | /favicon\.ico | /robots\.txt
    | /manifest\.json | /pwa_icon | /gradio_api/(startup-events | theme\.css)"""
"""The form that asks for a login, what it is drawn with, the health check."""
PUBLIC = re.compile(rf"(?x) /login/? | {FORM}")
"""Open without a login."""
READ = re.compile(
    rf"""(?x) {FORM} | /(config|info|login_check|logout)/? | /v1/models(/.*)?
    | /gradio_api/( (config|info|user|token|app_id|login_check)/? | openapi\.json
      | queue/(data|status) | upload_progress | heartbeat/[\w-]+ | file=(?!https?:).*
      | call/(v2/)?(generate|race)/\w+ )"""
)
CHAT = re.compile(r"/(v1|api|chat|completions|responses|embeddings|models|health)(/.*)?")
"""What programs in OpenAI's form ask for, also where they take another base address."""
WRITE_JSON = re.compile(
    r"/v1/chat/completions|/gradio_api/(queue/join|cancel|component_server/?"
    r"|call/(v2/)?(generate|race)/?)"
)
LOGIN = re.compile(r"/login/?")
UPLOAD = re.compile(r"/gradio_api/upload/?")
FILE = re.compile(r"/gradio_api/file=(\w+)/(.*)")
FORWARDED = (b"x-forwarded-host", b"x-gradio-server")
"""Headers in which a proxy names the requested host."""


@dataclass
class RouteFilter:
    """The middleware in front of the app.

    Args:
        folders: Where files of visitors may be, the first that of uploads.
        most_bytes: The largest upload.
        hosts: Host names that the page answers to, `*` for any.
        frames: Sites that may show the page in a frame, `*` for any.
        events, components: Numbers that a request may name.
        arguments: Of calls, by name; one that does not name them must have all.
        places: Folders whose files are fetched by the name of the place.
    """

    app: Any
    uploads: Uploads
    folders: Sequence[Path]
    most_bytes: int
    hosts: Sequence[str] = ("*",)
    frames: Sequence[str] = ()
    events: frozenset[int] = frozenset()
    components: frozenset[int] = frozenset()
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    places: Mapping[str, Path] = field(default_factory=dict)
    admitted: Callable[[Scope], bool] = lambda _: True

    def __post_init__(self) -> None:
        self._headers = security_headers(self.frames)
        self._max_bytes = self.most_bytes + FORM_BYTES
        self._too_large = messages.UPLOAD_TOO_LARGE.format(most=self._max_bytes >> 20)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["path"].startswith("//"):  # of a base address that ends in a slash
            scope = {**scope, "path": "/" + scope["path"].lstrip("/")}
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        uploading = bool(UPLOAD.fullmatch(path))
        # A login's own response is shown to the person who logs in; chat programs get errors in
        # their own form.
        chat = bool(CHAT.fullmatch(path))
        sentences = {} if chat or LOGIN.fullmatch(path) else messages.BY_STATUS
        answer = PageResponse(send, sentences, self._headers, keep=uploading, openai=chat)
        try:
            scope = self._check_sender(scope, path)
            receive = await self._check_body(scope, path, receive, answer)
            size = await self._reserve_upload(scope) if uploading else 0
        except RefusedRequest as refused:
            await answer.send_sentence(*refused.args)
            return
        try:
            await self.app(scope, receive, answer.send)
        except Exception as fault:  # noqa: BLE001 - a bug of this program, or of a library
            await answer.report_failure()
            if not isinstance(fault.__cause__ or fault, HTTPException | MultiPartException):
                logging.getLogger(__name__).exception("A request to %r failed", path[:100])
        finally:
            if uploading:  # the body lists the files that it has become
                paths = orjson.loads(answer.body) if answer.status == 200 else []
                # Only a page has a visit, and names it.
                visit = QueryParams(scope.get("query_string", b"")).get("visit", "")[:MAX_NAME]
                self.uploads.release_bytes(size, visit, paths if isinstance(paths, list) else ())

    def _check_sender(self, scope: Scope, path: str) -> Scope:
        """Return the request as the app may see it; RefusedRequest if its host is foreign, or it
        comes from another site, or without a login.
        """
        texts = {key: value.decode("latin-1") for key, value in scope["headers"]}
        if not _is_allowed_host(texts.get(b"host", ""), self.hosts):
            raise RefusedRequest(421, messages.WRONG_HOST)
        # Any client can send such a header: it counts only if it names one of the page's own hosts.
        named = [host for host in self.hosts if host != "*"]
        forged = {key for key in FORWARDED if not _is_allowed_host(texts.get(key, ""), named)}
        hosts = [texts.get(key, "") for key in (b"host", *FORWARDED[:1]) if key not in forged]
        if not _is_own_origin(texts.get(b"origin", ""), hosts, named):
            raise RefusedRequest(403, messages.WRONG_ORIGIN)
        if not (PUBLIC.fullmatch(path) or self.admitted(scope)):
            raise RefusedRequest(401, messages.NOT_LOGGED_IN)
        headers = [(key, value) for key, value in scope["headers"] if key not in forged]
        return {**scope, "headers": headers}

    async def _check_body(
        self, scope: Scope, path: str, receive: Receive, answer: PageResponse
    ) -> Receive:
        """Return how the app reads the body of an admitted request; RefusedRequest if it is not
        valid.
        """
        method = scope["method"]
        if len(path) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in path.split("/")):
            raise RefusedRequest(404, messages.NOT_FOUND)
        if method in ("GET", "HEAD", "OPTIONS") and READ.fullmatch(path):
            if (file := FILE.fullmatch(path)) and file[1] in self.places:
                root = scope.get("root_path", "")
                place = self.places[file[1]]
                scope["path"] = f"{root}/gradio_api/file={place / file[2].lstrip('/')}"
            return receive
        if method != "POST":
            if path == "/v1/chat/completions":
                raise RefusedRequest(405, messages.USE_POST)
            raise RefusedRequest(404, messages.NOT_FOUND)
        if UPLOAD.fullmatch(path):
            return answer.limit_body(with_timeout(receive), self._max_bytes, self._too_large)
        if LOGIN.fullmatch(path):
            too_large = messages.BODY_TOO_LARGE.format(most=FORM_BYTES / 2**20)
            return answer.limit_body(with_timeout(receive), FORM_BYTES, too_large)
        if not WRITE_JSON.fullmatch(path):
            raise RefusedRequest(404, messages.NOT_FOUND)
        if dict(scope["headers"]).get(b"content-type", b"").startswith(b"multipart/"):
            raise RefusedRequest(415, messages.NOT_JSON)
        max_bytes = CHAT_BYTES if CHAT.fullmatch(path) else JSON_BYTES
        body = await _read_whole_body(with_timeout(receive), _declared_bytes(scope) or 0, max_bytes)
        # In a thread, so that other requests do not wait for a large one.
        data = await asyncio.to_thread(parse_body, body, self.folders)
        if path.endswith("queue/join"):
            _require_one_of(data.get("fn_index"), self.events)
        elif "component_server" in path:
            _require_one_of(data.get("component_id"), self.components)
            scope.setdefault("state", {})["visit"] = str(data.get("session_hash"))
        arguments = self.arguments.get(Path(path).name, ())
        if "/v2/" in path and (unknown := data.keys() - set(arguments)):
            raise RefusedRequest(400, messages.UNKNOWN.format(min(unknown)[:100]))
        if isinstance(data.get("data"), list) and len(data["data"]) < len(arguments):
            raise RefusedRequest(400, messages.NOT_NAMED)
        return _replay_body(body, receive)

    async def _reserve_upload(self, scope: Scope) -> int:
        """Reserve room for an upload, and return its expected number of bytes."""
        size = _declared_bytes(scope)
        # An upload of undeclared size may be the largest.
        size = self._max_bytes if size is None else size
        if size > self._max_bytes:
            raise RefusedRequest(413, self._too_large)
        # In a thread, since examining every file takes a while.
        if sentence := await asyncio.to_thread(self.uploads.reserve_bytes, size):
            raise RefusedRequest(507, sentence)
        return size


def _require_one_of(number: Any, numbers: frozenset[int]) -> None:
    if not isinstance(number, int) or number not in numbers:
        raise RefusedRequest(404, messages.NOT_FOUND)


def _declared_bytes(scope: Scope) -> int | None:
    """Return the size of the body, if the request declares it."""
    length = dict(scope["headers"]).get(b"content-length", b"").decode("latin-1")
    return int(length) if length.isdecimal() and len(length) < 20 else None


def with_timeout(receive: Receive) -> Receive:
    """Receive a body; a client whose next bytes are missing for BODY_S counts as gone."""

    async def timed() -> Any:
        try:
            return await asyncio.wait_for(receive(), BODY_S)
        except asyncio.TimeoutError:  # noqa: UP041 - not yet the built-in one in Python 3.10
            return {"type": "http.disconnect"}

    return timed


async def _read_whole_body(receive: Receive, declared: int, max_bytes: int) -> bytes:
    """Return the whole body; RefusedRequest as soon as it exceeds, or declares more, bytes."""
    body = bytearray()
    more = True
    while max(declared, len(body)) <= max_bytes:
        if not more:
            return bytes(body)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedRequest(400, messages.NOT_JSON)
        body += message.get("body", b"")
        more = message.get("more_body", False)
    raise RefusedRequest(413, messages.BODY_TOO_LARGE.format(most=max_bytes / 2**20))


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Replay a body that was read, then pass on whatever follows."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    return again


def _is_allowed_host(host: str, allowed: Sequence[str]) -> bool:
    """Whether a Host header names this server.

    allowed: Host names without ports; `.name` for all below it, `*` for any.
    """
    name, _ = _split_host(host)
    below = tuple(pattern for pattern in allowed if pattern.startswith("."))
    return "*" in allowed or name in allowed or name.endswith(below)


def _is_own_origin(origin: str, hosts: Sequence[str], named: Sequence[str]) -> bool:
    """Whether an Origin header names the page itself: one of the request's hosts, or a host that is
    allowed by name.

    Another port of the same machine is another site. A request without an origin does not come from
    a browser's page.
    """
    given = urlsplit(origin).netloc
    if not origin or (given and given in hosts):
        return True
    name, port = _split_host(given)
    split_hosts = [_split_host(host) for host in hosts]
    if name in LOCAL:
        good = any(host in LOCAL and port == its for host, its in split_hosts)
    else:
        good = name not in dict(split_hosts)
    return good and _is_allowed_host(given, named)


def _split_host(host: str) -> tuple[str, str]:
    """Return the name, lower case, and the port of a Host header; [::1] keeps its brackets."""
    name, colon, port = host.rpartition(":")
    return (name.lower(), port) if colon and port.isdigit() else (host.lower(), "")


def parse_body(body: bytes, folders: Sequence[Path]) -> dict[str, Any]:
    """Return a JSON body if it is an object of limited size whose files are in these folders; else
    raise RefusedRequest. It may take some tens of milliseconds.
    """
    if sum(body.count(mark) for mark in (b"[", b"{", b",")) > MAX_MARKS:
        raise RefusedRequest(400, messages.TOO_MANY_PARTS.format(most=MAX_CONTAINERS))
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        raise RefusedRequest(400, messages.BAD_JSON.format(reason=fault)) from None
    if not isinstance(data, dict):
        raise RefusedRequest(400, messages.NOT_JSON)
    level: list[dict | list] = [data]
    containers = 0
    paths = []
    for _ in range(MAX_DEPTH):
        containers += len(level)
        if containers > MAX_CONTAINERS:
            raise RefusedRequest(400, messages.TOO_MANY_PARTS.format(most=MAX_CONTAINERS))
        paths += [
            item["path"]
            for item in level
            if isinstance(item, dict) and isinstance(item.get("path"), str)
        ]
        if len(paths) > MAX_PATHS:
            n = f"more than {MAX_PATHS}"
            raise RefusedRequest(400, messages.TOO_MANY_FILES.format(most=MAX_PATHS, n=n))
        values = (item.values() if isinstance(item, dict) else item for item in level)
        level = [value for some in values for value in some if isinstance(value, dict | list)]
    if level:
        raise RefusedRequest(400, messages.TOO_DEEP.format(most=MAX_DEPTH))
    if any(path_within(path, folders) is None for path in paths):
        raise RefusedRequest(400, messages.NOT_UPLOADED)
    return data
