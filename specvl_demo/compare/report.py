"""A bench's report: its rows, folded from the answers of its methods, with intervals over questions
and figures by kind of question; then its tables and sentences, with the origin of its figures.

A rate is Σ tokens / Σ seconds of all repeats, a speedup the ratio of two.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, quantiles
from typing import Any

import numpy as np

from specvl_demo.methods.base import Choice, describe_draft
from specvl_demo.pairs.fitting import PACKED
from specvl_demo.question import Question
from specvl_demo.records import JsonObject, LaneRecords
from specvl_demo.report import tables
from specvl_demo.report.figure import heat_map_svg
from specvl_demo.report.metrics import accepted_by_depth, compare_with_ar, fixed
from specvl_demo.report.remarks import rough_factor
from specvl_demo.report.tables import Rows

HF_GENERATE, HF_ASSISTED = "hf-generate", "hf-assisted"
"""Hugging Face's own ways of decoding, as rows are named."""
DRAWS = 1000
"""Number of resamples for an interval."""
FEWEST_QUESTIONS = 5
"""# choice: of fewer no interval is told: a percentile bootstrap then covers far less than 95 %."""

COLUMNS = (
    "method",
    "tau",
    "tokens_per_s",
    "speedup_vs_ar",
    "speedup_vs_hf_generate",
    "speedup_vs_hf_assisted",
    "limit",
    "share_draft",
    "share_verify",
    "share_commit",
    "share_other",
    "identical_to_ar",
    "relaxed_share",
    "repeats",
    "spread",
    "interval",
    "fastest_over",
    "quality",
)
TOTAL = {
    "method": "method",
    "first_token_ms": "first token, ms",
    "answer_ms": "answer, ms",
    "speedup_total_vs_ar": "× our AR, all",
    "speedup_total_vs_hf_generate": "× HF generate, all",
}
"""Columns from pictures to answer, including vision, prefill and the drafter's prefill, as readers
are told.
"""
BY_KIND = ("tau", "tokens_per_s", "speedup_vs_ar", "interval", "accepted_by_depth")
"""What is also reported for each kind of question."""
KIND_COLUMNS = (
    "method",
    "kind",
    "cases",
    "tokens",
    "speedup_vs_ar",
    "speedup_about",
    "interval",
    "tokens_per_s",
    "tau",
)
COMPARED = (
    "interval",
    "fastest_over",
    "speedup_vs_ar",
    "speedup_vs_hf_generate",
    "speedup_vs_hf_assisted",
    "limit",
    "speedup_total_vs_ar",
    "speedup_total_vs_hf_generate",
    "note",
)
"""Columns that compare times, `note` in words: left out if the machine was busy."""
TIMES = ("tokens_per_s", "first_token_ms", "answer_ms")
"""What stays then, but is named as disturbed."""
Table = tuple[str, Rows, Sequence[str]]
"""Heading, rows, columns."""

DECODING = {
    "method": "method",
    "speedup_vs_ar": "× our AR",
    "speedup_about": "× our AR, rough",
    "interval": "× our AR, 95 %",
    "tokens_per_s": "tokens/s",
    "tau": "τ",
    "drafts": "drafts",
    "speedup_vs_hf_generate": "× HF generate",
    "speedup_vs_hf_assisted": "× HF assisted",
    "limit": "limit",
    "phases": "draft / verify / rest",
    "same": "same as AR",
    "quality": "F1 of words",
    "spread": "spread",
}
HEADS = DECODING | TOTAL | {"cases": "questions"}
"""Of columns that readers are told under another name."""
ASKED = (
    "{cases}, at most {max_new_tokens} tokens, {repeats}, {sampling}. τ: tokens per target forward,"
    " including the target's own."
)
EXPLAINED = {
    "spread": " Rates are all tokens over all seconds; spread: the interquartile range of the"
    " repeats' rates over their median.",
    "quality": " F1 of words: how far the answers' words are those of the reference, in"
    " {references} that came with one.",
    "limit": " limit: the speedup if rounds took only the time to draft and to verify.",
    "interval": f" 95 %, small in the figure: between these lies the speedup in 95 % of {DRAWS}"
    f" resamples of the questions; blank for fewer than {FEWEST_QUESTIONS}.",
}
"""Sentences on columns, said if one has a value."""
LEVEL = (
    "These questions do not tell {fastest}, the fastest, from {others}: over their resamples, the"
    " 95 % interval of the ratio of the speeds includes 1."
)
LIBRARY = (
    "Hugging Face's own decoding ran in {dtype}, without this project's kernels and their 8-bit"
    " weights, with the library's dynamic cache."
)
BUSY = (
    "The machine was busy: other programs used {share:.0f} % of it. Limits and costs in AR steps"
    " are left out; speedups are rough and may be far off; tokens/s and ms are disturbed and do not"
    " tell which method is faster. Measure again when it is idle."
)


@dataclass(frozen=True)
class Answer:
    """One answer, in seconds: from the pixels to the start of decoding, to the first emitted
    tokens, and of decoding, in which `n_decoded` tokens were emitted.

    The library's first emission includes the prefill, so its rate is that of the tokens after it.
    lane: Its records; None of the library's.
    """

    token_ids: list[int]
    before_s: float
    first_s: float
    decode_s: float
    n_decoded: int
    lane: LaneRecords | None = None

    @classmethod
    def of_lane(cls, lane: LaneRecords) -> Answer:
        before = lane.begin.before_s
        seconds = [r.seconds for r in lane.rounds]
        ids = lane.token_ids
        return cls(ids, before, before + sum(seconds[:1]), sum(seconds), len(ids), lane)

    @property
    def total_s(self) -> float:
        return self.before_s + self.decode_s


Answers = dict[str, list[Answer]]
"""What one repeat measured: by method, in the questions' order; of a stopped bench only some."""


def lanes_of(answers: Iterable[Answer]) -> list[LaneRecords]:
    """Return their records; the library's have none."""
    return [answer.lane for answer in answers if answer.lane]


def tokens_per_s(answers: Sequence[Answer], total: bool = False) -> float | None:
    """Return tokens per second, of decoding or of everything; None if nothing was measured."""
    tokens = sum(len(answer.token_ids) if total else answer.n_decoded for answer in answers)
    seconds = sum(answer.total_s if total else answer.decode_s for answer in answers)
    return tokens / seconds if seconds > 0 else None


def speedup(
    answers: Sequence[Answer], others: Sequence[Answer], total: bool = False
) -> float | None:
    """Return how many times as fast one way is as another."""
    mine = tokens_per_s(answers, total)
    theirs = tokens_per_s(others, total)
    return mine / theirs if mine and theirs else None


def pooled(repeats: Iterable[Answers], name: str) -> list[Answer]:
    """Return a method's answers in all repeats."""
    return [answer for repeat in repeats for answer in repeat.get(name, ())]


def of_kind(repeat: Answers, kind: str, cases: Sequence[Question]) -> Answers:
    """Return the part of the questions of a kind. cases: All, in their order."""
    return {
        name: [answer for answer, case in zip(answers, cases) if case.kind == kind]
        for name, answers in repeat.items()
    }


def round_robin(ways: Sequence[Any], repeat: int) -> list[Any]:
    """Return the order in which ways of decoding run in a repeat: each comes first once."""
    shift = repeat % len(ways)
    return [*ways[shift:], *ways[:shift]]


def hide_disturbed(report: JsonObject) -> JsonObject:
    """Return the report without anything that compares times if the machine was busy, but for rough
    speedups, if they are possible: none is above τ.
    """
    if not report["machine"].get("busy"):
        return report

    def without(row: JsonObject) -> JsonObject:
        kinds = {kind: without(figures) for kind, figures in row.get("by_kind", {}).items()}
        speedup = row.get("speedup_vs_ar", 0.0)
        possible = speedup and speedup <= (row.get("tau") or speedup)
        rough = {"speedup_about": rough_factor(speedup)} if possible else {}
        return row | dict.fromkeys(row.keys() & COMPARED) | rough | (kinds and {"by_kind": kinds})

    return report | {"rows": list(map(without, report["rows"]))}


def spread(values: Sequence[float]) -> float | None:
    """Return the interquartile range over the median; None for fewer than two values."""
    if len(values) < 2:
        return None
    first, middle, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / middle


def method_rows(
    repeats: Sequence[Answers], names: Iterable[str], cases: Sequence[Question]
) -> list[JsonObject]:
    """Return a row per method. cases: The questions, in their order."""
    kinds = dict.fromkeys(case.kind for case in cases)
    parts = {kind: [of_kind(repeat, kind, cases) for repeat in repeats] for kind in kinds}
    table = []
    for name in names:
        row = _method_row(repeats, name)
        row["quality"] = _mean_f1(repeats, name, cases)
        row["by_kind"] = {}
        for kind, part in parts.items():
            figures = _method_row(part, name)
            answers = [answer.token_ids for answer in part[0][name]]
            sizes = {"cases": len(answers), "tokens": sum(map(len, answers))}
            row["by_kind"][kind] = sizes | {column: figures[column] for column in BY_KIND}
        table.append(row)
    fastest = max(table, key=lambda row: row["tokens_per_s"] or 0.0)["method"]
    for row in table:
        row["fastest_over"] = interval_over_questions(repeats, fastest, row["method"])
    return table


def interval_over_questions(
    repeats: Sequence[Answers], name: str, other: str = "ar"
) -> list[float] | None:
    """Return the 95 % interval of how many times as fast one way is as another with respect to the
    choice of questions, each with all its repeats.
    """
    times: dict[int, Any] = defaultdict(float)
    for repeat in repeats:
        for at, (mine, its) in enumerate(zip(repeat[name], repeat[other])):
            both = mine.n_decoded, mine.decode_s, its.n_decoded, its.decode_s
            times[at] += np.array(both)

    def ratio(tokens: float, seconds: float, its_tokens: float, its_s: float) -> float | None:
        return tokens * its_s / (seconds * its_tokens) if seconds * its_tokens else None

    return None if name == other else bootstrap(list(times.values()), ratio)


def bootstrap(
    questions: Sequence[Sequence[float]], figure: Callable[..., float | None]
) -> list[float] | None:
    """Return the 95 % interval of a figure, by a percentile bootstrap over the questions; None for
    fewer than FEWEST_QUESTIONS, or if no resample has the figure.

    questions: The numbers of each, of which `figure` gets the sums.
    """
    n = len(questions)
    if n < FEWEST_QUESTIONS:
        return None
    some = np.random.default_rng(0).integers(n, size=(DRAWS, n))
    sums = np.asarray(questions)[some].sum(1).tolist()
    numbers = [value for each in sums if (value := figure(*each)) is not None]
    if not numbers:
        return None
    low, *_, high = quantiles(numbers, n=40, method="inclusive")
    return [low, high]


def f1(answer: str, reference: str) -> float:
    """Return the F1 of the words of an answer and of a reference, with their counts (SQuAD, arXiv
    1606.05250, but without removing articles).
    """
    given, expected = (Counter(re.findall(r"\w+", text.lower())) for text in (answer, reference))
    both = (given & expected).total()
    return 2 * both / (given.total() + expected.total()) if both else 0.0


def _mean_f1(repeats: Sequence[Answers], name: str, cases: Sequence[Question]) -> float | None:
    """Return the mean F1 over the questions that have a reference; None if none has one."""
    scores = [
        f1(lane.text, case.reference)
        for repeat in repeats
        for lane, case in zip(lanes_of(repeat[name]), cases)
        if case.reference
    ]
    return mean(scores) if scores else None


def _method_row(repeats: Sequence[Answers], name: str) -> JsonObject:
    beside = compare_with_ar(lanes_of(pooled(repeats, name)), lanes_of(pooled(repeats, "ar")))
    row = shared_figures(repeats, name)
    shares = beside.metrics.shares
    gain = row["speedup_vs_ar"]
    doubt = beside.why_doubtful()
    models_share = (shares["draft"] or 0.0) + (shares["verify"] or 0.0)
    return row | {
        "tau": beside.metrics.totals.tau,
        "accepted_by_depth": accepted_by_depth(
            # Repeats draft the same again.
            round_
            for lane in lanes_of(repeats[0][name])
            for round_ in lane.rounds
        ),
        "interval": interval_over_questions(repeats, name),
        "limit": gain / models_share if gain and models_share else None,
        **{f"share_{phase}": share for phase, share in shares.items()},
        "relaxed_share": beside.metrics.relaxed_share,
        "note": f"not meaningful: {doubt}" if doubt else beside.why_this_speed(),
    }


def shared_figures(repeats: Sequence[Answers], name: str) -> JsonObject:
    """Return what is known of every way of decoding, also the library's; None if it did not run."""
    answers = pooled(repeats, name)
    ar = [answer.token_ids for answer in pooled(repeats, "ar")]
    row: JsonObject = dict.fromkeys([*COLUMNS, *TOTAL])
    row["method"] = name
    if not answers:
        return row
    rates = [rate for repeat in repeats if (rate := tokens_per_s(repeat.get(name, ()))) is not None]
    row |= {
        "tokens_per_s": tokens_per_s(answers),
        "identical_to_ar": [answer.token_ids for answer in answers] == ar,
        "first_token_ms": 1e3 * mean(answer.first_s for answer in answers),
        "answer_ms": 1e3 * mean(answer.total_s for answer in answers),
        "repeats": sum(name in repeat for repeat in repeats),
        "spread": spread(rates),
    }
    for other in ("ar", HF_GENERATE, HF_ASSISTED):
        key = other.replace("-", "_")
        theirs = pooled(repeats, other)
        row[f"speedup_vs_{key}"] = speedup(answers, theirs)
        row[f"speedup_total_vs_{key}"] = speedup(answers, theirs, total=True)
    return row


@dataclass
class ReportPage:
    """The content of a report. figure: An SVG of speedups by kind, "" without."""

    tables: list[Table]
    figure: str
    before: list[str]
    after: list[str]

    def to_markdown(self) -> str:
        parts = list(self.before)
        for heading, rows, columns in self.tables:
            parts += [f"**{heading}**", tables.to_markdown(rows, columns)]
        parts.append("\n".join(f"* {sentence}" for sentence in self.after))
        return "\n\n".join(part for part in parts if part) + "\n"


def report_of(
    machine: JsonObject,
    pair: str,
    cases: Sequence[Question],
    choices: Sequence[Choice],
    measured: Sequence[Answers],
    repeats: int,
    peers: Sequence[str] = (),
) -> JsonObject:
    """Return `machine, settings, rows, timings`, as `bench --json` prints them. cases: As they were
    asked. measured: The repeats so far.

    timings: Of every answer; all figures of the rows are made of these sums, and the intervals too.
    """
    seed, last = (case.sampling.seed for case in (cases[0], cases[-1]))
    sampling = cases[0].sampling.record
    if seed != last:
        sampling["seed"] = f"{seed} to {last}, one a question"
    answered = cases[: len(measured[0]["ar"]) if measured else 0]
    settings: JsonObject = {
        "pair": pair,
        "cases": [case.id for case in cases],
        "references": sum(bool(case.reference) for case in answered),
        "max_new_tokens": cases[0].max_new_tokens,
        "repeats": repeats,
        "sampling": tables.sampling_words(sampling),
        "methods": {choice.method.name: choice.settings for choice in choices},
        "peers": list(peers),
    }
    rows = method_rows(measured, settings["methods"], cases) if measured else []
    timings = [
        {
            "id": case.id,
            "kind": case.kind,
            "seed": case.sampling.seed,
            "method": name,
            "repeat": number,
            "tokens": answer.n_decoded,
            "rounds": answer.lane and len(answer.lane.rounds),
            "before_s": answer.before_s,
            "seconds": answer.decode_s,
        }
        for number, repeat in enumerate(measured, 1)
        for name, answers in repeat.items()
        for case, answer in zip(cases, answers)
    ]
    return {"machine": machine, "settings": settings, "rows": rows, "timings": timings}


def provenance_line(machine: JsonObject) -> str:
    """Return one line for every set of figures: machine, versions, weights, commit, time, load."""
    threads = machine.get("threads")
    weights = machine.get("weights")
    dtype = machine.get("dtype")
    packed = PACKED.get(machine.get("quantised", "none"))
    parts = [
        machine.get("title"),
        machine.get("processor"),
        threads and _count_things(threads, "thread"),
        dtype and f"{dtype}{f', {packed} weights' if packed else ''} on {machine.get('device')}",
        machine.get("kernels") and "own kernels",
        ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items()),
        weights and "weights " + " ".join(f"{role} {v}" for role, v in weights.items() if v),
        machine.get("commit") and f"commit {machine['commit']}",
        machine.get("when"),
        "busy" in machine
        and f"others used {100 * machine['others_share_meanwhile']:.0f} % of the machine",
    ]
    return "; ".join(str(part) for part in parts if part) + "."


def page_of(report: JsonObject, *first: str) -> ReportPage:
    """Return a report as readers are told it. first: Sentences before its own."""
    settings = report["settings"]
    drafts = {
        name: describe_draft(chosen)
        for name, chosen in settings["methods"].items()
        if chosen.get("policy", "one-node") != "one-node"
    }
    rows = [
        {**row, **_row_in_words(row), "drafts": drafts.get(row.get("name", row["method"]))}
        for row in report["rows"]
    ]
    of_kinds = [
        {**figures, "method": row["method"], "kind": kind}
        for row in rows
        for kind, figures in row.get("by_kind", {}).items()
    ]
    notes = [f"{row['method']}: {row['note']}" for row in rows if row["note"]]
    disturbed = {key: f"{HEADS[key]}, disturbed" for key in TIMES}
    heads = HEADS | (disturbed if report["machine"].get("busy") else {})
    some = [
        _table("Decoding", rows, heads, DECODING),
        _table("From pictures to answer", rows, heads, TOTAL),
        _table("Speed by kind of question", of_kinds, heads, KIND_COLUMNS),
    ]
    filled = [table for table in some if len(table[2]) > 1]
    before = _condition_lines(report)
    chosen = tables.with_settings(settings["methods"].items())
    made = provenance_line(report["machine"])
    caption = f"{settings['pair']}. {made} {' '.join(before)} {chosen}"
    return ReportPage(
        filled, heat_map_svg(rows, caption), [*first, *before], [*notes, chosen, made]
    )


def _table(heading: str, rows: Rows, heads: Mapping[str, str], columns: Iterable[str]) -> Table:
    """Return a table of these columns that have a value in any row, as readers are told."""
    filled = [key for key in columns if any(row.get(key) is not None for row in rows)]
    named = [{heads.get(key, key): row.get(key) for key in filled} for row in rows]
    return heading, named, [heads.get(key, key) for key in filled]


def _count_things(n: int, thing: str) -> str:
    return f"{n} {thing}{'' if n == 1 else 's'}"


def _condition_lines(report: JsonObject) -> list[str]:
    machine = report["machine"]
    settings = report["settings"]
    sizes = {
        "cases": _count_things(len(settings["cases"]), "question"),
        "repeats": _count_things(settings["repeats"], "interleaved repeat"),
        "references": _count_things(settings.get("references", 0), "question"),
    }
    rows = report["rows"]
    filled = {key for row in rows for key, value in row.items() if value is not None}
    text = ASKED + "".join(EXPLAINED[key] for key in EXPLAINED if key in filled)
    sentences = [text.format(**settings | sizes)]
    if settings.get("peers"):
        sentences.append(LIBRARY.format(**machine))
    if machine.get("busy"):
        sentences.append(BUSY.format(share=100 * machine["others_share_meanwhile"]))
    near = [row["method"] for row in rows if (span := row.get("fastest_over")) and span[0] <= 1]
    if near:
        fastest = max((row for row in rows if row["tau"]), key=lambda row: row["tokens_per_s"])
        sentences.append(LEVEL.format(fastest=fastest["method"], others=", ".join(near)))
    return sentences


def _row_in_words(row: JsonObject) -> dict[str, str | None]:
    """Return how a row's time is split, and whether its answers are AR's, or relaxed."""
    words = {"same": tables.format_cell(row.get("identical_to_ar")) or None}
    if row.get("share_draft") is not None:
        shares = row["share_draft"], row["share_verify"], row["share_commit"] + row["share_other"]
        words["phases"] = " / ".join(fixed(100 * share, 0) for share in shares) + " %"
    if share := row.get("relaxed_share"):
        words["same"] = f"{words['same']}, {fixed(100 * share, 1)} % relaxed"
    return words
