"""One server over an engine without a model: fifty visitors at once, who leaves, how it stops.

The tests share it, and the last of them ends it; a test that is tried again starts one of its own.
"""

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, aclosing, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from specvl_demo.places import ROOT
from tests.conftest import second_try
from tests.page import fake_page
from tests.page.conftest import FAKE_PAGE
from tests.robustness.support import answer, asks, computed, files_in, slowness, until
from tests.shared.server import Sample, launched, look, server
from tests.shared.visitor import Event, Turned, Visitor, sentence

Outcome = tuple[list[Event], int]
"""A visitor's run, and the refusals before."""
VISITORS = 50
ROUNDS = 4
POOLS = 40 + min(32, (os.cpu_count() or 1) + 4)
"""Threads that the web server may keep: anyio's pool, and that of the event loop's own executor."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server's log is."""
    return tmp_path_factory.mktemp("echo")


@pytest.fixture(scope="module")
def echoing(ledger: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """The page over this engine, with room for ten to wait."""
    with server(FAKE_PAGE, folder, "--waiting", "10") as running:
        yield running


def asked(who: str, **changes: Any) -> dict[str, Any]:
    words = {"who": who, "rounds": ROUNDS} | changes
    return {
        "pair": "pocket",
        "methods": ["ar"],
        "question": " ".join(f"{k}={v}" for k, v in words.items()),
    }


# ---------------------------------------------------------------- many at once


async def persistent(url: str, who: str) -> Outcome:
    """A visitor who comes again until there is room: the run's events, and the refusals before."""
    refused = 0
    async with Visitor(url) as visitor:
        while True:
            # Long enough for others to come meanwhile, so that some wait.
            async with aclosing(visitor.ask(asked(who, each=0.05))) as running:
                events = [event async for event in running]
            said = sentence(events)
            if said is None:
                return events, refused
            assert re.search(r"busy: 10 visitors wait", said), said
            assert [event["k"] for event in events[-2:]] == ["error", "done"]
            assert not any(event["k"] in ("begin", "round") for event in events)
            refused += 1
            await asyncio.sleep(1.0)


async def crowd(url: str) -> list[Outcome]:
    return await asyncio.gather(*(persistent(url, f"v{number}") for number in range(VISITORS)))


def check(outcome: list[Outcome]) -> int:
    """Everybody got their own whole answer and saw their place; return the number of refusals."""
    for number, (events, _) in enumerate(outcome):
        who = f"v{number}"
        tokens = [(fake_page.token(who, index), f"{who} ") for index in range(ROUNDS)]
        assert answer(events) == tokens
        assert [event["k"] for event in events if event["k"] in ("begin", "end", "done")] == [
            "begin",
            "end",
            "done",
        ]
        places = [event["place"] for event in events if event["k"] == "queue"]
        assert places == sorted(places, reverse=True) and all(1 <= place <= 10 for place in places)
    assert any(event["k"] == "queue" for events, _ in outcome for event in events)
    return sum(refused for _, refused in outcome)


@pytest.mark.slow
def test_fifty_visitors_at_once_get_their_own_answers_and_leave_nothing_behind(
    echoing: tuple[str, int], ledger: Path
):
    """The soak of lab/ holds half an hour of visitors to memory."""
    url, pid = echoing
    asyncio.run(asks(url, asked("first")))  # now the process that computes is there as a whole
    idle = look(pid)
    outcome = asyncio.run(crowd(url))
    assert check(outcome) > 0  # fifty came, eleven have room: the others were told
    until(lambda: settled(pid, idle), "threads and files to go back")
    assert all(computed(ledger, f"v{number}") == ROUNDS for number in range(VISITORS))


def settled(pid: int, idle: Sample) -> Sample | None:
    """A look at the server once it holds what it held when idle, but for its pools of threads."""
    now = look(pid)
    return now if now.threads <= idle.threads + POOLS and now.files <= idle.files + 4 else None


def test_closing_the_tab_frees_the_machine_within_a_round(echoing: tuple[str, int], ledger: Path):
    """Over the network: the run of a visitor who left ends, whether it computed or waited."""
    url, _ = echoing

    async def story() -> list[Event]:
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
    assert [text for _, text in answer(events)] == ["next "] * ROUNDS
    done = computed(ledger, "leaver")
    time.sleep(0.6)
    assert computed(ledger, "leaver") == done < 100
    assert computed(ledger, "ghost") <= 1


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
def test_a_server_that_gets_a_stop_signal_ends(
    echoing: tuple,
    folder: Path,
    tmp_path: Path,
    question: str,
    number: signal.Signals,
    options: tuple,
):
    """In the middle of a run, others waiting: in time, no traceback, process or upload is left."""
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
        async with Visitor(url) as visitor:
            await visitor.upload("a.png", b"somebody's picture")
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
            url, pid = stack.enter_context(server(FAKE_PAGE, tmp_path, *options))
            log = tmp_path / "log.txt"
        said = len(log.read_text())
        process = psutil.Process(pid)
        began = process.children(recursive=True)
        assert began
        seconds = asyncio.run(story(url, process))
        until(lambda: not alive(began), f"the end of {began}")
    assert seconds < STOP_S * slowness()
    # Ray's own handler may end a cluster's process first.
    assert options or not files_in(log.parent / "uploads")
    text = log.read_text()[said:]
    assert "Traceback" not in text and "has been stopped" in text


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.05, 1.0, None], ids=["at once", "importing", "loading"])
def test_a_page_that_gets_a_stop_signal_while_it_starts_ends(tmp_path: Path, seconds: float | None):
    """While it imports, and when the process that computes has just begun."""
    with launched(ROOT / "app.py", tmp_path, "--pair", "pocket") as (begun, _):
        page = psutil.Process(begun.pid)
        if seconds is None:
            until(page.children, "the process that computes")
        else:
            time.sleep(seconds)
        family = [page, *page.children(recursive=True)]
        page.send_signal(signal.SIGTERM)
        until(lambda: not alive(family), f"the end of {family}")
    text = (tmp_path / "log.txt").read_text()
    assert "Traceback" not in text and "Exception ignored" not in text, text
    assert not files_in(tmp_path / "uploads")


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""
    return [
        process
        for process in processes
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]
