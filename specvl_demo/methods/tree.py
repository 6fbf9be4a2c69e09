"""Static trees: several continuations at once, of fixed shape (EAGLE-1, arXiv 2401.15077)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.sampling import Sampler, best
from specvl_demo.core.transfer import sent
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
"""The 25-path tree of EAGLE-1 (mc_sim_7b_63 in derived code)."""


def trimmed(paths: Sequence[Sequence[int]], size: int) -> list[tuple[int, ...]]:
    """Return at most `size` paths of a fixed tree.

    # choice: those with the smallest sum of (rank + 1) stay, which keeps every prefix of a path
    that stays, and gives up improbable siblings before depth.
    """
    return sorted(map(tuple, paths), key=lambda path: (sum(path) + len(path), path))[:size]


@dataclass(frozen=True)
class StaticSettings(PolicySettings):
    """How much of the tree is drafted."""

    tree_nodes: int = setting(1 + len(EAGLE_TREE), "nodes of the tree, including the root", 2, 26)


class RankedTree(Policy):
    """Fills a fixed tree, given as rank paths: (a, b) is the b-th likeliest token after the a-th
    likeliest.

    Runs one drafter forward per level, over the level's inner nodes. Every prefix of a path must be
    a path too. At a temperature with shared draws, the token sampled with the target's random
    numbers has the first rank everywhere.
    """

    def __init__(self, paths: Sequence[Sequence[int]] = EAGLE_TREE) -> None:
        self._shape, self._ranks = ranked(paths)
        self.max_nodes = len(self._shape)
        # Inner nodes are fed, in their order.
        inner = (node for node in range(self.max_nodes) if self._shape.children[node])
        self._row_of = {node: row for row, node in enumerate(inner)}
        self._levels: tuple[_Level, ...] | None = None

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft the tree; branches deeper than `room` are left out."""
        if self._levels is None:
            self._levels = tuple(self._made(root.device))
        tokens, logps, shape = [root], [torch.zeros(1, device=root.device)], chain(0)
        for depth, level in enumerate(self._levels[:room]):
            log_probs = drafter.extend(tokens[-1].index_select(0, level.feed), level.parents)
            if log_probs is None:
                break
            _, logp, ids = best(log_probs, level.top, draws, depth)
            tokens.append(ids.flatten().index_select(0, level.born))
            logps.append(logp.flatten().index_select(0, level.born))
            shape = level.shape
        last = len(tokens[-1])
        rows = [self._row_of.get(node, -1) for node in range(len(shape) - last)]
        return DraftTree(
            torch.cat(tokens), shape, logp=torch.cat(logps), rows=(*rows, *[-1] * last)
        )

    def _made(self, device: torch.device) -> Iterator[_Level]:
        whole, ranks = self._shape, self._ranks
        first = 0  # index of the first node of the level that is fed
        for depth in range(max(whole.depth)):
            stop = first + whole.depth.count(depth)
            born = range(stop, stop + whole.depth.count(depth + 1))
            fed = [node for node in range(first, stop) if whole.children[node]]
            top = 1 + max(ranks[node] for node in born)
            places = [fed.index(whole.parent[node]) * top + ranks[node] for node in born]
            yield _Level(
                feed=sent([node - first for node in fed], device),
                parents=tuple(self._row_of.get(whole.parent[node], -1) for node in fed),
                top=top,
                born=sent(places, device),
                shape=shape_of(whole.parent[: born.stop]),
            )
            first = stop


def static_tree(settings: StaticSettings) -> RankedTree:
    """Make the 25-path tree, or as much of it as fits."""
    return RankedTree(trimmed(EAGLE_TREE, settings.tree_nodes - 1))


class _Level(NamedTuple):
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

register(
    Method(
        "tree",
        "Static tree",
        "A small model drafts several continuations at once, in a tree of fixed shape.",
        drafter=SMALL,
        views=(MULTIMODAL,),
        policy=STATIC_TREE,
        reference="Li et al., arXiv 2401.15077 (the tree of EAGLE-1)",
        presets={"photo": {"tree_nodes": 11}, "pocket": {"tree_nodes": 8}},
        order=20,
        learn=Learn(
            does="""A single line of guesses ends at its first mistake. A tree keeps second and
            third choices open: all branches are checked in the same pass, each seeing only its own
            ancestors. The shape is fixed and was found once on other texts.""",
            shines="GPUs, on which more nodes in a pass cost almost nothing.",
            struggles="CPUs, on which every node costs time and a chain may win.",
            look="Which branch is accepted: mostly the first, sometimes the second.",
            formula=r"S = \frac{τ ( T )}{ρ_draft + ρ_verify ( T )}",
            aloud="speedup of a tree with T nodes",
            url="https://arxiv.org/abs/2401.15077",
        ),
    )
)
