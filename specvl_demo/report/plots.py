"""Charts of a race, made with plotly: those of every race, and those that methods declare."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go

from specvl_demo.records import PHASES, Chart, ChartSeries, LaneRecords
from specvl_demo.report.metrics import measure_lanes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
"""Distinguishable for colour-blind readers; dashes and symbols are the second cue."""
DASHES = ("solid", "dash", "longdash", "dot", "dashdot", "longdashdot")
MAX_TICKS = 12
SYMBOLS = ("circle", "diamond-open", "square", "x")


def charts_html(lanes: Sequence[LaneRecords]) -> str:
    """Return a race's charts as HTML, with plotly's script, so that no network is needed."""
    of_methods = (plot_declared(lane, chart) for lane in lanes for chart in lane.begin.charts)
    drawn = [progress(lanes), plot_emitted(lanes), plot_phases(lanes), *filter(None, of_methods)]
    config = {"responsive": True, "displaylogo": False}
    return "".join(
        figure.to_html(full_html=False, include_plotlyjs=i == 0, config=config)
        for i, figure in enumerate(drawn)
    )


def progress(lanes: Sequence[LaneRecords]) -> go.Figure:
    """Plot the tokens of every lane over its own clock, without prefill."""
    figure = _new_figure("Progress", "seconds on the lane's own clock, without prefill", "tokens")
    for lane in lanes:
        tokens = list(accumulate((len(round_.tokens) for round_ in lane.rounds), initial=0))
        clock = [0.0, *(round_.clock_s for round_ in lane.rounds)]
        _add_line(figure, lane.begin.title, clock, tokens, "hv")
    return figure


def plot_emitted(lanes: Sequence[LaneRecords]) -> go.Figure:
    figure = _new_figure("Tokens per round", "round", "tokens, including the target's own")
    for lane in lanes:
        x = [r.index + 1 for r in lane.rounds]
        _add_line(figure, lane.begin.title, x, [len(r.tokens) for r in lane.rounds], "hv")
    figure.update_yaxes(rangemode="tozero")
    return _count_rounds(figure, lanes)


def plot_phases(lanes: Sequence[LaneRecords]) -> go.Figure:
    """Plot the milliseconds that a token costs in every lane, by phase of the round."""
    figure = _new_figure("Where the time goes", "", "ms per token").update_layout(barmode="stack")
    measured = [(lane.begin.title, measure_lanes(lane).totals) for lane in lanes if lane.rounds]
    titles = [_escape(title) for title, _ in measured]
    for phase in PHASES:
        y = [1e3 * getattr(totals, phase) / totals.n_tokens for _, totals in measured]
        figure.add_bar(name=phase.removesuffix("_s"), x=titles, y=y)
    return figure


def plot_declared(lane: LaneRecords, chart: Chart) -> go.Figure | None:
    """Plot a chart that the lane's method declares; None if its rounds have none of the numbers."""
    lines = [line for series in chart.series for line in _chart_lines(lane, series).items()]
    if not lines:
        return None
    figure = _new_figure(f"{lane.begin.title}: {chart.title}", "round", chart.y)
    if chart.y_range is not None:
        figure.update_yaxes(range=list(chart.y_range))
    if chart.y_right is not None:
        # Its ticks are not at the heights of the left axis's.
        right = {"overlaying": "y", "side": "right", "rangemode": "tozero", "tickmode": "auto"}
        figure.update_layout(yaxis2={"title": _escape(chart.y_right), **right})
    for (name, axis, points), (x, y) in lines:
        more: dict[str, Any] = {"yaxis": "y2"} if axis == "right" else {}
        if points:
            marker = {"symbol": SYMBOLS[len(figure.data) % len(SYMBOLS)]}
            figure.add_scatter(name=_escape(name), x=x, y=y, mode="markers", marker=marker, **more)
        else:
            more |= {"stackgroup": "one"} if chart.kind == "stack" else {}
            _add_line(figure, name, x, y, "hv" if chart.kind == "steps" else "linear", **more)
    return _count_rounds(figure, [lane])


def _count_rounds(figure: go.Figure, lanes: Sequence[LaneRecords]) -> go.Figure:
    """Count rounds from one, as the page does, with ticks at whole rounds only."""
    n_rounds = max(len(lane.rounds) for lane in lanes)
    return figure.update_xaxes(tick0=1, dtick=math.ceil(n_rounds / MAX_TICKS))


Points = tuple[list[float], list[float]]


def _chart_lines(lane: LaneRecords, series: ChartSeries) -> dict[tuple[str, str, bool], Points]:
    """Return x and y by (name, axis, drawn as points), read as in the page's `declared.js`."""
    lines: dict[tuple[str, str, bool], Points] = {}

    def add(name: str, points: bool, x: float, value: Any) -> None:
        if isinstance(value, int | float):
            xs, ys = lines.setdefault((name, series.axis, points), ([], []))
            xs.append(x)
            ys.append(float(value))

    for round_ in lane.rounds:
        value = value_at(round_, series.path)
        if isinstance(value, list):
            paths = (series.nodes, series.mark)
            nodes, marks = (value_at(round_, path) if path else None for path in paths)
            nodes = nodes if isinstance(nodes, list) else []
            for i, part in enumerate(value):
                marked = isinstance(marks, list) and i < len(nodes) and nodes[i] in marks
                x = round_.index + 1 + (i + 0.5) / len(value)
                add(series.marked if marked else series.name, True, x, part)
        elif isinstance(value, Mapping):
            for key, part in value.items():
                add(key, False, round_.index + 1, part)
        else:
            add(series.name, False, round_.index + 1, value)
    return lines


def value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path of a round, such as `notes.weights.text`, if any."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    return value


def _add_line(
    figure: go.Figure, name: str, x: Sequence[float], y: Sequence[float], shape: str, **more: Any
) -> None:
    line = {"dash": DASHES[len(figure.data) % len(DASHES)], "shape": shape}
    figure.add_scatter(name=_escape(name), x=x, y=y, mode="lines", line=line, **more)


def _new_figure(title: str, x: str, y: str) -> go.Figure:
    layout = go.Layout(
        title=_escape(title),
        template="plotly_white",
        colorway=COLOURS,
        height=380,
        showlegend=True,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
    )
    return go.Figure(layout=layout).update_xaxes(title=_escape(x)).update_yaxes(title=_escape(y))


def _escape(text: str) -> str:
    """Escape text: Plotly reads tags in its texts, and names in a trace may come from anyone."""
    return html.escape(text, quote=False)
