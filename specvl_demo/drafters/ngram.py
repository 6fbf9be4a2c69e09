"""Prompt lookup: what followed the same words last time will follow again.

Given the prompt's and the answer's tokens, proposes the continuation of the most recent earlier occurrence of
the longest matching ending. No model, no log-probabilities worth the name: the proposal is certain. Chains
only.
Source: prompt lookup decoding (Saxena 2023), as in Hugging Face's `prompt_lookup_num_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Scores, Start, Verdict
from specvl_demo.drafters.none import NoDrafter


class NGram(NoDrafter):
    """longest, shortest: how many last tokens must have occurred before."""

    name = "prompt lookup"

    def __init__(self, longest: int = 3, shortest: int = 1) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"1 <= shortest <= longest, got shortest {shortest} and longest {longest}")
        self.longest, self.shortest = longest, shortest

    def begin(self, start: Start) -> None:
        """Index the prompt."""
        self._size = start.vocabulary.size
        self._banned = set(start.vocabulary.banned)
        self._tokens: list[int] = []
        # Where the latest occurrence of a run of tokens ended, for every length. Runs with a placeholder are
        # not indexed: all visual tokens look the same, so they would match and promise another one.
        self._ends: dict[tuple[int, ...], int] = {}
        for token in start.prompt.ids.tolist():
            self._append(token)
        self._draft: list[int] | None = None

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor | None:
        """Log-probabilities [1, V] with all mass on the proposed token, on the host; None without a match."""
        if parents[0] < 0:
            self._draft = self._look_up()
            self._place = 0
        if not self._draft or self._place >= len(self._draft):
            return None
        proposed = self._draft[self._place]
        self._place += 1
        said = torch.full((1, self._size), -torch.inf)
        said[0, proposed] = 0.0
        return said

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """The answer has grown."""
        for token in verdict.tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        """Index the runs that end before this token, then add it: a run never matches itself."""
        for length in range(self.shortest, self.longest + 1):
            run = tuple(self._tokens[-length:])
            if len(run) == length and self._banned.isdisjoint(run):
                self._ends[run] = len(self._tokens)
        self._tokens.append(token)

    def _look_up(self) -> list[int] | None:
        for length in range(self.longest, self.shortest - 1, -1):
            end = self._ends.get(tuple(self._tokens[-length:]))
            if end is not None:
                after = self._tokens[end:]
                stop = next(
                    (i for i, t in enumerate(after) if t in self._banned or t >= self._size), len(after)
                )
                if stop:
                    return after[:stop]
        return None
