"""Who computes and who waits: as many at once as the worker takes, a line with places, Stop, a stream a run.

Given a worker that computes in the background; gives JSON strings at a bounded rate, numbered, so that a page
can tell when one is missing and fetch it again. Knows nothing of what is computed, nothing of Gradio.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Protocol

import orjson

from specvl_demo.ui import words
from specvl_demo.ui.jobs import Job

Event = dict[str, Any]
"""{'k': kind, ...}: run · queue · status · begin · round · end · error · done."""

HZ = 20
WAIT_S = 0.1
MOST_RUNS_KEPT = 32


class Worker(Protocol):
    """Computes jobs away from the page, `capacity` of them at once."""

    @property
    def capacity(self) -> int: ...

    def start(self, run: str, job: Job, put: Callable[[Event], None]) -> None:
        """Begin a job and return; `put` is called from another thread, last with {'k': 'done'}."""
        ...

    def stop(self, run: str) -> None:
        """End this job within a round. Nothing happens where it is already over."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class Run:
    """One run's events, kept as the batches that were sent."""

    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(12)
        self.batches: list[str] = []
        self.stopped = False
        self.done = False
        self.seconds: float | None = None
        self._waiting: list[Event] = []
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        """Take an event; from any thread."""
        with self._lock:
            self._waiting.append(event)
            self.done = self.done or event["k"] == "done"

    def drain(self) -> list[Event]:
        """All events since the last call."""
        with self._lock:
            events, self._waiting = self._waiting, []
        return events

    def pack(self, events: list[Event]) -> str:
        """Events as one JSON string with the run, its number in the stream and the time; kept."""
        head = {"run": self.id, "seq": len(self.batches), "ts": round(time.time() * 1000)}
        batch = orjson.dumps({**head, "events": events}, option=orjson.OPT_NON_STR_KEYS).decode()
        self.batches.append(batch)
        return batch


def refusal(sentence: str) -> list[Event]:
    """What a request that cannot be served gets in place of a run."""
    return [{"k": "error", "text": sentence}, {"k": "done"}]


class Desk:
    """The line before the worker. max_waiting: visitors beyond it are told to come back later."""

    def __init__(self, worker: Worker, max_waiting: int = 16, limit_s: float = 300.0) -> None:
        self.worker = worker
        self.max_waiting = max_waiting
        self.limit_s = limit_s
        self._line: deque[Run] = deque()
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._lasted: deque[float] = deque([10.0], maxlen=8)
        self._lock = threading.Lock()

    async def stream(self, job: Job) -> AsyncIterator[str]:
        """The run of a job as JSON strings, for a page."""
        async with aclosing(self.events(job)) as running:
            async for run, events in running:
                yield run.pack(events)

    async def events(self, job: Job) -> AsyncIterator[tuple[Run, list[Event]]]:
        """Wait for the turn, compute, and give the events as they come; the last one is done."""
        run = self._enter()
        began = False
        try:
            if run.done:
                yield run, run.drain()
                return
            async for place in self._wait(run):
                yield run, [place]
            if not run.stopped:
                began = True
                self.worker.start(run.id, job, lambda event: self._take(run, event))
            else:
                self._take(run, {"k": "done"})
            async for events in self._follow(run):
                yield run, events
        finally:  # also when the visitor has left
            run.stopped = True
            if began and not run.done:
                self.worker.stop(run.id)
            elif not began:
                self._leave(run)

    def stop(self, run_id: str) -> None:
        """The visitor's Stop: a waiting run leaves the line, a running one ends within a round."""
        run = self._runs.get(run_id)
        if run and not run.done:
            run.stopped = True
            self.worker.stop(run_id)

    def batches(self, run_id: str) -> list[str]:
        """All batches of a run so far, for a page that missed one; empty where the run is unknown."""
        run = self._runs.get(run_id)
        return list(run.batches) if run else []

    def _enter(self) -> Run:
        run = Run()
        with self._lock:
            full = len(self._line) >= self.max_waiting + self.worker.capacity
            if not full:
                self._line.append(run)
            self._runs[run.id] = run
            while len(self._runs) > MOST_RUNS_KEPT + len(self._line):
                self._runs.popitem(last=False)
        run.put({"k": "run", "run": run.id})
        if full:
            for event in refusal(words.BUSY.format(waiting=self.max_waiting)):
                run.put(event)
        return run

    def _leave(self, run: Run) -> None:
        with self._lock:
            if run in self._line:
                self._line.remove(run)

    def _take(self, run: Run, event: Event) -> None:
        if event["k"] == "done":
            if run.seconds is not None:
                self._lasted.append(time.monotonic() - run.seconds)
            self._leave(run)
        run.put(event)

    async def _wait(self, run: Run) -> AsyncIterator[Event]:
        """The run's place in the line, as often as it changes, until its turn has come."""
        told = 0
        while not run.stopped:
            with self._lock:
                place = self._line.index(run)
            ahead = place - self.worker.capacity + 1
            if ahead <= 0:
                break
            if ahead != told:
                told = ahead
                lasts = sum(self._lasted) / len(self._lasted) / self.worker.capacity
                yield {"k": "queue", "place": ahead, "eta_s": ahead * lasts}
            await asyncio.sleep(WAIT_S)
        run.seconds = time.monotonic()

    async def _follow(self, run: Run) -> AsyncIterator[list[Event]]:
        """What the worker says, at a bounded rate, until it is done."""
        late = False
        while True:
            over = run.done  # before draining: what came with it must not be lost
            events = run.drain()
            if events:
                yield events
            elif over:
                return
            if not late and time.monotonic() - run.seconds > self.limit_s:
                late = True
                run.put({"k": "error", "text": words.TOO_LONG.format(seconds=self.limit_s)})
                self.worker.stop(run.id)
            await asyncio.sleep(1 / HZ)
