"""Token trees: parents, depths, ancestor masks, paths.

Given a list of parents, derives everything else once. Knows trees and tokens, nothing of models.
Node 0 is the root, the last token that is already decided. A parent always comes before its child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo.core.transfer import HostCopy, to_device

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
    def depth(self) -> Sequence[int]:
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

    def ancestors_on(self, device: torch.device) -> Tensor:
        """Return ancestors [T, T] bool on a device."""
        return to_device(self.ancestors, device)

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
            among = torch.zeros(size, size, dtype=dtype, device=device)
            among.masked_fill_(~self.ancestors_on(device), torch.finfo(dtype).min)
            mask = F.pad(among, (room if small else length, 0))
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


class GrownTree(NamedTuple):
    """A tree that was chosen on a device: of the drafter's tokens those of T - 1 nodes, and their
    log-probabilities; parents, the root's being itself, and the drafter's rows [T], see
    `DraftTree`; ancestors [T, T] and depths [T], see `TreeShape`.
    """

    tokens: Tensor
    logp: Tensor
    parent: Tensor
    rows: Tensor
    ancestors: Tensor
    depth: Tensor

    @classmethod
    def choose(
        cls, tokens: Tensor, logp: Tensor, scores: Tensor, places: Tensor, size: int, levels: int
    ) -> GrownTree:
        """Return the tree of the likeliest paths, without reading a number on the host.

        Args:
            tokens, logp, scores: The k tokens found after each fed node, their log-probabilities
                and those of their paths [fed, k].
            places: [fed] which of all tokens a fed node is; the first one is the root.
            size: T.
            levels: Of nodes below the root, at most.
        """
        # 1. Of equal paths the earlier ones: a parent's is never less likely than its child's.
        best = scores.flatten().argsort(descending=True, stable=True)[: size - 1].sort().values
        # 2. Which node, and which of the drafter's rows, each of all tokens is.
        count = partial(torch.arange, 1, device=best.device)
        node = torch.zeros(scores.numel(), dtype=torch.int64, device=best.device)
        row = node.sub(1).scatter(0, places[1:], count(len(places)))
        node = node.scatter(0, best, count(1 + len(best)))
        parent = F.pad(node.take(places[1:]), (1, 0)).take(best // tokens.shape[1])
        # 3. Both begin with the root. Each product doubles how far up ancestors are known.
        parent, rows = F.pad(parent, (1, 0)), F.pad(row.take(best), (1, 0))
        above = torch.eye(len(parent), device=best.device).scatter(1, parent[:, None], 1.0)
        for _ in range((levels - 1).bit_length()):
            above = (above @ above).clamp_max(1)
        every = tokens.take(best), F.pad(logp.take(best), (1, 0)), parent, rows
        return cls(*every, above > 0, above.sum(-1).long() - 1)


class DeviceShape(TreeShape):
    """The shape of a grown tree, which is scored on its device before the host knows it."""

    def __init__(self, tree: GrownTree) -> None:
        self.__dict__ |= {"_tree": tree, "_late": HostCopy(tree.parent)}

    _tree: GrownTree
    _late: HostCopy

    def __len__(self) -> int:
        return len(self._late)

    @cached_property
    def parent(self) -> tuple[int, ...]:
        return (-1, *self._late[1:])

    @cached_property
    def depth(self) -> Sequence[int]:
        return HostCopy(self._tree.depth)

    def ancestors_on(self, device: torch.device) -> Tensor:
        return self._tree.ancestors.to(device)

    def depth_on(self, device: torch.device) -> Tensor:
        return self._tree.depth.to(device)

    def parent_on(self, device: torch.device) -> Tensor:
        return self._tree.parent.to(device)


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


RankPath = tuple[int, ...]
"""A node named by ranks: (0, 2) is the third best child of the root's best child."""


def shape_of_rank_paths(paths: Sequence[RankPath]) -> tuple[TreeShape, tuple[int, ...]]:
    """Return the shape of a tree given as rank paths, and every node's rank among its siblings.

    Nodes are numbered depth first, so that an accepted path is often the first rows of a cache,
    which stay where they are. The root has rank 0. Every prefix of a path must be a path too.
    """
    order = sorted(paths)
    number = {(): 0, **{path: i + 1 for i, path in enumerate(order)}}
    shape = shape_of((-1, *(number[path[:-1]] for path in order)))
    return shape, (0, *(path[-1] for path in order))
