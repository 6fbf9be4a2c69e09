"""A served page in a process of its own, and what that process holds while it runs: memory, threads
and open files of it and of all that it has started.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from specvl_demo.places import ROOT

FAKE_PAGE = ROOT / "tests" / "page" / "fake_page.py"
"""A script that serves the page over made-up records."""
SHOWN = (
    "[...document.querySelectorAll('.vl-text [data-n]')].reduce((sum, n) => sum +"
    " Number(n.dataset.n), 0)"
)
"""The tokens that the lanes show, summed in the page."""
PATIENCE_S = 400
"""So long a server may take to start on a machine that is busy."""


def run_python(
    *words: object, cwd: Path = ROOT, timeout: float | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run this Python with more of an environment, and return what it said."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout
    )


@contextmanager
def launched(
    script: Path, folder: Path, *arguments: str, threads: int | None = 1
) -> Iterator[tuple[subprocess.Popen, int]]:
    """Run a script that serves the page on a port of this machine: its process, and the port.

    threads: Those that torch may use; None for its own choice.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1", "GRADIO_SSR_MODE": "True"}
    env = {**os.environ, **quiet, "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"}
    env.pop("OMP_NUM_THREADS", None)
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    env["GRADIO_TEMP_DIR"] = str(folder / "uploads")
    with (folder / "log.txt").open("w+") as log:
        command = [sys.executable, str(script), "--port", str(port), *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, cwd=ROOT)
        try:
            yield process, port
        finally:
            process.terminate()
            process.wait(60)  # a machine that is busy takes its time


@contextmanager
def server(
    script: Path, folder: Path, *arguments: str, threads: int | None = 1
) -> Iterator[tuple[str, int | None]]:
    """Launch a page: its address, once it answers, and the process that listens there."""
    with launched(script, folder, *arguments, threads=threads) as (process, port):
        url = f"http://127.0.0.1:{port}"
        _wait(url, process, folder / "log.txt")
        yield url, listening(port)


def _wait(url: str, process: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise AssertionError(f"the server ended:\n{log.read_text()}")
        try:
            urllib.request.urlopen(f"{url}/gradio_api/startup-events", timeout=2)
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.25)
    raise AssertionError(f"the server did not answer:\n{log.read_text()}")


@dataclass(frozen=True)
class Sample:
    """One look. rss: bytes by process id."""

    at: float
    rss: dict[int, int]
    threads: int
    files: int


def look(pid: int) -> Sample:
    """The process and all that it has started, now."""
    rss, threads, files = {}, 0, 0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            with process.oneshot():
                rss[process.pid] = process.memory_info().rss
                threads += process.num_threads()
                files += process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
        except psutil.Error:  # it has just ended
            rss.pop(process.pid, None)
    return Sample(time.monotonic(), rss, threads, files)


def listening(port: int) -> int | None:
    """The process on this machine that listens on a port; None where it cannot be seen."""
    try:
        found = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    pids = [one.pid for one in found if one.status == psutil.CONN_LISTEN and one.laddr.port == port]
    return next((pid for pid in pids if pid is not None), None)
