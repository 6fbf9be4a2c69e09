"""Drafters over a sequence of their own, whose decoder or head drafts below the nodes that are fed.

Given tokens and parents, asks for a level of a tree, a chain of levels or a whole tree by one call,
where our own kernels or graphs run, else falls back to log-probabilities. Knows what was fed in
this round; nothing of what is accepted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from specvl_demo.core.sampling import Level
from specvl_demo.core.transfer import as_index, to_device
from specvl_demo.core.tree import DraftTree, GrownTree
from specvl_demo.core.types import Drafter, LaneStart, LevelRequest, Verdict
from specvl_demo.decoders.graphs import draft_shapes
from specvl_demo.decoders.layer_stack import LevelDrafter
from specvl_demo.decoders.sequence import CachedSequence


class LevelCalls(Drafter):
    """A drafter with a sequence of its own, `_sequence`, made before `_begin_levels` is called.

    Attributes:
        _pending: Accepted tokens that were not fed yet.
        _log_probs: [m, n, R] after this round's nodes, by sequence, in one part or several.
        _last_id: Which it can read, if it lacks some of its target's.
    """

    _sequence: CachedSequence
    _last_id: int | None = None

    def _begin_levels(self, start: LaneStart) -> None:
        sequence = self._sequence
        backend = sequence.backend
        self._logp = backend.log_probabilities(start.vocabulary)
        weights = backend.level_weights(self._logp)
        self._levels: LevelDrafter | None = None
        if weights is not None:
            given = sequence.cache, sequence.shifts[0], start.max_nodes
            self._levels = LevelDrafter(weights, *given)
        self._shapes = draft_shapes(backend, start)
        self.grows = self._shapes[0].tree is not None
        self._pending: list[int] = []
        self._begin_round()

    def _begin_round(self) -> None:
        self._log_probs: list[Tensor] = []
        self._hidden: list[Tensor] = []

    def prepare(self, start: LaneStart) -> None:
        self._sequence.cache.prepare(self._shapes)

    @abstractmethod
    def _inputs(self) -> dict[str, Tensor]:
        """Return what drafting reads besides tokens: `features` [r, D], for a head, those before
        the tokens up to the root; `weights` [m] of several sequences in their mixture.
        """

    def extend(self, tokens: Tensor, parents: Sequence[int]) -> Tensor:
        """Return log-probabilities [k, V] after each fed node, mixed over the sequences."""
        sequence = self._sequence
        inputs = self._inputs()
        backend = sequence.backend
        step: Tensor | int = 0
        fed = self._as_fed(tokens, parents)
        features = inputs.get("features", fed)
        if self._hidden and "features" in inputs:
            features = torch.cat(self._hidden, 1)[0][as_index(parents, tokens.device)]
            if backend.n_steps > 1:
                step = sequence.depth_below(parents).clamp_max(backend.n_steps - 1)
        x = backend.draft_rows(fed, features, step).expand(sequence.cache.batch, -1, -1)
        hidden = sequence.run_root(x)[:, -1:] if parents[0] < 0 else sequence.extend(x, parents)
        log_probs = self._logp.row_log_probs(hidden)
        self._hidden.append(hidden)
        self._log_probs.append(log_probs)
        return self._logp.mixed(log_probs, inputs.get("weights"))

    def draft_level(self, request: LevelRequest) -> Level | None:
        levels = self._levels
        if request.draws is not None or not (self.grows or levels):
            return super().draft_level(request)
        sequence = self._sequence
        fed = self._as_fed(request.tokens, request.parents)
        places = tree = None
        if levels is None:
            made = sequence.draft_tree(self._shapes[0], fed, self._inputs())
            places, ids, logp, log_probs, *chosen = made
            places = places[:, None].expand_as(ids)
            tree = GrownTree(*chosen) if chosen else None
        else:
            ids, logp = sequence.draft_levels(levels, fed, request, **self._inputs())
            log_probs = levels.log_probs[: sequence.fed]
        self._log_probs = [log_probs.transpose(0, 1)]
        return Level(ids, logp, logp, places, tree)

    def _as_fed(self, tokens: Tensor, parents: Sequence[int]) -> Tensor:
        """Return tokens as they are fed: with pending ones before a root, which begins a round. For
        ids that its vocabulary lacks any will do, since the draft after them is lost.
        """
        if parents[0] < 0:
            self._begin_round()
            if self._pending:
                tokens = torch.cat((to_device(self._pending, tokens.device), tokens))
            self._pending = []
        return tokens if self._last_id is None else tokens.clamp_max(self._last_id)

    def _skip_round(self, tree: DraftTree, verdict: Verdict) -> None:
        """Note the tokens of a round in which nothing was drafted, so not even its root was fed."""
        self._pending += [*tree.tokens[:1].tolist(), *verdict.tokens[:-1]]


def fed_rows(tree: DraftTree, path: Sequence[int]) -> list[int]:
    """Return the drafter's rows of the accepted nodes, as far down the path as they were fed."""
    if tree.rows is None:
        return []
    rows = [tree.rows[node] for node in path]
    return rows[: rows.index(-1)] if -1 in rows else rows
