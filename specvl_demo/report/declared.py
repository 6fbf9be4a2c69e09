"""The charts that each method asks for, as data: which numbers of a round's notes are drawn, and how.

The page draws what is declared; adding a chart to a method is adding a row here.
Knows names of notes; knows no records, no plotly.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Series:
    """One line of a declared chart, or several.

    path: dotted path inside a round, e.g. `notes.alpha`. A number gives one value a round; an object of
    numbers gives one line for each key, named by it; a list gives one point for each entry.
    nodes, mark: beside a list, the paths of the tree nodes its entries stand for and of the nodes to mark;
    marked ones are drawn in the colour of relaxed tokens and named `marked`.
    axis: "right" draws against a second axis.
    """

    path: str
    name: str
    axis: Literal["left", "right"] = "left"
    nodes: str | None = None
    mark: str | None = None
    marked: str = ""


@dataclass(frozen=True)
class Declared:
    """A chart over rounds that a method asks for, as plain data.

    shade: draws how much every round kept as a pale ground behind the lines.
    """

    id: str
    title: str
    help: str
    kind: Literal["lines", "steps", "stack", "points"]
    series: tuple[Series, ...]
    y: str
    y_range: tuple[float, float] | None = None
    y_right: str | None = None
    shade: Literal["accepted"] | None = None


DECLARED: dict[str, tuple[Declared, ...]] = {
    "tabed": (
        Declared(
            "weights",
            "Ensemble weights",
            "How much each view of the drafter counts, learnt from what the target has just verified.",
            "steps",
            (Series("notes.weights", "weight"),),
            "weight",
            (0.0, 1.0),
            shade="accepted",
        ),
        Declared(
            "matches",
            "Who was right",
            "Positions so far at which each view's own likeliest token was the target's.",
            "lines",
            (Series("notes.matches", "matches"),),
            "positions",
        ),
    ),
    "sage": (
        Declared(
            "shape",
            "Confidence and tree shape",
            "α is the drafter's confidence: a sure drafter gets a deep tree, an unsure one a wide tree.",
            "steps",
            (
                Series("notes.alpha", "confidence α"),
                Series("notes.depth", "depth", "right"),
                Series("notes.width", "width", "right"),
            ),
            "α",
            (0.0, 1.0),
            "levels, children",
            shade="accepted",
        ),
    ),
    "lvspec": (
        Declared(
            "relevance",
            "Visual relevance of drafted tokens",
            "How much each drafted token leans on the picture; the least relevant ones may be relaxed.",
            "points",
            (
                Series(
                    "notes.relevance",
                    "must match",
                    nodes="notes.nodes",
                    mark="notes.loosened",
                    marked="may be relaxed",
                ),
                Series("notes.cut", "λ's cut"),
            ),
            "cosine similarity",
        ),
    ),
    "fly": (
        Declared(
            "entropy",
            "Entropy of the target",
            "How undecided the target is at each drafted token; only undecided mismatches may pass.",
            "points",
            (
                Series(
                    "notes.entropy",
                    "drafted token",
                    nodes="notes.nodes",
                    mark="notes.relaxed_nodes",
                    marked="relaxed",
                ),
                Series("notes.gate", "gate"),
            ),
            "nats",
        ),
    ),
}


def declarations(method: str) -> list[dict[str, Any]]:
    """A method's own charts as JSON-safe data, for the page; empty where it declares none."""
    return [asdict(declared) for declared in DECLARED.get(method, ())]
