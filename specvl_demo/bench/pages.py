"""A bench's report as Markdown: tables under headings people read, sentences, curves, and their origin.

Given a report, gives text, or puts it into the section of a file that is kept for it. Knows no models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specvl_demo.bench import clocks, drawing, followups, lossless, measure, retention, serving, trees, tune
from specvl_demo.report import tables

Report = Mapping[str, Any]

SHORT = "<!-- bench:{}:begin tables -->"
"""Begins a section that takes the tables alone, without a sentence a row."""
ANSWERS = (
    *("method", "tau", "tokens_per_s", "speedup_vs_ar", "speedup_vs_hf_generate", "speedup_vs_hf_assisted"),
    *("limit", "efficiency", "where", "same", "spread"),
)
"""What is printed of a row; JSON has all of it."""

HEADS = {
    "tau": "τ",
    "tokens_per_s": "tokens/s",
    "speedup_vs_ar": "× our AR",
    "speedup_vs_hf_generate": "× HF generate",
    "speedup_vs_hf_assisted": "× HF assisted",
    "where": "draft / verify / rest",
    "same": "same as AR",
    "relaxed_share": "relaxed",
    "first_token_ms": "first token, ms",
    "answer_ms": "answer, ms",
    "tokens_per_s_total": "tokens/s, all",
    "share_before": "before decoding",
    "speedup_total_vs_ar": "× our AR, all",
    "speedup_total_vs_hf_generate": "× HF generate, all",
    "vs_step": "in steps",
    "bound_ms": "bound, ms",
    "bound_by": "bound by",
    "loose": "λ",
    "same_as_ar": "answers same as AR",
    "visual_right": "visual words right",
    "objects_right": "objects right",
    "alone_ms": "alone, ms a round",
    "race_ms": "in a race, ms a round",
    "first_case": "first in",
    "first_token": "at token",
    "logit_gap": "logit gap there",
    "mean_nodes": "nodes a round",
    "visual": "visual tokens",
    "follow_up_ms": "of a follow-up, ms",
    "of_first": "follow-up / first",
    "within": f"at most {followups.WANTED}",
}


@dataclass
class Page:
    """What a report says. tables: heading, rows, columns. drawings: (title, SVG) by name."""

    tables: list[tuple[str, Sequence[Mapping[str, Any]], Sequence[str]]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    drawings: dict[str, tuple[str, str]] = field(default_factory=dict)

    def markdown(self, folder: str = "", sentences: bool = True) -> str:
        """All of it; drawings as links into a folder, where one is given."""
        parts = list(self.before)
        for heading, rows, columns in self.tables:
            named = [{HEADS.get(key, key): row.get(key) for key in columns} for row in rows]
            if heading:
                parts.append(f"**{heading}**")
            parts.append(tables.render(named, [HEADS.get(key, key) for key in columns], "markdown"))
        if folder:
            parts += [f"![{title}]({folder}/{name}.svg)" for name, (title, _) in self.drawings.items()]
        if sentences:
            parts.append("\n".join(f"* {sentence}" for sentence in self.after))
        return "\n\n".join(part for part in parts if part) + "\n"


def origin(machine: Mapping[str, Any]) -> str:
    """One line that stands beside every figure: machine, versions, weights, commit, time, load."""
    told = [str(machine.get("title", "")), str(machine.get("processor", ""))]
    threads = machine.get("threads")
    told.append(f"{threads} thread{'s' if threads > 1 else ''}" if threads else "")
    if machine.get("dtype"):
        told.append(f"{machine['dtype']} on {machine.get('device')}")
    versions = machine.get("versions") or {}
    told.append(", ".join(f"{name} {version}" for name, version in versions.items()))
    weights = machine.get("weights") or {}
    told.append("weights " + " ".join(f"{k} {v}" for k, v in weights.items() if v) if weights else "")
    told.append(f"commit {machine['commit']}" if machine.get("commit") else "")
    told.append(str(machine.get("when", "")))
    if "busy" in machine:
        share = max(machine["others_share_before"], machine["others_share_meanwhile"])
        told.append(f"others used {100 * share:.0f} % of the machine{', BUSY' if machine['busy'] else ''}")
    return "; ".join(part for part in told if part) + "."


def answers(report: Report) -> Page:
    """Methods beside each other, decoding alone and from pictures to answer."""
    rows, settings = report["rows"], report["settings"]
    asked = (
        f"{len(settings['cases'])} cases, at most {settings['max_new_tokens']} tokens, {settings['repeats']} "
        "interleaved repeats; medians, spread is the interquartile range over the median. τ counts tokens a "
        "target forward, the target's own included. limit: τ / (verify + draft), each forward at the least "
        "of what it takes in bare turns and in the rounds; efficiency: how much of it was reached."
    )
    sentences = [
        f"{row['method']}: {row[key]}" for row in rows for key in ("note", "held_back_by") if row[key]
    ]
    rows = [{**row, "where": _where(row), "same": _same(row)} for row in rows]
    two = [("Decoding", rows, ANSWERS), ("From pictures to answer", rows, measure.WHOLE)]
    return Page(two, [origin(report["machine"]), asked], sentences)


def steps(report: Report) -> Page:
    """The roofline card first, then single steps."""
    machine = report["machine"]
    plain = next(row for row in report["rows"] if row["step"] == "step")
    ridge = machine["flops_per_s"] / machine["bytes_per_s"] * plain["bytes"] / plain["flops"]
    card = (
        f"Roofline: {machine['bytes_per_s'] / 1e9:.1f} GB/s read, {machine['flops_per_s'] / 1e9:.0f} GFLOP/s "
        f"in matrix products. A plain step reads {plain['bytes'] / 1e6:.1f} MB and computes "
        f"{plain['flops'] / 1e6:.1f} MFLOP: at least {plain['bound_ms']:.2f} ms, by {plain['bound_by']}; "
        f"measured {plain['ms']:.2f} ms. Up to {ridge:.0f} rows cost no more than one where memory binds."
    )
    measured = ("step", "model", "rows", "ms", "vs_step")
    columns = (*measured, "MB", "MFLOP", "bound_ms", "bound_by", "share", "spread")
    alone = [
        {**row, "MB": row["bytes"] / 1e6, "MFLOP": row["flops"] / 1e6}
        for row in report["rows"]
        if "bytes" in row
    ]
    tables_of = [("Each model alone, in its own steps", alone, columns)]
    drafted = [row for row in report["rows"] if "bytes" not in row]
    if drafted:
        tables_of.append(("Drafting steps of methods, in the target's steps", drafted, measured))
    return Page(tables_of, [card, origin(machine)])


def shapes(report: Report) -> Page:
    """The ten best trees of every method."""
    best = []
    for method in dict.fromkeys(row["method"] for row in report["rows"]):
        best += [row for row in report["rows"] if row["method"] == method][:10]
    return Page([("", best, trees.COLUMNS)], [origin(report["machine"])])


def tuned(report: Report) -> Page:
    """What was tuned, and what it is worth."""
    rows = [{**row, "settings": _words(row["settings"])} for row in report["rows"]]
    said = (
        "Kept for this machine: take it with --set preset=tuned-here, or on the page."
        if report["written"]
        else "Not written, since others used the machine meanwhile: tune again, or say --busy."
    )
    return Page([("", rows, tune.COLUMNS)], [origin(report["machine"])], [report["tuned_on"], said])


def curves(report: Report) -> Page:
    """Every curve with its points, its slope and the slope that theory expects."""
    page = Page(before=[origin(report["machine"])])
    columns = ("curve", "unit", "measured slope", "expected slope", "r²", "expected from")
    rows = []
    for curve in report["rows"]:
        points = [tuple(point) for point in curve["points"]]
        svg = drawing.curve(curve["title"], curve["x"], curve["y"], points, _theory(points, curve))
        page.drawings[curve["name"]] = (curve["title"], svg)
        rows.append(
            {
                "curve": curve["title"],
                "unit": f"{curve['y']} per {curve['each']}",
                "measured slope": curve["measured_slope"],
                "expected slope": curve["slope"],
                "r²": curve["r2"],
                "expected from": curve["why"],
            }
        )
    page.tables.append(("Slopes", rows, columns))
    for curve in report["rows"]:
        cells = [{curve["x"]: x, curve["y"]: y} for x, y in curve["points"]]
        page.tables.append((curve["title"], cells, (curve["x"], curve["y"])))
    return page


def plain(columns: Sequence[str]) -> Any:
    """A page of one table."""

    def page(report: Report) -> Page:
        return Page([("", report["rows"], columns)], [origin(report["machine"])])

    return page


differences, kept_right = plain(lossless.COLUMNS), plain(retention.COLUMNS)
followed = plain(followups.COLUMNS)
clocked, served = plain(clocks.COLUMNS), plain(serving.COLUMNS)


def write(page: Page, path: Path, name: str) -> None:
    """Put a page into the section of a file that is kept for it, its drawings into a folder beside the file.

    ValueError where the file has no such section.
    """
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    end = f"<!-- bench:{name}:end -->"
    begin = next((one for one in (f"<!-- bench:{name}:begin -->", SHORT.format(name)) if one in text), None)
    if begin is None or end not in text:
        raise ValueError(
            f"{path} has no section for this suite: put <!-- bench:{name}:begin --> and {end} into it, "
            "each on a line."
        )
    folder = path.with_suffix("")
    told = page.markdown(folder.name, sentences=begin != SHORT.format(name))
    if page.drawings:
        folder.mkdir(exist_ok=True)
        for drawn, (_, svg) in page.drawings.items():
            (folder / f"{drawn}.svg").write_text(svg, encoding="utf-8")
    section = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    path.write_text(section.sub(lambda _: f"{begin}\n{told}{end}", text), encoding="utf-8")


def _theory(points: Sequence[tuple[float, ...]], curve: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Two ends of the line that theory expects: through the first point, with its slope."""
    if curve["slope"] is None:
        return []
    x, y = points[0]
    last = points[-1][0]
    return [(x, y), (last, y + curve["slope"] * (last - x))]


def _where(row: Mapping[str, Any]) -> str | None:
    """How a round's time divides."""
    if row.get("share_draft") is None:
        return None
    rest = row["share_commit"] + row["share_other"]
    return (
        " / ".join(f"{100 * share:.0f}" for share in (row["share_draft"], row["share_verify"], rest)) + " %"
    )


def _same(row: Mapping[str, Any]) -> str | None:
    """Whether the answers are plain decoding's, and where not, how much was relaxed."""
    if row.get("identical_to_ar") is None:
        return None
    relaxed = row.get("relaxed_share")
    told = f", {100 * relaxed:.1f} % relaxed" if relaxed else ""
    return f"{'yes' if row['identical_to_ar'] else 'no'}{told}"


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())
