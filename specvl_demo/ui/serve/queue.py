"""The waiting line and the running jobs: as many at once as the worker takes, places, Stop, a
stream per run.

Clients take turns in the line, so that none has to wait for all runs of another. Given a worker
that computes in the background, yields its events at a bounded rate, as numbered JSON strings, so
that a page can detect that one is missing and fetch it again; every lane that has begun gets its
end. Knows nothing of the computation, nothing of Gradio.
"""

from __future__ import annotations

import asyncio
import heapq
import secrets
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from statistics import median
from typing import Any, Protocol

import msgspec

from specvl_demo.records import Begin, End, Round, Stop, Totals
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import HZ, Job

Event = dict[str, Any]
"""{'k': kind, ...}: run · queue · status · begin · round · end · remarks · error · done; a record
is its 'record'.
"""
Put = Callable[[Event], None]

WAIT_S = 0.1
BEAT_S = 1.0
"""How often a silent run sends an empty event: only sending reveals that a listener has
disconnected.
"""
GRACE_S = 60.0
"""How long a run may take to end after a stop request, before its worker is replaced."""
MOST_RUNS_KEPT = 32
MOST_BYTES_KEPT = 32 * 2**20
MOST_VISITS_LEFT = 256
"""How many ended visits are remembered, for what they requested before they ended."""
FIRST_LANE_S = 5.0
"""Seconds per lane until one was measured."""
OVERDUE = 0.25
"""A run is estimated to continue for at least this share of its time so far: one that outlasts its
estimate, because it loads or for another reason, is not about to end.
"""


class Worker(Protocol):
    """Computes jobs away from the page."""

    @property
    def capacity(self) -> int:
        """How many jobs it computes at once."""
        ...

    def start(self, run: str, job: Job, put: Put) -> None:
        """Begin a job and return; `put` is called from another thread, last with {'k': 'done'}.

        An exception, if it cannot begin, is reported to the visitor.
        """
        ...

    def stop(self, run: str) -> None:
        """End this job within a round. Does nothing if it is already over."""
        ...

    def kill(self, run: str) -> None:
        """End this job although it does not react: its process is replaced."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class Queue:
    """The line before the worker.

    Args:
        max_waiting: Visitors beyond it are refused.
        limit_s: Seconds a run may compute; reported loading does not count, silence does.
        grace_s: See GRACE_S.
    """

    def __init__(
        self,
        worker: Worker,
        max_waiting: int = 16,
        limit_s: float = 300.0,
        grace_s: float = GRACE_S,
    ) -> None:
        self.worker = worker
        self.max_waiting = max_waiting
        self.limit_s = limit_s
        self.grace_s = grace_s
        self._line: list[Run] = []
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._left: deque[str] = deque(maxlen=MOST_VISITS_LEFT)
        self._durations = Durations()
        self._lock = threading.RLock()

    async def events(self, job: Job) -> AsyncGenerator[tuple[Run, list[Event]], None]:
        """Wait for the turn, compute, and yield the events as they happen; the last one is done.

        At least every BEAT_S something is yielded, if only an empty list.
        """
        run = self._enter(job)
        try:
            async for place in self._wait(run):
                yield run, [place]
            if run.stopped:
                self._take(run, {"k": "done"})
            # A run that is done had no room, or gave its place to a client with fewer.
            elif not run.done:
                self._start(run, job)
            async for events in self._follow(run):
                yield run, events
        finally:  # also when the visitor has left
            if run.began is None:
                self._leave(run)
            elif not run.done:
                self._end(run)
            if job.visit in self._left:
                self._runs.pop(run.id, None)

    def stop(self, run_id: str, visit: str | None = None) -> None:
        """Stop a run: a waiting one leaves the line, a running one ends within a round.

        A visit can stop only its own runs.
        """
        run = self._runs.get(run_id)
        if run and run.visit == visit and not run.done:
            self._end(run)

    def forget(self, visit: str) -> None:
        """End a visit: its runs end, and nothing of them is kept."""
        self._left.append(visit)
        for run in [run for run in self._runs.values() if run.visit == visit]:
            if not run.done:
                self._end(run)
            self._runs.pop(run.id, None)

    def batches(self, run_id: str, visit: str | None = None) -> list[str]:
        """Return all batches of a run of this visit so far, for a page that missed one; empty if
        there is no such run.
        """
        run = self._runs.get(run_id)
        return list(run.batches) if run and run.visit == visit else []

    def _enter(self, job: Job) -> Run:
        run = Run(job.client, max(1, len(job.lanes)), job.visit, job.hz)
        run.add({"k": "run", "run": run.id})
        with self._lock:
            self._line.append(run)
            self._runs[run.id] = run
            self._take_turns()
            full = len(self._line) > self.max_waiting + self.worker.capacity
            if full:  # the newcomer leaves, or the last run of the client with most runs
                last = self._line.pop()
                self._runs.pop(last.id, None)
                for event in refusal(messages.BUSY.format(waiting=self.max_waiting)):
                    last.add(event)
            self._forget()
        return run

    def _take_turns(self) -> None:
        """Order the line: the first run of every client, then the second of each; otherwise by
        arrival.
        """
        seated, waiting = self._line[: self.worker.capacity], self._line[self.worker.capacity :]
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
            self.worker.start(run.id, job, lambda event: self._take(run, event))
        except Exception as fault:  # noqa: BLE001 - mostly no process could be created, but any fault ends the run
            for event in refusal(messages.ENGINE_NO_START.format(reason=fault)):
                self._take(run, event)

    def _forget(self) -> None:
        """Drop the oldest ended runs if there are too many or they are too large."""
        over = [run for run in self._runs.values() if run.done]
        size = sum(run.size for run in over)
        while over and (len(over) > MOST_RUNS_KEPT or size > MOST_BYTES_KEPT):
            oldest = over.pop(0)
            size -= oldest.size
            self._runs.pop(oldest.id, None)

    def _leave(self, run: Run) -> None:
        with self._lock:
            if run in self._line:
                self._line.remove(run)
                self._take_turns()
            if not run.done:  # left while waiting: there is nothing to fetch again
                self._runs.pop(run.id, None)

    def _end(self, run: Run) -> None:
        """Request a run to end; from now on it has only the grace period."""
        run.stopped = True
        if run.began is not None and not run.told_to_end:
            run.told_to_end = True
            run.until = time.monotonic()
            self.worker.stop(run.id)

    def _hurry(self) -> None:
        """Apply the time limit to every running run, also one whose visitor has left.

        Called by every run that waits or is followed; without any, nothing has to be hurried.
        """
        with self._lock:
            running = [run for run in self._line if run.began is not None and not run.done]
        now = time.monotonic()
        for run in running:
            if now > run.until and not run.told_to_end:
                self._take(
                    run, {"k": "error", "text": messages.TOO_LONG.format(seconds=self.limit_s)}
                )
                self._end(run)
            if now > run.until + self.grace_s and not run.killed:
                run.killed = True
                self.worker.kill(run.id)

    def _take(self, run: Run, event: Event) -> None:
        """Take an event of a run, from any thread. Events after done are dropped."""
        with self._lock:
            if run.done:
                return
            now = time.monotonic()
            if event.get("stage") == "loading" and not run.told_to_end:
                run.until = now + self.limit_s
            run.add(event)
            if run.done:
                self._durations.see(run, now)
                self._leave(run)

    async def _wait(self, run: Run) -> AsyncGenerator[Event, None]:
        """Yield the run's place in the line, when it changes and every BEAT_S, until its turn has
        come.
        """
        last_ahead, at = 0, 0.0
        while not run.stopped:
            with self._lock:
                if run.done:
                    return
                place = self._line.index(run)
                now = time.monotonic()
                wait_s = self._durations.wait_s(self._line[:place], self.worker.capacity, now)
            ahead = place - self.worker.capacity + 1
            if ahead <= 0:
                return
            if ahead != last_ahead or now - at > BEAT_S:
                last_ahead, at = ahead, now
                yield {"k": "queue", "place": ahead, "eta_s": wait_s}
            self._hurry()
            await asyncio.sleep(WAIT_S)

    async def _follow(self, run: Run) -> AsyncGenerator[list[Event], None]:
        """Yield the worker's events, at a bounded rate, until it is done."""
        at = time.monotonic()
        while True:
            with self._lock:
                over, events, run.events = run.done, run.events, []
            if events or time.monotonic() - at > BEAT_S:
                at = time.monotonic()
                yield events
            elif over:
                return
            self._hurry()
            await asyncio.sleep(1 / run.hz)


class Run:
    """One run: where it is in the line, its events, and the batches that were sent of them."""

    def __init__(
        self, client: str | None = None, lanes: int = 1, visit: str | None = None, hz: float = HZ
    ) -> None:
        self.id = secrets.token_urlsafe(12)
        self.visit = visit
        self.client = client
        self.lanes = lanes
        self.hz = hz
        self.events: list[Event] = []
        """What was not sent yet."""
        self.batches: list[str] = []
        self.size = 0
        self.stopped = False
        self.done = False
        self.came = time.monotonic()
        self.began: float | None = None
        """When its computation began (monotonic seconds); None while it waits."""
        self.until = 0.0
        """When it must be over (monotonic seconds), once it has begun."""
        self.told_to_end = False
        self.killed = False
        self.fault: str | None = None
        self._lanes: dict[str, Totals] = {}
        """What the lanes that have not ended have so far."""

    def add(self, event: Event) -> None:
        """Add an event.

        With done, whatever happened, also if a worker was killed or a model has raised, every lane
        that began gets its end, so that everything shown until then is a valid trace.
        """
        record = event.get("record")
        if isinstance(record, Begin):
            self._lanes[record.lane] = Totals()
        elif isinstance(record, Round):
            self._lanes[record.lane] = self._lanes[record.lane].plus(record)
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

    def pack(self, events: list[Event]) -> str:
        """Return events as one JSON string with the run, its number in the stream and the time; it
        is kept.
        """
        head = {"run": self.id, "seq": len(self.batches), "ts": round(time.time() * 1000)}
        batch = msgspec.json.encode({**head, "events": events}).decode()
        self.batches.append(batch)
        self.size += len(batch)
        return batch


def refusal(sentence: str) -> list[Event]:
    """Return the events for a refused request."""
    return [{"k": "error", "text": sentence}, {"k": "done"}]


class Durations:
    """How long runs have lasted: seconds per lane of those that were not stopped, including
    loading.

    Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._lane_s: deque[float] = deque(maxlen=8)

    def see(self, run: Run, now: float) -> None:
        """Record a run that is over."""
        if run.began is not None and not run.stopped and run.fault is None:
            self._lane_s.append((now - run.began) / run.lanes)

    def wait_s(self, line: Sequence[Run], seats: int, now: float) -> float:
        """Return the seconds until a seat is free after this line, whose first `seats` runs are
        computing.
        """
        free = [0.0] * (seats - len(line)) + [self._rest_s(run, now) for run in line[:seats]]
        heapq.heapify(free)
        for run in line[seats:]:
            heapq.heapreplace(free, free[0] + self._whole_s(run))
        return free[0]

    def _rest_s(self, run: Run, now: float) -> float:
        """Return the estimated seconds that a running run still needs."""
        if run.told_to_end:
            return 0.0
        so_far = 0.0 if run.began is None else now - run.began
        return max(self._whole_s(run) - so_far, OVERDUE * so_far)

    def _whole_s(self, run: Run) -> float:
        # The median, since a run that had to load its pair does not predict the next one.
        return run.lanes * (median(self._lane_s) if self._lane_s else FIRST_LANE_S)
