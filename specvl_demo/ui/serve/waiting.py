"""How long who stands in the line will wait: for what runs now, what it still loads, and who stands before.

Given runs and what happens to them, gives seconds from measured durations. Knows nothing of who computes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from specvl_demo.ui.serve.run import Event, Run, Weights

FIRST_LANE_S = 5.0
"""Seconds of a lane until one was measured."""
OVERDUE = 0.25
"""A run, or a loading, goes on for at least this share of what it has taken so far: who outlasts the estimate
is not about to end."""


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
