"""A comparison's report as tables and sentences, with the origin of its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specvl_demo.methods.base import Choice, describe_draft
from specvl_demo.pairs import PairSpec
from specvl_demo.pairs.fitting import PACKED
from specvl_demo.question import Question
from specvl_demo.report import answers as folds
from specvl_demo.report import tables
from specvl_demo.report.answers import RepeatResult

Report = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
Table = tuple[str, Rows, Sequence[str]]
"""Heading, rows, columns."""

DECODING = (
    "method",
    "drafts",
    "tau",
    "tokens_per_s",
    "speedup_vs_ar",
    "speedup_about",
    "interval",
    "speedup_vs_hf_generate",
    "speedup_vs_hf_assisted",
    "limit",
    "phases",
    "same",
    "quality",
    "spread",
)
HEADS = {
    "tau": "τ",
    "tokens_per_s": "tokens/s",
    "speedup_vs_ar": "× our AR",
    "speedup_about": "× our AR, disturbed",
    "interval": "95 %",
    "quality": "F1 of words",
    "speedup_vs_hf_generate": "× HF generate",
    "speedup_vs_hf_assisted": "× HF assisted",
    "phases": "draft / verify / rest",
    "same": "same as AR",
    "first_token_ms": "first token, ms",
    "answer_ms": "answer, ms",
    "speedup_total_vs_ar": "× our AR, all",
    "speedup_total_vs_hf_generate": "× HF generate, all",
}
ASKED = (
    "{cases}, at most {max_new_tokens} tokens, {repeats}. τ: tokens per target forward, including"
    " the target's own."
)
SPREAD = (
    " Rates are all tokens over all seconds; spread: the interquartile range of the repeats' rates"
    " over their median."
)
QUALITY = (
    " F1 of words: how far the answers' words are those of the reference, in {references} that"
    " came with one."
)
LIMITS = " limit: the speedup if rounds took only the time to draft and to verify."
BUSY = (
    "The machine was busy: other programs used {share:.0f} % of it, so ratios of times (speedups,"
    " their limits, costs in AR steps) are omitted{but}; tokens/s and ms are disturbed and do not"
    " tell which method is faster. Measure again when it is idle."
)
BUT = ", but for a speedup that is only about right"


@dataclass
class ReportPage:
    """The content of a report."""

    tables: list[Table]
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    def to_markdown(self) -> str:
        parts = list(self.before)
        for heading, rows, columns in self.tables:
            parts += [f"**{heading}**"] if heading else []
            parts.append(tables.to_markdown(rows, columns))
        parts.append("\n".join(f"* {sentence}" for sentence in self.after))
        return "\n\n".join(part for part in parts if part) + "\n"


def report_of(
    machine: Mapping[str, Any],
    pair: PairSpec,
    cases: Sequence[Question],
    choices: Sequence[Choice],
    measured: Sequence[RepeatResult],
    repeats: int,
    peers: Sequence[str] = (),
) -> Report:
    """Return `machine, settings, rows`, as `bench --json` prints them. cases: As they were asked.
    measured: The repeats so far.
    """
    sampling = cases[0].sampling
    how = "greedy" if sampling.greedy else f"T={sampling.temperature:g}"
    answered = cases[: len(measured[0].answers["ar"]) if measured else 0]
    methods = {choice.method.name: choice.settings for choice in choices}
    settings = {
        "pair": pair.id,
        "cases": [case.id for case in cases],
        "references": sum(bool(case.reference) for case in answered),
        "max_new_tokens": cases[0].max_new_tokens,
        "repeats": repeats,
        "sampling": ", ".join([how, *tables.further_words(sampling.record)]),
        "methods": methods,
        "peers": list(peers),
    }
    kinds, references = ([getattr(case, name) for case in cases] for name in ("kind", "reference"))
    rows = folds.method_rows(measured, list(methods), kinds, references) if measured else []
    return {"machine": machine, "settings": settings, "rows": rows}


def provenance_line(machine: Mapping[str, Any]) -> str:
    """Return one line for every set of figures: machine, versions, weights, commit, time, load."""
    threads, versions, weights = (machine.get(key) for key in ("threads", "versions", "weights"))
    precision = machine.get("dtype")
    packed = PACKED.get(machine.get("quantised", "none"))
    precision = f"{precision}, {packed} weights" if precision and packed else precision
    parts = [
        machine.get("title"),
        machine.get("processor"),
        f"{threads} thread{'s' if threads > 1 else ''}" if threads else None,
        f"{precision} on {machine.get('device')}" if precision else None,
        "own kernels" if machine.get("kernels") else None,
        ", ".join(f"{name} {version}" for name, version in (versions or {}).items()),
        weights and "weights " + " ".join(f"{role} {v}" for role, v in weights.items() if v),
        f"commit {machine['commit']}" if machine.get("commit") else None,
        machine.get("when"),
        "busy" in machine
        and f"others used {100 * machine['others_share_meanwhile']:.0f} % of the machine",
    ]
    return "; ".join(str(part) for part in parts if part) + "."


def page_of(report: Report) -> ReportPage:
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
    notes = [f"{row['method']}: {row['note']}" for row in rows if row["note"]]
    disturbed = {key: f"{HEADS[key]}, disturbed" for key in folds.TIMES}
    heads = HEADS | (disturbed if report["machine"].get("busy") else {})
    tables = [
        _table("Decoding", rows, DECODING, heads),
        _table("From pictures to answer", rows, folds.TOTAL, heads),
        _table("Speed by kind of question, × our AR", *_by_kind(rows, "speedup_vs_ar"), heads),
        _table("τ by kind of question", *_by_kind(rows, "tau"), heads),
        _table("Drafted positions kept, by depth", *_accepted_by_depth(rows), heads),
    ]
    filled = [table for table in tables if len(table[2]) > 1]
    return ReportPage(filled, _condition_lines(report), notes)


def _table(heading: str, rows: Rows, columns: Sequence[str], heads: Mapping[str, str]) -> Table:
    """Return a table of the columns that have a value in any row, named for readers."""
    filled = [key for key in columns if any(row.get(key) is not None for row in rows)]
    named = [{heads.get(key, key): row.get(key) for key in filled} for row in rows]
    return heading, named, [heads.get(key, key) for key in filled]


def _by_kind(rows: Rows, figure: str) -> tuple[Rows, Sequence[str]]:
    """Return a figure of each method, with a column per kind of question."""
    table = [
        {"method": row["method"]} | {kind: its[figure] for kind, its in row["by_kind"].items()}
        for row in rows
        if row.get("by_kind")
    ]
    return table, list(table[0]) if table else ()


def _accepted_by_depth(rows: Rows) -> tuple[Rows, Sequence[str]]:
    """Return the share accepted of the positions drafted at a depth, given that all before were."""
    table = [
        {"method": row["method"]}
        | {str(depth): share for depth, share in enumerate(row["accepted_by_depth"], 1)}
        for row in rows
        if row.get("accepted_by_depth")
    ]
    deepest: dict[str, Any] = max(table, key=lambda row: len(row), default={})
    return table, list(deepest)


def _count_things(n: int, thing: str) -> str:
    return f"{n} {thing}{'' if n == 1 else 's'}"


def _condition_lines(report: Report) -> list[str]:
    machine, settings = report["machine"], report["settings"]
    sizes = {
        "cases": _count_things(len(settings["cases"]), "question"),
        "repeats": _count_things(settings["repeats"], "interleaved repeat"),
        "references": _count_things(settings.get("references", 0), "question"),
    }
    columns = {key for row in report["rows"] for key, value in row.items() if value is not None}
    settled = ASKED + SPREAD * (settings["repeats"] > 1)
    settled += QUALITY * ("quality" in columns) + LIMITS * ("limit" in columns)
    sentences = [provenance_line(machine), settled.format(**{**settings, **sizes})]
    if machine.get("busy"):
        but = BUT * ("speedup_about" in columns)
        sentences.append(BUSY.format(share=100 * machine["others_share_meanwhile"], but=but))
    return sentences


def _row_in_words(row: Mapping[str, Any]) -> dict[str, str | None]:
    """Return how a row's time is split, and whether its answers are AR's, or relaxed."""
    phases = same = None
    if row.get("share_draft") is not None:
        shares = row["share_draft"], row["share_verify"], row["share_commit"] + row["share_other"]
        phases = " / ".join(f"{100 * share:.0f}" for share in shares) + " %"
    if row.get("identical_to_ar") is not None:
        relaxed = f", {100 * share:.1f} % relaxed" if (share := row.get("relaxed_share")) else ""
        same = ("yes" if row["identical_to_ar"] else "no") + relaxed
    return {"phases": phases, "same": same}
