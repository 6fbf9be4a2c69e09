"""The settings that make each method fastest on this machine, found on calibration inputs.

Given a loaded pair and cases, measures step costs, climbs over the settings of a method's tree policy, and of
a chain where the method may draft one, by measured acceptance times measured costs, then lets the best few
run beside the presets it had and takes the fastest. What it writes is a preset, `tuned-here`. Knows the
tables of methods, no page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from specvl_demo import methods, registry, session
from specvl_demo.bench import costs, measure
from specvl_demo.bench.cases import Case
from specvl_demo.bench.costs import StepCosts
from specvl_demo.bench.measure import Tell, silent
from specvl_demo.core import engine
from specvl_demo.core.engine import Request
from specvl_demo.methods import Choice, Value
from specvl_demo.registry import Loaded
from specvl_demo.report.metrics import gather
from specvl_demo.report.metrics import measure as measured

LADDERS: dict[str, dict[str, tuple[int, ...]]] = {
    "chain": {"gamma": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)},
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
"""What is tried, by tree policy: sizes and shapes alone. What a verifier lets pass stays as it is, since that
would change answers."""
FINALISTS = 2
"""Of each policy."""
COLUMNS = ("method", "settings", "tau", "predicted", "measured", "standard", "paper", "tried")


@dataclass(frozen=True)
class Forecast:
    """What settings promise: tokens per target forward, nodes and drafting steps, and speed over plain
    decoding."""

    settings: dict[str, Value]
    tau: float
    nodes: float
    speedup: float


class Predictor:
    """Forecasts for one method on one set of requests; each setting is tried once."""

    def __init__(self, loaded: Loaded, name: str, asked: Sequence[Request], repeats: int) -> None:
        self.loaded, self.name, self.asked = loaded, name, asked
        typical = sorted(asked, key=lambda request: len(request.prompt))[len(asked) // 2]
        plain = costs.measure(loaded, methods.choose("ar"), typical, repeats, (1,), ())
        self.plain_s = plain.step + plain.rest
        self.costs: StepCosts = costs.measure(loaded, self.choice({}), typical, repeats)
        self.known: dict[tuple[tuple[str, Value], ...], Forecast | None] = {}

    def choice(self, settings: Mapping[str, Value]) -> Choice:
        """The method with the pair's standard preset and these settings."""
        return registry.choose(self.loaded.pair, self.name, settings)

    def forecast(self, settings: Mapping[str, Value]) -> Forecast | None:
        """What these settings promise; None where they do not fit together."""
        key = tuple(sorted(settings.items()))
        if key not in self.known:
            try:
                work = costs.count(self.loaded, self.choice(settings), self.asked)
            except ValueError:
                self.known[key] = None
            else:
                seconds = work.forwards(self.costs) + self.costs.rest
                speedup = work.tau / seconds * self.plain_s
                self.known[key] = Forecast(dict(settings), work.tau, work.nodes, speedup)
        return self.known[key]

    def best(self, policy: str) -> list[Forecast]:
        """Everything that was tried with a policy, best first."""
        tried = [
            one for one in self.known.values() if one and self.choice(one.settings).policy.name == policy
        ]
        return sorted(tried, key=lambda one: -one.speedup)


def tune(
    loaded: Loaded,
    names: Sequence[str],
    cases: Sequence[Case],
    max_new_tokens: int = 64,
    repeats: int = 3,
    tell: Tell = silent,
) -> list[dict[str, Any]]:
    """One row a method: the settings to take, what they promise and reached, what other presets reached."""
    asked = measure.requests(loaded, cases, max_new_tokens)
    session.warm(loaded, asked[0], [registry.choose(loaded.pair, name) for name in names])
    rows = []
    for number, name in enumerate(names):
        tell(f"{name}: step costs", number / len(names))
        predictor = Predictor(loaded, name, asked, repeats=10)
        for policy in policies(predictor):
            climb(
                predictor, policy, lambda text, n=number, m=name: tell(f"{m}: {text}", (n + 0.4) / len(names))
            )
        tell(f"{name}: the best beside its presets", (number + 0.8) / len(names))
        rows.append(_final(predictor, repeats))
    return rows


def tunable(pair: Any) -> list[str]:
    """The speculative methods of a pair whose policy has something to tune."""
    return [name for name in registry.served(pair) if registry.choose(pair, name).policy.name in LADDERS]


def policies(predictor: Predictor) -> list[str]:
    """The policy a method has, and the chain where it may draft one: branches must earn their cost."""
    own, others = predictor.choice({}).policy.name, methods.alternatives(predictor.name, "policy")
    return [own, *(part.name for part in others if part.name == "chain" != own)]


def climb(predictor: Predictor, policy: str, tell: Any = lambda text: None) -> None:
    """Walk along one setting of a policy after the other while that promises more, until none does."""
    now, improved = start_of(predictor, policy), True
    best, ladders = predictor.forecast(now), LADDERS[policy]
    while improved:
        improved = False
        for axis, ladder in ladders.items():
            for way in (1, -1):
                while True:
                    tell(f"{len(predictor.known)} settings tried")
                    place = _next(ladder, int(now[axis]), way)
                    if place is None:
                        break
                    found = predictor.forecast({**now, axis: place})
                    if found is None or (best is not None and found.speedup <= best.speedup):
                        break
                    now, best, improved = found.settings, found, True


def start_of(predictor: Predictor, policy: str) -> dict[str, Value]:
    """What is tuned, as the standard preset has it; with the policy, where that is another one."""
    other: dict[str, Value] = {} if predictor.choice({}).policy.name == policy else {"policy": policy}
    choice = predictor.choice(other)
    return other | {axis: choice.params[axis] for axis in LADDERS[policy]}


def _next(ladder: Sequence[int], value: int, way: int) -> int | None:
    """The next rung above or below a value."""
    beyond = [rung for rung in ladder if (rung > value if way > 0 else rung < value)]
    return None if not beyond else min(beyond) if way > 0 else max(beyond)


def _final(predictor: Predictor, repeats: int) -> dict[str, Any]:
    """Forecasts choose few, clocks choose one: finalists and presets run interleaved with plain decoding."""
    pair, name = predictor.loaded.pair, predictor.name
    method = methods.find(name)
    runners: dict[str, Choice] = {"standard": predictor.choice({})}
    if "paper" in method.presets:
        runners["paper"] = registry.choose(pair, name, {"preset": "paper"})
    own, *_ = policies(predictor)
    start = predictor.forecast(start_of(predictor, own))
    best = (predictor.best(policy) for policy in policies(predictor))
    others = [one for some in best for one in [each for each in some if each is not start][:FINALISTS]]
    finalists = {f"tuned {rank}": one for rank, one in enumerate(others)}
    runners |= {label: predictor.choice(one.settings) for label, one in finalists.items()}
    speedups = _race(predictor, {"ar": methods.choose("ar"), **runners}, repeats)
    # What there was stays where nothing beats it.
    finalists |= {"standard": start} if start is not None else {}
    winner = max(finalists, key=lambda label: speedups[label])
    return {
        "method": name,
        "settings": finalists[winner].settings,
        "tau": finalists[winner].tau,
        "predicted": finalists[winner].speedup,
        "measured": speedups[winner],
        "standard": speedups["standard"],
        "paper": speedups.get("paper"),
        "tried": len(predictor.known),
        "costs": vars(predictor.costs),
    }


def _race(predictor: Predictor, runners: Mapping[str, Choice], repeats: int) -> dict[str, float]:
    """Median over repeats of each runner's decode speed over plain decoding."""
    ratios: dict[str, list[float]] = {label: [] for label in runners}
    for repeat in range(repeats):
        lanes: dict[str, list[Any]] = {label: [] for label in runners}
        order = list(runners)
        shift = repeat % len(order)
        for request in predictor.asked:
            for label in order[shift:] + order[:shift]:
                running = engine.race(session.lanes(predictor.loaded, request, [runners[label]]))
                lanes[label] += gather(running)
        rates = {label: measured(some).totals.tokens_per_s or 0.0 for label, some in lanes.items()}
        for label, rate in rates.items():
            ratios[label].append(rate / rates["ar"])
    return {label: median(some) for label, some in ratios.items()}
