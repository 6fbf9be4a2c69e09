"""Methods beside each other on one machine: interleaved repeats, medians, spread, and how busy it was.

Given a loaded pair, cases and chosen methods, gives plain rows. Every method runs alone, one after the other
on the same case, in an order that shifts with every repeat, then the next case. A rate is Σ tokens over
Σ seconds of a repeat, ratios are taken within a repeat, figures are medians over repeats.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psutil
import torch

from specvl_demo import registry, session
from specvl_demo.bench import peers
from specvl_demo.bench.peers import PeerRun
from specvl_demo.bench.suites import Case
from specvl_demo.core import engine
from specvl_demo.core.engine import Request
from specvl_demo.methods import Choice
from specvl_demo.registry import Loaded
from specvl_demo.report.metrics import Lane, compare, gather, measure
from specvl_demo.targets.prompts import Turn

HF_GENERATE, HF_ASSISTED = "hf-generate", "hf-assisted"
BUSY_SHARE = 0.15
"""Share of the machine that others may use before its figures are stamped busy."""

COLUMNS = (
    "method",
    "tau",
    "tokens_per_s",
    "speedup_vs_ar",
    "speedup_vs_hf_generate",
    "speedup_vs_hf_assisted",
    "limit",
    "share_draft",
    "share_verify",
    "share_commit",
    "share_other",
    "identical_to_ar",
    "relaxed_share",
    "repeats",
    "spread",
)


@dataclass
class Runs:
    """What was measured: lanes and peer runs by method, one list of cases for each repeat."""

    lanes: dict[str, list[list[Lane]]] = field(default_factory=lambda: defaultdict(list))
    peers: dict[str, list[list[PeerRun]]] = field(default_factory=lambda: defaultdict(list))
    faults: dict[str, str] = field(default_factory=dict)

    def rates(self, name: str) -> list[float | None]:
        """Decode tokens per second of a method, one figure a repeat."""
        if name in self.lanes:
            return [measure(repeat).totals.tokens_per_s for repeat in self.lanes[name]]
        sums = [(sum(r.n_decoded for r in some), sum(r.decode_s for r in some)) for some in self.peers[name]]
        return [n / seconds if seconds > 0 else None for n, seconds in sums]


def bench(
    loaded: Loaded,
    cases: Sequence[Case],
    choices: Sequence[Choice],
    repeats: int,
    max_new_tokens: int,
    assisted: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """`machine, settings, rows`, as `bench --json` prints them. The first choice must be `ar`."""
    others = psutil.cpu_percent(interval=1.0) / 100
    before, started, cpu_before = _load(), time.perf_counter(), time.process_time()
    turns = [Turn(case.question, case.shown) for case in cases]
    asked = [session.request(loaded, [turn], max_new_tokens, detail="light") for turn in turns]
    session.warm(loaded, asked[0], choices)
    runs, names = Runs(), [choice.method.name for choice in choices]
    rivals = [HF_GENERATE, *([HF_ASSISTED] if assisted else [])]
    _warm_peers(loaded, asked[0], rivals, runs)
    for repeat in range(repeats):
        for name in names:
            runs.lanes[name].append([])
        for name in rivals:
            runs.peers[name].append([])
        for number, request in enumerate(asked):
            tell(f"repeat {repeat + 1} of {repeats}, case {number + 1} of {len(asked)}")
            _one_case(loaded, request, choices, rivals, repeat, runs)
    wall = time.perf_counter() - started
    machine = {
        "title": registry.detect().title,
        "device": loaded.verdict.device,
        "dtype": loaded.verdict.dtype,
        "threads": torch.get_num_threads(),
        "versions": loaded.versions,
        "others_share_before": others,
        "busy": others > BUSY_SHARE,
        "load_before": before,
        "load_after": _load(),
        "cpu_per_wall": (time.process_time() - cpu_before) / wall,
    }
    settings = {
        "pair": loaded.pair.id,
        "cases": [case.name for case in cases],
        "max_new_tokens": max_new_tokens,
        "repeats": repeats,
        "sampling": "greedy",
        "methods": {choice.method.name: choice.settings for choice in choices},
    }
    return {"machine": machine, "settings": settings, "rows": rows(runs, names, rivals)}


def rows(runs: Runs, names: Sequence[str], rivals: Sequence[str]) -> list[dict[str, Any]]:
    """One row a method, the library's own last."""
    return [_row(runs, name) for name in names] + [_peer_row(runs, name) for name in rivals]


def _one_case(
    loaded: Loaded,
    request: Request,
    choices: Sequence[Choice],
    rivals: Sequence[str],
    repeat: int,
    runs: Runs,
) -> None:
    contenders: list[Choice | str] = [*choices, *rivals]
    shift = repeat % len(contenders)
    for one in contenders[shift:] + contenders[:shift]:
        if isinstance(one, Choice):
            (lane,) = gather(engine.race(session.lanes(loaded, request, [one])))
            runs.lanes[one.method.name][-1].append(lane)
        elif one not in runs.faults:
            run = _peer(loaded, request, one, runs)
            if run is not None:
                runs.peers[one][-1].append(run)


def _peer(loaded: Loaded, request: Request, name: str, runs: Runs) -> PeerRun | None:
    """One run of the library's loop; what it cannot do is noted once, in its own words."""
    assistant = None
    if name == HF_ASSISTED:
        small = loaded.models.drafters.get("small")
        if small is None:
            runs.faults[name] = "The pair has no small drafter."
            return None
        assistant = small.model
    try:
        model = loaded.models.target.vlm.model
        return peers.generate(model, request.prompt, request.max_new_tokens, assistant)
    except (ValueError, RuntimeError, TypeError, IndexError, KeyError, AttributeError) as fault:
        runs.faults[name] = f"The library failed: {type(fault).__name__}: {str(fault).splitlines()[0][:200]}"
        return None


def _warm_peers(loaded: Loaded, request: Request, rivals: Sequence[str], runs: Runs) -> None:
    for name in rivals:
        _peer(loaded, request, name, runs)


def _row(runs: Runs, name: str) -> dict[str, Any]:
    lanes = [lane for repeat in runs.lanes[name] for lane in repeat]
    plain = [lane for repeat in runs.lanes["ar"] for lane in repeat]
    beside = compare(lanes, plain)
    found = beside.metrics
    return {
        "method": name,
        "tau": found.totals.tau,
        "tokens_per_s": _median(runs.rates(name)),
        "speedup_vs_ar": _ratio(runs, name, "ar"),
        "speedup_vs_hf_generate": _ratio(runs, name, HF_GENERATE),
        "speedup_vs_hf_assisted": _ratio(runs, name, HF_ASSISTED),
        "limit": beside.limit,
        **{f"share_{phase}": share for phase, share in found.shares.items()},
        "identical_to_ar": all(a.token_ids == b.token_ids for a, b in zip(lanes, plain, strict=True)),
        "relaxed_share": found.relaxed_share,
        "repeats": len(runs.lanes[name]),
        "spread": _spread(runs.rates(name)),
        "note": beside.doubt() or beside.why_slow(),
    }


def _peer_row(runs: Runs, name: str) -> dict[str, Any]:
    rates = [] if name in runs.faults else runs.rates(name)
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"method": name, "note": runs.faults.get(name)}
    if rates:
        ids = [run.token_ids for repeat in runs.peers[name] for run in repeat]
        plain = [lane.token_ids for repeat in runs.lanes["ar"] for lane in repeat]
        row |= {
            "tokens_per_s": _median(rates),
            "speedup_vs_ar": _ratio(runs, name, "ar"),
            "speedup_vs_hf_generate": _ratio(runs, name, HF_GENERATE),
            "speedup_vs_hf_assisted": _ratio(runs, name, HF_ASSISTED),
            "identical_to_ar": ids == plain,
            "repeats": len(rates),
            "spread": _spread(rates),
        }
    return row


def _ratio(runs: Runs, name: str, other: str) -> float | None:
    """Median over repeats of the ratio of rates within a repeat."""
    if other in runs.faults or (other not in runs.lanes and other not in runs.peers):
        return None
    pairs = zip(runs.rates(name), runs.rates(other), strict=True)
    return _median([a / b if a is not None and b else None for a, b in pairs])


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _spread(values: Sequence[float | None]) -> float | None:
    """(highest − lowest) / median over repeats."""
    known = [value for value in values if value is not None]
    return (max(known) - min(known)) / median(known) if len(known) > 1 else None


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
