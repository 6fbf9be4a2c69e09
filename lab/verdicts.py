"""The papers' claims, tested on rounds recorded here: pooled figures, ratios with intervals over
questions, and the resulting sentence.

The rule: a claim holds here if every comparison it needs does; a comparison holds if the lower end
of the 95 % interval of its ratio (a percentile bootstrap over questions) is above what it needs,
and is refuted if the upper end is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation
from typing import Any

from specvl_demo.records import LaneRecords, Round
from specvl_demo.report.answers import bootstrapped, f1

NAMES = {"tau": "τ", "quality": "F1 of words"}


@dataclass(frozen=True)
class Sums:
    """Sums over answers, so that their figures can be pooled over any questions.

    cost: Of the rounds in target steps, by the paper's cost model. f1: Of the answers that have a
    reference; `judged` counts them.
    """

    tokens: int = 0
    rounds: int = 0
    nodes: int = 0
    cost: float = 0.0
    f1: float = 0.0
    judged: int = 0

    def __add__(self, other: Sums) -> Sums:
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Sums(*(a + b for a, b in both))

    @property
    def figures(self) -> dict[str, float | None]:
        """Return tau; nodes verified per round, including the root; speedup at the paper's costs;
        quality.

        Each is None if there is no data.
        """
        known = {
            "tau": (self.tokens, self.rounds),
            "nodes": (self.nodes, self.rounds),
            "at_paper_costs": (self.tokens, self.cost),
            "quality": (self.f1, self.judged),
        }
        return {name: over / under if under else None for name, (over, under) in known.items()}


def sums(lane: LaneRecords, draft_cost: float | None, reference: str | None) -> Sums:
    """Return the sums of one answer. Levels that were drafted but not verified are in no record and
    not counted.

    draft_cost: A draft forward's cost in target steps; None if the paper does not state it.
    """
    levels = [_depth(round_.tree.parent) for round_ in lane.rounds]
    return Sums(
        tokens=len(lane.token_ids),
        rounds=len(lane.rounds),
        nodes=sum(len(round_.tree.parent) for round_ in lane.rounds),
        cost=0.0 if draft_cost is None else priced(levels, draft_cost),
        f1=f1(lane.text, reference) if reference else 0.0,
        judged=int(bool(reference)),
    )


def priced(levels: Sequence[int], draft_cost: float) -> float:
    """Return the cost, in target steps, of rounds that drafted so many levels each.

    One step, and a draft forward per level, however many nodes are verified, as in τ / (γ·c + 1) of
    equation 1 in arXiv 2601.20357.
    """
    return sum(1 + draft_cost * level for level in levels)


def _depth(parent: Sequence[int]) -> int:
    depth = [0] * len(parent)
    for node, above in enumerate(parent):
        depth[node] = depth[above] + 1 if above >= 0 else 0
    return max(depth)


def pooled(answers: Sequence[Sums]) -> dict[str, float | None]:
    return sum(answers, Sums()).figures


def ratio(
    arm: Sequence[Sums], control: Sequence[Sums], figure: str
) -> tuple[float, list[float]] | None:
    """Return the arm's figure over the control's, with its 95 % interval; None if one has none.

    Both must have answered the same questions, in the same order.
    """

    def of(questions: Sequence[tuple[Sums, Sums]]) -> float | None:
        mine, theirs = (pooled(some)[figure] for some in zip(*questions, strict=True))
        return mine / theirs if mine is not None and theirs else None

    both = list(zip(arm, control, strict=True))
    interval = bootstrapped(both, of)
    whole = of(both) if interval is not None else None
    return None if whole is None or interval is None else (whole, interval)


def lagged(lanes: Sequence[LaneRecords], note: str) -> float | None:
    """Return the correlation of a note with itself a round later, pooled over answers; None if
    there are too few.
    """
    series = [[value for _, value in _noted([lane], note)] for lane in lanes]
    pairs = [pair for values in series for pair in zip(values, values[1:], strict=False)]
    return _correlation(pairs)


def foretold(lanes: Sequence[LaneRecords], note: str) -> float | None:
    """Return the correlation of a note with the number of drafted tokens that its round
    accepted.
    """
    return _correlation([(value, len(one.path) - 1) for one, value in _noted(lanes, note)])


def _noted(lanes: Sequence[LaneRecords], note: str) -> list[tuple[Round, float]]:
    """Return the rounds that have a number under this note, with it."""
    found = ((round_, round_.notes.get(note)) for lane in lanes for round_ in lane.rounds)
    return [(one, float(value)) for one, value in found if isinstance(value, int | float)]


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    if len(pairs) < 3:
        return None
    try:
        return correlation(*zip(*pairs, strict=True))
    except StatisticsError:  # one of both never changes
        return None


def holds(one: Mapping[str, Any]) -> bool:
    """Whether a comparison reaches what it needs; False if it could not be made."""
    return one["interval"] is not None and one["interval"][0] > one["least"]


def verdict(claim: Mapping[str, Any]) -> str:
    """Return the sentence on whether a claim of the record holds here, from the numbers only.

    It does not hold if a comparison's whole interval misses what is needed; otherwise, if an
    interval contains it, these questions do not decide.
    """
    counted = [one for one in claim["comparisons"] if not one.get("beside")]
    held = [_sentence(one) for one in counted if holds(one)]
    missed = [_sentence(one) for one in counted if not holds(one)]
    if not missed:
        return f"Holds here: {'; '.join(held)}."
    refuted = any(one["interval"] and one["interval"][1] <= one["least"] for one in counted)
    begin = "Does not hold here, because" if refuted else "Not decided here:"
    rest = f" What does hold: {'; '.join(held)}." if held else ""
    return f"{begin} {'; '.join(missed)}.{rest}"


def beside(claim: Mapping[str, Any]) -> str:
    """Return the comparisons of a claim that decide nothing, in a sentence; empty without any."""
    sentences = [_sentence(one) for one in claim["comparisons"] if one.get("beside")]
    return f"Beside it: {'; '.join(sentences)}." if sentences else ""


def _sentence(one: Mapping[str, Any]) -> str:
    name = NAMES[one["figure"]]
    if one["interval"] is None:
        return f"{name} of {one['arm']} could not be compared with {one['control']}"
    low, high = one["interval"]
    open_ = ", which these questions do not decide" if low <= one["least"] < high else ""
    needed = "" if one.get("beside") else f"; above {one['least']:g} is needed{open_}"
    return (
        f"{name} of {one['arm']} is {one['ratio']:.2f} times that of {one['control']}"
        f" ({_end(low, one['least'])} to {_end(high, one['least'])}{needed})"
    )


def _end(value: float, least: float) -> str:
    """Write an end of an interval, with as many digits as tell it from what is needed."""
    digits = next(n for n in (2, 3, 4) if n == 4 or value == least or round(value, n) != least)
    return f"{value:.{digits}f}"
