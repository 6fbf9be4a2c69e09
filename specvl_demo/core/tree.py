"""Token trees: parents, depths, ancestor masks, paths.

Given a parent list, derives everything else once. Knows trees and tokens, nothing of models. Node 0
is the root: the last token that is already decided. A parent always comes before its child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.transfer import sent

_KEPT = 2**18
"""Numbers in the largest mask that is kept for the next time."""


@dataclass(frozen=True)
class TreeShape:
    """The shape of a tree without its tokens, on the host. `shape_of` builds recurring shapes once.

    parent: parent[0] == -1, 0 <= parent[i] < i.
    """

    parent: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.parent or self.parent[0] != -1:
            raise ValueError("a tree has a root with parent -1 as node 0")
        if not all(0 <= p < i for i, p in enumerate(self.parent) if i):
            raise ValueError(f"a parent comes before its child; got parents {list(self.parent)}")

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """Depth of every node, root 0."""
        depth: list[int] = []
        for parent in self.parent:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        return tuple(depth)

    @cached_property
    def is_chain(self) -> bool:
        """Whether every node is the child of the node before it."""
        return all(p == i - 1 for i, p in enumerate(self.parent))

    @cached_property
    def ancestors(self) -> Tensor:
        """[T, T] bool on the host: row i is True at i and at all its ancestors."""
        size = len(self)
        mask = torch.eye(size, dtype=torch.bool)
        if self.is_chain:
            return mask.new_ones(size, size).tril_()
        rows = mask.numpy()
        for i, parent in enumerate(self.parent):
            if parent >= 0:
                rows[i] |= rows[parent]
        return mask

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every node, in order."""
        children: list[list[int]] = [[] for _ in self.parent]
        for i, parent in enumerate(self.parent):
            if parent >= 0:
                children[parent].append(i)
        return tuple(map(tuple, children))

    def path(self, node: int) -> list[int]:
        """Nodes from the root to `node`, both included."""
        path = [node]
        while self.parent[path[-1]] >= 0:
            path.append(self.parent[path[-1]])
        return path[::-1]

    def depth_on(self, device: torch.device) -> Tensor:
        """[T] int64 depth on a device, kept for the next time."""
        return self._kept(("depth", device), lambda: sent(self.depth, device))

    def parent_on(self, device: torch.device) -> Tensor:
        """[T] int64 parent on a device with the root as its own parent, kept for the next time."""
        return self._kept(("parent", device), lambda: sent((0, *self.parent[1:]), device))

    def paths_on(self, device: torch.device) -> Tensor:
        """[T, depth + 1] int64: every node's ancestor at every depth, itself at its own, 0 below
        that.
        """

        def make() -> Tensor:
            paths = torch.zeros(len(self), max(self.depth) + 1, dtype=torch.int64)
            rows = paths.numpy()
            for node, parent in enumerate(self.parent):
                if parent >= 0:
                    rows[node] = rows[parent]
                rows[node, self.depth[node]] = node
            return sent(paths, device)

        return self._kept(("paths", device), make)

    def additive(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Additive mask [T, length + T]: a node sees all cached tokens, its ancestors and itself.

        A view into a wider buffer that stays with the shape, so that a recurring shape costs
        nothing; unless it is large, since many shapes are kept.
        """
        size = len(self)
        kept = self._store.get(("mask", dtype, device))
        if kept is None or kept.shape[1] < length + size:
            room = -(-(length + 1) // 256) * 256
            small = size * (room + size) <= _KEPT
            kept = torch.zeros(size, (room if small else length) + size, dtype=dtype)
            kept[:, -size:].masked_fill_(~self.ancestors, torch.finfo(dtype).min)
            kept = sent(kept, device)
            if small:
                self._store[("mask", dtype, device)] = kept
        return kept[:, kept.shape[1] - size - length :]

    @cached_property
    def _store(self) -> dict[Any, Tensor]:
        return {}

    def _kept(self, key: Any, make: Any) -> Tensor:
        if key not in self._store:
            self._store[key] = make()
        return self._store[key]


@lru_cache(maxsize=64)
def shape_of(parent: tuple[int, ...]) -> TreeShape:
    """The shape with these parents; recurring shapes are the same object, with their masks."""
    return TreeShape(parent)


def chain(length: int) -> TreeShape:
    """A root with `length` drafted tokens in a row."""
    return shape_of(tuple(range(-1, length)))


@dataclass(frozen=True)
class DraftTree:
    """A drafted tree.

    tokens: [T] int64 on any device, root first. logp: [T] log-probability of each node's token
    after its
        parent as the drafter saw it (root 0), None where the drafter gives none.
    rows: for every node the drafter's row it was fed as, -1 where it was not fed (leaves); None
    when the
        drafter keeps no rows.
    notes: what the policy wants recorded about this tree; plain Python values.
    """

    tokens: Tensor
    shape: TreeShape
    logp: Tensor | None = None
    rows: Sequence[int] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.shape)


def ranked(paths: Sequence[Sequence[int]]) -> tuple[TreeShape, tuple[int, ...]]:
    """Shape of a tree given as rank paths, and every node's rank among its parent's guesses (root
    0).

    A path (a, b) is the b-th likeliest token after the a-th likeliest token after the root; nodes
    are numbered by (length, path). Every prefix of a path must be a path too.
    """
    order = sorted({tuple(p) for p in paths}, key=lambda p: (len(p), p))
    number = {(): 0, **{path: i + 1 for i, path in enumerate(order)}}
    missing = [path for path in order if path[:-1] not in number]
    if missing or () in order:
        raise ValueError(
            f"a rank path needs every shorter path it goes through; {missing or [()]} does not"
            " have one"
        )
    return shape_of((-1, *(number[path[:-1]] for path in order))), (
        0,
        *(path[-1] for path in order),
    )
