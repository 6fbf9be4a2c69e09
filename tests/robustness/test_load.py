"""One server over an engine without a model: fifty visitors at once, who leaves, how it stops.

The tests share it, and the last of them ends it; a test that is tried again starts one of its own.
"""

from __future__ import annotations

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

from tests.conftest import second_try
from tests.page import fake_page
from tests.page.conftest import FAKE_PAGE
from tests.robustness.footprint import Sample, look
from tests.robustness.support import asks, computed, ids, sentence, server, slowness, texts, until
from tests.robustness.visitor import Turned, Visitor

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


async def persistent(url: str, who: str) -> tuple[list[dict[str, Any]], int]:
    """A visitor who comes again until there is room: the events of the run, and how often there was
    none.
    """
    refused = 0
    async with Visitor(url) as visitor:
        while True:
            # Long enough for others to come meanwhile, so that some wait.
            async with aclosing(visitor.ask(asked(who, each=0.02))) as running:
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
        assert ids(events) == [fake_page.token(who, index) for index in range(ROUNDS)]
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


@pytest.mark.slow
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


def test_closing_the_tab_frees_the_machine_within_a_round(
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
            url, pid = stack.enter_context(server(FAKE_PAGE, tmp_path, *options))
            log = tmp_path / "log.txt"
        said = len(log.read_text())
        process = psutil.Process(pid)
        began = process.children(recursive=True)
        assert began
        seconds = asyncio.run(story(url, process))
        until(lambda: not alive(began), f"the end of {began}")
    assert seconds < STOP_S * slowness()
    text = log.read_text()[said:]
    assert "Traceback" not in text and "has been stopped" in text


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""
    return [
        process
        for process in processes
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]
