"""Suffix lookup: an automaton over prompt and answer drafts a tree weighted by how often each
continuation occurred.

The frequency-weighted tree is SuffixDecoding's (Oliaro et al., arXiv 2411.04975), the automaton is
SAM-Decoding's (Hu et al., arXiv 2411.10666). No model; knows only token ids. A plug-in: name this
file in SPECVL_METHODS (docs/adding-a-method.md).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor

import specvl_demo
from specvl_demo.core.sampling import Sampler
from specvl_demo.core.tree import DraftTree, chain, shape_of
from specvl_demo.core.types import (
    Drafter,
    LaneStart,
    LevelRequest,
    Policy,
    Scores,
    Verdict,
    Vocabulary,
)
from specvl_demo.methods.base import TREE, Method, Part
from specvl_demo.methods.declare import PolicySettings, Settings, setting
from specvl_demo.methods.policies import CHAIN
from specvl_demo.records import Chart, ChartSeries

_COUNTED = 64
"""Number of suffixes, longest first, whose counts are updated per token: bounds the work if one
token repeats for thousands of positions.
"""


class Automaton:
    """A suffix automaton with occurrence counts, grown token by token.

    A state represents strings that end at the same places; its count is the number of these places.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._size, self._banned = vocabulary.size, frozenset(vocabulary.banned)
        self._next: list[dict[int, int]] = [{}]
        self._link, self._length, self._count = [-1], [0], [0]
        self._last = 0
        self._walls = count(1)

    def add(self, tokens: Iterable[int]) -> None:
        """Append tokens.

        All visual tokens look the same, so a run of placeholders becomes one separator that occurs
        nowhere else: no match crosses it, and it is never drafted.
        """
        walled = False
        for token in tokens:
            outside = token in self._banned or token >= self._size
            if not outside:
                self._append(token)
            elif not walled:
                self._append(-next(self._walls))
            walled = outside

    def match(self) -> tuple[int, int]:
        """Return state and length of the longest ending that occurred before; (0, 0) for none."""
        state = self._link[self._last] if self._last else 0
        return state, self._length[state]

    def followers(self, state: int) -> tuple[int, dict[int, int]]:
        """Return what followed a state's strings, by count, and the state it was found at.

        That is a shorter state if nothing followed the given one; (0, {}) if there is none.
        """
        while state > 0:
            after = {t: self._count[s] for t, s in self._next[state].items() if t >= 0}
            if after:
                return state, after
            state = self._link[state]
        return 0, {}

    def after(self, state: int, token: int) -> int:
        """Return the state after a follower; 0 for a token that never followed."""
        return self._next[state].get(token, 0)

    def _append(self, token: int) -> None:
        """Add a state, and at most one that is split off another (Blumer et al. 1985)."""
        new = self._state({}, self._length[self._last] + 1, 0, 0)
        above = self._last
        while above >= 0 and token not in self._next[above]:
            self._next[above][token] = new
            above = self._link[above]
        if above >= 0:
            old = self._next[above][token]
            if self._length[old] > self._length[above] + 1:
                split = self._state(
                    dict(self._next[old]),
                    self._length[above] + 1,
                    self._link[old],
                    self._count[old],
                )
                while above >= 0 and self._next[above].get(token) == old:
                    self._next[above][token] = split
                    above = self._link[above]
                self._link[old] = split
                old = split
            self._link[new] = old
        self._last = new
        for state in islice(self._suffixes(new), _COUNTED):
            self._count[state] += 1

    def _suffixes(self, state: int) -> Iterable[int]:
        while state > 0:
            yield state
            state = self._link[state]

    def _state(self, after: dict[int, int], length: int, link: int, seen: int) -> int:
        self._next.append(after)
        self._length.append(length)
        self._link.append(link)
        self._count.append(seen)
        return len(self._next) - 1


@dataclass(frozen=True)
class SuffixSettings(Settings):
    """How long a match must be, and how far it is trusted."""

    matched: int = setting(1, "shortest match, in tokens", 1, 64)
    trust: float = setting(1.0, "tokens drafted in a row per token of the match (alpha)", 0.1, 64.0)


class Suffix(Drafter):
    """Proposes tokens by how often each followed the longest ending of the text that occurred
    before.

    # choice: SuffixDecoding spends alpha * p nodes on a match of p tokens; here its drafts are that
    deep, so that the bound holds for chains and for trees of any policy.

    # choice: it also keeps earlier answers to other questions; on a page these come from other
    visitors, so only the prompt (with the conversation's earlier turns) and the answer are read.
    """

    name = "suffix lookup"

    def __init__(self, settings: SuffixSettings) -> None:
        self._settings = settings
        self._matched = 0

    def begin(self, start: LaneStart) -> None:
        """Read the prompt."""
        self._size = start.vocabulary.size
        self._text = Automaton(start.vocabulary)
        self._text.add(start.prompt.ids.tolist())

    def extend(self, tokens: Tensor, parents: Sequence[int]) -> Tensor | None:
        """Return log-frequencies [k, V] of what followed, on the host.

        None if nothing is proposed: all of these tokens are new, or too far from the match.
        """
        if parents[0] < 0:
            self._rows: list[tuple[int, int]] = []
            state, self._matched = self._text.match()
            rows = [(state, 0)] if self._matched >= self._settings.matched else [(0, 0)]
        else:
            above = [self._rows[parent] for parent in parents]
            rows = [
                (self._text.after(state, token), depth + 1)
                for (state, depth), token in zip(above, tokens.tolist(), strict=True)
            ]
        log_probs = torch.full((len(rows), self._size), -torch.inf)
        for i, (state, depth) in enumerate(rows):
            if depth < self._settings.trust * self._matched:
                state, after = self._text.followers(state)
                rows[i] = (state, depth)
                total = sum(after.values())
                for token, times in after.items():
                    log_probs[i, token] = math.log(times / total)
        alive = log_probs.isfinite().any(-1)
        if not alive.any():
            return None
        # A dead end among others must still be a distribution; nothing in it is likely.
        log_probs[~alive] = -math.log(self._size)
        self._rows += rows
        return log_probs

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        self._text.add(verdict.tokens)

    def round_notes(self) -> Mapping[str, Any]:
        """Return `matched`: the length of the match that this round's draft follows."""
        return {"matched": self._matched}


@dataclass(frozen=True)
class GreedySettings(PolicySettings):
    """The size of the tree, and the probability below which nothing is drafted."""

    size: int = setting(8, "nodes of the tree, including the root", 2, 129)
    least: float = setting(
        0.1, "stop drafting a path when its probability falls below this", 0.0, 1.0
    )


class GreedyTree(Policy):
    """Grows the overall likeliest path by one token at a time (SuffixDecoding §4.2).

    The drafter is called once per node, which suits lookup but not a model.
    """

    def __init__(self, settings: GreedySettings) -> None:
        self.max_nodes = settings.size
        self._least = math.log(settings.least) if settings.least else -math.inf

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft a tree at most `room` deep; smaller if the drafter proposes less."""
        tokens, parent, logps, rows = [int(root)], [-1], [0.0], [-1]
        depths, fed = [0], count()
        waiting: list[tuple[float, int, int, int, float]] = []
        order = count()

        def feed(node: int, above: int, value: float) -> None:
            if depths[node] >= room:
                return
            feed = torch.tensor([tokens[node]], device=root.device)
            request = LevelRequest(feed, (above,), self.max_nodes, depths[node], draws)
            level = drafter.draft_level(request)
            if level is None:
                return
            rows[node] = next(fed)
            for token, logp, score in zip(*(part[0] for part in level.read()), strict=True):
                if math.isfinite(score) and value + score >= self._least:
                    heapq.heappush(waiting, (-value - score, next(order), node, token, logp))

        feed(0, -1, 0.0)
        while waiting and len(tokens) < self.max_nodes:
            value, _, above, token, logp = heapq.heappop(waiting)
            tokens.append(token)
            parent.append(above)
            logps.append(logp)
            rows.append(-1)
            depths.append(depths[above] + 1)
            if len(tokens) < self.max_nodes:
                feed(len(tokens) - 1, rows[above], -value)
        if len(tokens) == 1:
            return DraftTree(root, chain(0), rows=tuple(rows))
        return DraftTree(
            torch.tensor(tokens, device=root.device),
            shape_of(tuple(parent)),
            logp=torch.tensor(logps, device=root.device),
            rows=tuple(rows),
        )


SUFFIX = Part(
    "drafter",
    "suffix",
    "suffix lookup",
    lambda models, views, mixer, settings: Suffix(settings),
    SuffixSettings,
    gives=TREE,
    charts=(
        Chart(
            "matched",
            "Length of the match",
            "How many of the last tokens had occurred before in the same order.",
            "steps",
            [ChartSeries("notes.matched", "matched")],
            "tokens",
            shade="accepted",
        ),
    ),
)
GREEDY_TREE = Part(
    "policy",
    "greedy-tree",
    "a tree grown at its likeliest path",
    GreedyTree,
    GreedySettings,
    needs=TREE,
    label=lambda settings: f"greedy tree of {settings.size}",
)

specvl_demo.register(
    Method(
        "suffix",
        "Suffix lookup",
        "No model: the longest ending that occurred before is continued as it was then.",
        drafter=SUFFIX,
        policy=GREEDY_TREE,
        options=(CHAIN,),
        reference="Oliaro et al., arXiv 2411.04975; Hu et al., arXiv 2411.10666",
        order=111,
        presets={
            # vLLM's defaults, except its limit of 32 tokens.
            "paper": {"size": 33, "trust": 1.0, "least": 0.1},
            "photo": {"size": 6, "trust": 2.0, "least": 0.2},
            "pocket": {"size": 6, "trust": 2.0, "least": 0.2},
        },
        url="https://arxiv.org/abs/2411.04975",
    )
)
