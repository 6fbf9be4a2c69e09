"""How many tokens of a chain the target would accept, by depth, measured on held-out conversations.

Given a head and the target's features of its own greedy answers, simulates decoding exactly: a
drafted token is accepted if it is the one the target emitted, and as long as all are, the head was
fed the same tokens as in real drafting. Knows neither trees nor clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from torch import Tensor


@dataclass
class Tally:
    """Rounds by number of accepted drafted tokens, and their tokens. length: of the chain."""

    length: int
    rounds: list[int] = field(default_factory=list)
    tokens: int = 0

    def __post_init__(self) -> None:
        self.rounds = self.rounds or [0] * (self.length + 1)

    def add(self, right: Sequence[Sequence[bool]]) -> None:
        """Add one answer. right[s][i]: whether a chain begun s tokens earlier predicts token i of
        the answer.
        """
        i, n = 0, len(right[0])
        while i < n:
            accepted = 0
            while accepted < self.length and i + accepted < n and right[accepted][i + accepted]:
                accepted += 1
            self.rounds[accepted] += 1
            gained = min(accepted + 1, n - i)
            self.tokens += gained
            i += gained

    def report(self) -> dict[str, Any]:
        """Return tau, the tokens per target forward including the target's own, and by depth, the
        share of rounds that accept so many.
        """
        n = sum(self.rounds)
        at_least = [sum(self.rounds[d:]) / n if n else None for d in range(1, self.length + 1)]
        return {
            "chain": self.length,
            "tau": self.tokens / n if n else None,
            "accepted_by_depth": at_least,
            "rounds": n,
            "tokens": self.tokens,
        }


def measure(
    batches: Iterable[Any],
    right: Callable[[Any, int], tuple[list[Tensor], Tensor]],
    length: int = 5,
) -> dict[str, Any]:
    """Return a report over batches.

    right(batch, length): For every step [B, N] whether row i's next token is predicted, and [B, N]
    which rows have a next token that is part of an answer.
    """
    tally = Tally(length)
    for batch in batches:
        steps, mask = right(batch, length)
        guessed = [step.tolist() for step in steps]
        for row, wanted in enumerate(mask.tolist()):
            stop = 0
            for answer, run in groupby(wanted):
                start, stop = stop, stop + len(list(run))
                if answer:
                    tally.add([step[row][start:stop] for step in guessed])
    return tally.report()
