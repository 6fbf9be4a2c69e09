"""The answer as runs of text with their origin, for `trace show` and `trace html`. Callers escape it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from specvl_demo.records import Origin, Round

RANK: tuple[Origin, ...] = ("relaxed", "target", "draft")
Reason = Literal["accepted", "relaxed", "corrected", "bonus", "alone"]
"""Why a token stands there: drafted and what the target says; drafted and let through; the target's own where
the draft had something else, behind a draft that was kept whole, and where nothing was drafted."""


def reason(round_: Round, at: int) -> Reason:
    origin = round_.tokens[at].origin
    if origin == "draft":
        return "accepted"
    if origin == "relaxed":
        return "relaxed"
    if round_.n_drafted == 0:
        return "alone"
    return "corrected" if round_.path[-1] in round_.tree.parent else "bonus"


def runs(rounds: Iterable[Round]) -> list[tuple[Origin, str]]:
    """The text as runs of one origin: the shortest form that keeps the colours.

    A character may be spread over several tokens, all but the last without text; it has the origin of the one
    that could change the answer most: relaxed before target before draft.
    """
    out: list[tuple[Origin, str]] = []
    waiting: list[Origin] = []
    for token in (token for round_ in rounds for token in round_.tokens):
        waiting.append(token.origin)
        if token.text:
            origin = min(waiting, key=RANK.index)
            before = out.pop()[1] if out and out[-1][0] == origin else ""
            out.append((origin, before + token.text))
            waiting = []
    return out
