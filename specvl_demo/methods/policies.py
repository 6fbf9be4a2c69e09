"""How much to draft, and in which shape: a chain, a fixed tree, EAGLE-2's best-first tree.

A policy asks a drafter for tokens and returns a `DraftTree`. Knows no models. SAGE's tree, which
follows the drafter's entropy, is in `sage.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.sampling import Sampler
from specvl_demo.core.transfer import to_device
from specvl_demo.core.tree import DraftTree, TreeShape, chain, shape_of, shape_of_rank_paths
from specvl_demo.core.types import Drafter, LevelRequest, Policy
from specvl_demo.methods import base
from specvl_demo.methods.base import TREE, Part
from specvl_demo.methods.declare import PolicySettings, setting, size_words


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

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft a chain, shorter if there is less room or the drafter is unsure or silent."""
        length = min(self.gamma, room)
        n = 0
        total = 0.0
        tokens = [root]
        logps = [torch.zeros(1, device=root.device)]
        while n < length:
            request = LevelRequest(tokens[-1][-1:], (n - 1,), 1, n, draws, length - n, self.floor)
            level = drafter.draft_level(request)
            if level is None:
                break
            drafted = level.tokens[:, 0]
            logp = level.logp[:, 0]
            if self.floor > -math.inf:
                # Read only if it decides: on a GPU each read waits for the drafter.
                sums = [*accumulate(logp.tolist(), initial=total)][1:]
                n_kept = next((i for i, log in enumerate(sums, 1) if log < self.floor), length)
                drafted = drafted[:n_kept]
                logp = logp[:n_kept]
                total = sums[-1]
            tokens.append(drafted)
            logps.append(logp)
            n += len(drafted)
            if total < self.floor:
                break
        if not n:
            return DraftTree(root, chain(0))
        device = tokens[-1].device
        return DraftTree(
            torch.cat([part.to(device) for part in tokens]),
            chain(n),
            logp=torch.cat([part.to(device) for part in logps]),
            rows=(*range(n), -1),
        )


CHAIN = Part(
    "policy",
    "chain",
    "a chain",
    Chain,
    ChainSettings,
    needs=base.CHAIN,
    label=lambda settings: f"chain of {'up to ' if settings.floor else ''}{settings.gamma}",
)


EAGLE_TREE: tuple[tuple[int, ...], ...] = tuple(
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


def trim_paths(paths: Sequence[Sequence[int]], size: int) -> list[tuple[int, ...]]:
    """Return at most `size` paths of a fixed tree.

    # choice: those with the smallest sum of (rank + 1) stay, which keeps every prefix of a path
    that stays, and gives up improbable siblings before depth.
    """
    return sorted(map(tuple, paths), key=lambda path: (sum(path) + len(path), path))[:size]


@dataclass(frozen=True)
class StaticSettings(PolicySettings):
    """How much of the tree is drafted."""

    tree_nodes: int = setting(
        1 + len(EAGLE_TREE), "nodes of the tree, including the root", 2, 26, auto=True
    )


class StaticTree(Policy):
    """Fills a fixed tree of rank paths: (a, b) is the b-th likeliest after the a-th likeliest.

    Runs one drafter forward per level, over the level's inner nodes. Every prefix of a path must be
    a path too. At a temperature with shared draws, the token sampled with the target's random
    numbers has the first rank everywhere.
    """

    def __init__(self, paths: Sequence[Sequence[int]] = EAGLE_TREE) -> None:
        self._shape, self._ranks = shape_of_rank_paths(paths)
        self.max_nodes = len(self._shape)
        # Inner nodes are fed, in their order.
        inner = (node for node in range(self.max_nodes) if self._shape.children[node])
        self._row_of = {node: row for row, node in enumerate(inner)}
        self._levels: tuple[_StaticLevel, ...] | None = None

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft the tree; branches deeper than `room` are left out."""
        if self._levels is None:
            self._levels = tuple(self._make_levels(root.device))
        tokens = [root]
        logps = [torch.zeros(1, device=root.device)]
        shape = chain(0)
        for depth, level in enumerate(self._levels[:room]):
            # 1. Feed the inner nodes of the level above: the others have no children.
            feed = tokens[-1].index_select(0, level.feed)
            request = LevelRequest(feed, level.parents, level.top, depth, draws)
            drafted = drafter.draft_level(request)
            if drafted is None:
                break
            # 2. Of the `top` tokens after each, take those whose rank the tree has there.
            tokens.append(drafted.tokens.flatten().index_select(0, level.born))
            logps.append(drafted.logp.flatten().index_select(0, level.born))
            shape = level.shape
        # 3. Inner nodes were fed, in their order; those of the last level never are.
        last = len(tokens[-1])
        rows = [self._row_of.get(node, -1) for node in range(len(shape) - last)]
        fed = (*rows, *[-1] * last)
        return DraftTree(torch.cat(tokens), shape, logp=torch.cat(logps), rows=fed)

    def _make_levels(self, device: torch.device) -> Iterator[_StaticLevel]:
        whole, ranks = self._shape, self._ranks
        first = 0  # index of the first node of the level that is fed
        for depth in range(max(whole.depth)):
            stop = first + whole.depth.count(depth)
            born = range(stop, stop + whole.depth.count(depth + 1))
            fed = [node for node in range(first, stop) if whole.children[node]]
            top = 1 + max(ranks[node] for node in born)
            places = [fed.index(whole.parent[node]) * top + ranks[node] for node in born]
            yield _StaticLevel(
                feed=to_device([node - first for node in fed], device),
                parents=tuple(self._row_of.get(whole.parent[node], -1) for node in fed),
                top=top,
                born=to_device(places, device),
                shape=shape_of(whole.parent[: born.stop]),
            )
            first = stop


def static_tree(settings: StaticSettings) -> StaticTree:
    """Make the 25-path tree, or as much of it as fits."""
    return StaticTree(trim_paths(EAGLE_TREE, settings.tree_nodes - 1))


class _StaticLevel(NamedTuple):
    """One level of a fixed tree.

    Attributes:
        feed: [k] which of the previous level's nodes are fed.
        parents: The drafter rows of their parents.
        top: How many ranks are needed.
        born: Where each new node is in the `top` ranks of the fed nodes, read line by line.
        shape: The whole tree down to the new nodes.
    """

    feed: Tensor
    parents: tuple[int, ...]
    top: int
    born: Tensor
    shape: TreeShape


STATIC_TREE = Part(
    "policy",
    "static-tree",
    "a fixed tree of up to 25 paths",
    static_tree,
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
        60, "nodes of the tree, including the root", 2, 1025, title="tree nodes", auto=True
    )
    width: int = setting(
        10,
        "nodes expanded per level, and likeliest tokens taken after each",
        1,
        64,
        title="branches per level",
    )
    loops: int = setting(5, "levels below the first", 0, 64, title="tree levels")


class BestFirst(Policy):
    """EAGLE-2's dynamic tree (arXiv 2406.16858 §4): expand by level, keep the best nodes overall.

    Every level feeds the `width` nodes with the highest cumulative log-probability and takes the
    `width` likeliest tokens after each; in the end the `nodes - 1` candidates with the highest
    cumulative log-probability form the tree.
    """

    def __init__(self, settings: BestFirstSettings) -> None:
        self.nodes = settings.nodes
        self.width = settings.width
        self.loops = settings.loops
        self.max_nodes = self.nodes
        self.max_fed = 1 + self.loops * self.width

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft a tree at most min(loops + 1, room) deep."""
        # All candidates; those fed next, their tokens; how many were fed before.
        nodes = [Candidate(-1, 0, 0.0, 0.0)]
        fed = [0]
        rows = 0
        feed = root
        for depth in range(min(self.loops + 1, room)):
            # 1. Draft after each fed node, below the row of its parent; the root has none.
            above = [nodes[nodes[i].parent].row if i else -1 for i in fed]
            level = drafter.draft_level(LevelRequest(feed, above, self.width, depth, draws))
            if level is None:
                break
            for row, i in enumerate(fed, rows):
                nodes[i].row = row
            rows += len(fed)
            # 2. Every drafted token is a candidate, whose path is as likely as its tokens together.
            born = len(nodes)
            for i, *after in zip(fed, *level.read(), strict=True):
                nodes += [
                    Candidate(i, token, logp, nodes[i].score + score)
                    for token, logp, score in zip(*after, strict=True)
                    if score > -math.inf
                ]
            # 3. Go on with the best of this level.
            fed = sorted(range(born, len(nodes)), key=lambda i: -nodes[i].score)[: self.width]
            if not fed:
                break
            feed = to_device([nodes[i].token for i in fed], root.device)
        return best_tree(root, nodes, self.nodes)


@dataclass
class Candidate:
    """A node that a tree may have: its token with its log-probability, how likely its path is, and
    the drafter's row that it was fed as.
    """

    parent: int
    token: int
    logp: float
    score: float
    row: int = -1


def likeliest(nodes: Sequence[Candidate], size: int) -> list[int]:
    """Return the nodes of the `size` likeliest paths, without the root; ties go to the earlier.

    A child's path is never likelier than its parent's, so a chosen node's parent is always chosen.
    """
    return sorted(sorted(range(1, len(nodes)), key=lambda i: -nodes[i].score)[:size])


def best_tree(root: Tensor, nodes: Sequence[Candidate], size: int) -> DraftTree:
    """Return the tree of the `size` likeliest candidates, parents first."""
    chosen = [0, *likeliest(nodes, size - 1)]
    number = {old: new for new, old in enumerate(chosen)}
    return DraftTree(
        torch.cat((root, to_device([nodes[i].token for i in chosen[1:]], root.device))),
        shape_of((-1, *(number[nodes[i].parent] for i in chosen[1:]))),
        logp=to_device(torch.tensor([nodes[i].logp for i in chosen]), root.device),
        rows=tuple(nodes[i].row for i in chosen),
    )


BEST_FIRST = Part(
    "policy",
    "best-first",
    "a tree of the likeliest paths",
    BestFirst,
    BestFirstSettings,
    needs=TREE,
    label=lambda settings: f"best-first tree of {size_words(settings.nodes)}",
)
