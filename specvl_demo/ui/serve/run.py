"""What is sent of one run: its events as numbered batches, and an end for every lane that has begun."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Any

import msgspec

from specvl_demo.records import Begin, End, Round, Stop, Totals

Event = dict[str, Any]
"""{'k': kind, ...}: run · queue · status · begin · round · end · error · done."""
Weights = tuple[str | None, ...]
"""Which weights a run computes with, and how they are brought up: equal where nothing is loaded between."""


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
