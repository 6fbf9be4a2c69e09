"""What shows a race on the machine that computes it: the page's server, and the browser of a
visitor who sits at this machine.
"""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from specvl_demo.ui.serve.route_filter import LOCAL


def watcher_pids(host: str | None, port: int | None) -> tuple[int, ...]:
    """Return this process, and all of the browser that holds this end of a connection, unless it
    runs on another machine or the system does not tell.
    """
    browser = []
    if host in LOCAL and port is not None:
        with suppress(psutil.Error, OSError):
            if process := _process_at_port(port):
                browser = _browser_processes(process)
    return (os.getpid(), *(process.pid for process in browser))


def _process_at_port(port: int) -> psutil.Process | None:
    """Return the process whose connection begins at this port of this machine."""
    connections = psutil.net_connections("tcp")
    pids = (each.pid for each in connections if each.laddr and each.laddr.port == port)
    return next((psutil.Process(pid) for pid in pids if pid not in (None, os.getpid())), None)


def _browser_processes(process: psutil.Process) -> list[psutil.Process]:
    """Return a browser of several processes, given one of them."""
    while (parent := process.parent()) is not None and parent.name() == process.name():
        process = parent
    return [process, *process.children(recursive=True)]
