"""The waiting line and the running jobs: as many at once as the worker takes, places, Stop, a
stream per run.

Clients take turns in the line, so that none has to wait for all runs of another. Given a worker
that computes in the background, yields JSON strings at a bounded rate, numbered, so that a page can
detect that one is missing and fetch it again. Knows nothing of the computation, nothing of Gradio.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator

from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.run import Durations, Event, Run, refusal
from specvl_demo.ui.serve.workers import Worker

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
        self._lock = threading.Lock()

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
        run.put({"k": "run", "run": run.id})
        with self._lock:
            self._line.append(run)
            self._runs[run.id] = run
            self._take_turns()
            full = len(self._line) > self.max_waiting + self.worker.capacity
            if full:  # the newcomer leaves, or the last run of the client with most runs
                last = self._line.pop()
                self._runs.pop(last.id, None)
                for event in refusal(messages.BUSY.format(waiting=self.max_waiting)):
                    last.put(event)
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
                run.put({"k": "error", "text": messages.TOO_LONG.format(seconds=self.limit_s)})
                self._end(run)
            if now > run.until + self.grace_s and not run.killed:
                run.killed = True
                self.worker.kill(run.id)

    def _take(self, run: Run, event: Event) -> None:
        now = time.monotonic()
        if event.get("stage") == "loading" and not run.told_to_end:
            run.until = now + self.limit_s
        run.put(event)
        if event["k"] == "done":
            with self._lock:
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
            over = run.done  # before draining: what came with it must not be lost
            events = run.drain()
            if events or time.monotonic() - at > BEAT_S:
                at = time.monotonic()
                yield events
            elif over:
                return
            self._hurry()
            await asyncio.sleep(1 / run.hz)
