"""Figures for web pages and papers, in plain SVG without scripts and fonts: one race, with every
lane's answer in the colours of its tokens and its rounds on its own clock; a comparison's heat map.

Texts may come from anyone: they are escaped, and cut if they are long.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple
from unicodedata import east_asian_width

from specvl_demo.records import JsonObject, LaneRecords, Origin, Round
from specvl_demo.report import remarks
from specvl_demo.report.metrics import fixed, measure_lanes, runs
from specvl_demo.report.tables import one_line, plain, race_caption

WIDTH, MARGIN = 960, 20
CELL, LINE = 7.8, 20
"""Pixels of a letter's cell and of a line; letters are placed in cells, whatever the font is."""
COLUMNS = int((WIDTH - 2 * MARGIN) / CELL)
MAX_LINES = 24
"""Lines of one answer."""
MAX_BARS = 240
"""Bars of one lane: in longer ones, consecutive rounds are drawn as one."""
ORIGINS: dict[Origin, str] = {"draft": "#009e73", "relaxed": "#e69f00", "target": "#0072b2"}
"""The page's colours in its light theme (a test compares them with its styles): Okabe and Ito's,
which colour-blind eyes keep apart. Each has a second cue beside it.
"""
PAINT: dict[Origin, tuple[str, str, str]] = {
    "draft": ("#d7f0e5", ORIGINS["draft"], "draft, kept"),
    "relaxed": ("#fbecd0", ORIGINS["relaxed"], "draft, relaxed"),
    "target": ("none", ORIGINS["target"], "the target's own"),
}
"""Background, line and name of every origin."""
PHASES = {"drafting": "#56b4e9", "verifying": "#0072b2", "rest": "#a8b0b8"}
"""The page's too: verifying has the colour of the target, which does it."""
CHOSEN = "An example, chosen to teach: a comparison tells what is gained on average. "
NAMES, ROW = 150, 44
"""Width of a heat map's names of methods, and height of a row."""


class Letter(NamedTuple):
    """A letter of an answer; origin is None if it was given with the question."""

    text: str
    origin: Origin | None

    @property
    def n_cells(self) -> int:
        return 2 if east_asian_width(self.text) in "WF" else 1


def race_svg(lanes: Sequence[LaneRecords], *, chosen: bool = False) -> str:
    """Return the figure of a race as text. chosen: it is an example of the page."""
    longest = max(measure_lanes(lane).decode_s for lane in lanes) or 1.0
    y = MARGIN + 38.0
    parts = []
    for lane in lanes:
        drawn, y = _draw_lane(lane, lanes, longest, y)
        parts += drawn
    parts += _draw_legend(y)
    caption = CHOSEN * chosen + race_caption(lanes)
    return _whole(lanes[0].begin.notes.question or "A race", parts, y + 36, caption)


def heat_map_svg(rows: Sequence[JsonObject], caption: str) -> str:
    """Return the figure of a comparison's rows as text: each method's speedup over AR by kind of
    question, with its interval; "" if they have none.
    """
    rows = [row for row in rows if row.get("by_kind") and row["speedup_vs_ar"]]
    if not rows:
        return ""
    by_kind = rows[0]["by_kind"]
    kinds = ["all, text too" if "text" in by_kind else "all", *by_kind]
    width = (WIDTH - MARGIN - NAMES) / len(kinds)
    middle = [NAMES + (at + 0.5) * width for at in range(len(kinds))]
    y = MARGIN + 38.0
    parts = [_svg_text(x, y, one_line(kind, 14), _MIDDLE) for x, kind in zip(middle, kinds)]
    for row in rows:
        parts.append(_svg_text(MARGIN, y + 32, one_line(row["method"], 15), _BOLD))
        for x, cell in zip(middle, (row, *row["by_kind"].values())):
            if (speedup := cell["speedup_vs_ar"]) is None:
                continue
            colour = ORIGINS["relaxed" if speedup < 1 else "draft"]
            at = f'x="{x - width / 2 + 1:.1f}" y="{y + 8:.0f}" width="{width - 2:.1f}"'
            shade = f'fill-opacity="{min(0.45, 0.3 * abs(speedup - 1)):.2f}"'
            interval = "–".join(fixed(end, 2) for end in cell.get("interval") or ())
            parts += [
                f'<rect {at} height="{ROW - 2}" fill="{colour}" {shade}/>',
                _svg_text(x, y + 26, f"{fixed(speedup, 2)}×", _MIDDLE),
                _svg_text(x, y + 42, interval, f"{_MIDDLE} {_SMALL}"),
            ]
        y += ROW
    return _whole("Speedup over autoregressive decoding", parts, y + 30, caption)


def _whole(title: str, parts: Iterable[str], y: float, caption: str) -> str:
    """Return a figure: a title, these parts, and from y on its caption."""
    lines = _small_lines(caption)
    height = round(y + 16 * len(lines))
    heading = _svg_text(MARGIN, MARGIN + 8, one_line(title, COLUMNS), f'{_BOLD} font-size="15"')
    below = (_svg_text(MARGIN, y + 16 * i, text, _SMALL) for i, text in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" fill="#1b1f24"'
        ' style="display:block">'
        f"<title>{_xml_text(title)}</title>"
        # For a PDF: a browser prints it on a page of its size.
        f"<style>@page{{size:{WIDTH}px {height}px;margin:0}}</style>"
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>{"".join([heading, *parts, *below])}'
        "</svg>\n"
    )


_BOLD, _MIDDLE = 'font-weight="700"', 'text-anchor="middle"'
_SMALL = 'font-size="11" fill="#57606a"'


def _draw_lane(
    lane: LaneRecords, lanes: Sequence[LaneRecords], longest: float, y: float
) -> tuple[list[str], float]:
    """Return a lane's name, figures, clock and answer from y on, and where the next one begins."""
    parts = [_svg_text(MARGIN, y, one_line(lane.begin.title, 60), _BOLD)]
    numbers = _svg_text(WIDTH - MARGIN, y, _lane_figures(lane, lanes), 'text-anchor="end"')
    scale = (WIDTH - 2 * MARGIN) / longest * measure_lanes(lane).stretch
    parts += [numbers, *_draw_clock(lane.rounds, scale, y + 8)]
    y += 42
    given = [Letter(char, None) for char in lane.begin.prefix.text]
    letters = [Letter(char, kind) for kind, text in runs(lane.rounds) for char in text]
    # Every letter takes at least one cell: more letters than cells are cut anyway.
    for line in _break_lines([*given, *letters][: COLUMNS * (MAX_LINES + 1)]):
        parts += _draw_line(line, y, lane.begin.method == "ar")
        y += LINE
    y += 4
    for text in _small_lines(remarks.lane_remark(lane, lanes) or ""):
        parts.append(_svg_text(MARGIN, y, text, _SMALL))
        y += 16
    return parts, y + 16


def _lane_figures(lane: LaneRecords, lanes: Sequence[LaneRecords]) -> str:
    """Return what the lane did, with its speedup only if the times are meaningful."""
    totals = measure_lanes(lane).totals
    facts = [f"{totals.n_tokens} tokens", f"{totals.n_rounds} round{'s' * (totals.n_rounds != 1)}"]
    if lane.begin.method != "ar" and totals.tau is not None:
        facts.append(f"τ {fixed(totals.tau, 2)}")
    if speedup := remarks.told_speedup(lane, lanes):
        facts.append(speedup)
    return " · ".join(facts)


def _draw_clock(rounds: Sequence[Round], scale: float, y: float) -> Iterator[str]:
    """Draw a lane's rounds side by side on its own clock, each split into draft, verify, rest.

    scale: Pixels of a recorded second, so that all are as long as the mean of the lane's timings.
    """
    each = -(-len(rounds) // MAX_BARS)
    x = float(MARGIN)
    for start in range(0, len(rounds), max(1, each)):
        some = rounds[start : start + each]
        draft = sum(r.draft_s for r in some)
        verify = sum(r.verify_s for r in some)
        whole = sum(r.seconds for r in some)
        end = x + whole * scale
        for colour, seconds in zip(PHASES.values(), (draft, verify, whole - draft - verify)):
            # Rounds are separated by a gap if there is room for one.
            width = min(seconds * scale, max(0.0, end - x - (end - x > 3)))
            if width > 0.05:
                at = f'x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="12"'
                yield f'<rect {at} fill="{colour}"/>'
            x += seconds * scale


def _break_lines(letters: Sequence[Letter]) -> list[list[Letter]]:
    """Return an answer in lines that fit, broken between words; "…" marks where it was cut."""
    lines: list[list[Letter]] = [[]]
    for letter in letters:
        if letter.text == "\n":
            lines.append([])
            continue
        line = lines[-1]
        line.append(Letter(" ", letter.origin) if letter.text.isspace() else letter)
        if sum(letter.n_cells for letter in line) > COLUMNS:
            spaces = (at + 1 for at, letter in enumerate(line) if letter.text == " ")
            start = max(spaces, default=len(line) - 1)
            lines[-1:] = [line[:start], line[start:]]
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], [Letter("…", None)]]


def _draw_line(line: Sequence[Letter], y: float, plain: bool) -> Iterator[str]:
    """Draw one line of an answer: one piece per origin after the other, in cells."""
    x = float(MARGIN)
    for origin, group in groupby(line, lambda letter: letter.origin):
        some = list(group)
        width = sum(letter.n_cells for letter in some) * CELL
        ground, under, _ = PAINT[origin] if origin and not plain else ("none", "none", "")
        if under != "none":
            at = f'x="{x:.1f}" width="{width:.1f}"'
            yield f'<rect {at} y="{y - 13:.0f}" height="18" fill="{ground}"/>'
            yield f'<rect {at} y="{y + 4:.0f}" height="1.5" fill="{under}"/>'
        words = "".join(letter.text for letter in some)
        more = f'textLength="{width:.1f}" xml:space="preserve"'
        yield _svg_text(x, y, words, more if origin else f'{more} fill="#57606a"')
        x += width


def _small_lines(text: str) -> list[str]:
    return textwrap.wrap(one_line(text, 40 * COLUMNS), COLUMNS + 20)


def _draw_legend(y: float) -> Iterator[str]:
    """Draw the meaning of the colours."""
    x = float(MARGIN)
    origins = {name: under for _, under, name in PAINT.values()}
    for name, colour in (origins | PHASES).items():
        yield f'<rect x="{x:.0f}" y="{y + 2:.0f}" width="10" height="10" fill="{colour}"/>'
        yield _svg_text(x + 15, y + 11, name, _SMALL)
        x += 15 + 6.7 * len(name) + 18
    yield _svg_text(WIDTH - MARGIN, y + 11, "each on its own clock", f'{_SMALL} text-anchor="end"')


def _svg_text(x: float, y: float, words: str, more: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.0f}" {more}>{_xml_text(words)}</text>'


def _xml_text(words: str) -> str:
    """Return text that is valid in XML."""
    return escape(plain(words))
