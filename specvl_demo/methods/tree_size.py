"""How many nodes of a tree are worth verifying on this machine.

Given what the target's steps cost by their rows, returns a number of nodes: one for all rounds, or
one for what was drafted in a round. Knows no models.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FIXED = 0.72
"""What one more node of a tree of one shape adds to a round, as a share of what the node before it
added. # choice: one assumption for all drafters, whatever they turn out to be here. The eighth node
of the best tree adds as much (a tenth of a token) if the drafter's likeliest token, its second and
its third are the target's in 0.7, 0.1 and 0.07 of all places; in the recorded races of photographs
these were 0.68, 0.10 and 0.09 (TABED's views, 78 positions).
"""
GROWN = 0.95
"""The same where a drafter is as sure as it gets: for most nodes of trees that `Worth` limits."""
DRAFTING = 0.5
"""Steps of one row that a round spends on drafting. # choice: as most shipped drafters do."""


def worthwhile_nodes(steps: Mapping[int, float], low: int, high: int, share: float) -> int:
    """Return how many nodes, with the root, a tree is worth having, between `low` and `high`.

    A round with n nodes emits the target's own token and every accepted one, E(n) = 1 + share +
    share² + …, n terms (Sequoia, arXiv 2402.12374, has the best tree of n nodes). Returned is the n
    with the highest E(n) / (C(n) + DRAFTING), the least of equal ones, where C(n) is what a step of
    n rows costs.

    Args:
        steps: C by numbers of rows, in steps of one row; linear between them, and no further.
        share: FIXED or GROWN.
    """
    costs = _round_costs(steps)
    emitted = (share ** np.arange(len(costs))).cumsum()
    return min(max(1 + int((emitted / costs).argmax()), low), high)


def _round_costs(steps: Mapping[int, float]) -> Any:
    """Return what rounds of 1, 2, 3 … nodes cost, an array."""
    rows = [*steps]
    return np.interp(np.arange(max(rows)) + 1, rows, [*steps.values()]) + DRAFTING


class Worth:
    """Decides for one lane, round by round, how many drafted nodes are verified: as long as one
    more row is expected to add more tokens than its cost brings on average.

    A path that the drafter calls likely with p is taken to be accepted with p times what paths as
    likely kept so far of what they promised: drafters are too sure, or not sure enough. Costs are
    those of rows, not a clock's: on the same machine the same trees are verified again.
    """

    def __init__(self, steps: Mapping[int, float]) -> None:
        """steps: As for `worthwhile_nodes`."""
        self._costs = _round_costs(steps).tolist()
        # How many paths were accepted and what they promised, by how often that was halved.
        self._history = defaultdict[int, list[float]](lambda: [_BEFORE, _BEFORE])
        self._emitted = self._spent = _BEFORE

    def count(self, likely: Sequence[float]) -> int:
        """Return how many of these paths are worth it, likeliest first for the drafter."""
        emitted = 1.0
        gains = []
        for probability, cost in zip((*likely, 0.0), self._costs, strict=False):
            gains.append(emitted - cost * self._emitted / self._spent)
            n_accepted, promised = self._history[math.frexp(probability)[1]]
            emitted += min(1.0, probability * n_accepted / promised)
        return gains.index(max(gains))

    def learn(self, likely: Sequence[float], path: Sequence[int]) -> None:
        """likely: As drafted, of a verified tree's nodes. path: The accepted ones."""
        for node, probability in enumerate(likely[1:], 1):
            history = self._history[math.frexp(probability)[1]]
            history[0] += node in path
            history[1] += probability
        self._emitted += len(path)
        self._spent += self._costs[len(likely) - 1]


_BEFORE = 4.0
"""How much what is known before the first round counts: tokens promised and kept, and steps of one
token each.
"""
