"""The child process's end of the pipe: receives jobs and Stop, sends events in small batches.

Given a pipe and a function that computes, runs one job at a time in the main thread; a second
thread receives, and a third one sends, so that a slow reader never delays a round. Knows nothing of
the computation.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from multiprocessing.connection import Connection

from specvl_demo.core.faults import cause, loses_device
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.run import Event, refusal

SEND_EVERY_S = 0.04
SAID = 300
"""Characters of an error that are shown to a visitor."""
END_S = 1.0
"""How long the current round may take to end on shutdown."""
Tell = Callable[[str], None]
Compute = Callable[[Job, Callable[[], bool], Tell], Iterator[Event]]
"""(job, whether it is to end, callback for the progress of loading) -> the job's events.

May have `prepare(tell)`, called before the first job, whose progress waiting visitors see.
"""


def serve(pipe: Connection, open_engine: Callable[[], Compute]) -> None:
    """Serve jobs until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the page's to handle
    with closing(Outbox(pipe)) as outbox:
        inbox = Inbox(pipe, outbox)
        compute = open_engine()

        def tell_all(text: str) -> None:
            for run in inbox.waiting():
                outbox.put(run, loading(text))

        if prepare := getattr(compute, "prepare", None):
            prepare(tell_all)
        while (item := inbox.items.get()) is not None:
            run, job, ended = item
            inbox.begun = run
            if not ended.is_set():  # otherwise its visitor has already seen its end
                _serve_one(compute, run, job, ended, outbox)
            inbox.forget(run)


def loading(text: str) -> Event:
    """Return an event with the progress of loading."""
    return {"k": "status", "stage": "loading", "detail": text}


def _serve_one(
    compute: Compute, run: str, job: Job, ended: threading.Event, outbox: Outbox
) -> None:
    """Run one job and put its events into the outbox, with done at the end."""
    try:
        for event in compute(job, ended.is_set, lambda text: outbox.put(run, loading(text))):
            outbox.put(run, event)
    except BaseException as fault:
        if loses_device(fault):
            problem = messages.DEVICE_LOST.format(reason=cause(fault)[:SAID])
        else:
            reason = f"{type(fault).__name__}: {fault}"[:SAID]
            problem = messages.RUN_FAILED.format(reason=reason)
        for event in refusal(problem):
            outbox.put(run, event)
        raise  # the state of this process is unknown: the page starts a fresh one
    outbox.put(run, {"k": "done"})


class Inbox:
    """Receives jobs and stop requests, in a thread.

    A job that is stopped before it has begun ends at once, also while something is being loaded.
    begun: the last job that was started.
    """

    def __init__(self, pipe: Connection, outbox: Outbox) -> None:
        self.begun: str | None = None
        self._outbox = outbox
        self.items: queue.SimpleQueue[tuple[str, Job, threading.Event] | None] = queue.SimpleQueue()
        self._pipe = pipe
        self._ends: dict[str, threading.Event] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def waiting(self) -> list[str]:
        """Return the runs that have not ended; before the first has begun, all of them wait."""
        return [run for run, end in list(self._ends.items()) if not end.is_set()]

    def forget(self, run: str) -> None:
        """Drop a run that is over; later stop requests for it are ignored."""
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
                os._exit(0)  # do not wait for loading or for a long round
            if what == "job":
                self._ends[whose] = threading.Event()
                self.items.put((whose, job, self._ends[whose]))
            elif whose in self._ends:
                self._ends[whose].set()
                if whose != self.begun:
                    self._outbox.put(whose, {"k": "done"})


class Outbox:
    """Sends events in small batches from a separate thread."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._events: queue.SimpleQueue[tuple[str, Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, run: str, event: Event) -> None:
        """Take an event and return at once."""
        self._events.put((run, event))

    def close(self) -> None:
        """Return when everything is sent."""
        self._events.put(None)
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):  # the page is gone; the listening thread ends this process
            while (item := self._events.get()) is not None:
                batch = [item]
                while not self._events.empty() and (item := self._events.get()) is not None:
                    batch.append(item)
                self._pipe.send(batch)
                if item is None:
                    return
                time.sleep(SEND_EVERY_S)
