"""Charts as plain data: Plotly figures as dictionaries, folded from the records of lanes.

Gives the charts every method has, and those a method declares (`declared`). Needs no plotly, no browser.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specvl_demo.records import ORIGINS, Round
from specvl_demo.report.declared import Declared, Series
from specvl_demo.report.metrics import Lane, measure

Figure = dict[str, Any]

# Okabe and Ito's colours, told apart by colour-blind readers; a dash or a pattern is always the second cue.
COLOURS = {"draft": "#009E73", "relaxed": "#E69F00", "target": "#0072B2", "rejected": "#999999"}
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = {"draft": "", "relaxed": "/", "target": ".", "verify": "", "commit": "x", "other": "\\"}
LABELS = {"draft": "accepted drafts", "relaxed": "relaxed drafts", "target": "the target's own"}


def dig(round_: Round, path: str) -> Any:
    """The value at a dotted path of a round; None where there is none."""
    value: Any = round_
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
        if value is None:
            return None
    return value


def figure(declared: Declared, lane: Lane) -> Figure | None:
    """A declared chart of a lane; None where its rounds carry none of the values."""
    traces: list[dict[str, Any]] = []
    for series in declared.series:
        traces += _declared_traces(declared, series, lane.rounds, len(traces))
    if not traces:
        return None
    layout = _layout(declared.title, "round", declared.y, declared.y_range)
    if any(series.axis == "right" for series in declared.series):
        layout["yaxis2"] = {
            "title": declared.y_right,
            "overlaying": "y",
            "side": "right",
            "rangemode": "tozero",
        }
    return {"data": traces, "layout": layout}


def _declared_traces(
    declared: Declared, series: Series, rounds: Sequence[Round], first: int
) -> list[dict[str, Any]]:
    found = [(round_, dig(round_, series.path)) for round_ in rounds]
    found = [(round_, value) for round_, value in found if value is not None]
    if not found:
        return []
    if isinstance(found[0][1], dict):
        names = list(dict.fromkeys(name for _, value in found for name in value))
        lines = {name: [value.get(name) for _, value in found] for name in names}
    elif isinstance(found[0][1], list | tuple):
        return _points(series, found)
    else:
        lines = {series.name: [value for _, value in found]}
    x = [round_.index for round_, _ in found]
    shape = "linear" if declared.kind == "lines" else "hv"
    traces = []
    for number, (name, y) in enumerate(lines.items(), first):
        trace = {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y}
        trace["line"] = {"color": SERIES[number % 6], "dash": DASHES[number % 6], "shape": shape}
        if series.axis == "right":
            trace["yaxis"] = "y2"
        if declared.kind == "stack":
            trace["stackgroup"] = "one"
        traces.append(trace)
    return traces


def _points(series: Series, found: list[tuple[Round, Any]]) -> list[dict[str, Any]]:
    """Entries of lists as points within their round, in two traces where some are marked."""
    groups: dict[str, tuple[list[float], list[float]]] = {"draft": ([], []), "relaxed": ([], [])}
    for round_, values in found:
        nodes, marks = (dig(round_, path) if path else None for path in (series.nodes, series.mark))
        marked = [node in marks for node in nodes] if nodes and marks else []
        for at, value in enumerate(values):
            x, y = groups["relaxed" if at < len(marked) and marked[at] else "draft"]
            x.append(round_.index + at / max(len(values), 1))
            y.append(value)
    symbols = {"draft": "circle", "relaxed": "diamond-open"}
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": series.name if group == "draft" else series.marked,
            "x": x,
            "y": y,
            "marker": {"color": COLOURS[group], "symbol": symbols[group], "size": 5},
        }
        for group, (x, y) in groups.items()
        if x
    ]


def tokens_per_round(lane: Lane) -> Figure:
    """Accepted, relaxed and target tokens of every round, stacked."""
    x = [round_.index for round_ in lane.rounds]
    traces = []
    for origin in ORIGINS:
        y = [sum(token.origin == origin for token in round_.tokens) for round_ in lane.rounds]
        if any(y):
            marker = {"color": COLOURS[origin], "pattern": {"shape": PATTERNS[origin]}}
            traces.append({"type": "bar", "name": LABELS[origin], "x": x, "y": y, "marker": marker})
    return {"data": traces, "layout": _layout("Tokens per round", "round", "tokens") | {"barmode": "stack"}}


def running_speedup(lanes: Iterable[Lane]) -> Figure | None:
    """Every lane's decode speed over the plain model's, each on its own clock; None without that lane."""
    lanes = list(lanes)
    ar = next((lane for lane in lanes if lane.begin.method == "ar" and lane.rounds), None)
    if ar is None:
        return None
    traces = []
    for number, lane in enumerate(lane for lane in lanes if lane is not ar):
        x, y = speedup_line(lane, ar)
        trace = {"type": "scatter", "mode": "lines", "name": lane.begin.title, "x": x, "y": y}
        traces.append(trace | {"line": {"color": SERIES[number % 6], "dash": DASHES[number % 6]}})
    layout = _layout("Running speedup", "seconds on the lane's own clock", "times the plain model")
    layout["yaxis"]["rangemode"] = "tozero"
    plain = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    layout["shapes"] = [plain | {"line": {"dash": "dot", "width": 1}}]
    return {"data": traces, "layout": layout}


def speedup_line(lane: Lane, ar: Lane) -> tuple[list[float], list[float]]:
    """Clock of the lane after each round, and its speed over the plain model's at that moment."""
    x, y = [], []
    n_tokens = n_ar = reached = 0
    for round_ in lane.rounds:
        n_tokens += len(round_.tokens)
        while reached < len(ar.rounds) and (ar.rounds[reached].clock_s <= round_.clock_s or reached == 0):
            n_ar += len(ar.rounds[reached].tokens)
            reached += 1
        ar_clock = ar.rounds[reached - 1].clock_s
        if round_.clock_s > 0 and ar_clock > 0:
            x.append(round_.clock_s)
            y.append((n_tokens / round_.clock_s) / (n_ar / ar_clock))
    return x, y


def time_shares(lanes: Iterable[Lane]) -> Figure:
    """Where each lane's decoding time went: draft, verify, commit, other, as shares of 1."""
    lanes = list(lanes)
    names = [lane.begin.title for lane in lanes]
    shares = [measure(lane).shares for lane in lanes]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase,
            "y": names,
            "x": [share[phase] for share in shares],
            "marker": {"color": SERIES[number], "pattern": {"shape": PATTERNS[phase]}},
        }
        for number, phase in enumerate(("draft", "verify", "commit", "other"))
    ]
    layout = _layout("Where the time goes", "share of decoding time", "") | {"barmode": "stack"}
    layout["xaxis"]["range"] = [0, 1]
    return {"data": traces, "layout": layout}


@dataclass(frozen=True)
class Node:
    """A tree node where it is drawn: x in leaf widths, y the depth, and what became of it."""

    x: float
    y: int
    token: int
    text: str
    state: Literal["root", "accepted", "relaxed", "rejected"]
    draft_logp: float | None
    target_logp: float | None


def tree_nodes(round_: Round) -> list[Node]:
    """The tree of a round laid out tidily: leaves side by side, a parent over the middle of its children."""
    tree, depth = round_.tree, round_.tree.depth
    kids: list[list[int]] = [[] for _ in tree.tokens]
    for node, parent in enumerate(tree.parent):
        if parent >= 0:
            kids[parent].append(node)
    x: list[float] = [0.0] * len(tree.tokens)
    leaves = 0
    for node in _leaves_first(kids):
        if kids[node]:
            x[node] = (x[kids[node][0]] + x[kids[node][-1]]) / 2
        else:
            x[node] = float(leaves)
            leaves += 1
    kept = dict(zip(round_.path[1:], (token.origin for token in round_.tokens), strict=False))
    states = {"draft": "accepted", "relaxed": "relaxed"}
    return [
        Node(
            x[node],
            depth[node],
            token,
            tree.texts[node] if tree.texts else "",
            "root" if node == 0 else states[kept[node]] if node in kept else "rejected",
            tree.draft_logp[node] if tree.draft_logp else None,
            tree.target_logp[node] if tree.target_logp else None,
        )
        for node, token in enumerate(tree.tokens)
    ]


def _leaves_first(kids: list[list[int]]) -> Iterable[int]:
    """Nodes, children first, from left to right. A loop: a chain may be deeper than Python recurses."""
    stack, order = [0], []
    while stack:
        node = stack.pop()
        order.append(node)
        stack += kids[node]  # the last child is visited first, so backwards the first one is
    return reversed(order)


def token_tree(round_: Round) -> Figure:
    """The tree of a round: edges, then one trace for each fate of its nodes, with its own symbol."""
    nodes, parent = tree_nodes(round_), round_.tree.parent
    edges = [(parent[i], i) for i in range(1, len(nodes))]
    on_path = set(round_.path)
    traces = []
    for name, colour, width, chosen in (
        ("turned down", COLOURS["rejected"], 1, False),
        ("accepted path", COLOURS["draft"], 3, True),
    ):
        picked = [(a, b) for a, b in edges if (b in on_path) == chosen]
        x = [value for a, b in picked for value in (nodes[a].x, nodes[b].x, None)]
        y = [value for a, b in picked for value in (-nodes[a].y, -nodes[b].y, None)]
        if picked:
            trace = {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "hoverinfo": "skip"}
            traces.append(trace | {"line": {"color": colour, "width": width}})
    look = {
        "root": ("square", COLOURS["target"]),
        "accepted": ("circle", COLOURS["draft"]),
        "relaxed": ("diamond", COLOURS["relaxed"]),
        "rejected": ("circle-open", COLOURS["rejected"]),
    }
    for state, (symbol, colour) in look.items():
        picked = [node for node in nodes if node.state == state]
        if picked:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers+text",
                    "name": state,
                    "x": [node.x for node in picked],
                    "y": [-node.y for node in picked],
                    "text": [node.text for node in picked],
                    "textposition": "top center",
                    "marker": {"symbol": symbol, "color": colour, "size": 9},
                    "customdata": [[node.token, node.draft_logp, node.target_logp] for node in picked],
                }
            )
    layout = _layout(f"Token tree of round {round_.index}", "", "depth")
    layout["xaxis"]["visible"] = False
    return {"data": traces, "layout": layout}


def _layout(title: str, x: str, y: str, y_range: tuple[float, float] | None = None) -> dict[str, Any]:
    axis = {"title": y} | ({"range": list(y_range)} if y_range else {})
    return {
        "title": title,
        "xaxis": {"title": x},
        "yaxis": axis,
        "margin": {"l": 50, "r": 20, "t": 40, "b": 40},
    }
