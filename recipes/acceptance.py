"""How many tokens of a chain the target would accept, by depth, measured on held-out conversations.

Simulates decoding exactly: a drafted token is accepted if it is the one the target emitted, and as
long as all are, the head was fed the same tokens as in real drafting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from torch import Tensor


def measure(
    batches: Iterable[Any],
    right: Callable[[Any, int], tuple[list[Tensor], Tensor]],
    length: int = 5,
) -> dict[str, Any]:
    """Return tau, the tokens per target forward, and the share of rounds that accept each depth.

    right(batch, length): For every step [B, N] whether row i's next token is predicted, and [B, N]
    which rows have a next token that is part of an answer.
    """
    accepted: list[int] = []
    tokens = 0
    for batch in batches:
        steps, mask = right(batch, length)
        guessed = [step.tolist() for step in steps]
        for row, wanted in enumerate(mask.tolist()):
            stop = 0
            for answer, run in groupby(wanted):
                start, stop = stop, stop + len(list(run))
                if answer:
                    accepted += _rounds([step[row][start:stop] for step in guessed])
                    tokens += stop - start
    n = len(accepted)
    depths = range(1, length + 1)
    return {
        "chain": length,
        "tau": tokens / n if n else None,
        "accepted_by_depth": [sum(k >= d for k in accepted) / n if n else None for d in depths],
        "rounds": n,
        "tokens": tokens,
    }


def _rounds(right: Sequence[Sequence[bool]]) -> Iterator[int]:
    """Yield the number of drafted tokens that each round of one answer accepts.

    right[s][i]: whether a chain begun s tokens earlier predicts token i of the answer.
    """
    at, n = 0, len(right[0])
    while at < n:
        accepted = 0
        while accepted < len(right) and at + accepted < n and right[accepted][at + accepted]:
            accepted += 1
        yield accepted
        at += accepted + 1
