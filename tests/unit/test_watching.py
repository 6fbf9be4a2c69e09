"""Which processes show a race on the machine that computes it, and what they take of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from specvl_demo.pairs.machine import Load
from specvl_demo.ui.serve.watching import watchers

BUSY = (
    "import socket, sys, time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
    " end = time.time() + 20\nwhile time.time() < end: pass"
)


@contextmanager
def visitor() -> Iterator[tuple[subprocess.Popen, int]]:
    """A busy process of this machine that holds a connection, and the port of its end."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        process = subprocess.Popen([sys.executable, "-c", BUSY, str(server.getsockname()[1])])
        try:
            connection, (_, port) = server.accept()
            with connection:
                yield process, port
        finally:
            process.kill()
            process.wait()


def test_a_browser_on_this_machine_is_found_by_its_connection_and_is_no_other_program() -> None:
    with visitor() as (process, port):
        found = watchers("127.0.0.1", port)
        if process.pid not in found:
            pytest.skip("this system does not tell whose a connection is")
        assert os.getpid() in found
        load = Load([process.pid])
        time.sleep(0.6)
        watching = load.watching()
        assert watching is not None and watching > 0.02
        assert Load().watching() is None


def test_a_browser_elsewhere_is_not_looked_for() -> None:
    assert watchers("192.0.2.7", 443) == watchers(None, None) == (os.getpid(),)
