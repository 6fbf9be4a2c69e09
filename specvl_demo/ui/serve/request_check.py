"""Checks a request's host, origin and JSON body before it is handled.

Knows neither Gradio nor ASGI. Every refusal is a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from specvl_demo.ui import messages
from specvl_demo.ui.serve.uploads import located

MOST_CONTAINERS = 2000
"""Lists and objects of one body; a page with a full conversation sends about two hundred."""
MOST_DEPTH = 32
MOST_PATHS = 32
"""Files of one body: a conversation has half as many."""
MOST_MARKS = 200_000
"""Brackets and commas of one body: what has more is not parsed, since parsing cannot be
interrupted.
"""


LOCAL = ("127.0.0.1", "localhost", "[::1]", "::1")


class RefusedRequest(Exception):
    """(status, sentence): the request is refused."""


def host_refusal(host: str, allowed: Sequence[str]) -> str | None:
    """Return the refusal of a Host header that does not name this server, else None.

    allowed: Host names without ports; `.name` for all below it, `*` for any.
    """
    name, _ = _host(host)
    below = tuple(pattern for pattern in allowed if pattern.startswith("."))
    good = "*" in allowed or name in allowed or name.endswith(below)
    return None if good else messages.WRONG_HOST


def origin_refusal(origin: str, hosts: Sequence[str], allowed: Sequence[str]) -> str | None:
    """Return the refusal of an Origin header that does not name the page itself, else None.

    It must name one of the request's hosts, or a host allowed by name. Another port of the same
    machine is another site. A request without an origin does not come from a browser's page.
    """
    given = urlsplit(origin).netloc
    if not origin or (given and given in hosts):
        return None
    name, port = _host(given)
    named_hosts = [_host(host) for host in hosts]
    if name in (*LOCAL, *(host_name for host_name, _ in named_hosts)):
        good = name in LOCAL and any(
            host_name in LOCAL and port == its for host_name, its in named_hosts
        )
    else:
        good = bool(given)
    named = host_refusal(given, [host_name for host_name in allowed if host_name != "*"]) is None
    return None if good and named else messages.WRONG_ORIGIN


def _host(host: str) -> tuple[str, str]:
    """Return the name, lower case, and the port of a Host header; [::1] keeps its brackets."""
    name, colon, port = host.rpartition(":")
    return (name.lower(), port) if colon and port.isdigit() else (host.lower(), "")


def read_body(
    body: bytes,
    folders: Sequence[Path],
    arguments: Sequence[str] | None = None,
    by_name: bool = False,
) -> dict[str, Any]:
    """Return a JSON body if it is an object of limited size whose files are in these folders.

    It may take some tens of milliseconds, so a large body should not be read on the event loop.

    Args:
        arguments: Of the endpoint that is called; the body names them if by_name, else lists all of
            them.

    Raises:
        RefusedRequest: If the body is not valid.
    """
    if sum(body.count(mark) for mark in (b"[", b"{", b",")) > MOST_MARKS:
        raise RefusedRequest(400, messages.TOO_MANY_PARTS.format(most=MOST_CONTAINERS))
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise RefusedRequest(400, messages.NOT_JSON) from None
    if not isinstance(data, dict):
        raise RefusedRequest(400, messages.NOT_JSON)
    if arguments is not None and (sentence := _arguments_refusal(data, arguments, by_name)):
        raise RefusedRequest(400, sentence)
    level: list[dict | list] = [data]
    containers, paths = 0, []
    for _ in range(MOST_DEPTH):
        containers += len(level)
        if containers > MOST_CONTAINERS:
            raise RefusedRequest(400, messages.TOO_MANY_PARTS.format(most=MOST_CONTAINERS))
        paths += [
            item["path"]
            for item in level
            if isinstance(item, dict) and isinstance(item.get("path"), str)
        ]
        if len(paths) > MOST_PATHS:
            n = f"more than {MOST_PATHS}"
            raise RefusedRequest(400, messages.TOO_MANY_FILES.format(most=MOST_PATHS, n=n))
        values = (item.values() if isinstance(item, dict) else item for item in level)
        level = [value for some in values for value in some if isinstance(value, dict | list)]
    if level:
        raise RefusedRequest(400, messages.TOO_DEEP.format(most=MOST_DEPTH))
    if any(located(path, folders) is None for path in paths):
        raise RefusedRequest(400, messages.NOT_UPLOADED)
    return data


def _arguments_refusal(data: dict[str, Any], arguments: Sequence[str], by_name: bool) -> str | None:
    if by_name:
        unknown = next((name for name in data if name not in (*arguments, "oauth_token")), None)
        names = ", ".join(arguments)
        return unknown and messages.NO_ARGUMENT.format(name=unknown[:100], known=names)
    given = data.get("data")
    if isinstance(given, list) and len(given) == len(arguments):
        return None
    return messages.ALL_ARGUMENTS.format(n=len(arguments), known=", ".join(arguments))
