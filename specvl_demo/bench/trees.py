"""Every tree shape of a grid, ranked: what `bench tune` climbs over, laid out whole to be read.

Given a loaded pair, cases and a method that grows its tree best first, gives rows by τ / ρ. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specvl_demo.bench.cases import Case
from specvl_demo.bench.measure import Tell, requests, silent
from specvl_demo.bench.tune import Predictor
from specvl_demo.methods import Value
from specvl_demo.registry import Loaded

GAMMAS = (2, 3, 4, 5, 6, 7, 8, 10)
TREES = tuple(
    (nodes, width, loops)
    for nodes in (6, 8, 10, 12, 16, 24)
    for width in (2, 3, 4)
    for loops in (3, 4, 5, 6, 7)
    if loops + 1 < nodes <= width + loops * width * width
)
COLUMNS = ("method", "policy", "gamma", "nodes", "width", "loops", "tau", "mean_nodes", "rho", "speedup")


def shapes() -> Iterator[dict[str, Value]]:
    """Settings of every shape that is tried."""
    for gamma in GAMMAS:
        yield {"policy": "chain", "gamma": gamma}
    for nodes, width, loops in TREES:
        yield {"policy": "best-first", "nodes": nodes, "width": width, "loops": loops}


def search(
    loaded: Loaded, name: str, cases: Sequence[Case], max_new_tokens: int = 96, tell: Tell = silent
) -> dict[str, Any]:
    """`costs` and `rows`, best shape first: policy, its numbers, tau, nodes, rho, speedup (predicted: tau /
    rho)."""
    tell("step costs", 0.0)
    predictor = Predictor(loaded, name, requests(loaded, cases, max_new_tokens), repeats=30)
    settings, rows = list(shapes()), []
    for number, setting in enumerate(settings):
        tell(f"shape {number + 1} of {len(settings)}", number / len(settings))
        found = predictor.forecast(setting)
        if found is not None:
            told = {"tau": found.tau, "mean_nodes": found.nodes, "rho": found.tau / found.speedup}
            rows.append({**setting, **told, "speedup": found.speedup})
    rows.sort(key=lambda row: -row["speedup"])
    return {"method": name, "costs": vars(predictor.costs), "rows": rows}
