"""Methods beside each other on one machine: interleaved repeats, medians, spread, limits.

Every method runs alone, one after the other on the same case, in an order that shifts with every
repeat, then the next case. A rate is Σ tokens / Σ seconds of a repeat, ratios are taken within a
repeat, figures are medians over repeats. `limit` is the speedup if nothing but the models' forwards
took time; `efficiency`, the forwards' share of the rounds, says how much of it was reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from specvl_demo.bench import cases, data, forwards, provenance
from specvl_demo.bench.cases import Case, Use
from specvl_demo.bench.forwards import TimedRound
from specvl_demo.bench.peers import HF_ASSISTED, HF_GENERATE, PEERS, Answer, Library
from specvl_demo.core.engine import Request
from specvl_demo.core.sampling import Sampling
from specvl_demo.methods.base import Choice
from specvl_demo.pairs import Pair, Role
from specvl_demo.places import EXAMPLES
from specvl_demo.records import Lane, gather
from specvl_demo.report.metrics import Comparison, accepted_by_depth, compare
from specvl_demo.serving import choosing, session
from specvl_demo.serving.loader import Loaded

Tell = Callable[[str, float], None]
"""Is told what is going on and how much of it is done, 0 to 1."""

Load = Callable[[Sequence[Role], str | None], Loaded]
"""Brings up a pair with drafters of these roles in a type; None takes the device's own."""
GREEDY = Sampling()

COLUMNS = (
    *(
        "method",
        "tau",
        "tokens_per_s",
        "speedup_vs_ar",
        "speedup_vs_hf_generate",
        "speedup_vs_hf_assisted",
    ),
    *("limit", "efficiency", "share_draft", "share_verify", "share_commit", "share_other"),
    *("identical_to_ar", "relaxed_share", "repeats", "spread"),
)
TOTAL = (
    *("method", "first_token_ms", "answer_ms", "tokens_per_s_total", "share_before"),
    *("speedup_total_vs_ar", "speedup_total_vs_hf_generate"),
)
"""Columns from pictures to answer: vision, prefill and the drafter's prefill counted."""
BY_KIND = ("tau", "tokens_per_s", "speedup_vs_ar", "accepted_by_depth")
"""What is told of each kind of question too."""
RATIOS = (
    *("speedup_vs_ar", "speedup_vs_hf_generate", "speedup_vs_hf_assisted", "limit"),
    *("speedup_total_vs_ar", "speedup_total_vs_hf_generate"),
)
"""What is held back where the machine was busy."""
AGAINST = {"ar": "ar", "hf_generate": HF_GENERATE, "hf_assisted": HF_ASSISTED}


@dataclass(frozen=True)
class Asked:
    """What a bench was asked for. choices: `ar` first.

    prompts: how many, where a suite can ask any number. busy: figures are wanted even where others
    use the machine. heads: the folder of the ablations suite. sampling: of the lossless suite.
    """

    pair: Pair
    choices: Sequence[Choice]
    repeats: int
    max_new_tokens: int
    prompts: int
    load: Load
    tell: Tell
    peers: bool = False
    busy: bool = False
    dtype: str | None = None
    data: str | None = None
    media: Path | None = None
    heads: Path | None = None
    sampling: Sampling = GREEDY
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def roles(self) -> list[Role]:
        return choosing.roles_of(self.choices)

    def cases(self, use: Use) -> list[Case]:
        """The person's own questions where some were named, else the pair's."""
        if self.data is not None:
            return data.find(self.data, self.prompts, self.media, self.pair.n_frames)
        if self.pair.questions == cases.QUESTIONS.name:
            return cases.drawn(use, self.prompts)
        return data.shipped(EXAMPLES / self.pair.questions, use, self.pair.n_frames)


@dataclass
class Repeat:
    """What one repeat measured, by method; the library's ways have answers alone."""

    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    lanes: dict[str, list[Lane]] = field(default_factory=lambda: defaultdict(list))
    rounds: dict[str, list[TimedRound]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, lane: Lane, rounds: Iterable[TimedRound]) -> None:
        before, seconds = lane.begin.before_s, [one.seconds for one in lane.rounds]
        ids = lane.token_ids
        self.answers[name].append(
            Answer(ids, before, before + sum(seconds[:1]), sum(seconds), len(ids))
        )
        self.lanes[name].append(lane)
        self.rounds[name] += rounds

    def only(self, at: Sequence[int], names: Iterable[str]) -> Repeat:
        """The same of these cases and methods only."""
        rounds = {name: [len(lane.rounds) for lane in self.lanes[name]] for name in names}
        some = Repeat()
        for name, counts in rounds.items():
            for case in at:
                first = sum(counts[:case])
                timed = self.rounds[name][first : first + counts[case]]
                some.add(name, self.lanes[name][case], timed)
        return some

    def rate(self, name: str, total: bool = False) -> float | None:
        """Tokens a second of decoding, or from pictures to answer; None where nothing was
        measured.
        """
        some = self.answers.get(name, ())
        tokens = sum(len(one.token_ids) if total else one.n_decoded for one in some)
        seconds = sum(one.total_s if total else one.decode_s for one in some)
        return tokens / seconds if seconds > 0 else None

    def ratio(self, name: str, other: str, total: bool = False) -> float | None:
        mine, theirs = self.rate(name, total), self.rate(other, total)
        return mine / theirs if mine is not None and theirs else None


def silent(text: str, share: float) -> None:
    """Tells nobody."""


def requests(
    loaded: Loaded, cases: Sequence[Case], max_new_tokens: int, sampling: Sampling = GREEDY
) -> list[Request]:
    """The cases as requests to the loaded target, each with the next seed."""
    return [
        session.request(
            loaded,
            case.turns,
            max_new_tokens,
            replace(sampling, seed=sampling.seed + at),
            detail="light",
        )
        for at, case in enumerate(cases)
    ]


def answers(asked: Asked) -> dict[str, Any]:
    """Every method on the shipped cases, or on the person's own, beside the library's ways."""
    small: list[Role] = (
        ["small"] if asked.peers and "small" in choosing.roles_here(asked.pair) else []
    )
    loaded = asked.load(list(dict.fromkeys([*asked.roles, *small])), None)
    peers = list(PEERS) if asked.peers else [HF_GENERATE]
    found = asked.cases("evaluate")
    return bench(
        loaded, found, asked.choices, asked.repeats, asked.max_new_tokens, peers, asked.tell
    )


def bench(
    loaded: Loaded,
    cases: Sequence[Case],
    choices: Sequence[Choice],
    repeats: int,
    max_new_tokens: int,
    peers: Sequence[str] = (HF_GENERATE,),
    tell: Tell = silent,
) -> dict[str, Any]:
    """`machine, settings, rows`, as `bench --json` prints them. The first choice must be `ar`."""
    watch = provenance.Watch()
    asked = requests(loaded, cases, max_new_tokens)
    session.warm(loaded, asked[0], choices)
    library = Library(loaded.models, peers, choices)
    for name in peers:
        library.answer(name, asked[0])
    measured, total = [Repeat() for _ in range(repeats)], repeats * len(asked)
    for number, repeat in enumerate(measured):
        for at, request in enumerate(asked):
            done = number * len(asked) + at
            tell(f"repeat {number + 1} of {repeats}, case {at + 1} of {len(asked)}", done / total)
            turns: list[Choice | str] = [*choices, *library.running]
            shift = number % len(turns)
            for one in turns[shift:] + turns[:shift]:
                if isinstance(one, Choice):
                    records, rounds = forwards.run(loaded, one, request)
                    (lane,) = gather(records)
                    repeat.add(one.method.name, lane, rounds)
                elif (answer := library.answer(one, request)) is not None:
                    repeat.answers[one].append(answer)
    settings = {
        "pair": loaded.pair.id,
        "cases": [case.name for case in cases],
        "max_new_tokens": max_new_tokens,
        "repeats": repeats,
        "sampling": "greedy",
        "methods": {choice.method.name: choice.settings for choice in choices},
        "peers": list(peers),
    }
    machine = {**provenance.describe(loaded), **watch.read()}
    kinds = [case.kind for case in cases]
    rows = [
        _row(measured, name) | {"by_kind": _by_kind(measured, name, kinds)}
        for name in (choice.method.name for choice in choices)
    ]
    for name, note in library.notes.items():
        rows.append({**_shared(measured, name), "note": note, "held_back_by": None})
    return {"machine": machine, "settings": settings, "rows": rows}


def held_back(report: dict[str, Any]) -> dict[str, Any]:
    if not report["machine"].get("busy"):
        return report

    def without(row: dict[str, Any]) -> dict[str, Any]:
        kinds = {kind: without(one) for kind, one in row.get("by_kind", {}).items()}
        return row | dict.fromkeys(set(RATIOS) & set(row)) | ({"by_kind": kinds} if kinds else {})

    return report | {"rows": [without(row) for row in report["rows"]]}


def spread(values: Sequence[float]) -> float | None:
    """Interquartile range over the median; None for fewer than two values."""
    if len(values) < 2:
        return None
    first, middle, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / middle


def _by_kind(
    repeats: Sequence[Repeat], name: str, kinds: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The figures of a method for each kind of question. kinds: of the cases, in their order."""
    found = {}
    for kind in dict.fromkeys(kinds):
        at = [number for number, one in enumerate(kinds) if one == kind]
        row = _row([repeat.only(at, {name, "ar"}) for repeat in repeats], name)
        found[kind] = {"cases": len(at), **{column: row[column] for column in BY_KIND}}
    return found


def _row(repeats: Sequence[Repeat], name: str) -> dict[str, Any]:
    lanes = [lane for repeat in repeats for lane in repeat.lanes[name]]
    beside = compare(lanes, [lane for repeat in repeats for lane in repeat.lanes["ar"]])
    shared = _shared(repeats, name)
    rounds = [one for repeat in repeats for one in repeat.rounds[name]]
    spent = sum(one.round.seconds for one in rounds)
    efficiency = sum(one.forward_s for one in rounds) / spent if spent else None
    speedup, doubt = shared["speedup_vs_ar"], beside.doubt()
    return shared | {
        "tau": beside.metrics.totals.tau,
        "accepted_by_depth": accepted_by_depth(one.round for one in rounds),
        "limit": speedup / efficiency if speedup and efficiency else None,
        "efficiency": efficiency,
        **{f"share_{phase}": share for phase, share in beside.metrics.shares.items()},
        "relaxed_share": beside.metrics.relaxed_share,
        "note": f"not meaningful: {doubt}" if doubt else beside.why_slow(),
        "held_back_by": _sentence(beside),
    }


def _sentence(beside: Comparison) -> str | None:
    """What a round brings and costs in AR steps."""
    rho = {name: cost or 0.0 for name, cost in beside.rho.items()}
    whole, tau = sum(rho.values()), beside.metrics.totals.tau
    if tau is None or not whole:
        return None
    rest, nodes = rho["commit"] + rho["other"], round(beside.nodes_per_round)
    return (
        f"A round brings {tau:.1f} tokens for {whole:.1f} AR steps: {rho['draft']:.1f} to draft, "
        f"{rho['verify']:.1f} to verify {nodes} node{'s' * (nodes != 1)}, {rest:.2f} for the rest."
    )


def _shared(repeats: Sequence[Repeat], name: str) -> dict[str, Any]:
    """What is known of every way of decoding, the library's too; None where it did not run."""
    answers = [one for repeat in repeats for one in repeat.answers.get(name, ())]
    ar = [one.token_ids for repeat in repeats for one in repeat.answers["ar"]]
    row: dict[str, Any] = dict.fromkeys([*COLUMNS, *TOTAL])
    row["method"] = name
    if not answers:
        return row
    rates = [rate for repeat in repeats if (rate := repeat.rate(name)) is not None]
    total_s, before_s = sum(one.total_s for one in answers), sum(one.before_s for one in answers)
    row |= {
        "tokens_per_s": _median(rates),
        "tokens_per_s_total": _median(repeat.rate(name, total=True) for repeat in repeats),
        "identical_to_ar": [one.token_ids for one in answers] == ar,
        "first_token_ms": 1e3 * mean(one.first_s for one in answers),
        "answer_ms": 1e3 * total_s / len(answers),
        "share_before": before_s / total_s if total_s else None,
        "repeats": sum(name in repeat.answers for repeat in repeats),
        "spread": spread(rates),
    }
    for key, other in AGAINST.items():
        for total, column in ((False, f"speedup_vs_{key}"), (True, f"speedup_total_vs_{key}")):
            row[column] = _median(repeat.ratio(name, other, total) for repeat in repeats)
    return row


def _median(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
