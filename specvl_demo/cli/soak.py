"""`soak`: random visitors against the page for some minutes, and what became of them and of the server."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from specvl_demo import pairs, registry
from specvl_demo.cli import progress
from specvl_demo.cli.parse import Refused

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run(options: argparse.Namespace) -> int:
    """Drive, report; 1 where something failed or leaked."""
    from specvl_demo.bench import soak
    from specvl_demo.bench.footprint import listening
    from specvl_demo.bench.serving import page
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
        with ExitStack() as own:
            folder = own.enter_context(tempfile.TemporaryDirectory(prefix="specvl-soak-"))
            try:
                url, process = own.enter_context(page(options.pair, Path(folder)))
            except ValueError as reason:
                raise Refused(str(reason)) from None
            return drive(url, process.pid)
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


def answers(url: str) -> bool:
    """Whether a page answers there."""
    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/gradio_api/startup-events", timeout=5).close()
    except OSError:
        return False
    return True
