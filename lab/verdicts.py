"""The papers' claims, tested on rounds recorded here: pooled figures, ratios with intervals over
questions, and the resulting sentence.

The rule: a claim holds here if every comparison it needs does; a comparison holds if the lower end
of the 95 % interval of its ratio (a percentile bootstrap over questions) is above what it needs,
and is refuted if the upper end is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specvl_demo.compare.report import bootstrap, f1
from specvl_demo.records import LaneRecords

SAID = {
    "tau": ("a check yields", "times as many tokens"),
    "quality": ("the answers' F1 of words is", "times as high"),
}
"""What has a figure, and how its ratio is told."""


@dataclass(frozen=True)
class Sums:
    """Sums over answers, pooled over any questions. f1: Of the `judged` ones with a reference."""

    tokens: int = 0
    rounds: int = 0
    nodes: int = 0
    f1: float = 0.0
    judged: int = 0

    def __add__(self, other: Sums) -> Sums:
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Sums(*(a + b for a, b in both))

    @property
    def figures(self) -> dict[str, float | None]:
        """Return tau; nodes verified per round, including the root; quality; each may be None."""
        known = {
            "tau": (self.tokens, self.rounds),
            "nodes": (self.nodes, self.rounds),
            "quality": (self.f1, self.judged),
        }
        return {name: over / under if under else None for name, (over, under) in known.items()}


def sums(lane: LaneRecords, reference: str | None) -> Sums:
    """Return the sums of one answer."""
    return Sums(
        tokens=len(lane.token_ids),
        rounds=len(lane.rounds),
        nodes=sum(len(round_.tree.parent) for round_ in lane.rounds),
        f1=f1(lane.text, reference) if reference else 0.0,
        judged=int(bool(reference)),
    )


def pooled(answers: Sequence[Sums]) -> dict[str, float | None]:
    return sum(answers, Sums()).figures


def ratio(
    arm: Sequence[Sums], control: Sequence[Sums], figure: str
) -> tuple[float, list[float]] | None:
    """Return the arm's figure over the control's on the same questions, with its interval."""

    def of(*sums: Any) -> float | None:
        half = len(sums) // 2
        mine, theirs = (Sums(*some).figures[figure] for some in (sums[:half], sums[half:]))
        return mine / theirs if mine is not None and theirs else None

    both = [(*vars(a).values(), *vars(b).values()) for a, b in zip(arm, control, strict=True)]
    interval = bootstrap(both, of)
    whole = of(*map(sum, zip(*both, strict=True))) if interval is not None else None
    return None if whole is None or interval is None else (whole, interval)


def holds(one: Mapping[str, Any]) -> bool:
    """Whether a comparison reaches what it needs; False if it could not be made."""
    return one["interval"] is not None and one["interval"][0] > one["least"]


def verdict(claim: Mapping[str, Any]) -> str:
    """Return what came of a claim here, read after "On this pair it": it does not hold if a
    comparison's whole interval misses what is needed, and is undecided if an interval contains it.
    """
    counted = [one for one in claim["comparisons"] if not one.get("beside")]
    held = in_words([one for one in counted if holds(one)])
    missed = in_words([one for one in counted if not holds(one)])
    if not missed:
        return f"holds: {held}."
    refuted = any(one["interval"] and one["interval"][1] <= one["least"] for one in counted)
    begin = "does not hold" if refuted else "is neither borne out nor refuted"
    return f"{begin}: {missed}." + (f" What does hold: {held}." if held else "")


def in_words(comparisons: Sequence[Mapping[str, Any]]) -> str:
    """Return comparisons in words; what one has in common with the one before is told once."""
    sentences: list[str] = []
    before: str | None = None
    for one in comparisons:
        arm, control = _named(one["arm"]), _named(one["control"])
        if one["interval"] is None:
            sentences.append(f"{arm} could not be compared with {control}")
            continue
        subject, ratio = SAID[one["figure"]]
        begin = "" if one["figure"] == before else f"{subject} "
        low, high = (_end(value, one["least"]) for value in one["interval"])
        needed = "" if one.get("beside") else f"; more than {one['least']:g} is needed"
        sentences.append(
            f"{begin}{one['ratio']:.2f} {ratio} with {arm} as with {control}"
            f" (95 %: {low} to {high}{needed})"
        )
        before = one["figure"]
    return "; ".join(sentences)


def _named(arm: str) -> str:
    """Return an arm's name within a sentence: what makes it one follows in parentheses."""
    name, _, more = arm.partition(", ")
    return f"{name} ({more})" if more else name


def _end(value: float, least: float) -> str:
    """Write an end of an interval, with as many digits as tell it from what is needed."""
    digits = next(n for n in (2, 3, 4) if n == 4 or value == least or round(value, n) != least)
    return f"{value:.{digits}f}"
