"""The process's end of the pipe: takes jobs, listens for Stop, sends what happens in small batches.

Given a pipe and something that computes, runs one job at a time in the main thread; a second thread
listens, a third one sends, so that a slow reader never holds up a round. Knows nothing of what is
computed.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection

from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.run import Event, refusal

SEND_EVERY_S = 0.04
SAID = 300
"""Characters of a fault that a visitor is told."""
END_S = 1.0
"""How long a round in hand may take to end when everything does."""
Tell = Callable[[str], None]
Compute = Callable[[Job, Callable[[], bool], Tell], Iterator[Event]]
"""(job, whether it is to end, who hears how far loading is) -> the job's events.

May have `prepare(tell)`, called before the first job: visitors who wait hear how far loading is;
and `forget(visit)`, called when a visit is over, where it keeps something of one between jobs.
"""


def serve(pipe: Connection, open_engine: Callable[[], Compute]) -> None:
    """Serve jobs until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the page's to handle
    outbox = Outbox(pipe)
    inbox = Inbox(pipe, outbox)
    compute = open_engine()

    def tell_all(text: str) -> None:
        for run in inbox.waiting():
            outbox.put(run, loading(text))

    if prepare := getattr(compute, "prepare", None):
        prepare(tell_all)
    while (item := inbox.items.get()) is not None:
        if isinstance(item, str):  # a visit that is over
            if forget := getattr(compute, "forget", None):
                forget(item)
            continue
        run, job, ended = item
        inbox.begun = run
        if not ended.is_set():  # else its visitor was told already that it is over
            _serve_one(compute, run, job, ended, outbox)
        inbox.forget(run)
    with suppress(OSError):  # the page is gone
        outbox.flush()


def loading(text: str) -> Event:
    """How far loading is."""
    return {"k": "status", "stage": "loading", "detail": text}


def _serve_one(
    compute: Compute, run: str, job: Job, ended: threading.Event, outbox: Outbox
) -> None:
    """One job, its events into the outbox, done at the end."""
    try:
        for event in compute(job, ended.is_set, lambda text: outbox.put(run, loading(text))):
            outbox.put(run, event)
    except BaseException as fault:
        reason = f"{type(fault).__name__}: {fault}"[:SAID]
        for event in refusal(messages.RUN_FAILED.format(reason=reason)):
            outbox.put(run, event)
        with suppress(OSError):  # the page is gone
            outbox.flush()
        raise  # nobody knows what state this process is in: the page starts a fresh one
    outbox.put(run, {"k": "done"})


class Inbox:
    """Hears jobs, Stop and who has left, from a thread of its own. Who has left waits for the jobs
    before.

    A job that is stopped before it has begun is over at once, also while something is being loaded.
    begun: the last job that was taken up.
    """

    def __init__(self, pipe: Connection, outbox: Outbox) -> None:
        self.begun: str | None = None
        self._outbox = outbox
        self.items: queue.SimpleQueue[tuple[str, Job, threading.Event] | str | None] = (
            queue.SimpleQueue()
        )
        self._pipe = pipe
        self._ends: dict[str, threading.Event] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def waiting(self) -> list[str]:
        """Runs that have not ended; before the first has begun all of them wait."""
        return [run for run, end in list(self._ends.items()) if not end.is_set()]

    def forget(self, run: str) -> None:
        """This run is over; a Stop that comes later is dropped."""
        self._ends.pop(run, None)

    def _run(self) -> None:
        while True:
            try:
                what, whose, job = self._pipe.recv()
            except (EOFError, OSError):  # the page is gone
                what = "end"
            if what == "end":
                for end in list(self._ends.values()):
                    end.set()
                self.items.put(None)
                time.sleep(END_S)
                os._exit(0)  # loading, or a round that lasts: nobody waits for it
            if what == "job":
                self._ends[whose] = threading.Event()
                self.items.put((whose, job, self._ends[whose]))
            elif what == "forget":
                self.items.put(whose)
            elif whose in self._ends:
                self._ends[whose].set()
                if whose != self.begun:
                    self._outbox.put(whose, {"k": "done"})


class Outbox:
    """Sends events in small batches from a thread of its own."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: list[tuple[str, Event]] = []
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, run: str, event: Event) -> None:
        """Take an event and return at once."""
        with self._lock:
            self._waiting.append((run, event))

    def flush(self) -> None:
        with self._sending:
            with self._lock:
                batch, self._waiting = self._waiting, []
            if batch:
                self._pipe.send(batch)

    def _run(self) -> None:
        while True:
            time.sleep(SEND_EVERY_S)
            try:
                self.flush()
            except OSError:  # the page is gone; the listening thread ends this process
                return
