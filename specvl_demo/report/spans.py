"""The answer as pieces of text with their origin: what the page, the terminal and a saved trace colour.

The colour comes from the token's own record, never from searching the text again. Gives plain data, no
markup: whoever shows it escapes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from specvl_demo.records import Origin, Round

Reason = Literal["accepted", "relaxed", "corrected", "bonus", "alone"]
"""Why a token stands there: drafted and what the target says; drafted and let through; the target's own where
the draft had something else, behind a draft that was kept whole, and where nothing was drafted."""


@dataclass(frozen=True)
class Piece:
    """Tokens [start, stop) of the answer that make whole characters, all emitted in one round.

    A character may be spread over several tokens; then they stand together, with the origin of the one that
    could change the answer most: relaxed before target before draft.
    """

    start: int
    stop: int
    text: str
    origin: Origin
    round: int
    reason: Reason


def pieces(rounds: Iterable[Round]) -> list[Piece]:
    """One piece per token, several tokens in one piece only where a character needs them."""
    out: list[Piece] = []
    waiting: list[tuple[int, Origin, Reason]] = []
    position = 0
    for round_ in rounds:
        for at, token in enumerate(round_.tokens):
            waiting.append((position, token.origin, reason(round_, at)))
            position += 1
            if token.text:
                out.append(_piece(waiting, token.text, round_.index))
                waiting = []
    if waiting:  # ends inside a character, or with tokens that have no text
        out.append(_piece(waiting, "", round_.index))
    return out


def _piece(tokens: list[tuple[int, Origin, Reason]], text: str, round_index: int) -> Piece:
    rank = {"relaxed": 0, "target": 1, "draft": 2}
    _, origin, why = min(tokens, key=lambda token: rank[token[1]])
    return Piece(tokens[0][0], tokens[-1][0] + 1, text, origin, round_index, why)


def reason(round_: Round, at: int) -> Reason:
    """Why token `at` of a round stands in the answer."""
    origin = round_.tokens[at].origin
    if origin == "draft":
        return "accepted"
    if origin == "relaxed":
        return "relaxed"
    if round_.n_drafted == 0:
        return "alone"
    return "corrected" if round_.path[-1] in round_.tree.parent else "bonus"


def runs(rounds: Iterable[Round]) -> list[tuple[Origin, str]]:
    """The text as runs of one origin: the shortest form that keeps the colours."""
    out: list[tuple[Origin, str]] = []
    for piece in pieces(rounds):
        if out and out[-1][0] == piece.origin:
            out[-1] = (piece.origin, out[-1][1] + piece.text)
        else:
            out.append((piece.origin, piece.text))
    return out
