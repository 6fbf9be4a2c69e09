"""How many threads torch uses while other programs use the processor.

A product that is split among threads ends with the last of them. A thread that shares its core with
another program is often asleep when the others are done, and a step has over a hundred products.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from specvl_demo.pairs.machine import MachineLoad

LOOK_S, STALE_S = 0.3, 60.0
"""The least and the most seconds over which load is averaged."""
_SPARE = 0.35
"""Of a core, which others may use without taking it. A program that would fill a core gets half of
it beside a thread of ours.
"""


def fitting_threads(n: int, n_cores: int, others: float) -> int:
    """Return how many of n threads to use when others use a share of all cores, 0 to 1."""
    taken = max(0, math.ceil(others * n_cores - _SPARE))
    return max(1, min(n, n_cores - taken))


class _LoadWatch:
    """The latest looks at the load of the machine; the process loads and races one at a time."""

    def __init__(self) -> None:
        self._load = MachineLoad()
        self._last = 0.0
        self._others = 0.0

    def others_share(self) -> float:
        """Return the share that others used in each of the last two looks, `LOOK_S` apart or more:
        a load that does not last is over when threads would give way to it.
        """
        if self._load.seconds >= LOOK_S:
            stale = self._load.seconds > STALE_S
            now = 0.0 if stale else self._load.others_share() or 0.0
            self._others = min(now, self._last)
            self._last = now
            self._load = MachineLoad()
        return self._others


_LOAD_WATCH = _LoadWatch()


def _set_threads(n: int) -> None:
    if n != torch.get_num_threads():  # even the same number empties oneDNN's cache
        torch.set_num_threads(n)


@contextmanager
def fitted_threads() -> Iterator[Callable[[], None]]:
    """Yield what makes torch use as many threads as others leave cores; restore the number."""
    at_first = torch.get_num_threads()
    n_cores = os.cpu_count() or 1
    try:
        yield lambda: _set_threads(fitting_threads(at_first, n_cores, _LOAD_WATCH.others_share()))
    finally:
        _set_threads(at_first)
