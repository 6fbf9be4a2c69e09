"""Drafters whose decoder drafts a level of a tree, or a chain of levels, by one call.

Given tokens and parents, asks the decoder's own kernels where they run, else falls back to log-
probabilities. Knows what a drafter has fed; nothing of what its rows are made of.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from specvl_demo.core.sampling import Level
from specvl_demo.core.transfer import to_device
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Drafter, LevelRequest
from specvl_demo.decoders.layer_stack import LevelDrafter, LevelWeights
from specvl_demo.decoders.sequence import CachedSequence


class LevelCalls(Drafter):
    """A drafter with a sequence of its own, `_sequence`, made before `_begin_levels` is called."""

    _sequence: CachedSequence

    def _begin_levels(self, weights: LevelWeights | None, nodes: int) -> None:
        """weights: What drafts by one call; None to fall back. nodes: Most of a round."""
        self._levels = None if weights is None else self._sequence.level_drafter(weights, nodes)
        self._pending: list[int] = []

    @abstractmethod
    def _level_inputs(self, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the tokens as they are fed, and what else `LevelDrafter.draft` is given."""

    @abstractmethod
    def _level_drafted(self, drafter: LevelDrafter, tokens: Tensor, first: int, end: int) -> None:
        """Keep what nodes first .. end of this round need later: their tokens [end - first]."""

    def draft_level(self, request: LevelRequest) -> Level | None:
        if self._levels is None or request.draws is not None:
            return super().draft_level(request)
        nodes = request.tokens
        first = 0 if request.parents[0] < 0 else self._sequence.fed
        fed, inputs = self._level_inputs(nodes if first else self._unfed_tokens(nodes))
        levels = {"levels": request.levels, "floor": request.floor}
        ids, logp = self._sequence.draft_levels(
            self._levels, fed, request.parents, request.k, **levels, **inputs
        )
        if request.levels > 1:
            nodes = torch.cat((nodes, ids[len(nodes) - 1 : -1, 0]))
        self._level_drafted(self._levels, nodes, first, self._sequence.fed)
        return Level(ids, logp, logp)

    def _unfed_tokens(self, root: Tensor) -> Tensor:
        """Return the accepted tokens that were not fed yet, then the root."""
        return torch.cat((to_device(self._pending, root.device), root)) if self._pending else root


def fed_rows(tree: DraftTree, path: Sequence[int]) -> list[int]:
    """Return the drafter's rows of the accepted nodes, as far down the path as they were fed."""
    if tree.rows is None:
        return []
    rows = [tree.rows[node] for node in path]
    return rows[: rows.index(-1)] if -1 in rows else rows
