"""A bench's report as Markdown, with the origin of the figures, and as charts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specvl_demo.bench import lossless
from specvl_demo.methods.base import shape
from specvl_demo.report import answers as folds
from specvl_demo.report import html, tables
from specvl_demo.report.papers import beside, verdict
from specvl_demo.serving.availability import PACKED

if TYPE_CHECKING:
    from plotly import graph_objects as go

Report = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
Table = tuple[str, Rows, Sequence[str]]
"""Heading, rows, columns."""

DECODING = (
    *("method", "drafts", "tau", "tokens_per_s"),
    *("speedup_vs_ar", "interval", "speedup_vs_hf_generate", "speedup_vs_hf_assisted"),
    *("limit", "efficiency", "phases", "same", "quality", "spread"),
)
SHORT = (
    *("method", "drafts", "tau", "tokens_per_s"),
    *("speedup_vs_ar", "speedup_vs_hf_generate", "same"),
)
"""Columns where a section names the methods it shows."""
COMPARED = ("tau", "speedup_vs_ar")
"""Columns of a head's chain and tree that are shown side by side."""
HEADS = {
    "tau": "τ",
    "tokens_per_s": "tokens/s",
    "speedup_vs_ar": "× our AR",
    "interval": "95 %",
    "quality": "F1 of words",
    "speedup_vs_hf_generate": "× HF generate",
    "speedup_vs_hf_assisted": "× HF assisted",
    "phases": "draft / verify / rest",
    "same": "same as AR",
    "first_token_ms": "first token, ms",
    "answer_ms": "answer, ms",
    "tokens_per_s_total": "tokens/s, all",
    "share_before": "share of time before decoding",
    "speedup_total_vs_ar": "× our AR, all",
    "speedup_total_vs_hf_generate": "× HF generate, all",
    "at_paper_costs": "× at the paper's costs",
    "visual": "visual tokens",
    "alpha_lag_1": "α, a round later",
    "alpha_and_kept": "α and tokens kept",
    "first_case": "first in",
    "first_token": "at token",
    "logit_gap": "logit gap there",
}
ASKED = (
    "{cases}, at most {max_new_tokens} tokens, {repeats}. τ: tokens per target forward, including"
    " the target's own."
)
SPREAD = " Medians of the repeats; spread: the interquartile range over the median."
QUALITY = (
    " F1 of words: how far the answers' words are those of the reference, over the questions that"
    " have one."
)
LIMITS = (
    " limit: the speedup if only the models' forwards took time; efficiency: how much of it was"
    " reached."
)
CLAIMED = (
    *("method", "drafts", "questions", "visual", "tau", "nodes", "at_paper_costs", "quality"),
    *("alpha_lag_1", "alpha_and_kept"),
)
PAPERS = (
    "Pair {pair}, at most {prompts} questions per claim, {max_new_tokens} tokens per answer."
    " Nothing here depends on a clock. τ: tokens per target forward, including the target's own;"
    " nodes: verified per round, including the root; at the paper's costs: the recorded rounds"
    " priced at the paper's cost of a draft forward, if it states one. A claim holds if the lower"
    " end of the 95 % interval of every ratio it needs (bootstrap over questions) is above what"
    " it needs, and does not hold if a whole interval is not; else it is not decided. Verdicts are"
    " about these models and drafters, trained for this demo, not about the papers' own; quality is"
    " the F1 of words with the reference, not the papers' judge."
)
BUSY = (
    "The machine was busy: other programs used {share:.0f} % of it{omitted}. Measure again when it"
    " is idle."
)
OMITTED = (
    ", so everything that compares times (speedups, their limits, costs in AR steps) is omitted;"
    " tokens/s are those of the busy machine"
)


@dataclass
class Page:
    """The content of a report."""

    tables: list[Table]
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        parts = list(self.before)
        for heading, rows, columns in self.named():
            parts += [f"**{heading}**"] if heading else []
            parts.append(tables.render(rows, columns))
        parts.append("\n".join(f"* {sentence}" for sentence in self.after))
        return "\n\n".join(part for part in parts if part) + "\n"

    def named(self) -> list[Table]:
        """The tables with their columns named for readers."""
        return [(heading, *_named(rows, columns)) for heading, rows, columns in self.tables]

    def short(self, methods: Sequence[str]) -> str:
        rows = [row for row in self.tables[0][1] if row["method"] in methods]
        return f"{tables.render(*_named(rows, SHORT))}\n"


def _precision(machine: Mapping[str, Any]) -> str:
    packed = PACKED.get(machine.get("quantised", "none"))
    return f"{machine['dtype']}, {packed} weights" if packed else str(machine["dtype"])


def origin(machine: Mapping[str, Any]) -> str:
    """Return one line for every set of figures: machine, versions, weights, commit, time, load."""
    threads, versions, weights = (machine.get(key) for key in ("threads", "versions", "weights"))
    parts = [
        machine.get("title"),
        machine.get("processor"),
        f"{threads} thread{'s' if threads > 1 else ''}" if threads else None,
        f"{_precision(machine)} on {machine.get('device')}" if machine.get("dtype") else None,
        "own kernels" if machine.get("kernels") else None,
        ", ".join(f"{name} {version}" for name, version in (versions or {}).items()),
        weights and "weights " + " ".join(f"{role} {v}" for role, v in weights.items() if v),
        f"commit {machine['commit']}" if machine.get("commit") else None,
        machine.get("when"),
        f"others used {100 * _others(machine):.0f} % of the machine" if "busy" in machine else None,
    ]
    return "; ".join(str(part) for part in parts if part) + "."


def answers(report: Report) -> Page:
    settings = report["settings"]
    drafts = {
        name: shape(chosen)
        for name, chosen in settings["methods"].items()
        if chosen.get("policy", "one-node") != "one-node"
    }
    rows = [
        {
            **row,
            "phases": _phases(row),
            "same": _same(row),
            "drafts": drafts.get(row.get("name", row["method"])),
        }
        for row in report["rows"]
    ]
    notes = [
        f"{row['method']}: {row[key]}"
        for row in rows
        for key in ("note", "held_back_by")
        if row[key]
    ]
    found: list[Table] = [
        ("Decoding", rows, _filled(rows, DECODING)),
        ("From pictures to answer", rows, _filled(rows, folds.TOTAL)),
        ("Speed by kind of question, × our AR", *_by_kind(rows, "speedup_vs_ar")),
        ("τ by kind of question", *_by_kind(rows, "tau")),
        ("Drafted positions kept, by depth", *_by_depth(rows)),
    ]
    return Page([one for one in found if len(one[2]) > 1], _conditions(report), notes)


def ablations(report: Report) -> Page:
    """Return a page with a row per head: its size, its training, and what its chain and its tree
    reach.
    """
    methods, by = report["settings"]["methods"], {row["method"]: row for row in report["rows"]}
    rows, shapes = [], ("chain", "tree")
    for head in report["heads"]:
        pair = {name: by[f"{head['head']} {name}"] for name in shapes}
        found = {f"{HEADS[key]}, {name}": pair[name][key] for key in COMPARED for name in shapes}
        rows.append({**head, **found, "same": all(row["identical_to_ar"] for row in pair.values())})
    first = report["heads"][0]["head"]
    notes = [f"{name}: {shape(methods[f'{first} {name}'])}." for name in shapes]
    return Page(
        [("", rows, list(rows[0]))],
        _conditions(report),
        [*notes, *(f"Not trained alike: {one}" for one in report["unlike"])],
    )


def differences(report: Report) -> Page:
    return Page([("", report["rows"], lossless.COLUMNS)], [origin(report["machine"])])


def papers(report: Report) -> Page:
    """Return each claim's sentence with its table, followed by the controls."""
    shown: list[Table] = []
    sentences = []
    for claim in report["claims"]:
        rows = [
            {**row, **{f"τ, {part}": tau for part, tau in row["parts"].items()}}
            for row in report["rows"]
            if row["claim"] == claim["name"]
        ]
        parts = [f"τ, {part}" for part in dict.fromkeys(p for row in rows for p in row["parts"])]
        columns = [*_filled(rows, CLAIMED), *parts]
        shown.append((f"{claim['paper']}: {verdict(claim)}", rows, columns))
        about = (
            f"{claim['paper']}: {claim['says']} Control: {claim['control']}.",
            beside(claim),
            claim["lacking"],
        )
        cost = claim["draft_cost"]
        priced = f"A draft forward costs {cost[0]:.3g} of a step ({cost[1]})." if cost else ""
        sentences.append(" ".join(filter(None, (*about, priced))))
    settings = report["settings"]
    only = "" if settings["claim"] is None else f" Only {settings['claim']}."
    return Page(shown, [origin(report["machine"]), PAPERS.format(**settings) + only], sentences)


def write(page: Page, path: Path, name: str) -> None:
    """Write a page into its section of a file: all of it, or a few methods' rows.

    Sections begin with `<!-- bench:NAME:begin -->` or `<!-- bench:NAME:begin METHOD METHOD -->` and
    end with `<!-- bench:NAME:end -->`.

    Raises:
        ValueError: If the file has none.
    """
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    section = re.compile(
        rf"(<!-- bench:{re.escape(name)}:begin((?: \S+)*) -->\n).*?(<!--"
        rf" bench:{re.escape(name)}:end -->)",
        re.DOTALL,
    )
    found = section.search(text)
    if found is None:
        raise ValueError(
            f"{path} has no section for this suite: put <!-- bench:{name}:begin --> and "
            f"<!-- bench:{name}:end --> into it, each on a line."
        )
    methods = found[2].split()
    table = page.short(methods) if methods else page.markdown()
    path.write_text(section.sub(lambda match: match[1] + table + match[3], text), encoding="utf-8")


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draw the charts of a report, one below the other; ValueError if its suite has none."""

    rows = report["rows"]
    if rows and "speedup_vs_ar" in rows[0]:
        ours = [row for row in rows if row["share_draft"] is not None]
        phases = {phase: f"share_{phase}" for phase in ("draft", "verify", "commit", "other")}
        speeds = {"limit": "limit", "measured": "speedup_vs_ar"}
        figures = [
            _bars("Decoding speed over AR, and its limit", rows, speeds, "overlay"),
            _bars("Where a round's time goes", ours, phases, "stack"),
        ]
    elif rows and "claim" in rows[0]:
        figures = [
            _bars(
                claim["paper"],
                [row for row in rows if row["claim"] == claim["name"]],
                {HEADS["tau"]: "tau", "nodes": "nodes"},
                "group",
            )
            for claim in report["claims"]
        ]
    else:
        raise ValueError(f"The suite {report['suite']} has no charts; pocket and papers have.")
    path.write_text(html.file(figures, f"bench {report['suite']}"), encoding="utf-8")


def _filled(rows: Rows, columns: Sequence[str]) -> Sequence[str]:
    """Return the columns that have a value in any row."""
    return [key for key in columns if any(row.get(key) is not None for row in rows)]


def _by_kind(rows: Rows, figure: str) -> tuple[Rows, Sequence[str]]:
    """Return a figure of each method, with a column per kind of question."""
    table = [
        {"method": row["method"], **{kind: one[figure] for kind, one in row["by_kind"].items()}}
        for row in rows
        if row.get("by_kind")
    ]
    return table, _filled(table, list(table[0]) if table else ())


def _by_depth(rows: Rows) -> tuple[Rows, Sequence[str]]:
    """Return the share accepted of the positions drafted at a depth, given that all before were."""
    table = [
        {"method": row["method"]}
        | {str(depth): share for depth, share in enumerate(row["accepted_by_depth"], 1)}
        for row in rows
        if row.get("accepted_by_depth")
    ]
    deepest: dict[str, Any] = max(table, key=lambda row: len(row), default={})
    return table, list(deepest)


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}{'' if n == 1 else 's'}"


def _conditions(report: Report) -> list[str]:
    machine, settings = report["machine"], report["settings"]
    sizes = {
        "cases": _count(len(settings["cases"]), "question"),
        "repeats": _count(settings["repeats"], "interleaved repeat"),
    }
    settled = ASKED.format(**{**settings, **sizes})
    settled += SPREAD if settings["repeats"] > 1 else ""
    settled += QUALITY if any(row.get("quality") is not None for row in report["rows"]) else ""
    shown = any(row.get("limit") is not None for row in report["rows"])
    sentences = [origin(machine), settled + LIMITS if shown else settled]
    if machine.get("busy"):
        share, omitted = 100 * _others(machine), "" if shown else OMITTED
        sentences.append(BUSY.format(share=share, omitted=omitted))
    return sentences


def _named(rows: Rows, columns: Sequence[str]) -> tuple[Rows, Sequence[str]]:
    named = [{HEADS.get(key, key): row.get(key) for key in columns} for row in rows]
    return named, [HEADS.get(key, key) for key in columns]


def _others(machine: Mapping[str, Any]) -> float:
    """Return the largest share of the machine that other programs used."""
    return float(max(machine["others_share_before"], machine["others_share_meanwhile"]))


def _phases(row: Mapping[str, Any]) -> str | None:
    if row.get("share_draft") is None:
        return None
    shares = (row["share_draft"], row["share_verify"], row["share_commit"] + row["share_other"])
    return " / ".join(f"{100 * share:.0f}" for share in shares) + " %"


def _same(row: Mapping[str, Any]) -> str | None:
    """Return whether the answers are AR's, and if not, how much was relaxed."""
    if row.get("identical_to_ar") is None:
        return None
    relaxed = row.get("relaxed_share")
    suffix = f", {100 * relaxed:.1f} % relaxed" if relaxed else ""
    return f"{'yes' if row['identical_to_ar'] else 'no'}{suffix}"


def _bars(title: str, rows: Any, columns: Mapping[str, str], mode: str) -> go.Figure:
    from plotly import graph_objects as go  # noqa: PLC0415 - only what draws needs it

    figure = go.Figure(layout={"title": title, "barmode": mode})
    for name, key in columns.items():
        figure.add_bar(x=[row["method"] for row in rows], y=[row[key] for row in rows], name=name)
    return figure
