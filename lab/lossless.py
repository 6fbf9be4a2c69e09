"""Counts whether every lossless method emits what AR emits, over many prompts, token for token."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

from lab.options import LabOptions, requests
from specvl_demo.compare import provenance
from specvl_demo.core.engine import Request
from specvl_demo.methods import base
from specvl_demo.question import Question
from specvl_demo.report.remarks import compare_answers
from specvl_demo.serving import choosing, session
from specvl_demo.serving.loaded import LoadedPair


def report(options: LabOptions) -> dict[str, Any]:
    """Return the result of `lossless` on the pair's questions or the user's file. When sampling,
    few questions are repeated, each time with another seed.
    """
    cases = options.every()
    if cases and not options.sampling.greedy:
        cases = list(islice(cycle(cases), max(options.prompts, len(cases))))
    return lossless(options.load(choosing.roles_of(options.choices)), cases, options)


def lossless(loaded: LoadedPair, cases: Sequence[Question], options: LabOptions) -> dict[str, Any]:
    """Return `machine, settings, rows`: how often each lossless method differs from AR, where
    first, and the nats between the target's two likeliest tokens there.
    """
    choices, sampling = options.choices, options.sampling
    # With Gumbel noise, another seed means another answer, in AR too.
    plain = next((one for one in choices if one.method.name == "ar"), base.choose("ar"))
    chosen = [choice for choice in choices if choice.lossless and choice.method.name != "ar"]
    rows: dict[str, dict[str, Any]] = {
        one.method.name: {
            "method": one.method.name,
            "drafts": base.describe_draft(one.settings),
            **dict.fromkeys(("prompts", "differences", "tokens", "rounds"), 0),
        }
        for one in chosen
    }
    asked = requests(loaded, cases, options.max_new_tokens, sampling)
    for number, (case, request) in enumerate(zip(cases, asked, strict=True)):
        options.tell(f"prompt {number + 1} of {len(cases)}", number / len(cases))
        truth, *others = session.run_lanes(loaded, request, [plain, *chosen])
        for choice, lane in zip(chosen, others, strict=True):
            row, found = rows[choice.method.name], compare_answers(lane, truth)
            place = None if found.kind == "same" else found.at
            row["prompts"] += 1
            row["tokens"] += len(lane.token_ids)
            row["rounds"] += len(lane.rounds)
            row["differences"] += place is not None
            if place is not None and "first_case" not in row:
                gap = _gap(loaded, request, place)
                row |= {"first_case": case.id, "first_token": place, "logit_gap": gap}
    for row in rows.values():
        row["tau"] = row["tokens"] / max(row["rounds"], 1)
    settings = {
        "pair": loaded.pair.id,
        "prompts": dict(Counter(case.kind for case in cases)),
        "max_new_tokens": options.max_new_tokens,
        "sampling": "greedy" if sampling.greedy else vars(sampling),
    }
    machine = provenance.collect_facts(loaded)
    return {"machine": machine, "settings": settings, "rows": list(rows.values())}


def _gap(loaded: LoadedPair, request: Request, place: int) -> float | None:
    """Return the nats between the target's two likeliest tokens where the answers differ."""
    (lane,) = session.run_lanes(loaded, replace(request, full=True), [base.choose("ar")])
    candidates = lane.rounds[place].candidates if place < len(lane.rounds) else None
    if not candidates:
        return None
    likeliest = candidates[0]
    return math.log(likeliest[0].prob / likeliest[1].prob) if len(likeliest) > 1 else None
