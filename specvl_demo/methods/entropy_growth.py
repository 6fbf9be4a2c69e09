"""Two ways of growing an entropy tree (arXiv 2602.00523): from one distribution, or level by level.

A plan decides how many children a node may have and which paths are kept (section 3.2, eq. 12).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specvl_demo.core.sampling import Sampler, best
from specvl_demo.core.transfer import sent, taken
from specvl_demo.core.tree import DraftTree, shape_of
from specvl_demo.core.types import Drafter

RankPath = tuple[int, ...]
"""A node named by ranks: (0, 2) is the third best child of the root's best child."""


def threshold(level: int, depth: int) -> float:
    """Return θ_l = 0.1·l/D(α): a node stays if the product of probabilities along its path exceeds
    it.

    # choice: D is the depth that is really drafted, a whole number.
    """
    return 0.1 * level / depth


@dataclass(frozen=True)
class TreePlan:
    """The shape of a tree at one confidence `alpha`.

    max_nodes: Of the tree, including the root. top_k: The most children of a node.
    """

    alpha: float
    depth: int
    width: float
    top_k: int
    max_nodes: int

    def children(self, level: int, parent: float) -> int:
        """Return W_l = W(α)/l · (0.5 + P_parent) (eq. 12); `level` 1 holds the root's children.

        # choice: rounded down, within 1 and k; P_parent is the parent's own probability (root: 1).

        # choice: level 1 follows the equation too, so it is 1.5 times as wide as in the paper's
        text, where the width decays "beyond the first level" (W_1 = W(α)).
        """
        return min(self.top_k, max(1, math.floor(self.width / level * (0.5 + parent) + 1e-9)))

    def keeps(self, level: int, path_probability: float) -> bool:
        """Whether a candidate at `level` with this probability of its path belongs to the tree."""
        return path_probability > threshold(level, self.depth)


def template(top: Sequence[float], plan: TreePlan) -> list[RankPath]:
    """Return the tree as rank paths, parents before children, from one distribution only (Algorithm
    1, line 18).

    # choice: only one distribution is known before the next round drafts, so every level reuses it:
    a node of rank r has probability top[r], a path the product. The root's best child stays.

    # choice: a full tree keeps the most probable paths; the paper's recursion, taken literally,
    keeps the first of a depth-first walk.
    """
    nodes = sorted(_offspring(top, plan, (), 1.0, 1.0), key=lambda node: (-node[1], node[0]))
    return sorted(
        (path for path, _ in nodes[: plan.max_nodes - 1]), key=lambda path: (len(path), path)
    )


def _offspring(
    top: Sequence[float], plan: TreePlan, path: RankPath, probability: float, product: float
) -> Iterator[tuple[RankPath, float]]:
    """Yield all nodes below one, depth first, each with the probability of its path.

    There are few: a level's probabilities sum to at most 1, and each exceeds its threshold.
    """
    level = len(path) + 1
    if level > plan.depth:
        return
    for rank in range(min(plan.children(level, probability), len(top))):
        child, whole = (*path, rank), product * top[rank]
        if plan.keeps(level, whole) or (level == 1 and rank == 0):
            yield child, whole
            yield from _offspring(top, plan, child, top[rank], whole)


@dataclass
class _Node:
    """A candidate: its parent, its own and its path's probability, the row it was fed as."""

    parent: int
    probability: float
    product: float
    row: int = -1


def grown(
    drafter: Drafter, root: Tensor, room: int, plan: TreePlan, draws: Sampler | None
) -> DraftTree:
    """Grow a tree online: one drafter forward and one host read per level.

    A candidate is fed only while it is among the max_nodes - 1 most probable paths found so far,
    since the others cannot be in the final tree. The result is the best-first tree, drafted in as
    few forwards as it has levels.
    """
    nodes = [_Node(-1, 1.0, 1.0)]
    tokens, logps = [root], [torch.zeros_like(root, dtype=torch.float32)]
    fed, feed, rows = [0], root, 0
    for level in range(1, min(plan.depth, room) + 1):
        log_probs = drafter.extend(feed, [nodes[nodes[i].parent].row if i else -1 for i in fed])
        if log_probs is None:
            break
        scores, logp, ids = best(log_probs, plan.top_k, draws, level - 1)
        for slot, i in enumerate(fed):
            nodes[i].row = rows + slot
        rows += len(fed)
        first = len(nodes)
        born = _born(nodes, fed, scores.float().exp().tolist(), level, plan)
        if not born:
            break
        tokens.append(taken(ids.flatten(), born))
        logps.append(taken(logp.flatten(), born).float())
        fed = [i for i in _most_probable(nodes, plan.max_nodes - 1) if i >= first]
        if not fed:
            break
        feed = taken(tokens[-1], [i - first for i in fed])
    return _selected(
        nodes, torch.cat([t.to(tokens[-1].device) for t in tokens]), torch.cat(logps), plan
    )


def _born(
    nodes: list[_Node],
    fed: Sequence[int],
    probs: Sequence[Sequence[float]],
    level: int,
    plan: TreePlan,
) -> list[int]:
    """Add the children of the fed nodes; return the place of each in `probs`, read line by line."""
    born = []
    for slot, i in enumerate(fed):
        for rank, probability in enumerate(
            probs[slot][: plan.children(level, nodes[i].probability)]
        ):
            product = nodes[i].product * probability
            # choice: the root's best child always stays, so that no round drafts nothing.
            if plan.keeps(level, product) or (level == 1 and rank == 0):
                born.append(slot * len(probs[slot]) + rank)
                nodes.append(_Node(i, probability, product))
    return born


def _most_probable(nodes: Sequence[_Node], size: int) -> list[int]:
    """Return the nodes of the `size` most probable paths, ascending; ties go to the earlier."""
    return sorted(sorted(range(1, len(nodes)), key=lambda i: -nodes[i].product)[:size])


def _selected(nodes: Sequence[_Node], tokens: Tensor, logps: Tensor, plan: TreePlan) -> DraftTree:
    """Return the tree of the most probable candidates; tokens and logps are of all, in order."""
    chosen = [0, *_most_probable(nodes, plan.max_nodes - 1)]
    number = {old: new for new, old in enumerate(chosen)}
    index = sent(chosen, tokens.device)
    return DraftTree(
        tokens[index],
        shape_of((-1, *(number[nodes[i].parent] for i in chosen[1:]))),
        logp=logps[index],
        rows=tuple(nodes[i].row for i in chosen),
    )
