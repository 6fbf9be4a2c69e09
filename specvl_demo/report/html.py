"""A race as one HTML file: the page itself, read-only, with the race's trace in it. It opens from
disk in any browser and fetches nothing. Its template is `race.html`.

Texts, names and pictures of a trace may come from anyone: they stand in the file as JSON, in which
no tag can begin, and reach the page as they do from a server. Only the two scripts that were put in
may run.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from specvl_demo.places import ASSETS
from specvl_demo.records import LaneRecords, dump_trace
from specvl_demo.report import bundle, confidence, remarks, tables

ENTRY = bundle.PAGE / "js" / "saved.js"
PLOTLY = ASSETS / "ui" / "plotly-basic.min.js"


def race_page(
    lanes: Sequence[LaneRecords],
    earlier: Sequence[tuple[str, str]] = (),
    names: Mapping[str, str] | None = None,
    example: str | None = None,
) -> str:
    """Return the file as text: about 1.5 MB, and the trace with its pictures.

    Args:
        earlier: Questions and answers before this one.
        names: What methods call their notes; without them their numbers stand as in the trace.
        example: The name of the page's example whose race it is.
    """
    first = lanes[0].begin
    notes = [note for lane in lanes for round_ in lane.rounds for note in round_.notes.items()]
    numbers = {key: key for key, value in notes if type(value) in (int, float)}
    context = {
        "facts": tables.run_facts(first),
        "earlier": earlier,
        "example": example,
        "compared": msgspec.to_builtins(remarks.race_remarks(lanes)),
        "notes": numbers if names is None else names,
        "sure": confidence.SENTENCES,
        "rules": remarks.RULES,
    }
    scripts = _scripts()
    return Template(Path(__file__).with_name("race.html").read_text("utf-8")).substitute(
        title=escape(first.notes.question or "A race"),
        policy=_security_policy(scripts),
        styles="".join(sheet.read_text("utf-8") for sheet in bundle.SHEETS),
        known=_as_text(msgspec.json.encode(context).decode()),
        trace=_as_text(dump_trace(record for lane in lanes for record in lane.records).rstrip()),
        plotly=scripts[0],
        page=scripts[1],
    )


@cache
def _scripts() -> tuple[str, str]:
    """Return the drawing library and the page, as texts that end no script element."""
    texts: Any = (PLOTLY.read_text("utf-8"), bundle.bundle_scripts(ENTRY))
    return tuple(text.replace("</script", "<\\/script").replace("<!--", "<\\!--") for text in texts)


def _as_text(json: str) -> str:
    """Return JSON in which no tag can begin."""
    return json.replace("<", "\\u003c")


def _security_policy(scripts: Sequence[str]) -> str:
    """Return what a browser may do with the file: run these scripts, show the pictures in it, and
    fetch nothing.
    """
    digests = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )
