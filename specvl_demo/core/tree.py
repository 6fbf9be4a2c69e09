"""Token trees: parents, depths, ancestor masks, paths.

Given a list of parents, derives everything else once. Knows trees and tokens, nothing of models.
Node 0 is the root, the last token that is already decided. A parent always comes before its child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo.core.transfer import to_device

_MAX_CACHED = 2**18
"""Size, in numbers, of the largest mask that is cached."""


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
        rows = mask.numpy()
        for i, parent in enumerate(self.parent):
            if parent >= 0:
                rows[i] |= rows[parent]
        return mask

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every node, in order of their numbers."""
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
        """Return depth [T] int64 on a device, cached."""
        return self._cached(("depth", device), lambda: to_device(self.depth, device))

    def parent_on(self, device: torch.device) -> Tensor:
        """Return parent [T] int64 on a device, cached; the root is its own parent."""
        return self._cached(("parent", device), lambda: to_device((0, *self.parent[1:]), device))

    def node_paths_on(self, device: torch.device) -> Tensor:
        """Return [T, depth + 1] int64: a node's ancestor at every depth down to its own, then 0."""

        def make() -> Tensor:
            paths = torch.zeros(len(self), max(self.depth) + 1, dtype=torch.int64)
            rows = paths.numpy()
            for node, parent in enumerate(self.parent):
                if parent >= 0:
                    rows[node] = rows[parent]
                rows[node, self.depth[node]] = node
            return to_device(paths, device)

        return self._cached(("paths", device), make)

    def mask(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the additive mask [T, length + T]: a node sees the cache, its ancestors, itself.

        The result is a slice of a wider buffer cached with the shape, so that recurring shapes cost
        nothing. Large masks are not cached, since many shapes are kept.
        """
        size = len(self)
        mask = self._tensors.get(("mask", dtype, device))
        if mask is None or mask.shape[1] < length + size:
            room = -(-(length + 1) // 256) * 256
            small = size * (room + size) <= _MAX_CACHED
            among = torch.zeros(size, size, dtype=dtype)
            among.masked_fill_(~self.ancestors, torch.finfo(dtype).min)
            mask = F.pad(to_device(among, device), (room if small else length, 0))
            if small:
                self._tensors[("mask", dtype, device)] = mask
        return mask[:, mask.shape[1] - size - length :]

    @cached_property
    def _tensors(self) -> dict[Any, Tensor]:
        return {}

    def _cached(self, key: Any, make: Any) -> Tensor:
        if key not in self._tensors:
            self._tensors[key] = make()
        return self._tensors[key]


@lru_cache(maxsize=64)
def shape_of(parent: tuple[int, ...]) -> TreeShape:
    """Return the shape with these parents; recurring shapes are one object and share its masks."""
    return TreeShape(parent)


def chain(length: int) -> TreeShape:
    """Return a root followed by `length` drafted tokens in a row."""
    return shape_of(tuple(range(-1, length)))


@dataclass(frozen=True)
class DraftTree:
    """A drafted tree.

    Attributes:
        tokens: [T] int64 on any device, root first.
        shape: The shape of the tree.
        logp: [T] the drafter's log-probability of each token after its parent (root 0), if any.
        rows: The drafter's row of every node, -1 if it was not fed (a leaf); None without rows.
        likely: How likely the policy takes every node's path to be, if it says so.
        notes: What the policy records about this tree, as plain Python values.
    """

    tokens: Tensor
    shape: TreeShape
    logp: Tensor | None = None
    rows: Sequence[int] | None = None
    likely: Sequence[float] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.shape)


def shape_of_rank_paths(paths: Sequence[tuple[int, ...]]) -> tuple[TreeShape, tuple[int, ...]]:
    """Return the shape of a tree given as rank paths, and every node's rank among its siblings.

    A path (a, b) is the b-th likeliest token after the a-th likeliest token after the root. Nodes
    are numbered depth first, so that an accepted path is often the first rows of a cache, which
    stay where they are. The root has rank 0. Every prefix of a path must be a path too.
    """
    order = sorted(paths)
    number = {(): 0, **{path: i + 1 for i, path in enumerate(order)}}
    shape = shape_of((-1, *(number[path[:-1]] for path in order)))
    return shape, (0, *(path[-1] for path in order))
