"""Lanes and bench rows as Markdown tables. What was not measured is blank; text is escaped."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from csv import writer
from decimal import ROUND_HALF_UP, Context
from typing import Any

from specvl_demo.records import Begin, JsonObject, LaneRecords, Round
from specvl_demo.report.metrics import compare_with_ar, fixed, measure_lanes
from specvl_demo.report.remarks import ar_lane, compare_answers

Rows = Sequence[Mapping[str, Any]]
"""Of a table: values by column."""
RACE_FIELDS = ("speedup_decode", "speedup_total", "identical_to_ar", "first_difference")

LANE_COLUMNS = (
    "method",
    "lossless",
    "n_tokens",
    "n_rounds",
    "tau",
    "accepted_per_round",
    "relaxed_tokens",
    "prefill_s",
    "decode_s",
    "tokens_per_s",
    "speedup_decode",
    "speedup_total",
    "identical_to_ar",
    "stop",
)

_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


def lane_row(lane: LaneRecords) -> JsonObject:
    """Return the figures of one lane: the fields of `generate --json`, in their order."""
    measured = measure_lanes(lane)
    totals = measured.totals
    logprobs = [row for round_ in lane.rounds for row in log_probabilities(round_)]
    more = {"logprobs": logprobs, "remarks": lane.begin.notes.remarks}
    return {
        "text": lane.text,
        "token_ids": lane.token_ids,
        "method": lane.begin.method,
        "pair": lane.begin.pair,
        "lossless": lane.begin.lossless,
        "n_tokens": totals.n_tokens,
        "n_rounds": totals.n_rounds,
        "tau": totals.tau,
        "accepted_per_round": totals.accepted_per_round,
        "relaxed_tokens": totals.n_relaxed,
        "prefill_s": measured.before_s or None,
        "decode_s": measured.decode_s or None,
        "tokens_per_s": measured.tokens_per_s,
        "stop": lane.end.stop if lane.end else None,
        "seed": lane.begin.sampling.get("seed"),
    } | {name: value for name, value in more.items() if value}


def lane_rows(lanes: Iterable[LaneRecords]) -> list[JsonObject]:
    """Return `lane_row` of every lane, compared with the race's AR lane if it has one."""
    lanes = list(lanes)
    ar = ar_lane(lanes)
    rows = []
    for lane in lanes:
        row = lane_row(lane) | dict.fromkeys(RACE_FIELDS)
        if ar is not None:
            beside = compare_with_ar(lane, ar)
            agreed = compare_answers(lane, ar)
            row |= {
                "speedup_decode": beside.speedup_decode,
                "speedup_total": beside.speedup_total,
                # Unknown for an answer that was stopped.
                "identical_to_ar": None if agreed.kind == "so_far" else agreed.kind == "same",
                "first_difference": None if agreed.kind in ("same", "so_far") else agreed.at,
            }
        rows.append(row)
    return rows


def to_markdown(rows: Rows, columns: Sequence[str]) -> str:
    """Return the rows as a Markdown table; missing and None cells are blank."""
    cells = [list(columns), *([_markdown(row.get(column)) for column in columns] for row in rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def to_latex(rows: Rows, columns: Sequence[str]) -> str:
    """Return the rows as a LaTeX table, for the package booktabs."""
    grid = (columns, *cell_grid(rows, columns))
    lines = [" & ".join(map(_latex, line)) + r" \\" for line in grid]
    lines[:1] = [r"\toprule", lines[0], r"\midrule"]
    align = "l" + "r" * (len(columns) - 1)
    body = "\n".join([*lines, r"\bottomrule"])
    return f"\\begin{{tabular}}{{{align}}}\n{body}\n\\end{{tabular}}\n"


def _latex(text: str) -> str:
    escaped = re.sub(r"[#$%&_{}]", r"\\\g<0>", re.sub(r"[\\^~]", " ", text))
    return escaped.replace("×", r"$\times$").replace("τ", r"$\tau$").replace("≤", r"$\le$")


def cell_grid(rows: Rows, columns: Sequence[str]) -> list[list[str]]:
    """Return the cells of the rows as displayed, with as many digits below each other."""
    return [[one_line(format_cell(row.get(key), "#.3g")) for key in columns] for row in rows]


def to_csv(rows: Rows, columns: Sequence[str]) -> str:
    """Return the rows as comma-separated values, with all digits; an interval has two columns."""
    table: list[list[Any]] = []
    for name in columns:
        cells = [row.get(name) for row in rows]
        if any(isinstance(cell, list) for cell in cells):
            for at, end in enumerate(("low", "high")):
                table.append([f"{name}, {end}", *(cell and cell[at] for cell in cells)])
        else:
            table.append([name, *cells])
    text = io.StringIO()
    lines = writer(text, lineterminator="\n")
    for line in zip(*table):
        # Spreadsheets evaluate cells that look like a formula; an apostrophe keeps them text.
        lines.writerow(
            f"'{v}" if isinstance(v, str) and v[:1] in tuple("=+-@\t\r") else v for v in line
        )
    return text.getvalue()


def run_facts(begin: Begin) -> str:
    """Return where and how a race was run, on one line."""
    libraries = dict(begin.versions)
    machine = libraries.pop("machine", "")
    versions = ", ".join(f"{name} {version}" for name, version in libraries.items())
    parts = begin.pair, begin.device, machine, begin.dtype, sampling_words(begin.sampling)
    return one_line(" · ".join(filter(None, (*parts, versions or "no versions recorded"))))


def race_caption(lanes: Sequence[LaneRecords]) -> str:
    """Return what a figure of a race needs beneath it: pair, methods with their settings, where and
    how it was run.
    """

    begins = (lane.begin for lane in lanes if lane.begin.method != "ar")
    methods = with_settings((begin.title, begin.settings) for begin in begins)
    return f"{run_facts(lanes[0].begin)}. {methods}"


def with_settings(methods: Iterable[tuple[str, JsonObject]]) -> str:
    """Return methods with their settings as a sentence."""
    listed = [
        f"{title} ({', '.join(f'{name}={format_cell(value)}' for name, value in chosen.items())})"
        for title, chosen in methods
    ]
    return f"{'; '.join(listed)}."


def sampling_words(sampling: JsonObject) -> str:
    """Return how tokens were chosen, with what was changed."""
    if not sampling:
        return "sampling unknown"
    idle = () if sampling.get("temperature") else ("temperature", "top_p", "seed")
    parts = [f"{name} {value}" for name, value in sampling.items() if name not in idle]
    return ", ".join([*["greedy"] * bool(idle), *parts])


def log_probabilities(round_: Round) -> list[JsonObject]:
    """Return the log-probabilities that a round noted: of every token the model's own, `before`
    penalties, temperature and cuts, and the one it was drawn with, `after`; `top` likewise of the
    likeliest at its place. None: it could not be drawn.
    """
    noted: Any = round_.notes.get("logprobs", {})
    rows = [dict(zip(("id", "text", "before", "after"), row)) for row in zip(*noted.values())]
    k = len(rows) // len(round_.tokens)
    return [rows[at] | {"top": rows[at + 1 : at + k]} for at in range(0, len(rows), k or 1)]


def format_cell(value: Any, digits: str = ".3g") -> str:
    """Return a value for display: three significant digits, yes and no, blank for unknown."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        three = Context(3, ROUND_HALF_UP).create_decimal(value)
        return fixed(value, 0) if abs(value) >= 99.95 else f"{float(three):{digits}}"
    if isinstance(value, list | tuple):
        return ", ".join(format_cell(item, digits) for item in value)
    return str(value)


def one_line(text: str, max_chars: int | None = None) -> str:
    """Return the text on one line, cut if it is long, without terminal control characters."""
    line = plain(" ".join(text.split()))
    return line if max_chars is None or len(line) <= max_chars else f"{line[: max_chars - 1]}…"


def plain(text: str) -> str:
    """Return the text with its line breaks, but without terminal control characters."""
    whites = "\n\t\N{ZERO WIDTH JOINER}"  # the last is part of many emoji
    return "".join(c if c.isprintable() or c in whites else _UNPRINTABLE for c in text)


def _markdown(value: Any) -> str:
    # Underscores inside words need no escape and read better without.
    return re.sub(r"[\\|`*<>\[\]]", r"\\\g<0>", one_line(format_cell(value)))
