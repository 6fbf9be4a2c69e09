"""The page as a process: from start to served, and the most memory it takes while it answers.

Given a pair's id, starts the page on a port of this machine, asks it through its published functions, and
reads the system's numbers of the process and all it started. Knows nothing of what is answered.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from specvl_demo.bench import provenance
from specvl_demo.bench.cases import scenes_alone
from specvl_demo.bench.measure import Tell, silent

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 600.0
COLUMNS = ("what", "value", "unit", "wanted", "kept")


def serving(pair: str, methods: str, max_new_tokens: int, tell: Tell = silent) -> dict[str, Any]:
    """`machine, settings, rows`: seconds to the served page and to the first answer, peak memory."""
    watch = provenance.Watch()
    tell("starting the page", 0.0)
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "scene.png"
        scenes_alone(1)[0].shown[0].save(picture)
        started = time.perf_counter()
        with page(pair, Path(folder)) as (url, process):
            served = time.perf_counter() - started
            with _peak(process) as memory:
                answers = []
                for number in range(3):
                    tell(f"asking, {number + 1} of 3", 0.3 + 0.2 * number)
                    begun = time.perf_counter()
                    _ask(url, picture, methods, pair, max_new_tokens)
                    answers.append(time.perf_counter() - begun)
            together, largest = memory
    rows = [
        _row("start to served page", served, "s", 15.0),
        _row("first race, pair loaded with it", answers[0], "s", None),
        _row("later race", min(answers[1:]), "s", None),
        _row("memory, all processes together", together / 1e9, "GB", 1.5),
        _row("memory, the largest process", largest / 1e9, "GB", None),
    ]
    settings = {"pair": pair, "methods": methods, "max_new_tokens": max_new_tokens}
    return {"machine": {**provenance.describe(), **watch.read()}, "settings": settings, "rows": rows}


def _row(what: str, value: float, unit: str, wanted: float | None) -> dict[str, Any]:
    kept = None if wanted is None else value <= wanted
    return {"what": what, "value": value, "unit": unit, "wanted": wanted, "kept": kept}


@contextmanager
def page(pair: str, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The page on a free port, once it answers; ended again afterwards. The folder takes uploads and its log.

    ValueError with a sentence where it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"GRADIO_ANALYTICS_ENABLED": "False", "NO_PROXY": "127.0.0.1"}
    env = {**os.environ, **quiet, "GRADIO_TEMP_DIR": str(folder / "uploads")}
    command = [sys.executable, str(ROOT / "app.py"), "--port", str(port), "--pair", pair]
    url = f"http://127.0.0.1:{port}"
    with (folder / "log.txt").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, cwd=ROOT)
        try:
            _wait(url, process, folder / "log.txt")
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            if process.poll() is None:
                process.kill()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the page itself is served."""
    until = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < until:
        if process.poll() is not None:
            raise ValueError(f"The page ended at its start: {' '.join(log.read_text().split())[-300:]}")
        try:
            with urllib.request.urlopen(url, timeout=2) as served:
                served.read()
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.05)
    raise ValueError(f"The page did not answer within {PATIENCE_S:.0f} seconds.")


def _ask(url: str, picture: Path, methods: str, pair: str, max_new_tokens: int) -> None:
    """One race through the page's published function."""
    from gradio_client import Client, handle_file  # noqa: PLC0415 - heavy, and needed here alone

    Client(url, verbose=False).predict(
        prompt="Describe the picture.",
        methods=methods,
        pair=pair,
        image=[handle_file(str(picture))],
        max_new_tokens=max_new_tokens,
        api_name="/race",
    )


@contextmanager
def _peak(process: psutil.Process) -> Iterator[list[float]]:
    """Most memory while the block runs: [of all processes together, of the largest], in bytes.

    Memory that several processes share is counted once where the system tells it (PSS), else in each.
    """
    most, ended = [0.0, 0.0], threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            sizes = []
            with suppress(psutil.Error):
                for one in [process, *process.children(recursive=True)]:
                    with suppress(psutil.Error):
                        sizes.append(_bytes(one))
            if sizes:
                most[0], most[1] = max(most[0], sum(sizes)), max(most[1], *sizes)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


def _bytes(process: psutil.Process) -> float:
    told = process.memory_full_info()
    return float(getattr(told, "pss", 0) or told.rss)
