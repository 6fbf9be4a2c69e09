"""SAGE's formulas: how sure the drafter was, and which token tree that asks for.

Given the drafter's k largest probabilities as plain numbers, gives confidence, depth, width and templates.
Knows no tensors, drafters or rounds. Source: SAGE (arXiv 2602.00523) section 3, equations 7 to 12.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

RankPath = tuple[int, ...]
"""A node named by ranks: (0, 2) is the third best child of the root's best child."""


@dataclass(frozen=True)
class TreeLimits:
    """What bounds a tree. `max_nodes` counts the root; `top_k`: k of eq. 7, most children of a node."""

    min_depth: int = 3
    max_depth: int = 8
    min_width: int = 2
    max_width: int = 10
    top_k: int = 10
    max_nodes: int = 64

    def __post_init__(self) -> None:
        for low, high in (("min_depth", "max_depth"), ("min_width", "max_width")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(
                    f"{low} is {getattr(self, low)}, above {high}, which is {getattr(self, high)}"
                )

    @property
    def most_fed(self) -> int:
        """Most nodes that online growth can feed to a drafter, the root included.

        The paths of a level have probabilities that sum to at most 1, so fewer than 1/θ_l of them exceed θ_l.
        """
        levels = range(1, self.max_depth)
        return 1 + sum(min(self.max_nodes - 1, int(1 / threshold(level, self.max_depth))) for level in levels)


def confidence(top: Sequence[float]) -> float:
    """α = 1 − H(P̃)/log k of the renormalised k largest probabilities, within [0, 1] (eq. 7, 8, 9)."""
    total = sum(top)
    if len(top) < 2 or total <= 0:
        return 1.0
    shares = [p / total for p in top]
    entropy = -sum(p * math.log(p) for p in shares if p > 0)
    return min(1.0, max(0.0, 1.0 - entropy / math.log(len(top))))


def depth_for(alpha: float, limits: TreeLimits, cap: int) -> int:
    """D(α) = D_min + α·(cap − D_min), eq. 10 with the history's cap in place of D_max.

    # choice: rounded half up; the paper gives no rule for whole numbers.
    """
    return math.floor(limits.min_depth + alpha * (cap - limits.min_depth) + 0.5)


def width_for(alpha: float, limits: TreeLimits) -> float:
    """W(α) = W_min + (1 − α)·(W_max − W_min), eq. 11; only W_l is made a whole number."""
    return limits.min_width + (1.0 - alpha) * (limits.max_width - limits.min_width)


def level_width(width: float, level: int, parent: float, top_k: int) -> int:
    """W_l = W(α)/l · (0.5 + P_parent) (eq. 12), `level` 1 holding the root's children.

    # choice: rounded down, at least 1, at most k; P_parent is the parent's own probability, the root's is 1.
    """
    return min(top_k, max(1, math.floor(width / level * (0.5 + parent) + 1e-9)))


def threshold(level: int, depth: int) -> float:
    """θ_l = 0.1·l/D(α): a node stays if the product of the probabilities along its path exceeds it."""
    return 0.1 * level / depth


@dataclass(frozen=True)
class Plan:
    """The tree one confidence asks for: every question the growth of a tree has to ask."""

    alpha: float
    depth: int
    width: float
    limits: TreeLimits

    def children(self, level: int, parent: float) -> int:
        """How many children a node may have at `level`, its own probability being `parent`."""
        return level_width(self.width, level, parent, self.limits.top_k)

    def keeps(self, level: int, path_probability: float) -> bool:
        """Whether a candidate at `level` belongs to the tree, by the probability of its whole path."""
        return path_probability > threshold(level, self.depth)


def plan(alpha: float, limits: TreeLimits, cap: int) -> Plan:
    """Depth and width for a confidence; `cap` is the history's present limit on the depth."""
    return Plan(alpha, depth_for(alpha, limits, cap), width_for(alpha, limits), limits)


def template(top: Sequence[float], want: Plan, order: str = "best-first") -> list[RankPath]:
    """The tree as rank paths, parents before children, from one distribution alone (Algorithm 1, line 18).

    # choice: one distribution is all that is known before the next round drafts, so every level reuses it: a
    # node of rank r has probability top[r], a path the product. The root's best child always stays.
    # choice: a full tree keeps the most probable paths; "depth-first" is the paper's recursion to the letter.
    """
    room = want.limits.max_nodes - 1
    paths = _by_probability(top, want) if order == "best-first" else _by_recursion(top, want, (), 1.0, 1.0)
    chosen = [path for path, _ in zip(paths, range(room), strict=False)]
    return sorted(chosen, key=lambda path: (len(path), path))


def _offspring(
    top: Sequence[float], want: Plan, path: RankPath, own: float, product: float
) -> Iterator[tuple[RankPath, float, float]]:
    """The children of one template node: (path, own probability, probability of the path)."""
    level = len(path) + 1
    if level > want.depth:
        return
    for rank in range(min(want.children(level, own), len(top))):
        if want.keeps(level, product * top[rank]) or (level == 1 and rank == 0):
            yield (*path, rank), top[rank], product * top[rank]


def _by_probability(top: Sequence[float], want: Plan) -> Iterator[RankPath]:
    waiting: list[tuple[float, RankPath, float]] = []
    node: tuple[RankPath, float, float] = ((), 1.0, 1.0)
    while True:
        for path, own, product in _offspring(top, want, *node):
            heapq.heappush(waiting, (-product, path, own))
        if not waiting:
            return
        negative, path, own = heapq.heappop(waiting)
        yield path
        node = (path, own, -negative)


def _by_recursion(
    top: Sequence[float], want: Plan, path: RankPath, own: float, product: float
) -> Iterator[RankPath]:
    for child, child_own, child_product in _offspring(top, want, path, own, product):
        yield child
        yield from _by_recursion(top, want, child, child_own, child_product)


class DepthFeedback:
    """SAGE's history tracking: the largest depth allowed, moved by how much was accepted lately.

    Below `lower` the cap falls by one a round, above `upper` it rises by one, between it stays (section 3.3).
    # choice: the window counts accepted drafted tokens without the target's own; it acts from the first round
    # on, one step a round, between D_min and D_max, where it starts.
    """

    def __init__(self, limits: TreeLimits, window: int = 10, lower: float = 2.0, upper: float = 3.0) -> None:
        if lower > upper:
            raise ValueError(f"the lower threshold {lower} is above the upper one, {upper}")
        self.limits = limits
        self.lower = lower
        self.upper = upper
        self.recent: deque[int] = deque(maxlen=window)
        self.cap = limits.max_depth

    def learn(self, accepted: int) -> None:
        """One round accepted this many drafted tokens."""
        self.recent.append(accepted)
        mean = sum(self.recent) / len(self.recent)
        if mean < self.lower:
            self.cap = max(self.limits.min_depth, self.cap - 1)
        elif mean > self.upper:
            self.cap = min(self.limits.max_depth, self.cap + 1)
