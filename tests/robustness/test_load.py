"""One server over the echoing engine: fifty visitors at once, who leaves, what holds others up, how
it stops.

The tests share it, and the last of them ends it; a test that is tried again starts one of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from specvl_demo.ui.serve.request_check import MOST_CONTAINERS, MOST_PATHS
from specvl_demo.ui.serve.uploads import MOST_LEVELS
from tests.conftest import second_try
from tests.page.conftest import ROOT
from tests.robustness import echo
from tests.robustness.footprint import Sample, look
from tests.robustness.support import asks, computed, ids, sentence, server, texts, until
from tests.robustness.visitor import Turned, Visitor

ECHO = Path(echo.__file__)
VISITORS = 50
ROUNDS = 4
POOLS = 40 + min(32, (os.cpu_count() or 1) + 4)
"""Threads that the web server may keep: anyio's pool, and that of the event loop's own executor."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server's log and the list of its long steps are."""
    return tmp_path_factory.mktemp("echo")


@pytest.fixture(scope="module")
def echoing(ledger: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """The page over the echoing engine, with room for ten to wait."""
    with server(ECHO, folder, "--waiting", "10", "--slow", str(folder / "slow.txt")) as running:
        yield running


def asked(who: str, **changes: Any) -> dict[str, Any]:
    words = {"who": who, "rounds": ROUNDS} | changes
    return {
        "pair": "pocket",
        "methods": ["ar"],
        "question": " ".join(f"{k}={v}" for k, v in words.items()),
    }


# ---------------------------------------------------------------- nobody is held up

MOST_STEP_S = 0.1
TEXT = "é" * 20_000
BODIES: dict[str, bytes] = {
    "2 MB of text": json.dumps({"event_data": {"question": "x" * 2_000_000}}).encode(),
    "2 MB of numbers": json.dumps({"data": [0] * 680_000}).encode(),
    "as many numbers as are parsed": json.dumps({"data": [0] * 190_000}).encode(),
    "as many lists as are taken": json.dumps({"data": [[]] * (MOST_CONTAINERS - 10)}).encode(),
    "2 MB of brackets": b"[" * 2_000_000,
    "2 MB of escapes": b'{"data": "' + b"\\u00e9" * 330_000 + b'"}',
    "deep folders": json.dumps(
        {"data": [{"path": "/a" * (MOST_LEVELS - 1)}] * MOST_PATHS}
    ).encode(),
    "a path of 2 MB": json.dumps({"data": [{"path": "a/" * 900_000}]}).encode(),
    "100,000 files": json.dumps({"data": [{"path": "/x"}] * 100_000}).encode(),
    "3 MB, declared": bytes(3_000_000),
}
ROUTES = ("queue/join", "component_server", "call/generate", "call/v2/race", "cancel")


def asking(served: bool = False, **changes: Any) -> Callable[[Visitor], Awaitable[Any]]:
    async def ask(visitor: Visitor) -> None:
        kinds = [event["k"] async for event in visitor.ask(asked("one") | changes)]
        assert "end" in kinds or not served

    return ask


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
    "a conversation of sixteen long turns": asking(
        True, history=[{"question": TEXT, "answer": TEXT}] * 16
    ),
    "a question that is too long": asking(question="x" * 1_900_000),
    "a setting of 2 MB": asking(settings={"ar": {"x" * 1_900_000: 1}}),
    "1,900 settings": asking(settings={"ar": {str(n): n for n in range(1900)}}),
    "methods that do not exist": asking(methods=["x" * 1000] * 1900),
    "an upload of 60 MB": lambda visitor: visitor.upload(
        "noise.png", secrets.token_bytes(60 * 2**20)
    ),
    "settings of a method": telling("panel", {"pair": "pocket", "method": "sage"}),
    "a method of 2 MB": telling("panel", {"pair": "pocket", "method": "x" * 1_900_000}),
    "a race to share": sharing,
}


@pytest.mark.slow
def test_no_request_holds_up_the_others(echoing: tuple[str, int], folder: Path) -> None:
    """The longest that the event loop computes without a pause, for every request of the corpus."""
    slow = folder / "slow.txt"
    longest: dict[str, tuple[float, str]] = {}

    def note(what: str) -> None:
        steps = [line.split(" ", 1) for line in slow.read_text().splitlines()]
        slow.write_text("")
        longest[what] = max(((float(seconds), step) for seconds, step in steps), default=(0.0, ""))

    async def story(url: str) -> None:
        raw = httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=120)
        async with Visitor(url) as visitor, raw:
            note("the first visit")
            for path in (
                "/",
                "/config",
                "/gradio_api/info",
                "/gradio_api/openapi.json",
                "/nowhere",
            ):
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

    slow.write_text("")  # what it did before anybody came is not asked for
    asyncio.run(story(echoing[0]))
    for what, (seconds, _) in sorted(longest.items(), key=lambda item: -item[1][0])[:8]:
        sys.stdout.write(f"{1000 * seconds:6.1f} ms  {what}\n")
    sys.stdout.write(f"{len(longest)} requests\n")
    assert {what: step for what, step in longest.items() if step[0] > MOST_STEP_S} == {}


# ---------------------------------------------------------------- many at once


async def persistent(url: str, who: str) -> tuple[list[dict[str, Any]], int]:
    """A visitor who comes again until there is room: the events of the run, and how often there was
    none.
    """
    refused = 0
    async with Visitor(url) as visitor:
        while True:
            async with aclosing(visitor.ask(asked(who))) as running:
                events = [event async for event in running]
            said = sentence(events)
            if said is None:
                return events, refused
            assert re.search(r"busy: 10 visitors are waiting", said), said
            assert [event["k"] for event in events[-2:]] == ["error", "done"]
            assert not any(event["k"] in ("begin", "round") for event in events)
            refused += 1
            await asyncio.sleep(1.0)


async def crowd(url: str, wave: str) -> list[tuple[list[dict[str, Any]], int]]:
    return await asyncio.gather(
        *(persistent(url, f"{wave}v{number}") for number in range(VISITORS))
    )


def check(wave: str, outcome: list[tuple[list[dict[str, Any]], int]]) -> int:
    """Everybody got their own answer, whole, and saw their place; gives how often somebody was
    refused.
    """
    for number, (events, _) in enumerate(outcome):
        who = f"{wave}v{number}"
        assert texts(events) == f"{who} " * ROUNDS
        assert ids(events) == [echo.token(who, index) for index in range(ROUNDS)]
        assert [event["k"] for event in events if event["k"] in ("begin", "end", "done")] == [
            *("begin", "end", "done")
        ]
        places = [event["place"] for event in events if event["k"] == "queue"]
        assert places == sorted(places, reverse=True) and all(1 <= place <= 10 for place in places)
        assert all(event["eta_s"] > 0 for event in events if event["k"] == "queue")
    assert any(event["k"] == "queue" for events, _ in outcome for event in events)
    return sum(refused for _, refused in outcome)


LEAK_BYTES = 32 * 2**20
"""What a wave may add: on a busy machine the refused ask more often, and what is kept of runs still
grows. The soak holds half an hour of visitors to a few per cent.
"""


@second_try("the allocator may keep more after a wave in which a busy machine refused many")
def test_fifty_visitors_at_once_get_their_own_answers_and_leave_nothing_behind(
    echoing: tuple[str, int], ledger: Path
) -> None:
    url, pid = echoing
    idle = look(pid)
    # The first wave fills pools and caches; what the next ones add would be a leak.
    # Names of this attempt: the server and its ledger are there from an earlier one.
    waves = [f"{time.time_ns() % 10**9}{letter}" for letter in "abcde"]
    refused = check(waves[0], asyncio.run(crowd(url, waves[0])))
    assert refused > 0  # fifty came, eleven have room: the others were told
    # Pools may still grow with one wave or two; a leak grows with every one.
    for wave in waves[1:]:
        before = look(pid)
        check(wave, asyncio.run(crowd(url, wave)))
        after = until(lambda: settled(pid, idle), "threads and files to go back")
        assert after.rss.keys() == before.rss.keys()
        grown = sum(after.rss.values()) - sum(before.rss.values())
        if grown < LEAK_BYTES:
            break
    assert grown < LEAK_BYTES, f"{grown / 2**20:.1f} MB for fifty visitors"
    for wave in waves[:2]:
        assert all(computed(ledger, f"{wave}v{number}") == ROUNDS for number in range(VISITORS))


def settled(pid: int, idle: Sample) -> Sample | None:
    """A look at the server once it holds what it held when idle, but for the web server's pools of
    threads.
    """
    now = look(pid)
    return now if now.threads <= idle.threads + POOLS and now.files <= idle.files + 4 else None


def test_who_closes_the_tab_frees_the_machine_within_a_round(
    echoing: tuple[str, int], ledger: Path
) -> None:
    """Over the network: the run of a visitor who left ends, whether it computed or waited."""
    url, _ = echoing

    async def story() -> list[dict[str, Any]]:
        async with Visitor(url) as waiting, Visitor(url) as leaving:
            running = leaving.ask(asked("leaver", rounds=2000, each=0.25))
            async with aclosing(running):
                async for event in running:
                    if event["k"] == "round":
                        break
                line = waiting.ask(asked("ghost", rounds=2000, each=0.25))
                async with aclosing(line):
                    async for event in line:
                        if event["k"] == "queue":
                            break
        return await asks(url, asked("next"))

    events = asyncio.run(story())
    assert texts(events) == "next " * ROUNDS
    done = computed(ledger, "leaver")
    time.sleep(0.6)
    assert computed(ledger, "leaver") == done < 100
    assert computed(ledger, "ghost") <= 1


def test_a_run_is_its_visits_and_gone_with_it(echoing: tuple[str, int]) -> None:
    """Another visit cannot read it; when the heartbeat of its page ends nobody can."""

    async def story(url: str) -> None:
        async with Visitor(url) as mine, Visitor(url) as other:
            events = [event async for event in mine.ask(asked("mine"))]
            run = next(event["run"] for event in events if event["k"] == "run")
            assert await mine.server("batches", run) and not await other.server("batches", run)
            async with httpx.AsyncClient(base_url=url, trust_env=False) as tab:
                beat = f"/gradio_api/heartbeat/{mine.session}"
                async with tab.stream("GET", beat) as alive_:
                    assert await anext(alive_.aiter_lines())
            while await mine.server("batches", run):
                await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(story(echoing[0]), 60))


def test_a_program_that_hangs_up_frees_the_machine(echoing: tuple[str, int], ledger: Path) -> None:
    url, _ = echoing

    async def story() -> list[dict[str, Any]]:
        async with Visitor(url) as program:
            call = program.call(
                "generate", {"prompt": "who=program rounds=2000 each=0.25", "method": "ar"}
            )
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(call, 3.0)
        return await asks(url, asked("after"))

    assert texts(asyncio.run(story())) == "after " * ROUNDS
    assert computed(ledger, "program") < 100


def test_programs_are_refused_like_visitors_when_the_line_is_full(echoing: tuple[str, int]) -> None:
    url, _ = echoing

    async def one(number: int) -> str:
        async with Visitor(url) as program:
            try:
                told = await program.call(
                    "generate", {"prompt": f"who=p{number} each=0.05", "method": "ar"}
                )
            except Turned as said:
                return str(said)
            return told["text"]

    async def story() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(20)))

    told = asyncio.run(story())
    for number, text in enumerate(told):
        assert text == f"p{number} " * 3 or "busy" in text
    assert any("busy" in text for text in told) and sum("busy" not in text for text in told) >= 11


# ---------------------------------------------------------------- the end

STOP_S = 5.0


@second_try("a busy machine may need longer than these seconds to end the processes")
@pytest.mark.parametrize(
    ("question", "number", "options"),
    [
        pytest.param("fail=hang at=1", signal.SIGTERM, (), id="a round that lasts"),
        pytest.param("9999", signal.SIGINT, ("--cluster",), id="cluster", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_is_told_to_stop_stops(
    echoing: tuple[str, int],
    folder: Path,
    tmp_path: Path,
    question: str,
    number: signal.Signals,
    options: tuple[str, ...],
) -> None:
    """In the middle of a run, others waiting and listening: in time, without a traceback, no
    process left.
    """
    if options:
        pytest.importorskip("ray", reason="several workers need ray")
    asked = {"pair": "pocket", "question": question, "methods": ["ar"]}
    begun = threading.Event()

    async def listen(url: str) -> None:
        with suppress(httpx.HTTPError, Turned):  # the connection ends, with or without a word
            async with Visitor(url) as visitor:
                async for event in visitor.ask(asked):
                    if event["k"] == "round":
                        begun.set()

    async def story(url: str, process: psutil.Process) -> float:
        running = [asyncio.create_task(listen(url)) for _ in range(4)]
        await asyncio.to_thread(until, begun.is_set, "the first round")
        process.send_signal(number)
        told = time.monotonic()
        await asyncio.to_thread(until, lambda: not alive([process]), "the end of the server")
        seconds = time.monotonic() - told
        await asyncio.gather(*running)
        return seconds

    with ExitStack() as stack:
        (url, pid), log = echoing, folder / "log.txt"
        if options or not alive([psutil.Process(pid)]):
            url, pid = stack.enter_context(server(ECHO, tmp_path, *options))
            log = tmp_path / "log.txt"
        said = len(log.read_text())
        process = psutil.Process(pid)
        began = process.children(recursive=True)
        assert began
        seconds = asyncio.run(story(url, process))
        until(lambda: not alive(began), f"the end of {began}")
    assert seconds < STOP_S
    text = log.read_text()[said:]
    assert "Traceback" not in text and "has been stopped" in text


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
