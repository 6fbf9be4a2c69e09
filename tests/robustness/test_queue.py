"""The line, its limits, and the process that computes: who waits, who is told, what is freed and
replaced.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

from specvl_demo.records import Round
from specvl_demo.ui import messages
from specvl_demo.ui.page.handlers import UNHEARD_S, Behaviour, Caller
from specvl_demo.ui.serve import queue as queues
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.uploads import Uploads
from specvl_demo.ui.serve.workers import ProcessWorker, reason
from tests.page import fake_page
from tests.robustness.support import WAIT_S, Guest, computed, job, offered, saved, slowness, until


@pytest.fixture(scope="module")
def worker(ledger: Path) -> Iterator[ProcessWorker]:
    with closing(ProcessWorker(None, fake_page.engine)) as made:
        yield made


def served(queue: Queue, who: str) -> None:
    """The next one is served as if nothing had been."""
    guest = Guest(queue, job(f"who={who}"))
    guest.until("done")
    assert len(guest.of("round")) == 3 and not guest.of("error")


class Still:
    """A worker that computes until it is told that a run is over."""

    capacity = 1

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.puts: dict[str, Any] = {}

    def start(self, run: str, asked: Any, put: Any) -> None:
        self.begun.append(asked.question.words)
        self.puts[asked.question.words] = put

    def stop(self, run: str) -> None: ...

    def end(self, question: str) -> None:
        self.puts[question]({"k": "done"})


# ---------------------------------------------------------------- the line


def test_clients_take_turns_in_the_line() -> None:
    """Whoever asks once waits for one run of a client that asks for all."""
    worker = Still()
    queue = Queue(worker, max_waiting=4)
    greedy = [Guest(queue, job("greedy 0", client="a"))]
    until(lambda: worker.begun, "the first run")
    for n in range(1, 5):
        greedy.append(Guest(queue, job(f"greedy {n}", client="a")))
        greedy[-1].until("queue")
    other = Guest(queue, job("other", client="b"))
    assert other.until("queue")["place"] == 1
    # The line was full: the last of the client that has most has gone, told why.
    assert "busy" in greedy[4].until("error")["text"]
    again = Guest(queue, job("greedy 5", client="a"))
    assert "busy" in again.until("error")["text"]
    turns = ["greedy 0", "other", "greedy 1", "greedy 2", "greedy 3"]
    for question in turns:
        until(lambda question=question: question in worker.puts, question)
        worker.end(question)
    assert worker.begun == turns


def test_a_run_without_a_listener_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, listeners = Still(), Counter()
    catalog = {"pairs": [offered("p")]}
    behaviour = Behaviour(catalog, Queue(worker), Uploads(tmp_path), [tmp_path], (), listeners)
    caller = Caller(listens=("s", "e"))

    async def story() -> None:
        asked = {"pair": "p", "question": "?", "methods": ["ar"]}
        answering = behaviour.answer(asked, True, caller)
        listeners["e"] += 1
        caller.heard -= 2 * UNHEARD_S
        assert await anext(answering) is None  # somebody does
        listeners["e"] -= 1
        caller.heard -= 2 * UNHEARD_S
        with pytest.raises(ValueError, match="has been disconnected"):
            await anext(answering)

    asyncio.run(story())


def test_a_run_belongs_to_its_visit_and_ends_with_it() -> None:
    """Another visit can neither stop nor read it; when the visit is over nothing of it is left."""
    worker = Still()
    queue = Queue(worker)
    guest = Guest(queue, job("secret question", visit="mine"))
    run = guest.until("run")["run"]
    until(lambda: worker.begun, "the run")
    queue.stop(run, "other")
    assert not queue._runs[run].stopped
    assert queue.batches(run, "other") == [] and queue.batches(run) == []
    worker.end("secret question")
    guest.until("done")
    late = Guest(queue, job("asked before the end", visit="mine"))
    until(lambda: len(worker.begun) == 2, "the second run")
    queue.forget("mine")
    late.leave()
    assert queue.batches(run, "mine") == [] and not queue._runs


@pytest.mark.parametrize("how", ["stop", "leave"])
def test_stopping_or_leaving_frees_the_machine_within_a_round(
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
    until((tmp_path / "go-ended").exists, "the word to reach the process")
    (tmp_path / "go").touch()
    served(queue, f"after-{how}")
    assert computed(ledger, how) == 3
    if how == "stop":
        assert guest.until("end")["record"].stop == "cancelled"
        assert guest.until("end")["record"].totals.n_rounds == len(guest.of("round")) == 3


def test_leaving_while_waiting_leaves_the_line_at_once(worker: ProcessWorker, ledger: Path) -> None:
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
    served(queue, "following")
    assert worker.pid != pid


def test_loading_that_is_reported_does_not_count_but_silence_does() -> None:
    """A worker that says how far a download is may take its time; one that says nothing may not."""
    said: list[str] = []
    silent, slow = threading.Event(), slowness()

    class Loading(Still):
        def start(self, run: str, asked: Any, put: Any) -> None:
            def go() -> None:
                for _ in range(8):
                    time.sleep(0.15 * slow)
                    put({"k": "status", "stage": "loading", "detail": "…"})
                silent.wait(WAIT_S)
                put({"k": "done"})

            threading.Thread(target=go, daemon=True).start()

        def stop(self, run: str) -> None:
            said.append("stop")
            silent.set()

    guest = Guest(Queue(Loading(), limit_s=0.9 * slow), job())
    guest.until("done")
    assert [event["k"] for event in guest.events] == ["run", *["status"] * 8, "error", "done"]
    assert said == ["stop"]


def test_what_is_kept_of_runs_is_bounded(
    worker: ProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that are over are kept for pages that missed something: so many, and no larger than
    that.
    """
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


# ---------------------------------------------------------------- the process that computes


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("die", "stopped unexpectedly (SIGKILL"),
        ("raise", "KeyError: 'a mistake of ours'"),
        ("gpu", messages.DEVICE_LOST.format(reason="CUDA error: misaligned address")),
    ],
)
def test_a_worker_that_ends_in_the_middle(
    worker: ProcessWorker, how: str, said: str, tmp_path: Path
) -> None:
    queue = Queue(worker)
    guest = Guest(queue, job(f"who=unlucky rounds=9 fail={how} at=5 each=0.05"))
    guest.until("round")
    pid = worker.pid
    waiting = [Guest(queue, job(f"who=w{number} rounds=6")) for number in range(3)]
    guest.until("done")
    (error,) = guest.of("error")
    assert said in error["text"]
    assert sum(isinstance(record, Round) for record in saved(guest, tmp_path)) == 5
    # Nothing of the others is lost, although the first of them may have been handed to the dying
    # process.
    for number, other in enumerate(waiting):
        other.until("done")
        assert not other.of("error")
        got = [token for event in other.of("round") for token in event["record"].tokens]
        assert [one.id for one in got] == [
            fake_page.token(f"w{number}", index) for index in range(6)
        ]
    assert worker.pid != pid


def test_a_worker_that_cannot_live_is_not_started_for_ever() -> None:
    """It ends before it says anything, each time: after the second the visitor is told."""
    with closing(ProcessWorker(None, fake_page.dying)) as made:
        guest = Guest(Queue(made), job())
        guest.until("done")
        assert "stopped unexpectedly (exit code 7)" in guest.until("error")["text"]


@pytest.mark.parametrize(
    ("when", "place", "fault"),
    [
        (
            "dead before",
            SpawnProcess,
            BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        ),
        ("dies of it", threading.Thread, RuntimeError("can't start new thread")),
    ],
    ids=["process", "thread"],
)
def test_a_worker_that_cannot_be_started_again_blocks_no_visitor(
    worker: ProcessWorker, when: str, place: type, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process, or no thread, is to be had: the visitor is told, and the next one is served when
    it is.
    """
    queue = Queue(worker)
    before = worker.pid
    if when == "dead before":
        os.kill(before, signal.SIGKILL)
        until(lambda: not worker._process.is_alive(), "the process to end")
    real = place.start

    def start(self: Any) -> None:
        if place is not threading.Thread or self._target == worker._read:
            raise fault
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(place, "start", start)
        guest = Guest(queue, job("fail=die at=-1"))
        guest.until("done")
    assert (
        str(fault) in guest.until("error")["text"]
        and "could not be started" in guest.events[-2]["text"]
    )
    assert not queue._line and not worker._pending
    served(queue, "after")
    assert worker.pid != before


def test_a_signal_is_said_in_words() -> None:
    assert reason(-9) == "SIGKILL, often a sign that memory ran out"
    assert reason(-11) == "SIGSEGV" and reason(1) == "exit code 1"
