"""Sentences on the races of the examples. Every word of them follows from measured records.

Given lanes, returns the figures of a method on an example and sentences about them. Knows records
and folds, but no models and no files.
"""

from __future__ import annotations

import statistics
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from specvl_demo.records import LaneRecords, Round
from specvl_demo.report.metrics import Comparison, compare
from specvl_demo.report.remarks import MIN_TOKENS, disturbance

MOST_WORDS = 3


@dataclass(frozen=True)
class Finding:
    """A method on an example.

    turned: The target's words where drafts were rejected, most often first. untimed: Why its times
    are not meaningful, '' if they are.
    """

    example: str
    comparison: Comparison
    n_tokens: int
    lossless: bool
    turned: tuple[str, ...]
    untimed: str = ""

    @property
    def speedup(self) -> float:
        return self.comparison.speedup_decode or 0.0

    @property
    def kept(self) -> float:
        return self.comparison.metrics.totals.accepted_per_round or 0.0


def find(example: str, plain: LaneRecords, lane: LaneRecords) -> Finding:
    counted = Counter(
        word
        for round_ in lane.rounds
        if corrected(round_) and (word := round_.tokens[-1].text.strip())
    )
    turned = tuple(word for word, _ in counted.most_common(MOST_WORDS))
    n_tokens = len(lane.token_ids)
    short = min(n_tokens, len(plain.token_ids)) < MIN_TOKENS
    untimed = "too few to time" if short else "timing disturbed" if disturbance(lane, plain) else ""
    return Finding(example, compare(lane, plain), n_tokens, lane.begin.lossless, turned, untimed)


def corrected(round_: Round) -> bool:
    """Whether the target wrote its own token where the draft continued differently."""
    return round_.tokens[-1].origin == "target" and round_.path[-1] in round_.tree.parent


def said(found: Finding) -> str:
    """Return the measurements in a sentence."""
    totals, cost = found.comparison.metrics.totals, found.comparison.rho
    rounds = f"{totals.n_rounds} round" + ("s" if totals.n_rounds != 1 else "")
    relaxed = "" if found.lossless else f"; {totals.n_relaxed} of {found.n_tokens} tokens relaxed"
    if found.untimed:
        kept = f"{found.kept:.1f} drafted tokens kept a round{relaxed}."
        return f"{found.n_tokens} tokens in {rounds}, {found.untimed}: {kept}"
    return (
        f"{found.speedup:.2f}× autoregressive decoding over {rounds}: {found.kept:.1f} drafted"
        f" tokens kept a round, which cost {cost['draft']:.1f} autoregressive steps to draft and"
        f" {cost['verify']:.1f} to verify{relaxed}."
    )


def lesson(findings: Sequence[Finding]) -> dict[str, dict[str, str]]:
    """Return the example on which most drafted tokens are kept and the one on which fewest are.

    Decided only by what is kept: times are another machine's, and change from race to race.
    """
    worst, *_, best = sorted(findings, key=lambda found: found.kept)

    def entry(found: Finding, word: str) -> dict[str, str]:
        others = statistics.median(other.kept for other in findings if other is not found)
        turned = (
            f" Drafts fell at {_quoted(found.turned)}." if found is worst and found.turned else ""
        )
        totals = found.comparison.metrics.totals
        relaxed = (
            f"; {totals.n_relaxed} of {found.n_tokens} tokens relaxed" if not found.lossless else ""
        )
        rounds = f"{totals.n_rounds} rounds for {found.n_tokens} tokens"
        more = f"{word} drafted tokens are kept here than on the other examples"
        kept = f"{found.kept:.1f} a round against {others:.1f}, all with the shipped settings"
        return {
            "example": found.example,
            "why": f"{more}: {kept}; {rounds}{relaxed}.{turned}",
        }

    return {"shines": entry(best, "More"), "struggles": entry(worst, "Fewer")}


def checksum(lanes: Sequence[LaneRecords]) -> str:
    """Return the checksum of the answers, so that unread ones are noticed."""
    return f"{zlib.crc32(chr(10).join(lane.text for lane in lanes).encode()):08x}"


def _quoted(words: Sequence[str]) -> str:
    marked = [f"“{word}”" for word in words]
    return marked[0] if len(marked) == 1 else f"{', '.join(marked[:-1])} and {marked[-1]}"
