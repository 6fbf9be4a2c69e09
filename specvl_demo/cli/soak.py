"""`soak`: random visitors against the page for some minutes, and what became of them and of the server."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from specvl_demo import pairs, registry
from specvl_demo.cli import progress
from specvl_demo.cli.parse import Refused

APP = Path(__file__).resolve().parents[2] / "app.py"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
START_S = 300.0
END_S = 20.0


def run(options: argparse.Namespace) -> int:
    """Drive, report; 1 where something failed or leaked."""
    from specvl_demo.bench import soak
    from specvl_demo.bench.footprint import listening
    from specvl_demo.bench.visitor import Turned

    try:
        methods = registry.served(pairs.find(options.pair))
    except ValueError as reason:
        raise Refused(str(reason)) from None

    def drive(url: str, pid: int | None) -> int:
        progress.tell(f"{options.minutes:g} minutes, {options.visitors} visitors at a time, at {url}")
        try:
            report = asyncio.run(
                soak.soak(url, pid, options.minutes, options.seed, options.visitors, options.pair, methods)
            )
        except Turned as said:
            raise Refused(f"The page did not serve its first visitor: {said}") from None
        finally:
            progress.done()
        wrong = soak.verdict(report)
        report |= {"ok": not wrong, "wrong": wrong}
        if options.json:
            sys.stdout.write(json.dumps(report, ensure_ascii=False, allow_nan=False) + "\n")
        else:
            sys.stdout.write("".join(f"{name}: {_plain(value)}\n" for name, value in report.items()))
        return 1 if wrong else 0

    if options.url is None:
        with served(options.pair) as (url, pid):
            return drive(url, pid)
    place = urlsplit(options.url)
    if place.hostname not in LOOPBACK or place.port is None:
        raise Refused(
            f"--url must be a page on this machine, such as http://127.0.0.1:7860, not {options.url!r}"
        )
    if not answers(options.url):
        raise Refused(f"Nothing answers at {options.url}; start the page there, or leave --url out")
    return drive(options.url.rstrip("/"), listening(place.port))


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


@contextmanager
def served(pair: str) -> Iterator[tuple[str, int]]:
    """The page in a process of its own, on a free port of this machine: its address and process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="specvl-soak-") as folder:
        env = os.environ | {
            "GRADIO_TEMP_DIR": folder,
            "GRADIO_ANALYTICS_ENABLED": "False",
            "HF_HUB_OFFLINE": "1",
        }
        log = Path(folder, "log.txt")
        with log.open("w") as out:
            command = [sys.executable, str(APP), "--port", str(port), "--pair", pair]
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=APP.parent)
        try:
            until = time.monotonic() + START_S
            while not answers(url):
                if process.poll() is not None or time.monotonic() > until:
                    raise Refused(f"The page did not start: {log.read_text().strip()[-300:]}")
                time.sleep(0.5)
            yield url, process.pid
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def answers(url: str) -> bool:
    """Whether a page answers there."""
    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/gradio_api/startup-events", timeout=5).close()
    except OSError:
        return False
    return True
