"""What loose verification keeps right: visual words against λ, on held-out scenes whose truth is known.

Given a loaded pair and how many scenes, gives a row a setting of `lvspec`: its speed in rounds, its relaxed
tokens, the share of visual words that are right, and that share over plain decoding's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specvl_demo import methods, registry, session
from specvl_demo.bench import provenance
from specvl_demo.bench.cases import scenes_alone
from specvl_demo.bench.measure import Tell, requests, silent
from specvl_demo.core import engine
from specvl_demo.methods import Choice, Value
from specvl_demo.registry import Loaded
from specvl_demo.report.metrics import Lane, gather, measure
from specvl_demo.training.evaluate import Tally, held_out, score_describe

LOOSE = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
WORDS = ("place", "size", "colour", "shape", "ground")
"""The visual words of a description that are held against the scene."""
COLUMNS = (
    *("method", "loose", "shift", "tau", "relaxed_share", "same_as_ar", "visual_right", "retention"),
    *("objects_right", "scenes"),
)


def retention(loaded: Loaded, n_scenes: int, max_new_tokens: int, tell: Tell = silent) -> dict[str, Any]:
    """`machine, settings, rows`: plain decoding first, then `lvspec` exact, then by λ."""
    settings: list[tuple[str, dict[str, Value]]] = [("exact", {"loose": 0.0, "shift": False})]
    settings += [(f"λ {loose:g}", {"loose": loose}) for loose in LOOSE]
    choices = [methods.choose("ar")]
    for label, changed in settings:
        choice = registry.choose(loaded.pair, "lvspec", changed)
        choices.append(replace(choice, method=replace(choice.method, name=f"lvspec, {label}")))
    cases = scenes_alone(n_scenes)
    lanes: dict[str, list[Lane]] = defaultdict(list)
    for number, request in enumerate(requests(loaded, cases, max_new_tokens)):
        tell(f"scene {number + 1} of {n_scenes}", number / n_scenes)
        for lane in gather(engine.race(session.lanes(loaded, request, choices))):
            lanes[lane.begin.lane].append(lane)
    plain = _right(lanes["ar"])
    return {
        "machine": provenance.describe(loaded),
        "settings": {"pair": loaded.pair.id, "scenes": n_scenes, "max_new_tokens": max_new_tokens},
        "rows": [_row(choice, lanes[choice.method.name], lanes["ar"], plain) for choice in choices],
    }


def _row(
    choice: Choice, lanes: Sequence[Lane], ar: Sequence[Lane], plain: tuple[float, float]
) -> dict[str, Any]:
    found, (words, objects) = measure(lanes), _right(lanes)
    same = sum(a.token_ids == b.token_ids for a, b in zip(lanes, ar, strict=True))
    return {
        "method": choice.method.name,
        "loose": choice.params.get("loose"),
        "shift": choice.params.get("shift"),
        "tau": found.totals.tau,
        "relaxed_share": found.relaxed_share,
        "same_as_ar": same / len(lanes),
        "visual_right": words,
        "retention": words / plain[0] if plain[0] else None,
        "objects_right": objects,
        "scenes": len(lanes),
    }


def _right(lanes: Sequence[Lane]) -> tuple[float, float]:
    """Shares of visual words and of whole objects that answers about the first held-out scenes get right."""
    tally = Tally(defaultdict(lambda: [0, 0]))
    for number, lane in enumerate(lanes):
        score_describe(lane.text, held_out("describe", number)[0].pictures[0], tally)
    right, total = (sum(tally.counts[word][i] for word in WORDS) for i in (0, 1))
    objects, of = tally.counts["objects"]
    return right / max(total, 1), objects / max(of, 1)
