"""Are clocks honest? A lane's own clock in a race of three beside its clock alone, on the same requests.

Given a loaded pair, cases and three methods, gives a row a method: milliseconds a round alone and in the
race, and the median difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from specvl_demo import session
from specvl_demo.bench import provenance
from specvl_demo.bench.cases import Case
from specvl_demo.bench.measure import Tell, quartiles, requests, silent
from specvl_demo.core import engine
from specvl_demo.methods import Choice
from specvl_demo.registry import Loaded
from specvl_demo.report.metrics import gather

LANES = 3
WANTED = 0.05
"""The most by which a clock in a race may differ from the clock alone."""
COLUMNS = ("method", "alone_ms", "race_ms", "difference", "low", "high", "kept", "runs")


def clocks(
    loaded: Loaded,
    cases: Sequence[Case],
    choices: Sequence[Choice],
    repeats: int,
    max_new_tokens: int,
    tell: Tell = silent,
) -> dict[str, Any]:
    """`machine, settings, rows`. difference: clock in the race / clock alone - 1, median over all runs."""
    watch = provenance.Watch()
    asked = requests(loaded, cases, max_new_tokens)
    session.warm(loaded, asked[0], choices)
    alone: dict[str, list[float]] = defaultdict(list)
    raced: dict[str, list[float]] = defaultdict(list)
    for repeat in range(repeats):
        for number, request in enumerate(asked):
            tell(f"repeat {repeat + 1} of {repeats}", (repeat * len(asked) + number) / (repeats * len(asked)))

            def by_itself(request: Any = request) -> None:
                for choice in choices:
                    (lane,) = gather(engine.race(session.lanes(loaded, request, [choice])))
                    alone[choice.method.name].append(_ms(lane))

            def together(request: Any = request) -> None:
                for lane in gather(engine.race(session.lanes(loaded, request, choices))):
                    raced[lane.begin.method].append(_ms(lane))

            # Taken in turns, so that what drifts on the machine falls on both alike.
            for run in (by_itself, together) if (repeat + number) % 2 else (together, by_itself):
                run()
    return {
        "machine": {**provenance.describe(loaded), **watch.read()},
        "settings": {"pair": loaded.pair.id, "repeats": repeats, "max_new_tokens": max_new_tokens},
        "rows": [_row(name, alone[name], raced[name]) for name in alone],
    }


def _row(name: str, alone: Sequence[float], raced: Sequence[float]) -> dict[str, Any]:
    differences = [b / a - 1 for a, b in zip(alone, raced, strict=True)]
    low, high = quartiles(differences)
    return {
        "method": name,
        "alone_ms": median(alone),
        "race_ms": median(raced),
        "difference": median(differences),
        "low": low,
        "high": high,
        "kept": abs(median(differences)) <= WANTED,
        "runs": len(differences),
    }


def _ms(lane: Any) -> float:
    """Milliseconds a round by the lane's own clock."""
    return 1e3 * lane.rounds[-1].clock_s / len(lane.rounds)
