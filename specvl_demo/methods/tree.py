"""Static tree drafting: several continuations at once, in a fixed tree (EAGLE-1, arXiv 2401.15077)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.sampling import Sampler, best
from specvl_demo.core.tree import DraftTree, TreeShape, chain, ranked, shape_of
from specvl_demo.core.types import Drafter, Policy
from specvl_demo.methods.base import TREE, Method, Part, register
from specvl_demo.methods.declare import Learn, PolicySettings, setting
from specvl_demo.methods.small_vlm import SMALL
from specvl_demo.methods.views import MULTIMODAL

EAGLE_TREE: tuple[tuple[int, ...], ...] = (
    *((0,), (1,), (2,), (3,)),
    *((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)),
    *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)),
    *((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2)),
    *((0, 0, 0, 0, 0), (0, 0, 0, 0, 1)),
)
"""The 25-path tree of EAGLE-1 (in its descendants' code: mc_sim_7b_63)."""


def trimmed(paths: Sequence[Sequence[int]], size: int) -> list[tuple[int, ...]]:
    """At most `size` paths of a fixed tree.

    # choice: those with the smallest sum of (rank + 1) stay, which keeps every prefix of a path that stays
    # and gives up improbable siblings before depth.
    """
    return sorted(map(tuple, paths), key=lambda path: (sum(path) + len(path), path))[:size]


@dataclass(frozen=True)
class StaticSettings(PolicySettings):
    """How much of the tree is drafted."""

    tree_nodes: int = setting(1 + len(EAGLE_TREE), "nodes of the tree, the root included", 2, 26)


class RankedTree(Policy):
    """Fills a fixed tree, given as rank paths: (a, b) is the b-th likeliest token after the a-th likeliest.

    One drafter forward a level, over the level's inner nodes. Every prefix of a path must be a path too. With
    the target's draws, the coupled token has the first rank everywhere.
    """

    def __init__(self, paths: Sequence[Sequence[int]] = EAGLE_TREE) -> None:
        self.paths = tuple(tuple(path) for path in paths)
        self.max_nodes = len(ranked(self.paths)[0])
        self._levels: tuple[_Level, ...] | None = None

    def propose(self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None) -> DraftTree:
        """Branches deeper than `room` are left out."""
        if self._levels is None:
            self._levels = tuple(_levels(self.paths, root.device))
        tokens, logps, rows = [root], [torch.zeros(1, device=root.device)], [-1]
        for depth, level in enumerate(self._levels[:room]):
            said = drafter.extend(tokens[-1].index_select(0, level.feed), level.parents)
            if said is None:
                break
            _, logp, ids = best(said, level.top, draws, depth)
            tokens.append(ids.flatten().index_select(0, level.born))
            logps.append(logp.flatten().index_select(0, level.born))
            for node, row in level.rows:
                rows[node] = row
            rows += [-1] * len(level.born)
        shape = self._levels[len(tokens) - 2].shape if len(tokens) > 1 else chain(0)
        return DraftTree(torch.cat(tokens), shape, logp=torch.cat(logps), rows=tuple(rows))


def static_tree(settings: StaticSettings) -> RankedTree:
    """The 25-path tree, or as much of it as fits."""
    return RankedTree(trimmed(EAGLE_TREE, settings.tree_nodes - 1))


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


STATIC_TREE = Part(
    "policy", "static-tree", "a fixed tree of up to 25 paths", static_tree, StaticSettings, needs=TREE
)

register(
    Method(
        "tree",
        "Static tree",
        "A small model drafts several continuations at once, in a tree of fixed shape.",
        drafter=SMALL,
        views=(MULTIMODAL,),
        policy=STATIC_TREE,
        reference="Li et al., arXiv 2401.15077 (the tree of EAGLE-1)",
        presets={"photo": {"tree_nodes": 5}, "pocket": {"tree_nodes": 18}},
        order=20,
        learn=Learn(
            does="One line of guesses dies with its first mistake. A tree keeps second and third choices "
            "open: all branches are checked in the same pass, each seeing only its own ancestors. The "
            "shape is fixed, found once on other texts.",
            shines="On a GPU, where more nodes in a pass are nearly free.",
            struggles="On a CPU every node costs, and a chain may win.",
            look="Which branch survives: mostly the first, sometimes the second.",
            formula=r"S = \frac{τ ( T )}{ρ_draft + ρ_verify ( T )}",
            aloud="speedup of a tree with T nodes",
            url="https://arxiv.org/abs/2401.15077",
        ),
    )
)
