"""How much to draft, and in which shape: a chain, a fixed tree, EAGLE-2's best-first tree.

A policy asks a drafter for tokens and returns a `DraftTree`. Knows no models. SAGE's tree, which
follows the drafter's entropy, is in `sage.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby, islice
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.sampling import Sampler
from specvl_demo.core.transfer import HostCopy, to_device
from specvl_demo.core.tree import (
    DeviceShape,
    DraftTree,
    RankPath,
    TreeShape,
    chain,
    shape_of,
    shape_of_rank_paths,
)
from specvl_demo.core.types import Drafter, Growth, LevelRequest, Policy
from specvl_demo.methods import base
from specvl_demo.methods.base import TREE, Part
from specvl_demo.methods.declare import PolicySettings, setting, size_words
from specvl_demo.methods.tree_size import FIXED, GROWN, Worth


@dataclass(frozen=True)
class DepthSettings(PolicySettings):
    """The depth of a draft."""

    gamma: int = setting(5, "tokens drafted in a row", 1, 64, title="draft length γ")


@dataclass(frozen=True)
class ChainSettings(DepthSettings):
    """The maximum length of a chain, and when to stop earlier.

    # choice: `floor` bounds the product of the drafter's probabilities, the value of a path in
    EAGLE-2 (arXiv 2406.16858, §4.1); DISCO (arXiv 2405.04304) learns when to stop instead. The
    token that falls below the floor is still verified: it is drafted already, and may be right.
    """

    floor: float = setting(
        0.0, "stop drafting when the probability of the whole chain falls below this", 0.0, 1.0
    )


class Chain(Policy):
    """Drafts up to `gamma` tokens in a row: the likeliest, or sampled with the target's draws."""

    def __init__(self, settings: ChainSettings) -> None:
        self.gamma = settings.gamma
        self.floor = math.log(settings.floor) if settings.floor else -math.inf
        self.max_nodes = self.gamma + 1

    def growth(self) -> Growth | None:
        return None if self.floor > -math.inf else Growth(1, (1,) * (self.gamma - 1))

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft a chain, shorter if there is less room or the drafter is unsure or silent."""
        length = min(self.gamma, room)
        n = 0
        total = 0.0
        tokens = [root]
        logps = [torch.zeros(1, device=root.device)]
        while n < length and total >= self.floor:
            request = LevelRequest(tokens[-1][-1:], (n - 1,), 1, n, draws, length - n, self.floor)
            level = drafter.draft_level(request)
            if level is None:
                break
            logp = level.logp[: length - n, 0]
            if self.floor > -math.inf:
                # Read only if it decides: on a GPU each read waits for the drafter.
                sums = [*accumulate(logp.tolist(), initial=total)][1:]
                logp = logp[: 1 + sum(log >= self.floor for log in sums)]
                total = sums[-1]
            tokens.append(level.tokens[: len(logp), 0])
            logps.append(logp)
            n += len(logp)
        if not n:
            return DraftTree(root, chain(0))
        device = tokens[-1].device
        drafted, logp = (torch.cat([x.to(device) for x in parts]) for parts in (tokens, logps))
        return DraftTree(drafted, chain(n), logp=logp, rows=(*range(n), -1))


CHAIN = Part(
    "policy",
    "chain",
    "a chain",
    Chain,
    ChainSettings,
    needs=base.CHAIN,
    label=lambda settings: f"chain of {'up to ' if settings.floor else ''}{settings.gamma}",
)


EAGLE_TREE: tuple[RankPath, ...] = tuple(
    tuple(map(int, ranks))
    for depth in (
        "0 1 2 3",
        "00 01 02 10 11 20 21 30",
        "000 001 002 010 011 020 021 100",
        "0000 0001 0002",
        "00000 00001",
    )
    for ranks in depth.split()
)
"""The 25-path tree of EAGLE-1 (mc_sim_7b_63 in derived code)."""


def trim_paths(size: int) -> list[RankPath]:
    """Return at most `size` paths of `EAGLE_TREE`.

    # choice: every level costs 1 and every rank 3, and the cheapest paths stay, with all prefixes:
    # improbable siblings are given up before depth. With ranks at 1, 2, 3 and 6, trees of 6 nodes
    # had τ 3.59, 4.29, 4.29 and 4.65 on the pocket pair's questions set aside for choosing, 2.29,
    # 2.33, 2.33 and 2.28 on the photo pair's.
    """
    return sorted(EAGLE_TREE, key=lambda path: (3 * sum(path) + len(path), path))[:size]


@dataclass(frozen=True)
class StaticSettings(PolicySettings):
    """How much of the tree is drafted."""

    tree_nodes: int = setting(
        1 + len(EAGLE_TREE), "nodes of the tree, including the root", 2, 26, auto=FIXED
    )


class StaticTree(Policy):
    """Fills a fixed tree of rank paths: (a, b) is the b-th likeliest after the a-th likeliest.

    Its inner nodes are fed: all, or the path of likeliest tokens, by the first call, if the drafter
    goes on by itself; the others by one call a level. Every prefix of a path must be a path too. At
    a temperature with shared draws, the token sampled with the target's random numbers has the
    first rank everywhere.
    """

    def __init__(self, paths: Sequence[RankPath] = EAGLE_TREE, top: int = 1) -> None:
        """top: After each fed node so many tokens are drafted, or as many as the tree has ranks."""
        self._paths = tuple(paths)
        self.max_nodes = 1 + len(self._paths)
        self._top = max(top, *(1 + max(path) for path in self._paths))

    def growth(self) -> Growth:
        _, _, calls, _ = _plan_static(self._paths, self._top, 1, torch.device("cpu"))
        return Growth(self._top, tuple(tuple(feed.tolist()) for feed, *_ in calls))

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft the tree; branches deeper than `room`, or than the drafter drafts, are left out."""
        # 1. By one call the likeliest path, or the whole tree if the drafter grows it by itself.
        paths = tuple(path for path in self._paths if len(path) <= room)
        likeliest = sum(not any(path) for path in paths) or 1
        request = LevelRequest(root, (-1,), self._top, 0, draws, likeliest)
        level = drafter.draft_level(request) if paths else None
        if level is None:
            return DraftTree(root, chain(0))
        tokens, logp, *_ = level
        # 2. Else the other inner nodes, by level, until the drafter has nothing to say.
        drafted = self._top, 1 if drafter.grows else len(tokens), root.device
        shape, rows, calls, born = _plan_static(paths, *drafted)
        for feed, parents, depth in () if drafter.grows else calls:
            request = LevelRequest(tokens.take(feed), parents, self._top, depth, draws)
            level = drafter.draft_level(request)
            if level is None:
                paths = tuple(path for path in paths if len(path) <= depth)
                shape, rows, _, born = _plan_static(paths, *drafted)
                break
            tokens = torch.cat((tokens, level.tokens))
            logp = torch.cat((logp, level.logp))
        # 3. Of all that was drafted, what the tree has.
        tokens = torch.cat((root, tokens.take(born)))
        return DraftTree(tokens, shape, torch.cat((logp.new_zeros(1), logp.take(born))), rows)


@lru_cache(maxsize=64)
def _plan_static(
    paths: tuple[RankPath, ...], top: int, ahead: int, device: torch.device
) -> tuple[TreeShape, list[int], list[tuple[Tensor, list[int], int]], Tensor]:
    """Return how a fixed tree is drafted, of which the first call fed so many nodes: its shape and
    rows; calls, each of which of the drafted tokens are fed, the rows of their parents and their
    depth; and which of them the nodes are [T - 1]. They are numbered as they came, `top` a row.
    """
    # 1. Inner nodes in the order in which they are fed: what the first call feeds has the first
    # numbers, depth first.
    shape, ranks = shape_of_rank_paths(paths)
    inner = [node for node in range(len(shape)) if shape.children[node]]
    order = sorted(inner, key=lambda node: (node >= ahead, shape.depth[node]))
    row = {node: row for row, node in enumerate(order)}
    # 2. Where each node's token is among the drafted ones, `top` after each row.
    at = [top * row.get(above, 0) + rank for above, rank in zip(shape.parent, ranks, strict=True)]
    # 3. A call for every level of what is not fed yet.
    calls = []
    for depth, group in groupby(order[ahead:], lambda node: shape.depth[node]):
        feed = [at[node] for node in group]
        calls.append((to_device(feed, device), [place // top for place in feed], depth))
    rows = [row.get(node, -1) for node in range(len(shape))]
    return shape, rows, calls, to_device(at[1:], device)


STATIC_TREE = Part(
    "policy",
    "static-tree",
    "a fixed tree of up to 25 paths",
    lambda settings: StaticTree(trim_paths(settings.tree_nodes - 1)),
    StaticSettings,
    needs=TREE,
    label=lambda settings: f"static tree of {size_words(settings.tree_nodes)}",
)


@dataclass(frozen=True)
class BestFirstSettings(PolicySettings):
    """`nodes` counts the root, and is not reached where width and levels make fewer candidates;
    `loops` counts the levels below the first: at most loops + 1 levels.
    """

    nodes: int = setting(
        60, "nodes of the tree, including the root", 2, 1025, title="tree nodes", auto=GROWN
    )
    width: int = setting(
        10,
        "nodes expanded per level, and likeliest tokens taken after each",
        1,
        64,
        title="branches per level",
    )
    loops: int = setting(5, "levels below the first", 0, 64, title="tree levels")


@dataclass
class Candidate:
    """A node that a tree may have: its token with its log-probability; how likely its path is, as a
    logarithm; and the drafter's row that it was fed as.
    """

    parent: int
    token: int
    logp: float
    score: float
    row: int = -1


_AHEAD = math.log(0.1)
"""How likely a path is at least that the drafter feeds by itself: such a path is rarely given up.
"""


def grow_tree(
    policy: Policy,
    drafter: Drafter,
    request: LevelRequest,
    width: int | None = None,
    n_children: Callable[..., int] | None = None,
) -> DraftTree:
    """Grow a tree by levels, and return its likeliest paths: as many as the policy may have, or as
    are worth it.

    Args:
        request: Of the root, with most levels of the tree.
        width: Most nodes that are fed of a level, of those that may have children in the tree.
        n_children: Given the level below a candidate, that candidate, its score without its
            parent's and the scores drafted after it, returns how many are added; None: all.
    """
    size = policy.max_nodes
    root = tokens = request.tokens
    nodes = [Candidate(-1, 0, 0.0, 0.0)]
    fed = [0]
    after: list[Any] = []  # What is drafted after each of the drafter's rows.
    ahead: dict[int, int] = {}  # Rows that it fed by itself, by which of all tokens they are.
    depth = min(request.levels, size - 1)
    # Where siblings are fed at every level, it would feed alone what can be fed beside them.
    most_ahead = depth if width in (None, 1) else 0
    for level in range(depth):
        # 1. Feed what was not fed ahead, the likeliest last: the drafter goes on from there.
        new = [i for i in reversed(fed) if nodes[i].row < 0]
        if new:
            if level:
                tokens = to_device([nodes[i].token for i in new], root.device)
            above = [nodes[nodes[i].parent].row for i in new]
            more = max(1, most_ahead - level - len(ahead)), _AHEAD - nodes[new[-1]].score
            level_request = LevelRequest(tokens, above, request.k, level, request.draws, *more)
            drafted = drafter.draft_level(level_request)
            if drafted is None:
                break
            for row, i in enumerate(new, len(after)):
                nodes[i].row = row
            first = len(after) + len(new)
            after += zip(*drafted.read(), strict=True)
            k = drafted.tokens.shape[1]
            for row in range(first, len(after)):
                # If it does not say, the likeliest token after the row before.
                ahead[(row - 1) * k if drafted.places is None else after[row][3][0]] = row
        # 2. What is drafted after each fed node.
        born = len(nodes)
        for i in sorted(fed):
            node = nodes[i]
            after_node = after[nodes[i].row]
            last_score = node.score - nodes[node.parent].score
            n = n_children and n_children(level + 1, node, last_score, after_node[2])
            nodes += [
                Candidate(i, token, logp, node.score + score, ahead.get(node.row * k + rank, -1))
                for rank, (token, logp, score) in islice(enumerate(zip(*after_node[:3])), n)
                if score > -math.inf
            ]
        # 3. Go on with the best of this level.
        best = best_paths(nodes, size - 2, policy.worth)
        fed = [i for i in best if i >= born and (nodes[i].row >= 0 or not drafter.grows)][:width]
        if not fed:
            break
    # 4. The best of all, parents first.
    chosen = [0, *sorted(best_paths(nodes, size - 1, policy.worth))]
    number = {old: new for new, old in enumerate(chosen)}
    return DraftTree(
        torch.cat((root, to_device([nodes[i].token for i in chosen[1:]], root.device))),
        shape_of((-1, *(number[nodes[i].parent] for i in chosen[1:]))),
        logp=to_device(torch.tensor([nodes[i].logp for i in chosen]), root.device),
        rows=tuple(nodes[i].row for i in chosen),
        likely=[math.exp(nodes[i].score) for i in chosen],
    )


def best_paths(nodes: Sequence[Candidate], size: int, worth: Worth | None) -> list[int]:
    """Return the nodes of the `size` likeliest paths, or as many of them as are worth it, without
    the root, best first; ties go to the earlier.

    A child's path is never likelier than its parent's, so a chosen node's parent is always chosen.
    """
    best = sorted(range(1, len(nodes)), key=lambda i: -nodes[i].score)[:size]
    return best if worth is None else best[: worth.count([math.exp(nodes[i].score) for i in best])]


class BestFirst(Policy):
    """EAGLE-2's dynamic tree (arXiv 2406.16858 §4): expand by level, keep the best nodes overall.

    Every level feeds the `width` nodes with the highest cumulative log-probability and takes the
    `width` likeliest tokens after each; in the end the `nodes - 1` candidates with the highest
    cumulative log-probability form the tree.
    """

    def __init__(self, settings: BestFirstSettings) -> None:
        self.max_nodes = settings.nodes
        self.width = settings.width
        self.loops = settings.loops
        self.max_fed = 1 + self.loops * self.width

    def growth(self) -> Growth:
        size = 0 if self.worth else self.max_nodes
        return Growth(self.width, (self.width,) * self.loops, size)

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft a tree at most min(loops + 1, room) deep."""
        levels = min(self.loops + 1, room)
        request = LevelRequest(root, (-1,), self.width, 0, draws, levels)
        if not drafter.grows or self.worth is not None or levels <= self.loops:
            return grow_tree(self, drafter, request, self.width)
        # It chose the tree itself, of all levels.
        level = drafter.draft_level(request)
        tree = level and level.tree
        if tree is None:
            return DraftTree(root, chain(0))
        tokens = torch.cat((root.to(tree.tokens.device), tree.tokens))
        return DraftTree(tokens, DeviceShape(tree), tree.logp, HostCopy(tree.rows))


BEST_FIRST = Part(
    "policy",
    "best-first",
    "a tree of the likeliest paths",
    BestFirst,
    BestFirstSettings,
    needs=TREE,
    label=lambda settings: f"best-first tree of {size_words(settings.nodes)}",
)
