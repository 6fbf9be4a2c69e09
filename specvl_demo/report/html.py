"""A race as one HTML file that opens anywhere: the question, what was shown, the answers, a table, charts.

Texts, names and pictures of a trace may come from anybody: all text is escaped, and of pictures only inline
PNG, JPEG and WebP are taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from specvl_demo.report import plots, remarks, spans, tables
from specvl_demo.report.metrics import Lane

PICTURE = re.compile(r"data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/=]+")
COLUMNS = {
    "method": "method",
    "lossless": "lossless",
    "n_tokens": "tokens",
    "n_rounds": "rounds",
    "tau": "τ: tokens a target forward",
    "relaxed_tokens": "relaxed tokens",
    "prefill_s": "prefill, s",
    "decode_s": "decoding, s",
    "tokens_per_s": "tokens a second",
    "speedup_decode": "speedup, decoding",
    "speedup_total": "speedup, all",
}

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body><main><h1>{title}</h1><p class="facts">{facts}</p>{pictures}
<p class="key"><span class="draft">accepted draft</span> · <span class="relaxed">relaxed</span> ·
<span class="target">written by the target</span></p>{lanes}
<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>
<p class="facts">τ counts tokens per target forward, the target's own included. AR is the target alone.</p>
{charts}</main></body></html>
"""
_STYLE = """
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-bottom: 0 }
.facts { color: #57606a; font-size: .9rem }
.pictures { display: flex; flex-wrap: wrap; gap: .5rem }
.pictures img { max-height: 160px; border-radius: 6px }
.text { white-space: pre-wrap; overflow-wrap: anywhere; margin: .25rem 0 }
.draft { background: #d7f0e5; border-bottom: 2px solid #009e73 }
.relaxed { background: #fbecd0; text-decoration: underline wavy #e69f00 1.5px; text-underline-offset: 4px }
.target { border-bottom: 2px dotted #0072b2 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #d0d7de; text-align: right; vertical-align: bottom }
th:first-child, td:first-child { text-align: left }
"""


def page(lanes: Sequence[Lane]) -> str:
    """The file as text, about 5 MB: plotly's script is in it."""
    first = lanes[0].begin
    rows = [
        row | {"method": lane.begin.title} for row, lane in zip(tables.lane_rows(lanes), lanes, strict=True)
    ]
    cells = (
        "".join(f"<td>{escape(tables.cell(row.get(column)))}</td>" for column in COLUMNS) for row in rows
    )
    return _PAGE.format(
        title=escape(first.notes.question or "A race"),
        style=_STYLE,
        facts=escape(tables.facts(first)),
        pictures=_pictures(lanes),
        lanes="".join(_lane(lane, lanes) for lane in lanes),
        head="".join(f'<th scope="col">{escape(title)}</th>' for title in COLUMNS.values()),
        rows="".join(f"<tr>{row}</tr>" for row in cells),
        charts="".join(plots.fragments(plots.figures(lanes))),
    )


def file(figures: Sequence[Any], title: str) -> str:
    """Plotly figures below each other, as one HTML file that needs no network."""
    body = "".join(plots.fragments(figures))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>{body}</html>\n'
    )


def _pictures(lanes: Sequence[Lane]) -> str:
    shown = (
        f'<img src="{frame}" alt="{escape(item.name)}">'
        for lane in lanes
        for item in lane.begin.notes.media
        for frame in item.frames
        if frame is not None and PICTURE.fullmatch(frame)
    )
    return f'<div class="pictures">{"".join(shown)}</div>'


def _lane(lane: Lane, lanes: Sequence[Lane]) -> str:
    text = "".join(
        f'<span class="{origin}">{escape(piece)}</span>' for origin, piece in spans.runs(lane.rounds)
    )
    remark = remarks.remark(lane, lanes)
    told = f'<p class="facts">{escape(remark)}</p>' if remark else ""
    return f'<section><h2>{escape(lane.begin.title)}</h2><p class="text">{text}</p>{told}</section>'
