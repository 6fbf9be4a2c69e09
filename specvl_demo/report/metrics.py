"""Figures of a lane, and of a lane compared with the AR lane, as folds over its rounds: Σ tokens /
Σ seconds, never a mean of ratios; what was not measured is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median

from specvl_demo.records import PHASES, LaneRecords, Origin, Round, Totals, fold

SLACK = 0.02
"""How far a measured speedup may exceed τ before it counts as an error: timers are not exact."""
TOO_LITTLE = 0.05
"""AR steps below which a cost is not named as a reason for being slow: it would show as 0.0."""
FEWEST = 5
"""Drafts at a depth below which the share that was accepted is not reported."""
NOTICED = 0.02
"""Share of the machine from which other programs may be named as that reason."""

RANK: tuple[Origin, ...] = ("relaxed", "target", "draft")


def runs(rounds: Iterable[Round]) -> list[tuple[Origin, str]]:
    """Return the text as runs of one origin: the shortest form that keeps the colours.

    A character may be spread over several tokens, all but the last without text; it has the origin
    of the one that could change the answer most: relaxed before target before draft.
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


@dataclass(frozen=True)
class Metrics:
    """What one lane, or several pooled together, did. Ratios are None if their denominator is 0.

    Attributes:
        depth: Mean depth of the drafted trees: tokens that a round could have accepted.
        typical_s: Median seconds of a round; None without rounds.
        load: Mean share of the machine that other programs used; 0 if it was not measured.
    """

    totals: Totals
    before_s: float
    depth: float = 0.0
    typical_s: float | None = None
    load: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of the whole answer: vision, prefill and decoding."""
        return self.before_s + self.totals.decode_s

    @property
    def tokens_per_s_total(self) -> float | None:
        return _ratio(self.totals.n_tokens, self.total_s)

    @property
    def step_s(self) -> float | None:
        return _ratio(self.totals.decode_s, self.totals.n_rounds)

    @property
    def relaxed_share(self) -> float | None:
        """Share of emitted tokens that a strict verifier would have rejected."""
        return _ratio(self.totals.n_relaxed, self.totals.n_tokens)

    @property
    def shares(self) -> dict[str, float | None]:
        """Shares of decoding time: draft, verify, commit, other; they sum to 1."""
        whole = self.totals.decode_s
        return {name: _ratio(seconds, whole) for name, seconds in _phases(self.totals)}


def measure_lanes(lanes: LaneRecords | Iterable[LaneRecords]) -> Metrics:
    """Return metrics of one lane, or of several pooled: all tokens over all seconds."""
    lanes = [lanes] if isinstance(lanes, LaneRecords) else list(lanes)
    rounds = [round_ for lane in lanes for round_ in lane.rounds]
    loads = [lane.end.load for lane in lanes if lane.end and lane.end.load is not None]
    return Metrics(
        fold(rounds),
        sum(lane.begin.before_s for lane in lanes),
        fmean(map(_tree_depth, rounds)) if rounds else 0.0,
        median(round_.seconds for round_ in rounds) if rounds else None,
        fmean(loads) if loads else 0.0,
    )


@dataclass(frozen=True)
class Comparison:
    metrics: Metrics
    ar: Metrics

    @property
    def speedup_decode(self) -> float | None:
        """S: decode tokens per second over AR's. Above τ it would be an error."""
        return _ratio(self.metrics.totals.tokens_per_s, self.ar.totals.tokens_per_s)

    @property
    def speedup_total(self) -> float | None:
        """The same including vision and prefill on both sides."""
        return _ratio(self.metrics.tokens_per_s_total, self.ar.tokens_per_s_total)

    @property
    def rho(self) -> dict[str, float | None]:
        """ρ by phase: what a round costs in AR steps. S = τ / Σρ."""
        t, step = self.metrics.totals, self.ar.step_s
        return {name: _ratio(_ratio(seconds, t.n_rounds), step) for name, seconds in _phases(t)}

    def why_doubtful(self) -> str | None:
        """Return why the measurement contradicts itself, else None.

        S ≤ τ must hold, since a verify pass cannot be cheaper than the AR step it contains.
        """
        speedup, tau = self.speedup_decode, self.metrics.totals.tau
        if speedup is None or tau is None or speedup <= tau * (1 + SLACK):
            return None
        return f"a speedup of {speedup:.1f} is above τ {tau:.1f}, which is impossible"

    def why_slow(self) -> str | None:
        """Return one sentence on why the method is not faster than AR here; None if it is.

        The reason is what the time went to: other programs, if it would win without them; else the
        largest cost without which it would win, or, if it could not even win with every draft
        accepted, the largest of all; else the drafts.
        """
        speedup, tau = self.speedup_decode, self.metrics.totals.tau
        rho = {name: cost for name, cost in self.rho.items() if cost is not None}
        if speedup is None or tau is None or speedup >= 1 or len(rho) < len(PHASES):
            return None
        verify, rest = rho["verify"], rho["commit"] + rho["other"]
        nodes, accepted = self.nodes_per_round, self.metrics.totals.accepted_per_round
        costs = [
            (rho["draft"], f"drafting costs {rho['draft']:.1f} AR steps per round"),
            (verify - 1, f"verifying {nodes:.0f} nodes costs {verify:.1f} AR steps here"),
            (rest, f"everything outside the models' forwards costs {rest:.1f} AR steps per round"),
        ]
        round_cost = sum(rho.values())
        hopeless = 1 + self.metrics.depth < round_cost
        reasons = [
            (cost, reason)
            for cost, reason in costs
            if cost >= TOO_LITTLE and (hopeless or tau >= round_cost - cost)
        ]
        few = f"too few drafted tokens are accepted ({accepted:.1f} per round)"
        reason = max(reasons, default=(0.0, few))[1]
        if self._is_disturbed(speedup, tau):
            reason = f"other programs used {100 * self.metrics.load:.0f} % of the machine meanwhile"
        return f"slower than AR: {reason}, and a round emits {tau:.1f} tokens"

    def _is_disturbed(self, speedup: float, tau: float) -> bool:
        """Whether the method would be faster if other programs had left it the machine: if all its
        rounds had taken what most took, or by the share that they used.
        """
        times, ar = self.metrics, self.ar
        if times.load < NOTICED or not times.typical_s or ar.typical_s is None:
            return False
        alone = speedup * (1 - ar.load) / (1 - times.load) if times.load < 1 else 1.0
        return max(alone, tau * ar.typical_s / times.typical_s) >= 1

    @property
    def nodes_per_round(self) -> float:
        """Nodes verified per round, including the root."""
        t = self.metrics.totals
        return 1 + t.n_drafted / max(t.n_rounds, 1)


def accepted_by_depth(rounds: Iterable[Round]) -> list[float]:
    """Return the share of positions drafted at depth 1, 2, ... that were accepted, given that all
    before them were.

    A position without a draft below the accepted path was not drafted; one after the end of the
    answer was not judged. Neither counts. The list ends before the first depth with too few drafts:
    no deeper one has more.
    """
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for round_ in rounds:
        depth = len(round_.path) - 1
        accepted.update(range(1, depth + 1))
        refused = round_.tokens[-1].origin == "target" and round_.path[-1] in round_.tree.parent
        drafted.update(range(1, depth + 1 + refused))
    return [accepted[depth] / n for depth, n in sorted(drafted.items()) if n >= FEWEST]


def _tree_depth(round_: Round) -> int:
    depths = [0]
    for parent in round_.tree.parent[1:]:
        depths.append(depths[parent] + 1)
    return max(depths)


def compare_with_ar(
    lanes: LaneRecords | Iterable[LaneRecords], ar: LaneRecords | Iterable[LaneRecords]
) -> Comparison:
    return Comparison(measure_lanes(lanes), measure_lanes(ar))


def _phases(totals: Totals) -> list[tuple[str, float]]:
    return [(phase.removesuffix("_s"), getattr(totals, phase)) for phase in PHASES]


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None
