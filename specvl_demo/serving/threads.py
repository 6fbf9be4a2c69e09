"""How many threads torch uses while other programs use the processor.

A product that is split among threads ends with the last of them. A thread that shares its core with
another program is often asleep when the others are done, and one step waits a hundred times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from specvl_demo.pairs.machine import Load

LOOK_S = 0.3
"""Seconds of load that are looked at, at least."""
_SPARE = 0.35
"""Of a core, which others may use without taking it. A program that would fill a core gets half of
it beside a thread of ours.
"""


def fitting(n: int, others: float) -> int:
    """Return how many of n threads to use when others use a share of the n cores, 0 to 1."""
    return max(1, n - max(0, math.ceil(others * n - _SPARE)))


class _Look:
    """The latest look at the load of the machine."""

    def __init__(self) -> None:
        self._load, self._others = Load(), 0.0

    def others(self) -> float:
        """Return the share that others used since the look before; looks at most every `LOOK_S`."""
        if self._load.seconds >= LOOK_S:
            self._others = self._load.others() or 0.0
            self._load = Load()
        return self._others


_LOOK = _Look()


class Threads:
    """The number of threads that torch uses, fitted to the load."""

    def __init__(self) -> None:
        self.all = self._used = torch.get_num_threads()

    def fit(self) -> None:
        """Use as many threads as others leave cores."""
        self._use(fitting(self.all, _LOOK.others()))

    def restore(self) -> None:
        self._use(self.all)

    def _use(self, n: int) -> None:
        if n != self._used:
            self._used = n
            torch.set_num_threads(n)


@contextmanager
def fitted() -> Iterator[Threads]:
    """Yield `Threads`, and use all of them again at the end."""
    threads = Threads()
    try:
        yield threads
    finally:
        threads.restore()
