"""One run: its events as numbered batches, an end for every lane that has begun; and how long runs last.

Given what happens to runs, gives what is sent of them and how long who stands in the line will wait. Knows
nothing of who computes.
"""

from __future__ import annotations

import heapq
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from specvl_demo.records import Begin, End, Round, Stop, Totals

Event = dict[str, Any]
"""{'k': kind, ...}: run · queue · status · begin · round · end · error · done."""
Weights = tuple[str | None, ...]
"""Which weights a run computes with, and how they are brought up: equal where nothing is loaded between."""
FIRST_LANE_S = 5.0
"""Seconds of a lane until one was measured."""
OVERDUE = 0.25
"""A run, or a loading, goes on for at least this share of what it has taken so far: who outlasts the estimate
is not about to end."""


class Run:
    """One run's events, kept as the batches that were sent.

    Whatever happens, a worker that is killed or a model that raises, every lane that began gets its end: what
    was shown until then stays a valid trace.
    """

    def __init__(self, client: str | None = None, lanes: int = 1, weights: Weights = ()) -> None:
        self.id = secrets.token_urlsafe(12)
        self.client = client
        self.lanes = lanes
        self.weights = weights
        self.batches: list[str] = []
        self.size = 0
        self.stopped = False
        self.done = False
        self.came = time.monotonic()
        self.began: float | None = None
        """When it began to be computed (monotonic seconds); None while it waits."""
        self.loading: float | None = None
        """Since when it loads weights (monotonic seconds); None while it does not."""
        self.loaded_s = 0.0
        """Seconds of loading that are over."""
        self.until = 0.0
        """When it is to be over (monotonic seconds), once it has begun."""
        self.told_to_end = False
        self.killed = False
        self.fault: str | None = None
        self._open: dict[str, Totals] = {}
        self._waiting: list[Event] = []
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        """Take an event; from any thread. What comes after done is nobody's any more."""
        with self._lock:
            if self.done:
                return
            self._see(event.get("record"))
            if event["k"] == "error":
                self.fault = event["text"]
            if event["k"] == "done":
                self.done = True
                cancelled = self.stopped and self.fault is None
                stop: Stop = "cancelled" if cancelled else "error"
                for lane, totals in self._open.items():
                    self._waiting.append({"k": "end", "record": End(lane, stop, totals, None, self.fault)})
            self._waiting.append(event)

    def _see(self, record: Begin | Round | End | None) -> None:
        """Take note of which lanes are open, with what they have so far."""
        if isinstance(record, Begin):
            self._open[record.lane] = Totals()
        elif isinstance(record, Round):
            self._open[record.lane] = self._open[record.lane].plus(record)
        elif isinstance(record, End):
            self._open.pop(record.lane, None)

    def drain(self) -> list[Event]:
        """All events since the last call."""
        with self._lock:
            events, self._waiting = self._waiting, []
        return events

    def pack(self, events: list[Event]) -> str:
        """Events as one JSON string with the run, its number in the stream and the time; kept."""
        head = {"run": self.id, "seq": len(self.batches), "ts": round(time.time() * 1000)}
        batch = msgspec.json.encode({**head, "events": events}).decode()
        self.batches.append(batch)
        self.size += len(batch)
        return batch


def refusal(sentence: str) -> list[Event]:
    """What a request that cannot be served gets in place of a run."""
    return [{"k": "error", "text": sentence}, {"k": "done"}]


class Durations:
    """What runs have lasted: seconds a lane of those that ran to their end, seconds of loading by weights.

    Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._lane_s: deque[float] = deque(maxlen=8)
        self._loading_s: dict[Weights, float] = {}

    def see(self, run: Run, event: Event, now: float) -> None:
        """Take note of an event of a run that computes, before the run takes it."""
        if run.began is None:
            return
        if event.get("stage") == "loading":
            run.loading = now if run.loading is None else run.loading
        elif run.loading is not None:
            run.loaded_s += now - run.loading
            run.loading = None
            if event["k"] not in ("error", "done"):
                self._loading_s[run.weights] = run.loaded_s
        if event["k"] == "done" and not run.stopped and run.fault is None:
            self._lane_s.append((now - run.began - run.loaded_s) / run.lanes)

    def wait_s(self, line: Sequence[Run], seats: int, now: float) -> float:
        """Seconds until a seat is free for who comes after this line, whose first `seats` runs compute."""
        running, waiting = line[:seats], line[seats:]
        free = [0.0] * (seats - len(running)) + [self._rest_s(run, now) for run in running]
        heapq.heapify(free)
        for before, run in zip(line[seats - 1 :], waiting, strict=False):
            loading_s = 0.0 if run.weights == before.weights else self._known_loading_s(run.weights)
            heapq.heapreplace(free, free[0] + loading_s + self._computing_s(run))
        return free[0]

    def _rest_s(self, run: Run, now: float) -> float:
        """What a run that has its seat still needs."""
        if run.told_to_end:
            return 0.0
        if run.loading is not None:
            so_far = run.loaded_s + now - run.loading
            left = self._known_loading_s(run.weights) - so_far
            return max(left, OVERDUE * so_far) + self._computing_s(run)
        so_far = 0.0 if run.began is None else now - run.began - run.loaded_s
        return max(self._computing_s(run) - so_far, OVERDUE * so_far)

    def _computing_s(self, run: Run) -> float:
        mean = sum(self._lane_s) / len(self._lane_s) if self._lane_s else FIRST_LANE_S
        return run.lanes * mean

    def _known_loading_s(self, weights: Weights) -> float:
        """What loading these weights took last, else what loading takes on average; 0 where none was seen."""
        known = self._loading_s
        return known.get(weights, sum(known.values()) / len(known) if known else 0.0)
