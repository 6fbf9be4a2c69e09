"""Limits on the web server's connections: how many are open, how long each may wait, and how often
the log repeats a message.

uvicorn has no time limits for headers, bodies and unread answers, and asyncio logs a traceback for
each connection that finds no free descriptor. Knows nothing of the requests' content.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from typing import Any

from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 10.0
"""Seconds within which the headers of a request must arrive."""
BODY_S, BODY_RATE = 20.0, 8 * 2**10
"""Seconds that a body may take, plus one for each BODY_RATE bytes received."""
WRITE_S = 60.0
"""Seconds after which an answer that a client does not read is cut off."""
MOST = 1024
"""Connections at once, or half of the descriptors if those are fewer."""
BACKLOG = 128
"""Connections that the system holds until they are accepted: asyncio takes as many at once."""
REPEAT_S = 60.0
LOGS = ("asyncio", "uvicorn.error", "specvl_demo.ui.serve.route_filter")


def most() -> int:
    """Raise the limit of open files as far as allowed; return how many connections that allows."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return MOST
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return MOST if hard == resource.RLIM_INFINITY else min(MOST, hard // 2)


def guard(server: Server, held: int) -> None:
    """Apply the limits above to a running server, with `held` connections at once."""
    waiting: set[Connection] = set()

    def protocol(*arguments: Any, **named: Any) -> Connection:
        return Connection(waiting, held, *arguments, **named)

    # Both are read for each connection.
    server.config.http_protocol_class = protocol  # type: ignore[assignment]
    server.config.ws_protocol_class = None
    for listening in server.servers:
        for one in listening.sockets:
            with socket.socket(fileno=os.dup(one.fileno())) as again:
                again.listen(BACKLOG)
    for name in LOGS:
        logging.getLogger(name).addFilter(Seldom())


def cut(server: Server) -> None:
    """Close the connections of a server that ends for which it would wait; an upload that is cut so
    leaves no file.
    """

    def close() -> None:
        for one in list(server.server_state.connections):
            if isinstance(one, Connection) and not one._served:
                one.transport.abort()

    for listening in server.servers:
        listening.get_loop().call_soon_threadsafe(close)


class Connection(H11Protocol):
    """A connection with a deadline for everything that the server waits for.

    If `held` connections are open, a new one replaces the one that the server has waited for
    longest, among those of the client with most of them. waiting: the open ones that the server
    waits for.
    """

    def __init__(self, waiting: set[Connection], held: int, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._waiting, self._held = waiting, held
        self._since = 0.0
        self._come = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self._held:
            clients = Counter(one._address for one in self._waiting)
            last = max(self._waiting, key=lambda one: (clients[one._address], -one._since))
            last.transport.abort()
            last.connection_lost(None)

    def data_received(self, data: bytes) -> None:
        self._come += len(data)
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:  # the headers have arrived
            self._wait(len(data))
        if self._served:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.connections:
            self._stop()
            self.resume_writing()
            super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()  # may begin with the next request
        if not (self._served or self.transport.is_closing()):
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    @property
    def _address(self) -> str | None:
        return self.client[0] if self.client else None

    @property
    def _served(self) -> bool:
        """Whether a whole request has arrived and is being answered."""
        return self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete)

    def _wait(self, come: int = 0) -> None:
        """Start waiting for the client."""
        self._stop()
        self._since, self._come = time.monotonic(), come
        self._waiting.add(self)
        self._look()

    def _stop(self) -> None:
        self._waiting.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _look(self) -> None:
        """Close the connection if it is late; otherwise check again when it would be."""
        body = self.cycle is not None and not self.cycle.response_complete
        allowed = BODY_S + self._come / BODY_RATE if body else HEADER_S
        late = self._since + allowed - time.monotonic()
        if body and self.flow.read_paused:  # the app is not reading
            late = max(late, 1.0)
        if late <= 0:
            self.transport.abort()
        else:
            self._deadline = self.loop.call_later(late, self._look)


class Seldom(logging.Filter):
    """Lets a record pass once in REPEAT_S; a record is identified by its first line and its
    exception.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        fault = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        key, now = (str(record.msg).strip().partition("\n")[0], fault), time.monotonic()
        if now - self._logged.get(key, -REPEAT_S) < REPEAT_S:
            return False
        self._logged[key] = now
        return True
