"""Figures of a lane, and of a lane compared with the AR lane, as folds over its rounds: Σ tokens /
Σ seconds, never a mean of ratios; what was not measured is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from statistics import fmean, median

from specvl_demo.records import PHASES, LaneRecords, Origin, Round, Totals, fold

SLACK = 0.02
"""How far a measured speedup may exceed τ before it counts as an error: timers are not exact."""
WORTH_SAVING = 0.1
"""Share of a check's cost from which it is told what would be gained without it."""
FEWEST = 5
"""Drafts at a depth below which the share that was accepted is not reported."""

RANK: tuple[Origin, ...] = ("relaxed", "target", "draft")


def fixed(value: float, digits: int) -> str:
    """Return a number with so many decimals, a half rounded up as by the page's scripts."""
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)}"


def runs(rounds: Iterable[Round]) -> list[tuple[Origin, str]]:
    """Return the text as runs of one origin: the shortest form that keeps the colours.

    A character may be spread over several tokens, all but the last without text; it has the origin
    of the one that could change the answer most: relaxed before target before draft.
    """
    out: list[tuple[Origin, str]] = []
    waiting = []
    for token in (token for round_ in rounds for token in round_.tokens):
        waiting.append(token.origin)
        if token.text:
            origin = min(waiting, key=RANK.index)
            before = out.pop()[1] if out and out[-1][0] == origin else ""
            out.append((origin, before + token.text))
            waiting = []
    return out


@dataclass(frozen=True)
class Metrics:
    """What one lane, or several pooled together, did. Ratios are None if their denominator is 0.

    Attributes:
        typical_s: Median seconds of a round; None without rounds.
        stretch: Seconds of decoding an answer, the mean of all its timings, over those of the
            recorded one: above or below 1 only if a short answer was timed again.
    """

    totals: Totals
    before_s: float
    typical_s: float | None = None
    stretch: float = 1.0

    @property
    def decode_s(self) -> float:
        return self.totals.decode_s * self.stretch

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of decoding, over all timings."""
        return _ratio(self.totals.n_tokens, self.decode_s)

    @property
    def tokens_per_s_total(self) -> float | None:
        """Tokens per second of the whole answer: vision, prefill and decoding."""
        return _ratio(self.totals.n_tokens, self.before_s + self.decode_s)

    @property
    def relaxed_share(self) -> float | None:
        """Share of emitted tokens that a strict verifier would have rejected."""
        return _ratio(self.totals.n_relaxed, self.totals.n_tokens)

    @property
    def shares(self) -> dict[str, float | None]:
        """Shares of decoding time: draft, verify, commit, other; they sum to 1."""
        totals = self.totals
        return {name: _ratio(seconds, totals.decode_s) for name, seconds in _phases(totals)}


def measure_lanes(lanes: LaneRecords | Iterable[LaneRecords]) -> Metrics:
    """Return metrics of one lane, or of several pooled: all tokens over all seconds."""
    lanes = [lanes] if isinstance(lanes, LaneRecords) else list(lanes)
    rounds = [round_ for lane in lanes for round_ in lane.rounds]
    totals = fold(rounds)
    timed_s = sum(fmean(timings(lane)) for lane in lanes)
    return Metrics(
        totals,
        sum(lane.begin.before_s for lane in lanes),
        median(round_.seconds for round_ in rounds) if rounds else None,
        _ratio(timed_s, totals.decode_s) or 1.0,
    )


def timings(lane: LaneRecords) -> list[float]:
    """Return the seconds of every decoding of a lane's answer, the recorded one first."""
    return [sum(r.seconds for r in lane.rounds), *(lane.end.again if lane.end else ())]


@dataclass(frozen=True)
class Comparison:
    """Figures of a method beside those of AR, which answered the same questions: S, τ and ρ."""

    metrics: Metrics
    ar: Metrics

    @property
    def speedup_decode(self) -> float | None:
        """S: decode tokens per second over AR's. Above τ it would be an error."""
        return _ratio(self.metrics.tokens_per_s, self.ar.tokens_per_s)

    @property
    def speedup_total(self) -> float | None:
        """The same including vision and prefill on both sides."""
        return _ratio(self.metrics.tokens_per_s_total, self.ar.tokens_per_s_total)

    @property
    def rho(self) -> dict[str, float | None]:
        """ρ by phase: what a round costs in AR steps. S = τ / Σρ."""
        times = self.metrics
        step = _ratio(self.ar.decode_s, self.ar.totals.n_rounds)
        rounds = times.totals.n_rounds
        return {
            name: _ratio(_ratio(seconds * times.stretch, rounds), step)
            for name, seconds in _phases(times.totals)
        }

    def why_doubtful(self) -> str | None:
        """Return why the measurement contradicts itself, else None.

        S ≤ τ must hold, since a verify pass cannot be cheaper than the AR step it contains.
        """
        speedup = self.speedup_decode
        tau = self.metrics.totals.tau
        if speedup is None or tau is None or speedup <= tau * (1 + SLACK):
            return None
        return f"a speedup of {fixed(speedup, 2)} is above τ {fixed(tau, 2)}, which is impossible"

    @property
    def rough_speedup(self) -> float | None:
        """S where it is doubtful. If the sums contradict themselves it is that of typical rounds,
        which a few disturbed ones do not change.
        """
        tau = self.metrics.totals.tau
        if tau is None or self.why_doubtful() is None:
            return self.speedup_decode
        return min(tau, _ratio(tau, _ratio(self.metrics.typical_s, self.ar.typical_s)) or tau)

    def why_this_speed(self, rough: bool = False) -> str | None:
        """Return one sentence on where the speedup comes from, without full stop: what a round
        yields and costs, and what would be gained without its largest cost; None if unknown.

        rough: The times are doubtful.
        """
        speedup = self.rough_speedup if rough else self.speedup_decode
        totals = self.metrics.totals
        tau = totals.tau
        rho = {name: cost or 0.0 for name, cost in self.rho.items()}
        whole = sum(rho.values())
        if not speedup or tau is None or not whole or not totals.n_drafted:
            return None
        cost = tau / speedup
        share = rho["draft"] / whole
        also = f", {fixed(100 * share, 0)} % of it drafting" if share >= SLACK else ""
        nodes = fixed(self.nodes_per_round, 0)
        savings = {
            "drafting cost nothing": rho["draft"],
            f"checking {nodes} tokens cost no more than writing one": max(0.0, rho["verify"] - 1),
            "only the models took time": rho["commit"] + rho["other"],
        }
        what, saved = max(savings.items(), key=lambda item: item[1])
        gain = speedup
        lever = ""
        if saved >= WORTH_SAVING * whole:
            gain = tau / (cost * (1 - saved / whole))
            least = f"it would be {fixed(gain, 2)}×" if not rough else "that would save the most"
            lever = f"; if {what}, {least}"
        if gain < 1:
            lever += (
                "; too few drafts are kept"
                f" ({fixed(totals.n_accepted / totals.n_rounds, 1)} a check)"
            )
        factor = f"about {fixed(speedup, 1)}×" if rough else f"{fixed(speedup, 2)}×"
        return (
            f"{factor}: {fixed(tau, 1)} tokens a check, {'and' if speedup >= 1 else 'but'} a check"
            f" costs {fixed(cost, 1)} AR steps{also}{lever}"
        )

    @property
    def nodes_per_round(self) -> float:
        """Nodes verified per round, including the root."""
        t = self.metrics.totals
        return 1 + t.n_drafted / max(t.n_rounds, 1)


def accepted_by_depth(rounds: Iterable[Round], fewest: int = FEWEST) -> list[float]:
    """Return the share of positions drafted at depth 1, 2, ... that were accepted, given that all
    before them were.

    A position without a draft below the accepted path was not drafted; one after the end of the
    answer was not judged. Neither counts. The list ends before the first depth with fewer drafts
    than `fewest`: no deeper one has more.
    """
    drafted = Counter[int]()
    accepted = Counter[int]()
    for round_ in rounds:
        depth = len(round_.path) - 1
        accepted.update(range(1, depth + 1))
        refused = round_.tokens[-1].origin == "target" and round_.path[-1] in round_.tree.parent
        drafted.update(range(1, depth + 1 + refused))
    return [accepted[depth] / n for depth, n in sorted(drafted.items()) if n >= fewest]


def compare_with_ar(
    lanes: LaneRecords | Iterable[LaneRecords], ar: LaneRecords | Iterable[LaneRecords]
) -> Comparison:
    return Comparison(measure_lanes(lanes), measure_lanes(ar))


def _phases(totals: Totals) -> list[tuple[str, float]]:
    return [(phase.removesuffix("_s"), getattr(totals, phase)) for phase in PHASES]


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None
