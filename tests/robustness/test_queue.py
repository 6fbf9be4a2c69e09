"""The line, its limits, and the process that computes: who waits, is told, freed, replaced."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from specvl_demo.ui import messages
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.workers import ProcessWorker
from tests.page import fake_page
from tests.robustness.support import Guest, computed, job, saved, until
from tests.shared.tiny import rounds_of


@pytest.fixture(scope="module")
def worker(ledger: Path) -> Iterator[ProcessWorker]:
    with closing(ProcessWorker(None, fake_page.Played)) as made:
        list(made.events("first", job()))  # from now on no limit is spent on the process's start
        yield made


def served(queue, who):
    """The next one is served as if nothing had been."""
    guest = Guest(queue, job(f"who={who}"))
    guest.until("done")
    assert len(guest.of("round")) == 3 and not guest.of("error")


class Still:
    """A worker that computes until it is told that a run is over."""

    capacity = 1

    def __init__(self):
        self.begun, self.puts, self.stopped = [], {}, []

    def start(self, run, job, put):
        self.begun.append(job.question.words)
        self.puts[job.question.words] = put

    def stop(self, run):
        self.stopped.append(run)

    def end(self, question):
        self.puts[question]({"k": "done"})


# ---------------------------------------------------------------- the line


def test_clients_take_turns_in_the_line():
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


def test_a_run_belongs_to_its_visit_and_ends_with_it():
    """Another visit cannot stop it; when it is over nothing of it is left."""
    worker = Still()
    queue = Queue(worker)
    guest = Guest(queue, job("secret question", visit="mine"))
    run = guest.until("run")["run"]
    until(lambda: worker.begun, "the run")
    queue.stop(run, "other")
    assert not queue._runs[run].stopped
    queue.end_visit("mine")
    assert queue._runs[run].stopped
    worker.end("secret question")
    guest.leave()
    assert not queue._runs and not queue._line


def test_a_stop_while_a_run_begins_reaches_its_worker(monkeypatch):
    """The two are in different threads; a run that was not told would compute to its limit."""
    worker = Still()
    queue = Queue(worker)
    begin = queue._start

    def stop_and_begin(run, job):
        Thread(target=queue.stop, args=[run.id]).start()
        time.sleep(0.2)
        begin(run, job)

    monkeypatch.setattr(queue, "_start", stop_and_begin)
    Guest(queue, job("a question"))
    until(lambda: worker.stopped, "the word to the worker")
    worker.end("a question")


@pytest.mark.parametrize("how", ["stop", "leave"])
def test_stopping_or_leaving_frees_the_machine_within_a_round(
    worker: ProcessWorker, ledger: Path, tmp_path: Path, how: str
):
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


def test_a_run_is_ended_at_its_limit_and_keeps_what_it_had(worker: ProcessWorker):
    guest = Guest(Queue(worker, limit_s=2.0), job("who=long rounds=100000 each=0.05"))
    guest.until("done")
    assert "ended after 2 s, the limit" in guest.until("error")["text"]
    end = guest.until("end")["record"]
    assert end.totals.n_rounds == len(guest.of("round")) > 0


def test_a_load_has_the_limit_from_its_last_word_on():
    """Loading that goes on is not counted; one that hangs is ended."""
    worker = Still()
    guest = Guest(Queue(worker, limit_s=2.0), job("long load"))
    until(lambda: worker.puts, "the run")
    for _ in range(10):
        worker.puts["long load"]({"k": "status", "stage": "loading", "detail": "a part"})
        time.sleep(0.25)
    assert not guest.of("error")
    assert "ended after 2 s, the limit" in guest.until("error")["text"]
    worker.end("long load")


def test_a_run_that_hangs_is_ended_with_what_computes_it(worker: ProcessWorker):
    """Nobody follows it any more, it does not react: who waits next gets a fresh engine."""
    queue = Queue(worker, grace_s=0.5)
    hanging = Guest(queue, job("who=hanging fail=hang at=1"))
    hanging.until("round")
    pid = worker.pid
    hanging.leave()
    served(queue, "following")
    assert worker.pid != pid


# ---------------------------------------------------------------- the process that computes


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("die", "The engine stopped (SIGKILL"),
        ("raise", "KeyError: 'a mistake of ours'"),
        (
            "gpu",
            messages.DEVICE_LOST.format(reason="AcceleratorError: CUDA error: misaligned address"),
        ),
    ],
)
def test_a_worker_that_ends_in_the_middle_takes_no_other_visitors_run_along(
    worker: ProcessWorker, how: str, said: str, tmp_path: Path
):
    queue = Queue(worker)
    guest = Guest(queue, job(f"who=unlucky rounds=9 fail={how} at=5 each=0.05"))
    guest.until("round")
    pid = worker.pid
    waiting = [Guest(queue, job(f"who=w{number} rounds=6")) for number in range(3)]
    guest.until("done")
    (error,) = guest.of("error")
    assert said in error["text"]
    assert len(rounds_of(saved(guest, tmp_path))) == 5
    # Nothing of the others is lost, although the first of them may have been handed to the dying
    # process.
    for number, other in enumerate(waiting):
        other.until("done")
        assert not other.of("error")
        got = [token for event in other.of("round") for token in event["record"].tokens]
        assert [t.id for t in got] == [fake_page.token(f"w{number}", index) for index in range(6)]
    assert worker.pid != pid


def test_a_worker_that_cannot_live_is_not_started_for_ever():
    """It ends before it says anything, each time: the visitor is told."""
    with closing(ProcessWorker(None, fake_page.dying)) as made:
        guest = Guest(Queue(made), job())
        guest.until("done")
        assert "The engine stopped (exit code 7)" in guest.until("error")["text"]


def test_a_worker_that_cannot_start_again_blocks_no_visitor(worker: ProcessWorker, monkeypatch):
    """No process is to be had: the visitor is told, and the next one is served when it is."""
    queue = Queue(worker)
    before = worker.pid
    os.kill(before, signal.SIGKILL)
    until(lambda: not worker._process.is_alive(), "the process to end")

    def start(_: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(SpawnProcess, "start", start)
        guest = Guest(queue, job())
        guest.until("done")
    (error,) = guest.of("error")
    assert "could not be started" in error["text"] and "temporarily unavailable" in error["text"]
    assert not queue._line
    served(queue, "after")
    assert worker.pid != before
