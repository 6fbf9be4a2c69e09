"""Sentences on the races of the examples. Every word of them follows from measured records.

Given lanes, returns the figures of a method on an example and sentences about them. Knows records
and folds, but no models and no files.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from specvl_demo.methods import base
from specvl_demo.records import LaneRecords
from specvl_demo.report.metrics import Comparison, compare_with_ar
from specvl_demo.report.remarks import timing_doubt

UNTIMED = {"short": "too few to time", "disturbed": "timing disturbed"}
NARROW = {"pocket": 5e-4, "photo": 0.1}
"""Nats between the two likeliest tokens below which another processor or number of threads may
choose the other one, by pair. Vision is torch's, whose last bits differ there; rounding to 8 bits
then moves the photo pair's margins by up to half a nat (0.05 to 0.1 where tokens nearly tie), the
pocket pair's by less than its record has digits.
"""


@dataclass(frozen=True)
class Finding:
    """A method on an example.

    untimed: Why its times are not meaningful, '' if they are.
    """

    example: str
    title: str
    comparison: Comparison
    n_tokens: int
    lossless: bool
    untimed: str = ""

    @property
    def speedup(self) -> float:
        return self.comparison.speedup_decode or 0.0

    @property
    def kept(self) -> float:
        return self.comparison.metrics.totals.accepted_per_round or 0.0


def find(example: str, plain: LaneRecords, lane: LaneRecords) -> Finding:
    doubt = timing_doubt(lane, plain)
    untimed = UNTIMED[doubt.kind] if doubt else ""
    n_tokens = len(lane.token_ids)
    title = base.find(lane.begin.method).title
    compared = compare_with_ar(lane, plain)
    return Finding(example, title, compared, n_tokens, lane.begin.lossless, untimed)


def find_all(example: str, lanes: Sequence[LaneRecords]) -> list[Finding]:
    """Return the figures of every lane but the first, the plain model's."""
    plain, *others = lanes
    return [find(example, plain, lane) for lane in others]


def sentences(findings: Sequence[Finding]) -> str:
    """Return the measurements of all methods of a race."""
    return " ".join(f"{finding.title}: {said(finding)}" for finding in findings)


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


def least_margin(lanes: Sequence[LaneRecords]) -> float:
    """Return by how many nats the target prefers its likeliest token to the next one where it is
    least sure, over all tokens of all answers.
    """
    rounds = [round_ for lane in lanes for round_ in lane.rounds]
    listed = [likely for round_ in rounds for likely in round_.candidates or ()]
    return min(math.log(first.prob / second.prob) for first, second, *_ in listed if second.prob)


def checksum(lanes: Sequence[LaneRecords]) -> str:
    """Return the checksum of the answers, so that unread ones are noticed."""
    return f"{zlib.crc32(chr(10).join(lane.text for lane in lanes).encode()):08x}"
