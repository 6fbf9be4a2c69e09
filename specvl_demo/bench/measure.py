"""Methods beside each other on one machine: interleaved repeats, medians, spread, limits, the load meanwhile.

Given a loaded pair, cases and chosen methods, gives plain rows. Every method runs alone, one after the other
on the same case, in an order that shifts with every repeat, then the next case. A rate is Σ tokens over
Σ seconds of a repeat, ratios are taken within a repeat, figures are medians over repeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median, quantiles
from typing import Any

from specvl_demo import session
from specvl_demo.bench import costs, limits, peers, provenance
from specvl_demo.bench.cases import Case
from specvl_demo.bench.costs import StepCosts, Work
from specvl_demo.bench.limits import Limit
from specvl_demo.bench.peers import HF_GENERATE, RIVALS, PeerRun
from specvl_demo.core.engine import Request
from specvl_demo.methods import Choice
from specvl_demo.registry import Loaded
from specvl_demo.report.metrics import Lane, compare, gather, measure

Tell = Callable[[str, float], None]
"""Is told what is going on and how much of it is done, 0 to 1."""

COLUMNS = (
    "method",
    "tau",
    "tokens_per_s",
    "speedup_vs_ar",
    "speedup_vs_hf_generate",
    "speedup_vs_hf_assisted",
    "limit",
    "efficiency",
    "share_draft",
    "share_verify",
    "share_commit",
    "share_other",
    "identical_to_ar",
    "relaxed_share",
    "repeats",
    "spread",
)
WHOLE = (
    "method",
    "first_token_ms",
    "answer_ms",
    "tokens_per_s_total",
    "share_before",
    "speedup_total_vs_ar",
    "speedup_total_vs_hf_generate",
)
"""Columns of the table from pictures to answer: vision, prefill and the drafter's prefill counted."""
RATIOS = (
    *("speedup_vs_ar", "speedup_vs_hf_generate", "speedup_vs_hf_assisted", "limit", "efficiency"),
    *("speedup_total_vs_ar", "speedup_total_vs_hf_generate", "of_first", "within"),
)
"""What is held back where the machine was busy."""

COST_BLOCKS, COST_TURNS = 4, 40
"""Before every repeat so many blocks of turns of drafting and verification are timed, all methods one after
the other; so many turns a block, over all sizes of trees together: about as long as an answer is.
"""


@dataclass
class Runs:
    """What was measured, by method: lanes and peer runs, one list of cases for each repeat; what single steps
    cost before it and which forwards its rounds made."""

    lanes: dict[str, list[list[Lane]]] = field(default_factory=lambda: defaultdict(list))
    peers: dict[str, list[list[PeerRun]]] = field(default_factory=lambda: defaultdict(list))
    faults: dict[str, str] = field(default_factory=dict)
    costs: dict[str, list[StepCosts]] = field(default_factory=lambda: defaultdict(list))
    works: dict[str, list[Work]] = field(default_factory=lambda: defaultdict(list))
    drafted: dict[str, int] = field(default_factory=dict)

    def rates(self, name: str) -> list[float | None]:
        """Decode tokens per second of a method, one figure a repeat."""
        if name in self.lanes:
            return [measure(repeat).totals.tokens_per_s for repeat in self.lanes[name]]
        sums = [(sum(r.n_decoded for r in some), sum(r.decode_s for r in some)) for some in self.peers[name]]
        return [n / seconds if seconds > 0 else None for n, seconds in sums]

    def whole_rates(self, name: str) -> list[float | None]:
        """Tokens per second from pictures to answer, one figure a repeat."""
        if name in self.lanes:
            return [measure(repeat).tokens_per_s_total for repeat in self.lanes[name]]
        sums = [
            (sum(len(r.token_ids) for r in some), sum(r.total_s for r in some)) for some in self.peers[name]
        ]
        return [n / seconds if seconds > 0 else None for n, seconds in sums]

    def has(self, name: str) -> bool:
        """Whether it was measured."""
        return name not in self.faults and (name in self.lanes or name in self.peers)


def silent(text: str, share: float) -> None:
    """Tells nobody."""


def requests(loaded: Loaded, cases: Sequence[Case], max_new_tokens: int) -> list[Request]:
    """The cases as requests to the loaded target."""
    return [session.request(loaded, case.turns, max_new_tokens, detail="light") for case in cases]


def bench(
    loaded: Loaded,
    cases: Sequence[Case],
    choices: Sequence[Choice],
    repeats: int,
    max_new_tokens: int,
    rivals: Sequence[str] = (HF_GENERATE,),
    tell: Tell = silent,
) -> dict[str, Any]:
    """`machine, settings, rows`, as `bench --json` prints them. The first choice must be `ar`."""
    watch = provenance.Watch()
    asked = requests(loaded, cases, max_new_tokens)
    session.warm(loaded, asked[0], choices)
    runs, total = Runs(), (repeats + 1) * len(asked)
    for name in rivals:
        runs.drafted[name] = peers.drafted(RIVALS[name], choices)
        _peer(loaded, asked[0], name, runs)
    counted: dict[str, Work] = {}
    for number, choice in enumerate(choices):
        tell(f"counting forwards of {choice.method.name}", number / len(choices) * len(asked) / total)
        counted[choice.method.name] = costs.count(loaded, choice, asked)
    for repeat in range(repeats):
        blocks = [
            [_costs(loaded, choice, asked, counted[choice.method.name]) for choice in choices]
            for _ in range(COST_BLOCKS)
        ]
        for choice, found in zip(choices, zip(*blocks, strict=True), strict=True):
            runs.costs[choice.method.name].append(costs.middle(found))
        for name in counted:
            runs.lanes[name].append([])
            runs.works[name].append(Work())
        for name in rivals:
            runs.peers[name].append([])
        for number, request in enumerate(asked):
            done = (repeat + 1) * len(asked) + number
            tell(f"repeat {repeat + 1} of {repeats}, case {number + 1} of {len(asked)}", done / total)
            _one_case(loaded, request, choices, rivals, repeat, runs)
    settings = {
        "pair": loaded.pair.id,
        "cases": [case.name for case in cases],
        "max_new_tokens": max_new_tokens,
        "repeats": repeats,
        "sampling": "greedy",
        "methods": {choice.method.name: choice.settings for choice in choices},
        "rivals": list(rivals),
    }
    told = {**provenance.describe(loaded), **watch.read()}
    return {"machine": told, "settings": settings, "rows": rows(runs, list(counted), rivals)}


def rows(runs: Runs, names: Sequence[str], rivals: Sequence[str]) -> list[dict[str, Any]]:
    """One row a method, the library's own last."""
    return [_row(runs, name) for name in names] + [_peer_row(runs, name) for name in rivals]


def is_busy(report: dict[str, Any]) -> bool:
    """Whether others used the machine while this was measured; False where nobody looked."""
    return bool(report["machine"].get("busy"))


def held_back(report: dict[str, Any]) -> dict[str, Any]:
    """The report without its ratios where others used the machine meanwhile."""
    if not is_busy(report):
        return report
    return report | {"rows": [row | dict.fromkeys(set(RATIOS) & set(row)) for row in report["rows"]]}


def busy_sentence(told: dict[str, Any]) -> str:
    """Why ratios are held back."""
    share = max(told["others_share_before"], told["others_share_meanwhile"])
    return (
        f"The machine was busy: others used {100 * share:.0f} % of it, so ratios are left out. Measure again "
        "when it has nothing else to do, or ask for them with --busy."
    )


def _costs(loaded: Loaded, choice: Choice, asked: Sequence[Request], work: Work) -> StepCosts:
    """Costs of the steps that this method makes, and of a few around them, behind as much text as lies before
    a round in the mean: attention costs more the more there is."""
    before = round(mean(work.before))
    request = min(asked, key=lambda one: (len(one.prompt) > before, abs(len(one.prompt) - before)))
    most = max(len(one.tree.tokens) for one in work.rounds)
    widest = max((width for widths in work.widths for width in widths), default=1)
    nodes = [n for n in costs.NODES if n <= 2 * most]
    widths = [n for n in costs.WIDTHS if n <= 2 * widest]
    sizes = {1, *nodes, most}
    return costs.measure(loaded, choice, request, max(2, COST_TURNS // len(sizes)), [*sizes], widths, before)


def _one_case(
    loaded: Loaded,
    request: Request,
    choices: Sequence[Choice],
    rivals: Sequence[str],
    repeat: int,
    runs: Runs,
) -> None:
    contenders: list[Choice | str] = [*choices, *rivals]
    shift = repeat % len(contenders)
    for one in contenders[shift:] + contenders[:shift]:
        if isinstance(one, Choice):
            records, work = costs.run(loaded, one, request)
            runs.lanes[one.method.name][-1] += gather(records)
            runs.works[one.method.name][-1].take(work)
        elif one not in runs.faults:
            run = _peer(loaded, request, one, runs)
            if run is not None:
                runs.peers[one][-1].append(run)


def _peer(loaded: Loaded, request: Request, name: str, runs: Runs) -> PeerRun | None:
    """One run of the library's loop; what it cannot do is noted once, in its own words."""
    small = loaded.models.drafters.get("small")
    if RIVALS[name].assisted and small is None:
        runs.faults[name] = "The pair has no small drafter."
        return None
    try:
        model = loaded.models.target.vlm.model
        rival, assistant = RIVALS[name], small and small.model
        return peers.generate(
            model, request.prompt, request.max_new_tokens, rival, assistant, runs.drafted[name]
        )
    except (ValueError, RuntimeError, TypeError, IndexError, KeyError, AttributeError) as fault:
        runs.faults[name] = f"The library failed: {type(fault).__name__}: {str(fault).splitlines()[0][:200]}"
        return None


def _row(runs: Runs, name: str) -> dict[str, Any]:
    lanes = [lane for repeat in runs.lanes[name] for lane in repeat]
    plain = [lane for repeat in runs.lanes["ar"] for lane in repeat]
    beside = compare(lanes, plain)
    found = beside.metrics
    bound = _bound(runs, name)
    n_answers = len(lanes)
    before = sum(lane.begin.before_s for lane in lanes)
    first = sum(lane.begin.before_s + (lane.rounds[0].seconds if lane.rounds else 0.0) for lane in lanes)
    return (
        dict.fromkeys([*COLUMNS, *WHOLE])
        | {
            "method": name,
            "tau": found.totals.tau,
            "limit": bound and bound.speedup,
            "efficiency": bound and bound.efficiency,
            **{f"share_{phase}": share for phase, share in found.shares.items()},
            "identical_to_ar": all(a.token_ids == b.token_ids for a, b in zip(lanes, plain, strict=True)),
            "relaxed_share": found.relaxed_share,
            "first_token_ms": 1e3 * first / n_answers,
            "answer_ms": 1e3 * found.total_s / n_answers,
            "share_before": before / found.total_s if found.total_s else None,
            "note": beside.doubt() or beside.why_slow(),
            "held_back_by": bound and bound.sentence,
        }
        | _rates(runs, name, len(runs.lanes[name]))
    )


def _bound(runs: Runs, name: str) -> Limit | None:
    """The limit in the repeat of middle efficiency, from the steps that were timed before that repeat."""
    repeats = zip(runs.lanes[name], runs.lanes["ar"], runs.works[name], runs.costs[name], strict=True)
    found = [
        limits.limit(compare(lanes, plain), work, work.lowered(bare)) for lanes, plain, work, bare in repeats
    ]
    known = sorted((one for one in found if one), key=lambda one: one.efficiency)
    return known[len(known) // 2] if known else None


def _peer_row(runs: Runs, name: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys([*COLUMNS, *WHOLE, "held_back_by"])
    row |= {"method": name, "note": runs.faults.get(name) or peers.note(RIVALS[name], runs.drafted[name])}
    if runs.has(name):
        answers = [run for repeat in runs.peers[name] for run in repeat]
        plain = [lane.token_ids for repeat in runs.lanes["ar"] for lane in repeat]
        n_answers, whole = len(answers), sum(run.total_s for run in answers)
        before = sum(run.prefill_s for run in answers)
        row |= {
            "identical_to_ar": [run.token_ids for run in answers] == plain,
            "first_token_ms": 1e3 * before / n_answers,
            "answer_ms": 1e3 * whole / n_answers,
            "share_before": before / whole if whole else None,
        } | _rates(runs, name, len(runs.peers[name]))
    return row


def _rates(runs: Runs, name: str, repeats: int) -> dict[str, Any]:
    """Rates and ratios of a method, with their spread over repeats."""
    against = {"ar": "ar", "hf_generate": HF_GENERATE, "hf_assisted": peers.HF_ASSISTED}
    ratios = ratios_of(runs.rates(name), runs.rates("ar"))
    low, high = quartiles(ratios)
    return {
        "tokens_per_s": _median(runs.rates(name)),
        "tokens_per_s_total": _median(runs.whole_rates(name)),
        "repeats": repeats,
        "spread": spread(runs.rates(name)),
        "speedup_low": low,
        "speedup_high": high,
        **{
            f"speedup_vs_{key}": _median(ratios_of(runs.rates(name), runs.rates(other)))
            for key, other in against.items()
            if runs.has(other)
        },
        **{
            f"speedup_total_vs_{key}": _median(ratios_of(runs.whole_rates(name), runs.whole_rates(other)))
            for key, other in against.items()
            if runs.has(other)
        },
    }


def ratios_of(rates: Sequence[float | None], others: Sequence[float | None]) -> list[float]:
    """Ratios within repeats, where both are known."""
    return [a / b for a, b in zip(rates, others, strict=True) if a is not None and b]


def quartiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The first and third quartile; None where there are fewer than two values."""
    if len(values) < 2:
        return None, None
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


def spread(values: Sequence[float | None]) -> float | None:
    """Interquartile range over the median."""
    known = [value for value in values if value is not None]
    first, third = quartiles(known)
    return None if first is None or third is None else (third - first) / median(known)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
