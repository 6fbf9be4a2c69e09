"""The answer as runs of text with their origin, for `trace show` and `trace html`. Callers escape it."""

from __future__ import annotations

from collections.abc import Iterable

from specvl_demo.records import Origin, Round

RANK: tuple[Origin, ...] = ("relaxed", "target", "draft")


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
