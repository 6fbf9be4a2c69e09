"""Does every lossless method say what plain decoding says? Counted over many prompts, token for token.

Given a loaded pair, cases and methods, gives a row a method with its differences; for the first one where it
is, and how close the target's call was there. Knows nothing of clocks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specvl_demo import methods, session
from specvl_demo.bench import provenance
from specvl_demo.bench.cases import Case
from specvl_demo.bench.measure import Tell, requests, silent
from specvl_demo.core import engine
from specvl_demo.core.engine import Request
from specvl_demo.methods import Choice
from specvl_demo.registry import Loaded
from specvl_demo.report.metrics import first_difference, gather

COLUMNS = ("method", "prompts", "differences", "tokens", "tau", "first_case", "first_token", "logit_gap")


def lossless(
    loaded: Loaded, cases: Sequence[Case], choices: Sequence[Choice], max_new_tokens: int, tell: Tell = silent
) -> dict[str, Any]:
    """`machine, settings, rows`: how often each lossless method differs from plain decoding, where first."""
    plain = methods.choose("ar")
    asked_of = [choice for choice in choices if choice.lossless and choice.method.name != "ar"]
    asked = requests(loaded, cases, max_new_tokens)
    counts = {choice.method.name: Counter() for choice in asked_of}
    first: dict[str, dict[str, Any]] = {}
    for number, (case, request) in enumerate(zip(cases, asked, strict=True)):
        tell(f"prompt {number + 1} of {len(cases)}", number / len(cases))
        truth, *others = gather(engine.race(session.lanes(loaded, request, [plain, *asked_of])))
        for choice, lane in zip(asked_of, others, strict=True):
            name = choice.method.name
            place = first_difference(lane.token_ids, truth.token_ids)
            counts[name].update(
                prompts=1,
                differences=int(place is not None),
                tokens=len(lane.token_ids),
                rounds=len(lane.rounds),
            )
            if place is not None and name not in first:
                gap = _gap(loaded, request, place)
                first[name] = {"first_case": case.name, "first_token": place, "logit_gap": gap}
    rows = [
        {"method": name, **found, "tau": found["tokens"] / max(found["rounds"], 1), **first.get(name, {})}
        for name, found in counts.items()
    ]
    return {
        "machine": provenance.describe(loaded),
        "settings": {
            "pair": loaded.pair.id,
            "prompts": dict(Counter(case.kind for case in cases)),
            "max_new_tokens": max_new_tokens,
            "sampling": "greedy",
        },
        "rows": rows,
    }


def _gap(loaded: Loaded, request: Request, place: int) -> float | None:
    """How far the target's likeliest token was above its second, where answers part."""
    (lane,) = gather(
        engine.race(session.lanes(loaded, replace(request, detail="full"), [methods.choose("ar")]))
    )
    if place >= len(lane.rounds) or not lane.rounds[place].candidates:
        return None
    likeliest = lane.rounds[place].candidates[0]
    return math.log(likeliest[0].prob / likeliest[1].prob) if len(likeliest) > 1 else None
