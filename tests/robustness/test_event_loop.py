"""No request holds up everybody else: how long the server's event loop computes at a time."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from specvl_demo.ui.serve.request_check import MOST_CONTAINERS, MOST_PATHS
from specvl_demo.ui.serve.uploads import MOST_LEVELS
from tests.page.conftest import ROOT
from tests.robustness.support import ECHO, server
from tests.robustness.visitor import Turned, Visitor

MOST_S = 0.1
TEXT = "é" * 20_000
ASKED = {"pair": "pocket", "methods": ["ar"], "question": "rounds=1"}
BODIES: dict[str, bytes] = {
    "2 MB of text": json.dumps({"event_data": {"question": "x" * 2_000_000}}).encode(),
    "2 MB of numbers": json.dumps({"data": [0] * 680_000}).encode(),
    "as many numbers as are parsed": json.dumps({"data": [0] * 190_000}).encode(),
    "as many lists as are taken": json.dumps({"data": [[]] * (MOST_CONTAINERS - 10)}).encode(),
    "2 MB of brackets": b"[" * 2_000_000,
    "2 MB of escapes": b'{"data": "' + b"\\u00e9" * 330_000 + b'"}',
    "deep folders": json.dumps({"data": [{"path": "/a" * (MOST_LEVELS - 1)}] * MOST_PATHS}).encode(),
    "a path of 2 MB": json.dumps({"data": [{"path": "a/" * 900_000}]}).encode(),
    "100,000 files": json.dumps({"data": [{"path": "/x"}] * 100_000}).encode(),
    "3 MB, declared": bytes(3_000_000),
}
ROUTES = ("queue/join", "component_server", "call/generate", "call/v2/race", "cancel")


def asking(served: bool = False, **changes: Any) -> Callable[[Visitor], Awaitable[Any]]:
    async def ask(visitor: Visitor) -> None:
        kinds = [event["k"] async for event in visitor.ask(ASKED | changes)]
        assert "end" in kinds or not served

    return ask


def uploading(size: int) -> Callable[[Visitor], Awaitable[Any]]:
    return lambda visitor: visitor.upload("noise.png", secrets.token_bytes(size))


def telling(name: str, argument: Any) -> Callable[[Visitor], Awaitable[Any]]:
    return lambda visitor: visitor.server(name, argument)


async def sharing(visitor: Visitor) -> None:
    """The shipped race with the most bytes as one file."""
    trace = max((ROOT / "examples").glob("*.trace.jsonl"), key=lambda path: path.stat().st_size)
    sent = await visitor.upload(trace.name, trace.read_bytes())
    told = await visitor.server("share", sent["path"])
    assert "url" in told, told


VISITS: dict[str, Callable[[Visitor], Awaitable[Any]]] = {
    "5,000 rounds": asking(True, question="rounds=5000"),
    "a conversation of sixteen long turns": asking(True, history=[{"question": TEXT, "answer": TEXT}] * 16),
    "a question that is too long": asking(question="x" * 1_900_000),
    "a setting of 2 MB": asking(settings={"ar": {"x" * 1_900_000: 1}}),
    "1,900 settings": asking(settings={"ar": {str(n): n for n in range(1900)}}),
    "methods that do not exist": asking(methods=["x" * 1000] * 1900),
    "an upload of 60 MB": uploading(60 * 2**20),
    "a scene": telling("scene", None),
    "a scene of 1,900 objects": telling("scene", {"ground": "white", "objects": [{}] * 1900}),
    "settings of a method": telling("panel", {"pair": "pocket", "method": "sage"}),
    "a method of 2 MB": telling("panel", {"pair": "pocket", "method": "x" * 1_900_000}),
    "a race to share": sharing,
}


def test_no_request_holds_up_the_others(tmp_path: Path) -> None:
    """The longest that the event loop computes without a pause, for every request of the corpus."""
    slow = tmp_path / "slow.txt"
    slow.touch()
    longest: dict[str, tuple[float, str]] = {}

    def note(what: str) -> None:
        steps = [line.split(" ", 1) for line in slow.read_text().splitlines()]
        slow.write_text("")
        longest[what] = max(((float(seconds), step) for seconds, step in steps), default=(0.0, ""))

    async def story(url: str) -> None:
        async with (
            Visitor(url) as visitor,
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=120) as raw,
        ):
            note("the first visit")
            for path in ("/", "/config", "/gradio_api/info", "/gradio_api/openapi.json", "/nowhere"):
                await raw.get(path)
                note(f"GET {path}")
            for what, body in BODIES.items():
                for route in ROUTES:
                    with suppress(httpx.TransportError):  # cut off while it was still sending
                        answer = await raw.post(f"/gradio_api/{route}", content=body)
                        assert 400 <= answer.status_code < 500, (what, route, answer.text)
                    note(f"{what} to {route}")
            for what, visit in VISITS.items():
                with suppress(Turned):  # refused
                    await visit(visitor)
                note(what)

    with server(ECHO, tmp_path, "--slow", str(slow)) as (url, _):
        slow.write_text("")  # what it does before anybody comes is not asked for
        asyncio.run(story(url))
    for what, (seconds, _) in sorted(longest.items(), key=lambda item: -item[1][0])[:8]:
        sys.stdout.write(f"{1000 * seconds:6.1f} ms  {what}\n")
    sys.stdout.write(f"{len(longest)} requests\n")
    assert {what: step for what, step in longest.items() if step[0] > MOST_S} == {}
