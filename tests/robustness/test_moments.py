"""The page is told to stop at any moment of its life: no process, no file of a visitor and no
traceback is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.page.conftest import ROOT
from tests.robustness.support import connect, fetch, until
from tests.robustness.test_load import alive
from tests.robustness.visitor import Turned, Visitor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM"),
]

EXAMPLES = ROOT / "examples"
QUESTION = {"pair": "pocket", "methods": ["chain"], "question": "What is this?"}
HALF = (
    b"POST /gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\nContent-Disposition: form-data;"
    b' name="files"; filename="a.png"\r\n\r\n' + bytes(2_000_000)
)


@dataclass
class Page:
    """A page that starts, and the folder where it may write."""

    process: psutil.Process
    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def answers(self) -> bool:
        with suppress(httpx.HTTPError):
            return fetch(self.url, "/gradio_api/startup-events").status_code == 200
        return False

    def files(self) -> list[str]:
        """What lies in the folder for uploads, but for an empty folder that Gradio makes."""
        there = {path.name for path in (self.folder / "uploads").rglob("*")}
        return sorted(there - {"vibe_edit_history"})


@contextmanager
def starting(folder: Path) -> Iterator[Page]:
    """`python app.py` on the shipped pair, just begun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1", "GRADIO_SSR_MODE": "True"}
    quiet |= {"OMP_NUM_THREADS": "1", "GRADIO_TEMP_DIR": str(folder / "uploads")}
    command = [sys.executable, "app.py", "--pair", "pocket", "--port", str(port)]
    with (folder / "log.txt").open("w") as log:
        begun = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, **quiet}
        )
        try:
            yield Page(psutil.Process(begun.pid), port, folder)
        finally:
            begun.kill()
            begun.wait()


def stopped(page: Page) -> None:
    """Tell the page to stop, and look at what is left."""
    family = [page.process, *page.process.children(recursive=True)]
    page.process.send_signal(signal.SIGTERM)
    until(lambda: not alive(family), f"the end of {family}")
    assert "Traceback" not in page.log and "Exception ignored" not in page.log, page.log
    assert page.files() == []


@pytest.mark.parametrize("seconds", [0.05, 1.0])
def test_while_it_imports(tmp_path: Path, seconds: float) -> None:
    with starting(tmp_path) as page:
        time.sleep(seconds)
        stopped(page)


def test_while_its_models_load(tmp_path: Path) -> None:
    """The process that computes has just begun."""
    with starting(tmp_path) as page:
        until(page.process.children, "the process that computes")
        stopped(page)


@pytest.mark.parametrize("moment", ["asked", "race"])
def test_while_it_serves(tmp_path: Path, moment: str) -> None:
    """A picture is being decoded, or rounds are on their way, and half a file has come."""

    async def story(page: Page) -> None:
        async with Visitor(page.url) as visitor:
            scene = EXAMPLES / "scene.png"
            sent = await visitor.upload(scene.name, scene.read_bytes())
            whole = page.files()
            assert whole
            asked = QUESTION | {"media": [sent], "max_new_tokens": 400}
            with connect(page.port, HALF):
                until(lambda: page.files() != whole, "the file that is being written")
                async with aclosing(visitor.ask(asked)) as running:
                    async for event in running:
                        if moment == "asked" or event["k"] == "round":
                            break
                    await asyncio.to_thread(stopped, page)
                    with suppress(httpx.HTTPError, Turned):  # ends with or without a word
                        assert [event async for event in running]

    with starting(tmp_path) as page:
        until(page.answers, "the page")
        asyncio.run(story(page))
