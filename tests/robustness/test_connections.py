"""Connections that only wait: none of them is held for long, and none shuts the page."""

from __future__ import annotations

import logging
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from specvl_demo.ui.serve import connections
from tests.robustness.support import server, until
from tests.robustness.test_load import ECHO

DESCRIPTORS, IDLE, MOST_LOG = 1024, 1500, 100_000
ASKED = b"GET /gradio_api/startup-events HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
KINDS = {
    "half a header": b"GET / HT",
    "half a body": b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{",
    "half an upload": b"POST /gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 6000000\r\n\r\n--b\r\n",
    "a heartbeat": b"GET /gradio_api/heartbeat/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


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


def connect(port: int, said: bytes = b"") -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), timeout=30)
    one.sendall(said)
    return one


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


@pytest.fixture(scope="module")
def few(ledger: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The page with 1,024 descriptors, and its log."""
    folder = tmp_path_factory.mktemp("few")
    with server(ECHO, folder, "--files", str(DESCRIPTORS)) as (url, _):
        yield url, folder / "log.txt"


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit of descriptors")
@pytest.mark.parametrize("kind", KINDS)
def test_idle_connections_do_not_shut_the_page(few: tuple[str, Path], kind: str) -> None:
    """Fifteen hundred of a kind, from one address: visitors from there and elsewhere are served."""
    url, log = few
    port, before = int(url.rsplit(":", 1)[1]), log.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * IDLE:
        pytest.skip("this process may not open so many connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    idle, took = [], []
    try:
        for n in range(IDLE):
            with suppress(OSError):  # closed while it was still sending
                idle.append(connect(port, KINDS[kind]))
            if n % 500 == 499:
                for address in ("127.0.0.1", "127.0.0.2"):
                    began = time.monotonic()
                    with socket.create_connection(
                        ("127.0.0.1", port), timeout=30, source_address=(address, 0)
                    ) as visitor:
                        visitor.sendall(ASKED)
                        assert visitor.recv(100).startswith(b"HTTP/1.1 200")
                    took.append(time.monotonic() - began)
    finally:
        for one in idle:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    grown = log.stat().st_size - before
    sys.stdout.write(
        f"{kind}: {len(idle)} open, served in {max(took):.2f} s, {grown} bytes of log\n"
    )
    assert grown < MOST_LOG
