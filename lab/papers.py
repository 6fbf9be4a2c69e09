"""The papers' claims with their controls, measured by acceptance and nodes, without a clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from lab import verdicts
from lab.claims import Claim, find
from lab.options import LabOptions, requests
from specvl_demo.compare import provenance
from specvl_demo.core.sampling import Sampling
from specvl_demo.methods.base import describe_draft
from specvl_demo.records import LaneRecords
from specvl_demo.serving import choosing, session
from specvl_demo.serving.loaded import LoadedPair

Answered = Mapping[str, Sequence[verdicts.Sums]]
"""By arm, the sums of every answer."""


def report(options: LabOptions) -> dict[str, Any]:
    """Return `machine, settings, rows, claims`: a row per arm, and the claims with what they need;
    ValueError if a claim is unknown or the pair lacks a drafter.
    """
    wanted = find(options.claim)
    choices = [arm.choice() for claim in wanted for arm in claim.arms]
    loaded = options.load(choosing.roles_of(choices))
    rows: list[dict[str, Any]] = []
    claims = []
    for at, claim in enumerate(wanted):
        answered, more = _answered(loaded, claim, options, at / len(wanted))
        rows += more
        claims.append(_claim(claim, answered))
    settings = {
        "pair": loaded.pair.id,
        "claim": options.claim,
        "prompts": options.prompts,
        "max_new_tokens": options.max_new_tokens,
        "seed": options.sampling.seed,
    }
    machine = provenance.collect_facts(loaded)
    return {"machine": machine, "settings": settings, "rows": rows, "claims": claims}


def _answered(
    loaded: LoadedPair, claim: Claim, options: LabOptions, done: float
) -> tuple[Answered, list[dict[str, Any]]]:
    """Return the sums of every arm's answers, and a row for each."""
    answered: dict[str, list[verdicts.Sums]] = {}
    rows = []
    for arm in claim.arms:
        options.tell(f"{claim.name}: {arm.name}", done)
        sampling = Sampling(arm.temperature, seed=options.sampling.seed)
        choice, found = arm.choice(), (arm.asks or claim.asks)(options)
        lanes: list[LaneRecords] = []
        for request in requests(loaded, found, options.max_new_tokens, sampling):
            lanes += session.run_lanes(loaded, request, [choice])
        answered[arm.name] = [
            verdicts.sums(lane, case.reference) for lane, case in zip(lanes, found, strict=True)
        ]
        parts: dict[str, list[verdicts.Sums]] = defaultdict(list)
        if claim.parts is not None:
            for case, one in zip(found, answered[arm.name], strict=True):
                parts[claim.parts(case, one.tokens)].append(one)
        rows.append(
            {
                "claim": claim.name,
                "method": arm.name,
                "drafts": describe_draft(choice.settings),
                "questions": len(found),
                "visual": sum(lane.begin.n_visual for lane in lanes) / len(lanes),
                **verdicts.pooled(answered[arm.name]),
                "parts": {name: verdicts.pooled(some)["tau"] for name, some in parts.items()},
            }
        )
    return answered, rows


def _claim(claim: Claim, answered: Answered) -> dict[str, Any]:
    """Return the claim with its comparisons and its verdict."""
    compared = []
    for need in claim.needs:
        found = verdicts.ratio(answered[need.arm], answered[need.control], need.figure)
        value, interval = found or (None, None)
        compared.append({**vars(need), "ratio": value, "interval": interval})
    quoted = ("name", "method", "paper", "says", "control", "lacking")
    told: dict[str, Any] = {key: getattr(claim, key) for key in quoted}
    told["comparisons"] = compared
    return told | {"verdict": verdicts.verdict(told)}
