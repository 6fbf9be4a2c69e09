"""How much to draft, and in which shape: a chain, a fixed tree, EAGLE-2's best-first tree.

A policy asks a drafter for tokens and returns a `DraftTree`. Knows no models. SAGE's tree, which
follows the drafter's entropy, is in `sage.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo.core import highest
from specvl_demo.core.sampling import Sampler, top_k
from specvl_demo.core.transfer import to_device
from specvl_demo.core.tree import DraftTree, TreeShape, chain, shape_of, shape_of_rank_paths
from specvl_demo.core.types import Drafter, Policy
from specvl_demo.methods import base
from specvl_demo.methods.base import TREE, Part
from specvl_demo.methods.declare import PolicySettings, setting


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
        if draws is None and length:
            made = drafter.draft_chain(root, length, self.floor)
            if made is not None:
                return _chain_tree(root, *made)
        tokens, logps = [root], []
        total = 0.0
        for i in range(length):
            log_probs = drafter.extend(tokens[-1], (i - 1,))
            if log_probs is None:
                break
            token = highest.argmax(log_probs) if draws is None else draws.draft(log_probs, i)
            logp = log_probs.gather(-1, token[:, None])[:, 0]
            tokens.append(token)
            logps.append(logp)
            if self.floor > -math.inf:
                # Read only if it decides: on a GPU each read waits for the drafter.
                total += logp.item()
                if total < self.floor:
                    break
        if not logps:
            return DraftTree(root, chain(0))
        return _chain_tree(root, torch.cat(tokens[1:]), torch.cat(logps))


def _chain_tree(root: Tensor, tokens: Tensor, logp: Tensor) -> DraftTree:
    """Return the root and n drafted tokens [n] after it, all but the last of which were fed."""
    n = len(tokens)
    return DraftTree(
        torch.cat((root.to(tokens.device), tokens)),
        chain(n),
        logp=F.pad(logp, (1, 0)),
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


EAGLE_TREE: tuple[tuple[int, ...], ...] = (
    *((0,), (1,), (2,), (3,)),
    *((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)),
    *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)),
    *((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2)),
    *((0, 0, 0, 0, 0), (0, 0, 0, 0, 1)),
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

    tree_nodes: int = setting(1 + len(EAGLE_TREE), "nodes of the tree, including the root", 2, 26)


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
        tokens, logps, shape = [root], [torch.zeros(1, device=root.device)], chain(0)
        for depth, level in enumerate(self._levels[:room]):
            log_probs = drafter.extend(tokens[-1].index_select(0, level.feed), level.parents)
            if log_probs is None:
                break
            _, logp, ids = top_k(log_probs, level.top, draws, depth)
            tokens.append(ids.flatten().index_select(0, level.born))
            logps.append(logp.flatten().index_select(0, level.born))
            shape = level.shape
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
    label=lambda settings: f"static tree of {settings.tree_nodes}",
)


@dataclass(frozen=True)
class BestFirstSettings(PolicySettings):
    """`nodes` counts the root, and is not reached where width and levels make fewer candidates;
    `loops` counts the levels below the first: at most loops + 1 levels.
    """

    nodes: int = setting(60, "nodes of the tree, including the root", 2, 1025, title="tree nodes")
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
        self.nodes, self.width, self.loops = settings.nodes, settings.width, settings.loops
        self.max_nodes, self.max_fed = self.nodes, 1 + self.loops * self.width

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft a tree at most min(loops + 1, room) deep."""
        log_probs = drafter.extend(root, (-1,)) if room else None
        if log_probs is None:
            return DraftTree(root, chain(0), rows=(-1,))
        width = min(self.width, log_probs.shape[-1])
        score, logp, token = (x.flatten() for x in top_k(log_probs, width, draws, 0))
        # Candidates of all levels, flat: token, log-probability, cumulative log-probability. Every
        # fed node, by its flat number (-1: the root), has `width` of them.
        tokens, logps, scores = [token], [logp], [score]
        fed = [torch.full_like(token[:1], -1)]
        born = torch.arange(width, device=token.device)
        above, row = torch.zeros_like(born), 0
        for depth in range(1, min(self.loops + 1, room)):
            log_probs = drafter.extend(token, above)
            if log_probs is None:
                break
            fed.append(born)
            scored, logp, wide = top_k(log_probs, width, draws, depth)
            cumulative = (scored + score[:, None]).flatten()
            tokens.append(wide.flatten())
            logps.append(logp.flatten())
            scores.append(cumulative)
            score, chosen = cumulative.topk(width)
            token = tokens[-1][chosen]
            above = row + 1 + chosen // width
            born = chosen + (width + row * width)
            row += width
        return self._best_tree(root, *map(torch.cat, (tokens, logps, scores, fed)))

    def _best_tree(
        self, root: Tensor, tokens: Tensor, logps: Tensor, scores: Tensor, fed: Tensor
    ) -> DraftTree:
        """Return the tree of the best candidates overall, parents first.

        fed: Flat number of every drafter row, -1 for the root.
        """
        # A child's score is never above its parent's, and the stable sort prefers the earlier in a
        # tie: a chosen node's parent is always chosen.
        order = scores.sort(descending=True, stable=True).indices[: self.nodes - 1]
        # Impossible ones go after the others, and are dropped when the host knows their number.
        order = torch.where(scores[order].isfinite(), order, len(scores)).sort().values
        chosen = order.clamp_max(len(scores) - 1)
        above = fed[chosen // (len(scores) // len(fed))]
        # The places of the parents among the chosen, counted after the root.
        parent = torch.searchsorted(order, above, right=True)
        row_of = torch.full((len(scores),), -1, device=order.device)
        row_of[fed[1:]] = torch.arange(1, len(fed), device=order.device)
        listed = torch.stack((order, parent, row_of[chosen])).tolist()
        n = sum(number < len(scores) for number in listed[0])
        return DraftTree(
            torch.cat((root.to(tokens.device), tokens[chosen[:n]])),
            shape_of((-1, *listed[1][:n])),
            logp=torch.cat((torch.zeros_like(logps[:1]), logps[chosen[:n]])),
            rows=(0, *listed[2][:n]),
        )


BEST_FIRST = Part(
    "policy",
    "best-first",
    "a tree of the likeliest paths",
    BestFirst,
    BestFirstSettings,
    needs=TREE,
    label=lambda settings: f"best-first tree of {settings.nodes}",
)
