"""Fifty visitors at once, places in the line, limits, and what is freed when somebody stops or leaves."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from specvl_demo.ui.serve import queue as queues
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.workers import ProcessWorker
from tests.page.conftest import ROOT
from tests.robustness import echo
from tests.robustness.footprint import Sample, look
from tests.robustness.support import ECHO, WAIT_S, Guest, asks, ids, job, sentence, server, texts, until
from tests.robustness.visitor import Turned, Visitor

VISITORS = 50
ROUNDS = 4
POOL = 40


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the echoing engines of this module write what they compute."""
    path = tmp_path_factory.mktemp("ledger") / "rounds.txt"
    path.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(echo.LEDGER, str(path))
        yield path


@pytest.fixture(scope="module")
def echoing(ledger: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The page over the echoing engine, with room for ten to wait."""
    with server(ECHO, tmp_path_factory.mktemp("echo"), "--waiting", "10") as running:
        yield running


@pytest.fixture(scope="module")
def worker(ledger: Path) -> Iterator[ProcessWorker]:
    made = ProcessWorker(None, echo.engine)
    yield made
    made.close()


def computed(ledger: Path, who: str) -> int:
    """Rounds that were really computed for somebody."""
    return sum(line.split()[0] == who for line in ledger.read_text().splitlines())


def asked(who: str, **changes: Any) -> dict[str, Any]:
    words = {"who": who, "rounds": ROUNDS} | changes
    return {"pair": "pocket", "methods": ["ar"], "question": " ".join(f"{k}={v}" for k, v in words.items())}


async def persistent(url: str, who: str) -> tuple[list[dict[str, Any]], int]:
    """A visitor who comes again until there is room: the events of the run, and how often there was none."""
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
    return await asyncio.gather(*(persistent(url, f"{wave}v{number}") for number in range(VISITORS)))


def check(wave: str, outcome: list[tuple[list[dict[str, Any]], int]]) -> int:
    """Everybody got their own answer, whole, and saw their place; gives how often somebody was refused."""
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
"""What a wave may add: on a busy machine the refused ask more often, and what is kept of runs still grows.
The soak holds half an hour of visitors to a few per cent.
"""


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
    """A look at the server once it holds what it held when idle, but for the web server's pool of threads."""
    now = look(pid)
    return now if now.threads <= idle.threads + POOL and now.files <= idle.files + 4 else None


def test_who_closes_the_tab_frees_the_machine_within_a_round(echoing: tuple[str, int], ledger: Path) -> None:
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
            call = program.call("generate", {"prompt": "who=program rounds=2000 each=0.25", "method": "ar"})
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
                told = await program.call("generate", {"prompt": f"who=p{number} each=0.05", "method": "ar"})
            except Turned as said:
                return str(said)
            return told["text"]

    async def story() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(20)))

    told = asyncio.run(story())
    for number, text in enumerate(told):
        assert text == f"p{number} " * 3 or "busy" in text
    assert any("busy" in text for text in told) and sum("busy" not in text for text in told) >= 11


@pytest.mark.parametrize("how", ["stop", "leave"])
def test_who_stops_or_leaves_frees_the_machine_within_a_round(
    worker: ProcessWorker, ledger: Path, tmp_path: Path, how: str
) -> None:
    """The third round is held while Stop is on its way: it ends, and no other begins."""
    queue = Queue(worker)
    guest = Guest(queue, job(f"who={how} rounds=100000 at=2 hold={tmp_path / 'go'}"))
    run = guest.until("run")["run"]
    guest.until("round", 2)
    if how == "stop":
        queue.stop(run)
    else:
        guest.leave()
    time.sleep(2.0)  # for the word to reach the process; the round is held as long
    (tmp_path / "go").touch()
    after = Guest(queue, job(f"who=after-{how}"))
    after.until("done")
    assert len(after.of("round")) == 3
    assert computed(ledger, how) == 3
    if how == "stop":
        assert guest.until("end")["record"].stop == "cancelled"
        assert guest.until("end")["record"].totals.n_rounds == len(guest.of("round")) == 3


def test_who_leaves_while_waiting_leaves_the_line_at_once(worker: ProcessWorker, ledger: Path) -> None:
    queue = Queue(worker, max_waiting=1)
    first = Guest(queue, job("who=first rounds=1000 each=0.1"))
    first.until("round")
    waiting = Guest(queue, job("who=gone"))
    assert waiting.until("queue")["place"] == 1
    full = Guest(queue, job("who=full"))
    assert "busy: 1 visitors" in full.until("error")["text"]
    waiting.leave()
    second = Guest(queue, job("who=second"))
    assert second.until("queue")["place"] == 1
    first.leave()
    second.until("done")
    assert len(second.of("round")) == 3 and computed(ledger, "gone") == 0


def test_a_run_is_ended_at_its_limit_and_keeps_what_it_had(worker: ProcessWorker) -> None:
    guest = Guest(Queue(worker, limit_s=1.0), job("who=long rounds=100000 each=0.05"))
    guest.until("done")
    assert "ended after 1 s, the limit" in guest.until("error")["text"]
    end = guest.until("end")["record"]
    assert end.totals.n_rounds == len(guest.of("round")) > 0


def test_a_run_that_hangs_is_ended_with_what_computes_it(worker: ProcessWorker) -> None:
    """Nobody follows it any more, it does not react: who waits next gets a fresh engine."""
    queue = Queue(worker, grace_s=0.5)
    hanging = Guest(queue, job("who=hanging fail=hang at=1"))
    hanging.until("round")
    pid = worker.pid
    hanging.leave()
    following = Guest(queue, job("who=following"))
    following.until("done")
    assert len(following.of("round")) == 3 and not following.of("error")
    assert worker.pid != pid


def test_loading_that_is_reported_does_not_count_but_silence_does() -> None:
    """A worker that says how far a download is may take its time; one that says nothing may not."""
    said: list[str] = []
    silent = threading.Event()

    class Loading:
        capacity = 1

        def start(self, run: str, asked: Any, put: Any) -> None:
            def go() -> None:
                for _ in range(8):
                    time.sleep(0.25)
                    put({"k": "status", "stage": "loading", "detail": "…"})
                silent.wait(WAIT_S)
                put({"k": "done"})

            threading.Thread(target=go, daemon=True).start()

        def stop(self, run: str) -> None:
            said.append("stop")
            silent.set()

        def kill(self, run: str) -> None: ...

        def forget(self, visit: str) -> None: ...

        def close(self) -> None: ...

    guest = Guest(Queue(Loading(), limit_s=1.5), job())
    guest.until("done")
    assert [event["k"] for event in guest.events] == ["run", *["status"] * 8, "error", "done"]
    assert said == ["stop"]


def test_what_is_kept_of_runs_is_bounded(worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are over are kept for pages that missed something: so many, and no larger than that."""
    monkeypatch.setattr(queues, "MOST_RUNS_KEPT", 3)
    queue = Queue(worker)

    async def play(question: str) -> str:
        batches = [run.pack(events) async for run, events in queue.events(job(question))]
        return re.search(r'"run":"([^"]+)"', batches[0])[1]

    names = [asyncio.run(play(f"who=k{number}")) for number in range(6)]
    asyncio.run(play("who=last"))
    assert [bool(queue.batches(name)) for name in names] == [False, False, False, True, True, True]
    monkeypatch.setattr(queues, "MOST_BYTES_KEPT", 10)
    asyncio.run(play("who=large"))
    assert not any(queue.batches(name) for name in names)
    assert not queue._line


def test_visitors_of_the_shipped_pair_get_what_they_would_get_alone(served: tuple[str, int]) -> None:
    """Eight at once on real models, three with a clip, each sampling from a seed: each answer is the one of a
    quiet hour."""
    url, _ = served
    clip = {"path": str(ROOT / "examples" / "clip.webm"), "name": "clip.webm"}
    requests = [
        {
            "pair": "pocket",
            "methods": ["ngram" if seed % 2 else "chain"],
            "media": [clip] if seed > 4 else [],
            "question": f"What is this, {seed}?",
            "max_new_tokens": 6,
            "temperature": 1.3,
            "seed": seed,
        }
        for seed in range(8)
    ]

    async def together() -> list[list[dict[str, Any]]]:
        return await asyncio.gather(*(asks(url, one) for one in requests))

    alone = [asyncio.run(asks(url, one)) for one in requests]
    crowded = asyncio.run(together())
    answers = []
    for one, quiet, loud in zip(requests, alone, crowded):
        assert sentence(quiet) is None and sentence(loud) is None
        begin = next(event["record"] for event in loud if event["k"] == "begin")
        assert begin["notes"]["question"] == one["question"] and begin["sampling"]["seed"] == one["seed"]
        for lane in ("ar", *one["methods"]):
            assert ids(loud, lane) == ids(quiet, lane) == ids(quiet)
        answers.append(tuple(ids(loud)))
    assert len(set(answers)) > 4  # the answers really differ, so that a mix-up would show
