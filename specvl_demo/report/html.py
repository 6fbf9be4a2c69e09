"""A race as one HTML file that opens in any browser, with charts. Its template is `race.html`.

Texts, names and pictures of a trace may come from anyone: all text is escaped, and only inline PNG,
JPEG and WebP pictures are used.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template

from specvl_demo.records import LaneRecords
from specvl_demo.report import confidence, remarks, tables
from specvl_demo.report.metrics import runs

PICTURE = re.compile(r"data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/=]+")
COLUMNS = {
    "method": "method",
    "lossless": "lossless",
    "n_tokens": "tokens",
    "n_rounds": "rounds",
    "tau": "τ: tokens per target forward",
    "relaxed_tokens": "relaxed tokens",
    "prefill_s": "prefill, s",
    "decode_s": "decoding, s",
    "tokens_per_s": "tokens per second",
    "speedup_decode": "speedup, decoding",
    "speedup_total": "speedup, all",
}


def race_page(lanes: Sequence[LaneRecords], earlier: Sequence[tuple[str, str]] = ()) -> str:
    """Return the file as text, about 5 MB, after the `earlier` questions and answers."""
    from specvl_demo.report import plots  # noqa: PLC0415 - plotly takes a second to load

    first, charts = lanes[0].begin, plots.charts_html(lanes)
    turns = (
        f'<section><p class="facts">{escape(question)}</p><p class="text">{escape(answer)}</p>'
        "</section>"
        for question, answer in earlier
    )
    rows = tables.lane_rows(lanes)
    for row, lane in zip(rows, lanes, strict=True):
        row["method"] = lane.begin.title
        if remarks.why_untimed(lane, lanes) is not None:  # the remark on the lane says why
            row |= {"speedup_decode": remarks.told_speedup(lane, lanes), "speedup_total": None}
    texts = ([escape(tables.format_cell(row[key])) for key in COLUMNS] for row in rows)
    sure = confidence.confidence_sentence(lanes)
    template = Template(Path(__file__).with_name("race.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(first.notes.question or "A race"),
        facts=escape(tables.run_facts(first)),
        pictures="".join(turns) + _pictures(lanes),
        lanes="".join(_lane_html(lane, lanes) for lane in lanes)
        + (f"<p>{escape(sure)}</p>" if sure else ""),
        head="".join(f'<th scope="col">{escape(title)}</th>' for title in COLUMNS.values()),
        rows="".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in texts),
        charts=charts,
        policy=_security_policy(charts),
    )


def _security_policy(charts: str) -> str:
    """Return what a browser may do with the file: run the charts' scripts, given by their hashes,
    show inline pictures, and fetch nothing.
    """
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", charts, re.DOTALL)
    hashes = {b64encode(sha256(script.encode()).digest()).decode() for script in scripts}
    allowed = " ".join(f"'sha256-{digest}'" for digest in sorted(hashes)) or "'none'"
    return (
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; script-src'
        f" {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action"
        " 'none'\">"
    )


def _pictures(lanes: Sequence[LaneRecords]) -> str:
    pictures = (
        f'<img src="{frame}" alt="{escape(item.name)}">'
        for lane in lanes
        for item in lane.begin.notes.media
        for frame in item.frames
        if frame is not None and PICTURE.fullmatch(frame)
    )
    return f'<div class="pictures">{"".join(pictures)}</div>'


def _lane_html(lane: LaneRecords, lanes: Sequence[LaneRecords]) -> str:
    text = f'<span class="given">{escape(lane.begin.prefix.text)}</span>' + "".join(
        f'<span class="{origin}">{escape(piece)}</span>' for origin, piece in runs(lane.rounds)
    )
    remark = remarks.lane_remark(lane, lanes)
    facts = f'<p class="facts">{escape(remark)}</p>' if remark else ""
    title = escape(lane.begin.title)
    return f'<section><h2>{title}</h2><p class="text">{text}</p>{facts}</section>'
