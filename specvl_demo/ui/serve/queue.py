"""The waiting line and the running jobs: as many at once as the worker takes, places, Stop, a
stream per run.

Clients take turns in the line, so that none has to wait for all runs of another. Events are sent at
a bounded rate, as numbered JSON strings; every lane that has begun gets its end. Knows nothing of
the computation.
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from specvl_demo.core.faults import cause, loses_device
from specvl_demo.records import Begin, End, JsonObject, Round, Stop, Totals
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import HZ, Job

Event = JsonObject
"""{'k': run, queue, status, begin, round, end, remarks, error or done, ...}, some a 'record'."""
Put = Callable[[Event], None]

MAX_FAULT_CHARS = 300
"""Characters of an error that are shown to a visitor."""
WAIT_S = 0.1
BEAT_S = 1.0
"""How often a silent run sends an empty event, which reveals whether a listener is there."""
GRACE_S = 60.0
"""How long a run may take to end after a stop request, before its worker is replaced."""


class Worker(ABC):
    """Computes jobs away from the page; a thread of each run passes its events on."""

    capacity = 1
    """How many jobs it computes at once."""

    @abstractmethod
    def events(self, run: str, job: Job) -> Iterator[Event]:
        """Compute a job: yield its events until it is over, without done."""

    @abstractmethod
    def stop(self, run: str) -> None:
        """End this job within a round. Does nothing if it is already over."""

    @abstractmethod
    def kill(self, run: str) -> None:
        """End this job although it does not react: its process is replaced."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""

    def start(self, run: str, job: Job, put: Put) -> None:
        """Begin a job and return; `put` is called from another thread, last with {'k': 'done'}."""
        put({"k": "status", "stage": "starting"})
        # A Space charges a lent call to the visitor of this request, which the thread must know.
        context = contextvars.copy_context()
        arguments = (self._forward_events, run, job, put)
        threading.Thread(target=context.run, args=arguments, daemon=True).start()

    def _forward_events(self, run: str, job: Job, put: Put) -> None:
        try:
            for event in self.events(run, job):
                put(event)
        except Exception as fault:  # noqa: BLE001 - Spaces and clusters have exceptions of their own
            put(messages.error_event(failure_sentence(fault), "failed"))
        finally:
            put({"k": "done"})


@dataclass
class Queue:
    """The line before the worker, of at most `max_waiting` visitors.

    limit_s: Seconds a run may compute, and each reported stage before it may take.
    """

    worker: Worker
    max_waiting: int = 16
    limit_s: float = 300.0
    grace_s: float = GRACE_S
    _line: list[Run] = field(default_factory=list)
    _runs: dict[str, Run] = field(default_factory=dict)
    """Those whose visitor listens."""
    _lock: Any = field(default_factory=threading.RLock)

    async def events(self, job: Job) -> AsyncGenerator[tuple[Run, list[Event]], None]:
        """Wait for the turn, compute, and yield the events as they happen; the last one is done. At
        least every BEAT_S something is yielded, if only an empty list.
        """
        run = self._join_line(job)
        ahead = 0
        at = 0.0
        try:
            while True:
                self._enforce_time_limits()
                with self._lock:
                    before = ahead
                    ahead = self._n_ahead(run)
                    if run.began is None and not run.done:
                        if run.stopped:
                            self._store_event(run, {"k": "done"})
                        elif not ahead:
                            self._start(run, job)
                        elif ahead != before:
                            run.add({"k": "queue", "place": ahead})
                    over = run.done
                    events = run.events
                    run.events = []
                if events or time.monotonic() - at > BEAT_S:
                    at = time.monotonic()
                    yield run, events
                elif over:
                    return
                await asyncio.sleep(WAIT_S if ahead else 1 / run.hz)
        finally:  # also when the visitor has left
            if run.began is None:
                self._leave_line(run)
            else:
                self._request_end(run)
            self._runs.pop(run.id, None)

    def stop(self, run_id: str, visit: str | None = None) -> None:
        """Stop a visit's own run: it leaves the line, or ends within a round."""
        run = self._runs.get(run_id)
        if run and run.visit == visit:
            self._request_end(run)

    def end_visit(self, visit: str) -> None:
        """End the runs of a visit."""
        for run_id in list(self._runs):
            self.stop(run_id, visit)

    def _join_line(self, job: Job) -> Run:
        run = Run(job.client, job.visit, job.hz)
        run.add({"k": "run", "run": run.id})
        with self._lock:
            self._line.append(run)
            self._runs[run.id] = run
            self._order_line()
            full = len(self._line) > self.max_waiting + self.worker.capacity
            if full:  # the newcomer leaves, or the last run of the client with most runs
                last = self._line.pop()
                for event in refusal_events(messages.BUSY.format(waiting=self.max_waiting), "busy"):
                    last.add(event)
        return run

    def _order_line(self) -> None:
        """Order the line: the first run of every client, then the second of each; by arrival."""
        seated = self._line[: self.worker.capacity]
        waiting = self._line[self.worker.capacity :]
        held = Counter(run.client for run in seated)
        turns = []
        for run in sorted(waiting, key=lambda run: run.came):
            turns.append((held[run.client], run))
            held[run.client] += 1
        self._line = seated + [run for _, run in sorted(turns, key=lambda turn: turn[0])]

    def _start(self, run: Run, job: Job) -> None:
        """Hand a job to the worker. If it cannot begin, the run is over."""
        run.began = time.monotonic()
        run.until = run.began + self.limit_s
        try:
            self.worker.start(run.id, job, lambda event: self._store_event(run, event))
        except Exception as fault:  # noqa: BLE001 - mostly no process could be created, but any fault ends the run
            for event in refusal_events(messages.ENGINE_NO_START.format(reason=fault)):
                self._store_event(run, event)

    def _leave_line(self, run: Run) -> None:
        with self._lock:
            if run in self._line:
                self._line.remove(run)
                self._order_line()

    def _request_end(self, run: Run) -> None:
        """Request a run to end, if it has not; from now on it has only the grace period."""
        with self._lock:  # else it could begin meanwhile, and never be told
            if run.done or run.stopped:
                return
            run.stopped = True
            if run.began is not None:
                run.until = time.monotonic()
                self.worker.stop(run.id)

    def _enforce_time_limits(self) -> None:
        """Apply the time limit to every running run, also one whose visitor has left; called by
        every run that waits or is followed.
        """
        with self._lock:
            running = [run for run in self._line if run.began is not None and not run.done]
        now = time.monotonic()
        for run in running:
            if now > run.until and not run.stopped:
                late = messages.TOO_LONG.format(seconds=self.limit_s)
                self._store_event(run, messages.error_event(late, "late"))
                self._request_end(run)
            if now > run.until + self.grace_s and not run.killed:
                run.killed = True
                self.worker.kill(run.id)

    def _store_event(self, run: Run, event: Event) -> None:
        """Take an event of a run, from any thread. Events after done are dropped."""
        with self._lock:
            if run.done:
                return
            if not run.stopped and event["k"] == "status":
                run.until = time.monotonic() + self.limit_s
            run.add(event)
            if run.done:
                self._leave_line(run)

    def _n_ahead(self, run: Run) -> int:
        """Return how many runs must end before this one begins; 0 if it has, or will not."""
        place = self._line.index(run) if run in self._line and run.began is None else 0
        return max(0, place - self.worker.capacity + 1)


class Run:
    """One run: where it is in the line, and its events."""

    def __init__(self, client: str | None = None, visit: str | None = None, hz: float = HZ) -> None:
        self.id = secrets.token_urlsafe(12)
        self.visit = visit
        self.client = client
        self.hz = hz
        self.events: list[Event] = []
        """What was not sent yet."""
        self.stopped = False
        self.done = False
        self.came = time.monotonic()
        self.began: float | None = None
        """When its computation began (monotonic seconds); None while it waits."""
        self.until = 0.0
        """When it must be over (monotonic seconds), once it has begun."""
        self.killed = False
        self.fault: str | None = None
        self._n_packed = 0
        self._lanes: dict[str, Totals] = {}
        """What the lanes that have not ended have so far."""

    def add(self, event: Event) -> None:
        """Add an event.

        With done, whatever happened, every lane that began gets its end, so that everything shown
        until then is a valid trace.
        """
        record = event.get("record")
        if isinstance(record, Begin):
            self._lanes[record.lane] = Totals()
        elif isinstance(record, Round):
            self._lanes[record.lane] = self._lanes[record.lane].plus_round(record)
        elif isinstance(record, End):
            self._lanes.pop(record.lane, None)
        elif event["k"] == "error":
            self.fault = event["text"]
        elif event["k"] == "done":
            self.done = True
            stop: Stop = "cancelled" if self.stopped and self.fault is None else "error"
            for lane, totals in self._lanes.items():
                end = End(lane, stop, totals, None, self.fault)
                self.events.append({"k": "end", "record": end})
        self.events.append(event)

    def encode_batch(self, events: list[Event]) -> str:
        """Return events as one JSON string with the run and its number."""
        batch = {"run": self.id, "seq": self._n_packed, "events": events}
        self._n_packed += 1
        return msgspec.json.encode(batch).decode()


def failure_sentence(fault: BaseException) -> str:
    """Return what a visitor is told of a run that raised."""
    sentence = messages.DEVICE_LOST if loses_device(fault) else messages.RUN_FAILED
    reason = f"{type(fault).__name__}: {cause(fault)}"
    return sentence.format(reason=reason[:MAX_FAULT_CHARS])


def refusal_events(sentence: str, code: messages.Code | None = None) -> list[Event]:
    """Return the events for a refused request."""
    return [messages.error_event(sentence, code), {"k": "done"}]
