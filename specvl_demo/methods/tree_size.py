"""How many nodes of a tree are worth verifying on this machine.

Given what the target's steps cost by their rows, returns a number of nodes. Knows no models.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice

ACCEPTED = (0.7, 0.1, 0.07, 0.03)
"""How often the drafter's likeliest token, its second, its third … is the target's after an
accepted one. # choice: one assumption for all drafters, whatever they turn out to be here; in the
recorded races of photographs it was 0.68, 0.10 and 0.09 (TABED's views, 78 positions).
"""
DRAFTING = 0.5
"""Steps of one row that a round spends on drafting. # choice: as most shipped drafters do."""


def path_probabilities(accepted: Sequence[float]) -> Iterator[float]:
    """Yield the probabilities of all nodes below the root, highest first: that of a node is the
    product of its path's, one of `accepted` by the rank of each.
    """
    waiting = [-1.0]
    while True:
        probability = heapq.heappop(waiting)
        if probability > -1.0:
            yield -probability
        for share in accepted:
            heapq.heappush(waiting, probability * share)


def worthwhile_nodes(steps: Mapping[int, float], low: int, high: int) -> int:
    """Return how many nodes, with the root, a tree is worth having, between `low` and `high`.

    A round with n nodes emits the target's own token and every accepted one, E(n) = 1 + the sum of
    the n - 1 highest path probabilities: the best tree of n nodes (Sequoia, arXiv 2402.12374;
    EAGLE-2 ranks drafted nodes by the same products). Returned is the n with the highest E(n) /
    (C(n) + DRAFTING), the least of equal ones, where C(n) is what a step of n rows costs.

    Args:
        steps: C by numbers of rows, in steps of one row; linear between them, and no further.
    """
    emitted = accumulate(islice(path_probabilities(ACCEPTED), max(steps) - 1), initial=1.0)
    speed = {n: sum_ / (_cost(steps, n) + DRAFTING) for n, sum_ in enumerate(emitted, 1)}
    return min(max(max(speed, key=lambda n: speed[n]), low), high)


def _cost(steps: Mapping[int, float], n: int) -> float:
    before = max(rows for rows in steps if rows <= n)
    after = min(r for r in steps if r >= n)
    share = (n - before) / max(after - before, 1)
    return steps[before] + share * (steps[after] - steps[before])
