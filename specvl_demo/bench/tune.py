"""Finds the settings that make each method fastest on this machine, on calibration inputs.

Climbs over the settings of a method's draft policy, and of a chain if the method may draft one, by
the speed measured on the cases; then runs the best few interleaved with the existing presets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specvl_demo.bench import measure, provenance
from specvl_demo.bench.cases import Case
from specvl_demo.bench.measure import BenchOptions, silent
from specvl_demo.core.engine import Request
from specvl_demo.methods import base
from specvl_demo.methods.base import Choice, Value
from specvl_demo.pairs import PairSpec
from specvl_demo.report.metrics import Metrics
from specvl_demo.report.metrics import measure as metrics
from specvl_demo.serving import choosing, session, tuned
from specvl_demo.serving.loader import Loaded

LADDERS: dict[str, dict[str, tuple[float, ...]]] = {
    "chain": {
        "gamma": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12),
        "floor": (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4),
    },
    "branches": {"gamma": (2, 3, 4, 5, 6, 8, 10), "count": (1, 2, 3)},
    "beam": {"gamma": (2, 3, 4, 5, 6, 8), "beams": (1, 2, 3, 4)},
    "static-tree": {"tree_nodes": (3, 4, 6, 8, 10, 12, 14, 18, 22, 26)},
    "best-first": {
        "nodes": (3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32),
        "width": (1, 2, 3, 4),
        "loops": (1, 2, 3, 4, 5, 6, 7, 8),
    },
    "entropy-tree": {
        "max_nodes": (4, 6, 8, 10, 12, 16, 24, 32),
        "max_depth": (3, 4, 5, 6, 7, 8, 10),
        "max_width": (1, 2, 3, 4, 6, 8),
    },
}
"""What is tried, by policy: only sizes and shapes, since relaxing a verifier would change
answers.
"""
FINALISTS = 2
"""Per policy."""
COLUMNS = ("method", "settings", "tau", "measured", "standard", "paper", "tried")


@dataclass(frozen=True)
class Trial:
    """What settings reached on the cases: acceptance length, and speed over AR."""

    settings: dict[str, Value]
    tau: float
    speedup: float


class Trials:
    """One method on one set of requests; each setting is tried once."""

    def __init__(self, loaded: Loaded, name: str, requests: Sequence[Request]) -> None:
        self.loaded, self.name, self.requests = loaded, name, requests
        self.tried: dict[tuple[tuple[str, Value], ...], Trial | None] = {}
        self._ar = answer(loaded, requests, base.choose("ar")).totals.tokens_per_s or 1.0

    def choice(self, settings: Mapping[str, Value]) -> Choice:
        """Return the method with the pair's standard preset and these settings."""
        return choosing.choose(self.loaded.pair, self.name, settings)

    def trial(self, settings: Mapping[str, Value]) -> Trial | None:
        """Return what these settings reach; None if they do not fit together."""
        key = tuple(sorted(settings.items()))
        if key not in self.tried:
            try:
                totals = answer(self.loaded, self.requests, self.choice(settings)).totals
            except ValueError:
                self.tried[key] = None
            else:
                speedup = (totals.tokens_per_s or 0.0) / self._ar
                self.tried[key] = Trial(dict(settings), totals.tau or 0.0, speedup)
        return self.tried[key]

    def best(self, policy: str) -> list[Trial]:
        """Return everything that was tried with a policy, best first."""
        known = filter(None, self.tried.values())
        some = [one for one in known if self.choice(one.settings).policy.name == policy]
        return sorted(some, key=lambda one: -one.speedup)


def answer(loaded: Loaded, requests: Sequence[Request], choice: Choice) -> Metrics:
    return metrics([lane for one in requests for lane in session.answers(loaded, one, [choice])])


def tune(
    loaded: Loaded, names: Sequence[str], cases: Sequence[Case], options: BenchOptions
) -> list[dict[str, Any]]:
    """Return one row per method: the settings to use, what they reached, and what other presets
    reached.
    """
    requests = list(measure.requests(loaded, cases, options.max_new_tokens))
    session.warm(loaded, requests[0], [choosing.choose(loaded.pair, name) for name in names])
    rows = []
    for number, name in enumerate(names):
        bench = Trials(loaded, name, requests)

        def note(text: str, name: str = name, done: float = number / len(names)) -> None:
            options.tell(f"{name}: {text}", done)

        for policy in policies(bench):
            climb(bench, policy, note)
        options.tell(f"{name}: the best beside its presets", (number + 0.8) / len(names))
        rows.append(_final(bench, cases, options))
    return rows


def report(options: BenchOptions) -> dict[str, Any]:
    """Tune, and write the result where the page and the command line look for it."""
    named = {choice.method.name for choice in options.choices}
    names = [name for name in tunable(options.pair) if name in named]
    if not names:
        raise ValueError("None of these methods has a tree or a chain to tune.")
    loaded, found = options.load(options.roles, None), options.cases("choose")
    watch = provenance.Watch()
    rows = tune(loaded, names, found, options)
    machine = {**provenance.describe(loaded), **watch.read()}
    source = options.data or f"{options.pair.questions}, none of those that bench asks"
    tuned_on = f"Tuned on {len(found)} cases: {source}; other inputs may want other settings."
    about = {"tuned_on": tuned_on, "when": machine["when"], "weights": machine["weights"]}
    kept: dict[str, dict[str, Value]] = {
        row["method"]: {key: row[key] for key in ("settings", "tau", "measured", "standard")}
        for row in rows
    }
    held = machine["busy"] and not options.busy
    return {
        "machine": machine,
        "settings": {
            "pair": options.pair.id,
            "cases": [case.name for case in found],
            "repeats": options.repeats,
        },
        "tuned_on": tuned_on,
        "written": None if held else str(tuned.write(options.pair.id, about, kept)),
        "rows": rows,
    }


def tunable(pair: PairSpec) -> list[str]:
    """Return the speculative methods of a pair whose policy has something to tune."""
    return [
        name for name in choosing.served(pair) if choosing.choose(pair, name).policy.name in LADDERS
    ]


def policies(bench: Any) -> list[str]:
    """Return a method's policy, and the chain if it may draft one: branches must be worth their
    cost.
    """
    own, others = bench.choice({}).policy.name, base.alternatives(bench.name, "policy")
    return [own, *(part.name for part in others if part.name == "chain" != own)]


def climb(bench: Any, policy: str, tell: Callable[[str], None] = lambda text: None) -> None:
    """Change one setting of a policy after the other as long as that is faster."""
    now, improved = start_of(bench, policy), True
    best, ladders = bench.trial(now), LADDERS[policy]
    while improved:
        improved = False
        for axis, ladder in ladders.items():
            for way in (1, -1):
                while True:
                    tell(f"{len(bench.tried)} settings tried")
                    rung = _next(ladder, float(now[axis]), way)
                    found = None if rung is None else bench.trial({**now, axis: rung})
                    if found is None or (best is not None and found.speedup <= best.speedup):
                        break
                    now, best, improved = found.settings, found, True


def start_of(bench: Any, policy: str) -> dict[str, Value]:
    """Return the tuned settings of the standard preset; with the policy if that is another one."""
    other: dict[str, Value] = {} if bench.choice({}).policy.name == policy else {"policy": policy}
    choice = bench.choice(other)
    return other | {axis: choice.params[axis] for axis in LADDERS[policy]}


def _next(ladder: Sequence[float], value: float, way: int) -> float | None:
    beyond = [rung for rung in ladder if (rung > value if way > 0 else rung < value)]
    return None if not beyond else min(beyond) if way > 0 else max(beyond)


def _final(bench: Trials, cases: Sequence[Case], options: BenchOptions) -> dict[str, Any]:
    """Run finalists and presets interleaved with AR; the existing preset stays if nothing
    beats it.
    """
    own, *_ = policies(bench)
    start = bench.trial(start_of(bench, own))
    finalists = {"standard": start} if start is not None else {}
    for policy in policies(bench):
        others = [one for one in bench.best(policy) if one is not start][:FINALISTS]
        finalists |= {f"{policy} {rank}": one for rank, one in enumerate(others)}
    runners = {label: bench.choice(one.settings) for label, one in finalists.items()}
    runners["standard"] = bench.choice({})
    if "paper" in base.find(bench.name).presets:
        runners["paper"] = bench.choice({"preset": "paper"})
    named = [replace(one, method=replace(one.method, name=label)) for label, one in runners.items()]
    beside = replace(options, choices=[base.choose("ar"), *named], tell=silent)
    rows = measure.bench(bench.loaded, cases, beside, peers=())["rows"]
    speedups = {row["method"]: row["speedup_vs_ar"] for row in rows}
    winner = max(finalists, key=lambda label: speedups[label])
    return {
        "method": bench.name,
        "settings": finalists[winner].settings,
        "tau": finalists[winner].tau,
        "measured": speedups[winner],
        "standard": speedups["standard"],
        "paper": speedups.get("paper"),
        "tried": len(bench.tried),
    }
