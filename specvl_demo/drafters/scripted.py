"""A drafter that knows the answer and guesses right as often as it is told: for measuring, not for use.

Given the tokens the target will say and a pattern of how many guesses a round should succeed, drafts exactly
that. No method of the table uses it: it is there to test the loop, and to time a round at any acceptance that
is wanted. No model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Scores, Start, Verdict
from specvl_demo.drafters.none import NoDrafter


class Scripted(NoDrafter):
    """answer: the target's own answer, greedy. accept: right guesses in each round, repeated in turn.

    A wrong guess is the token with the next higher id; the tokens after it do not matter. For chains only.
    """

    name = "scripted"

    def __init__(self, answer: Sequence[int], accept: Sequence[int] = (3,)) -> None:
        if not accept or min(accept) < 0:
            raise ValueError(f"accept lists how many guesses are right in each round, got {list(accept)}")
        self.answer, self.accept = tuple(answer), tuple(accept)

    def begin(self, start: Start) -> None:
        """Start at the beginning of the answer."""
        self._size = start.vocabulary.size
        self._done = self._round = 0

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor | None:
        """Log-probabilities [1, V] with all mass on the guess; None where the script ends."""
        depth = int(parents[0]) + 1
        at = self._done + depth
        if at >= len(self.answer):
            return None
        right = depth < self.accept[self._round % len(self.accept)]
        said = torch.full((1, self._size), -torch.inf, device=tokens.device)
        said[0, self.answer[at] if right else (self.answer[at] + 1) % self._size] = 0.0
        return said

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """The answer has grown."""
        self._done += len(verdict.tokens)
        self._round += 1
