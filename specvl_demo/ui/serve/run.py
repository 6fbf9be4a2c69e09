"""One run: its events as numbered batches, an end for every lane that has begun; and estimates of
how long runs last.

Given the events of runs, returns what is sent of them, and how long those in the line will wait.
Knows nothing of the worker.
"""

from __future__ import annotations

import heapq
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from specvl_demo.records import Begin, End, LaneRecords, Round, Stop, fold
from specvl_demo.report.remarks import comparison
from specvl_demo.ui.serve.jobs import HZ

Event = dict[str, Any]
"""{'k': kind, ...}: run · queue · status · begin · round · load · end · error · done.

The end of a race's last lane also has 'compared', the `comparison` of its lanes.
"""
FIRST_LANE_S = 5.0
"""Seconds per lane until one was measured."""
OVERDUE = 0.25
"""A run is estimated to continue for at least this share of its time so far: one that outlasts its
estimate, because it loads or for another reason, is not about to end.
"""


class Run:
    """One run's events, kept as the batches that were sent.

    Whatever happens, also if a worker is killed or a model raises, every lane that began gets its
    end, so that everything shown until then is a valid trace.
    """

    def __init__(
        self, client: str | None = None, lanes: int = 1, visit: str | None = None, hz: float = HZ
    ) -> None:
        self.id = secrets.token_urlsafe(12)
        self.visit = visit
        self.client = client
        self.lanes = lanes
        self.hz = hz
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
        self._lanes: dict[str, LaneRecords] = {}
        self._waiting: list[Event] = []
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        """Take an event, from any thread. Events after done are dropped."""
        with self._lock:
            if self.done:
                return
            if event["k"] == "error":
                self.fault = event["text"]
            if event["k"] == "done":
                self.done = True
                cancelled = self.stopped and self.fault is None
                stop: Stop = "cancelled" if cancelled else "error"
                for name, lane in self._lanes.items():
                    if lane.end is None:
                        end = End(name, stop, fold(lane.rounds), None, self.fault)
                        self._add({"k": "end", "record": end})
                self._lanes = {}
            self._add(event)

    def _add(self, event: Event) -> None:
        """Take an event, with the comparison of the lanes if it ends the last of them."""
        record = event.get("record")
        if isinstance(record, Begin):
            self._lanes[record.lane] = LaneRecords(record, [])
        elif isinstance(record, Round):
            self._lanes[record.lane].rounds.append(record)
        elif isinstance(record, End):
            self._lanes[record.lane] = self._lanes[record.lane]._replace(end=record)
            over = [one for one in self._lanes.values() if one.end is not None]
            if len(over) == self.lanes:
                event = {**event, "compared": comparison(over)}
        self._waiting.append(event)

    def drain(self) -> list[Event]:
        """Return all events since the last call."""
        with self._lock:
            events, self._waiting = self._waiting, []
        return events

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
