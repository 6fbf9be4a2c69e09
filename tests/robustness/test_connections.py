"""Connections that only wait: none of them is held for long."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import uvicorn

from specvl_demo.ui.serve import connections
from tests.robustness.support import connect, until


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body, then says as much as /N asks for."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(int(scope["path"][1:] or 0))})


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, uvicorn.Server]]:
    """A server that waits for half a second and holds three connections: its port."""
    monkeypatch.setattr(connections, "HEADER_S", 0.5)
    monkeypatch.setattr(connections, "BODY_S", 0.5)
    monkeypatch.setattr(connections, "WRITE_S", 0.5)
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=running.run)
    thread.start()
    until(lambda: running.started, "the server")
    connections.guard(running, held=3)
    yield running.servers[0].sockets[0].getsockname()[1], running
    running.should_exit = True
    thread.join()


def closed(one: socket.socket) -> bool:
    """Whether the server closes a connection, whatever it says before."""
    with suppress(ConnectionResetError):
        while one.recv(2**16):
            pass
    return True


HALF = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HT",
        HALF,
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + HALF,
    ],
    ids=["nothing", "half a header", "half a body", "half the next header", "half the next body"],
)
def test_what_does_not_go_on_is_closed(guarded: tuple[int, Any], said: bytes) -> None:
    with connect(guarded[0], said) as one:
        assert closed(one)
    until(lambda: not guarded[1].server_state.connections, "nothing to be left")


def test_a_body_that_trickles_is_closed_and_one_that_flows_is_not(
    guarded: tuple[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BODY_RATE", 10_000)

    def sent(chunk: bytes) -> bool:
        """Whether ten pieces of a body may be sent in a second, and are answered."""
        size = str(10 * len(chunk)).encode()
        head = HALF.replace(b"9\r\n\r\n{", size + b"\r\n\r\n")
        with connect(guarded[0], head) as one, suppress(ConnectionError):
            for _ in range(10):
                time.sleep(0.1)
                one.sendall(chunk)
            return one.recv(100).startswith(b"HTTP/1.1 200")
        return False

    assert sent(b"x" * 10_000) and not sent(b"x")


def test_an_answer_that_is_not_read_is_cut_off(guarded: tuple[int, Any]) -> None:
    with connect(guarded[0], b"GET /50000000 HTTP/1.1\r\nHost: a\r\n\r\n"):
        until(lambda: guarded[1].server_state.connections, "the connection")
        until(lambda: not guarded[1].server_state.connections, "its end")


def test_the_longest_wait_of_whoever_waits_most_makes_room(
    guarded: tuple[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADER_S", 30.0)
    port = guarded[0]
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(connect(port, b"G")) for _ in range(3))
        until(lambda: len(guarded[1].server_state.connections) == 3, "three")
        newcomer = stack.enter_context(connect(port, b"GET / HTTP/1.0\r\n\r\n"))
        assert closed(first)
        for one in (second, third):
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
        assert closed(newcomer)


def test_no_record_of_the_log_is_repeated_within_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, now = logging.getLogger("seldom"), [1000.0]
    log.addFilter(connections.Seldom())
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for descriptor in range(50):
        log.error(f"socket.accept() out of system resource\nsocket: {descriptor}")
        log.error("A request to %r failed", descriptor)
    assert len(caplog.records) == 2
    now[0] += 61
    log.error("A request to %r failed", 51)
    assert len(caplog.records) == 3
