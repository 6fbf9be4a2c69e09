"""A bench's report as charts: one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plotly import graph_objects as go

from specvl_demo.report import html


def write(report: Mapping[str, Any], path: Path) -> None:
    """Charts of a report, one below the other. ValueError where its suite has none."""
    rows = report["rows"]
    if rows and "speedup_vs_ar" in rows[0]:
        ours = [row for row in rows if row["share_draft"] is not None]
        phases = {phase: f"share_{phase}" for phase in ("draft", "verify", "commit", "other")}
        speeds = {"limit": "limit", "measured": "speedup_vs_ar"}
        figures = [
            _bars("Decoding speed over AR, and its limit", rows, speeds, "overlay"),
            _bars("Where a round's time goes", ours, phases, "stack"),
        ]
    elif rows and "bound_ms" in rows[0]:
        verify = [row for row in rows if row["step"] in ("step", "verify")]
        figure = go.Figure(layout={"title": "Verification against nodes, and what the machine allows"})
        figure.update_xaxes(title="nodes of the tree, root included").update_yaxes(title="ms")
        for key, name in (("ms", "measured"), ("bound_ms", "bound")):
            figure.add_scatter(x=[row["rows"] for row in verify], y=[row[key] for row in verify], name=name)
        figures = [figure]
    else:
        raise ValueError(f"The suite {report['suite']} has no charts; pocket and steps have.")
    path.write_text(html.file(figures, f"bench {report['suite']}"), encoding="utf-8")


def _bars(title: str, rows: Any, columns: Mapping[str, str], mode: str) -> go.Figure:
    figure = go.Figure(layout={"title": title, "barmode": mode})
    for name, key in columns.items():
        figure.add_bar(x=[row["method"] for row in rows], y=[row[key] for row in rows], name=name)
    return figure
