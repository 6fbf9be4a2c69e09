"""Tree policies that do not depend on a method: one node, a chain, a fixed tree, best first.

Given a drafter and the last decided token, give a DraftTree. They ask the drafter for log-probabilities level
by level and keep tokens on its device. Know trees and log-probabilities, nothing of models, text or
verification.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.tree import DraftTree, TreeShape, chain, ranked, shape_of
from specvl_demo.core.types import Drafter, Verdict

EAGLE_TREE: tuple[tuple[int, ...], ...] = (
    *((0,), (1,), (2,), (3,)),
    *((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)),
    *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)),
    *((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2)),
    *((0, 0, 0, 0, 0), (0, 0, 0, 0, 1)),
)
"""The 25-path tree of EAGLE-1 that SpecVLM and SAGE draft with (SpecVLM's code: mc_sim_7b_63)."""


def trimmed(paths: Sequence[Sequence[int]], size: int) -> list[tuple[int, ...]]:
    """At most `size` paths of a fixed tree.

    # choice: those with the smallest sum of (rank + 1) stay, which keeps every prefix of a path that stays
    # and gives up improbable siblings before depth.
    """
    return sorted(map(tuple, paths), key=lambda path: (sum(path) + len(path), path))[:size]


class OneNode:
    """Drafts nothing: plain autoregressive decoding."""

    max_nodes = 1

    def grow(self, drafter: Drafter, root: Tensor, room: int) -> DraftTree:
        """The root alone; the drafter is not asked."""
        return DraftTree(root, chain(0))

    def learn(self, tree: DraftTree, verdict: Verdict) -> None:
        """Nothing to learn."""


class Chain:
    """Drafts `gamma` tokens in a row, each the likeliest after the ones before it."""

    def __init__(self, gamma: int = 5) -> None:
        self.gamma = gamma
        self.max_nodes = gamma + 1

    def grow(self, drafter: Drafter, root: Tensor, room: int) -> DraftTree:
        """Shorter where there is less room or the drafter has nothing to propose."""
        tokens, logps = [root], []
        for i in range(min(self.gamma, room)):
            said = drafter.extend(tokens[-1], (i - 1,))
            if said is None:
                break
            best, token = said.max(-1)
            tokens.append(token)
            logps.append(best)
        if not logps:
            return DraftTree(root, chain(0))
        n = len(logps)
        return DraftTree(
            torch.cat([root.to(tokens[-1].device), *tokens[1:]]),
            chain(n),
            logp=torch.cat([torch.zeros_like(logps[0]), *logps]),
            rows=(*range(n), -1),
        )

    def learn(self, tree: DraftTree, verdict: Verdict) -> None:
        """A chain does not change."""


class RankedTree:
    """Fills a fixed tree, given as rank paths: (a, b) is the b-th likeliest token after the a-th likeliest.

    One drafter forward a level, over the level's inner nodes. Every prefix of a path must be a path too.
    """

    def __init__(self, paths: Sequence[Sequence[int]] = EAGLE_TREE) -> None:
        self.paths = tuple(tuple(path) for path in paths)
        self.max_nodes = len(ranked(self.paths)[0])
        self._levels: tuple[_Level, ...] | None = None

    def grow(self, drafter: Drafter, root: Tensor, room: int) -> DraftTree:
        """Branches deeper than `room` are left out."""
        if self._levels is None:
            self._levels = tuple(_levels(self.paths, root.device))
        tokens, logps, rows = [root], [torch.zeros(1, device=root.device)], [-1]
        for level in self._levels[:room]:
            said = drafter.extend(tokens[-1].index_select(0, level.feed), level.parents)
            if said is None:
                break
            top = said.topk(level.top, dim=-1)
            tokens.append(top.indices.flatten().index_select(0, level.born))
            logps.append(top.values.flatten().index_select(0, level.born))
            for node, row in level.rows:
                rows[node] = row
            rows += [-1] * len(level.born)
        shape = self._levels[len(tokens) - 2].shape if len(tokens) > 1 else chain(0)
        return DraftTree(torch.cat(tokens), shape, logp=torch.cat(logps), rows=tuple(rows))

    def learn(self, tree: DraftTree, verdict: Verdict) -> None:
        """A fixed tree does not change."""


def static_tree(tree_nodes: int = 1 + len(EAGLE_TREE)) -> RankedTree:
    """SpecVLM's tree, or as much of it as fits into `tree_nodes` nodes with the root."""
    return RankedTree(trimmed(EAGLE_TREE, tree_nodes - 1))


def branches(gamma: int = 10, count: int = 2) -> RankedTree:
    """`count` chains of `gamma` tokens that part at the root's likeliest tokens (LVSpec, appendix E)."""
    return RankedTree([(first, *[0] * depth) for first in range(count) for depth in range(gamma)])


class _Level(NamedTuple):
    """One level of a fixed tree: who is fed, and who is born of whom.

    feed: [k] which of the nodes born last are fed. parents: the drafter rows of their parents. top: how many
    ranks are wanted. born: where every new node stands in the `top` ranks of the fed, read line by line.
    rows: (node, drafter row) of the fed. shape: the whole tree down to the new nodes.
    """

    feed: Tensor
    parents: tuple[int, ...]
    top: int
    born: Tensor
    rows: tuple[tuple[int, int], ...]
    shape: TreeShape


def _levels(paths: Sequence[tuple[int, ...]], device: torch.device) -> Iterator[_Level]:
    whole, all_ranks = ranked(paths)
    row_of: dict[int, int] = {-1: -1}
    first = 0  # number of the first node of the level that is fed
    for depth in range(max(whole.depth)):
        level = range(first, first + whole.depth.count(depth))
        born = range(level.stop, level.stop + whole.depth.count(depth + 1))
        fed = [node for node in level if whole.children[node]]
        place = {node: i for i, node in enumerate(fed)}
        for node in fed:
            row_of[node] = len(row_of) - 1
        ranks = [all_ranks[node] for node in born]
        top = 1 + max(ranks)
        above = [place[whole.parent[node]] for node in born]
        yield _Level(
            feed=torch.tensor([node - first for node in fed], device=device),
            parents=tuple(row_of[whole.parent[node]] for node in fed),
            top=top,
            born=torch.tensor([i * top + rank for i, rank in zip(above, ranks, strict=True)], device=device),
            rows=tuple((node, row_of[node]) for node in fed),
            shape=shape_of(whole.parent[: born.stop]),
        )
        first = level.stop


class BestFirst:
    """EAGLE-2's dynamic tree (arXiv 2406.16858 §4): expand by level, keep the best nodes overall.

    Every level feeds the `width` nodes with the highest cumulative log-probability and takes the `width`
    likeliest tokens after each; in the end the `nodes - 1` candidates with the highest cumulative
    log-probability form the tree. nodes counts the root. loops: levels below the first, so the tree is at
    most loops + 1 deep.
    """

    def __init__(self, nodes: int = 60, width: int = 10, loops: int = 5) -> None:
        if nodes - 1 > width + loops * width * width:
            raise ValueError(
                f"a tree of {nodes} nodes needs more candidates than width {width} and {loops} loops give: "
                f"{width + loops * width * width}"
            )
        self.nodes, self.width, self.loops = nodes, width, loops
        self.max_nodes = max(nodes, 1 + loops * width)

    def grow(self, drafter: Drafter, root: Tensor, room: int) -> DraftTree:
        """At most min(loops + 1, room) deep."""
        said = drafter.extend(root, (-1,)) if room else None
        if said is None:
            return DraftTree(root, chain(0), rows=(-1,))
        width = min(self.width, said.shape[-1])
        logp, token = (x.flatten() for x in said.topk(width, dim=-1))
        # Candidates of all levels, flat: token, log-probability, cumulative log-probability. Every fed node,
        # by its flat number (-1: the root), has `width` of them.
        tokens, logps, scores = [token], [logp], [logp]
        fed = [torch.full_like(token[:1], -1)]
        best = torch.arange(width, device=token.device)
        above, score, row = torch.zeros_like(best), logp, 0
        for _ in range(min(self.loops, room - 1)):
            said = drafter.extend(token, above)
            if said is None:
                break
            fed.append(best)
            logp, wide = said.topk(width, dim=-1)
            cumulative = (logp + score[:, None]).flatten()
            tokens.append(wide.flatten())
            logps.append(logp.flatten())
            scores.append(cumulative)
            score, chosen = cumulative.topk(width)
            token = tokens[-1][chosen]
            above = row + 1 + chosen // width
            best = chosen + (width + row * width)
            row += width
        return self._select(root, *map(torch.cat, (tokens, logps, scores, fed)))

    def learn(self, tree: DraftTree, verdict: Verdict) -> None:
        """Every round grows a new tree."""

    def _select(self, root: Tensor, tokens: Tensor, logps: Tensor, scores: Tensor, fed: Tensor) -> DraftTree:
        """The best candidates overall, parents first. fed: flat number of every drafter row, root -1."""
        # A child's score is never above its parent's, and the stable sort lets the earlier win a tie: a
        # chosen node's parent is always chosen.
        order = scores.sort(descending=True, stable=True).indices[: self.nodes - 1]
        order = order[scores[order].isfinite()].sort().values
        above = fed[order // (len(scores) // len(fed))]
        # Flat numbers are chosen numbers' places, counted behind the root's.
        parent = torch.searchsorted(order, above, right=True)
        row_of = torch.full((len(scores),), -1, device=order.device)
        row_of[fed[1:]] = torch.arange(1, len(fed), device=order.device)
        parent, rows = torch.stack((parent, row_of[order])).tolist()
        return DraftTree(
            torch.cat((root.to(tokens.device), tokens[order])),
            shape_of((-1, *parent)),
            logp=torch.cat((torch.zeros_like(logps[:1]), logps[order])),
            rows=(0, *rows),
        )


def beam(gamma: int = 5, beams: int = 2) -> BestFirst:
    """A tree `gamma` deep with about `beams` nodes a level (TABED's tree drafting).

    # choice: the paper gives a width d and no shape; here the d likeliest nodes of every level are expanded
    # and the gamma * d likeliest paths stay, so that width 1 is the chain.
    """
    return BestFirst(nodes=1 + gamma * beams, width=beams, loops=gamma - 1)
