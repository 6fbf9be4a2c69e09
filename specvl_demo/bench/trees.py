"""Which tree pays on this machine: measured step costs times measured acceptance, over a grid of shapes.

Given a loaded pair, cases and a method, times one verification by number of nodes and one drafting step by
width, decodes every shape for its tokens per target forward, and ranks shapes by τ / ρ. The presets for the
pocket pair come from here. Knows nothing of files or printing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from specvl_demo import methods, session
from specvl_demo.assemble import assemble
from specvl_demo.bench.suites import Case
from specvl_demo.core import engine
from specvl_demo.core.engine import Request, Shared
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Drafter, Session, Start, Verdict
from specvl_demo.methods import Choice, Value
from specvl_demo.records import Round
from specvl_demo.registry import Loaded
from specvl_demo.targets.prompts import Turn

NODES = (1, 2, 4, 6, 8, 10, 12, 16, 24, 32)
WIDTHS = (1, 2, 3, 4, 6, 8, 10)
GAMMAS = (2, 3, 4, 5, 6, 7, 8, 10)
TREES = tuple(
    (nodes, width, loops)
    for nodes in (6, 8, 10, 12, 16, 24)
    for width in (2, 3, 4)
    for loops in (3, 4, 5, 6, 7)
    if loops + 1 < nodes <= width + loops * width * width
)
COLUMNS = ("method", "policy", "gamma", "nodes", "width", "loops", "tau", "mean_nodes", "rho", "speedup")
LATE = 3
"""Accepted tokens that a typical round feeds together with its root."""


@dataclass(frozen=True)
class StepCosts:
    """Seconds. verify: of one target forward by nodes. root: of the first drafting step of a round. level: of
    a further one by width. rest: of everything else in a round."""

    verify: dict[int, float]
    root: float
    level: dict[int, float]
    rest: float

    def round(self, n_nodes: float, n_levels: int, width: int) -> float:
        """What a round takes that scores so many nodes after so many drafting steps of this width."""
        draft = self.root + max(0, n_levels - 1) * between(self.level, width)
        return draft + between(self.verify, n_nodes) + self.rest


def between(known: dict[int, float], x: float) -> float:
    """A straight line between the nearest known points."""
    low = max((k for k in known if k <= x), default=min(known))
    high = min((k for k in known if k >= x), default=max(known))
    if low == high:
        return known[low]
    return known[low] + (known[high] - known[low]) * (x - low) / (high - low)


def shapes() -> Iterator[dict[str, Value]]:
    """Settings of every shape that is tried."""
    for gamma in GAMMAS:
        yield {"policy": "chain", "gamma": gamma}
    for nodes, width, loops in TREES:
        yield {"policy": "best-first", "nodes": nodes, "width": width, "loops": loops}


def search(
    loaded: Loaded,
    name: str,
    cases: Sequence[Case],
    max_new_tokens: int = 96,
    repeats: int = 30,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """`costs` and `rows`, best shape first: policy, its numbers, tau, nodes, rho, speedup (predicted: tau /
    rho)."""
    asked = [
        session.request(loaded, [Turn(c.question, c.shown)], max_new_tokens, detail="light") for c in cases
    ]
    settings = list(shapes())
    first = methods.choose(name, {"policy": "best-first", "nodes": 32, "width": 10, "loops": 5})
    tell("step costs")
    costs = step_costs(loaded, first, asked[0], repeats)
    rows = []
    for number, setting in enumerate(settings):
        tell(f"shape {number + 1} of {len(settings)}")
        tau, n_nodes = acceptance(loaded, methods.choose(name, setting), asked)
        is_chain = setting["policy"] == "chain"
        n_levels = int(setting["gamma"]) if is_chain else int(setting["loops"]) + 1
        width = 1 if is_chain else int(setting["width"])
        rho = costs.round(n_nodes, n_levels, width) / costs.verify[1]
        rows.append({**setting, "tau": tau, "mean_nodes": n_nodes, "rho": rho, "speedup": tau / rho})
    rows.sort(key=lambda row: -row["speedup"])
    return {"method": name, "costs": vars(costs), "rows": rows}


def acceptance(loaded: Loaded, choice: Choice, asked: Sequence[Request]) -> tuple[float, float]:
    """Tokens per round and nodes per round over all requests; no clock plays a part in them."""
    rounds = [
        record
        for request in asked
        for record in engine.race(session.lanes(loaded, request, [choice]))
        if isinstance(record, Round)
    ]
    n = len(rounds)
    return sum(len(r.tokens) for r in rounds) / n, sum(len(r.tree.tokens) for r in rounds) / n


@torch.inference_mode()
def step_costs(loaded: Loaded, choice: Choice, request: Request, repeats: int) -> StepCosts:
    """Medians of single steps, one after the other, on a request that has just begun."""
    parts = assemble(choice, loaded.models)
    drafter, target = parts.drafter, request.target
    shared = Shared(request)
    encoded, prefill = shared.encoded(target), shared.prefill(drafter.capture)
    start = Start(
        prompt=request.prompt,
        encoded=encoded,
        prefill=prefill,
        encode=shared.encoded,
        target_decoder=target.decoder,
        vocabulary=target.vocabulary,
        sampling=request.sampling,
        max_new_tokens=(repeats + 2) * (LATE + 1),
        max_nodes=1 + max(WIDTHS) * (len(WIDTHS) + 1),
    )
    drafter.begin(start)
    opened = target.open(prefill, start.max_new_tokens, max(NODES), drafter.capture)
    verify: dict[int, list[float]] = {n: [] for n in NODES}
    level: dict[int, list[float]] = {n: [] for n in WIDTHS}
    root: list[float] = []
    for _ in range(repeats):
        for n in NODES:
            tree = DraftTree(torch.full((n,), 20, device=target.decoder.device), chain(n - 1))
            verify[n].append(_timed(lambda tree=tree: opened.score(tree).logits.argmax(-1).tolist()))
        _draft_once(drafter, opened, root, level, target.decoder.device)
    race = engine.race(session.lanes(loaded, replace(request, max_new_tokens=48), [choice]))
    rest = [r.other_s + r.commit_s for r in race if isinstance(r, Round)]
    return StepCosts(
        {n: median(t) for n, t in verify.items()},
        median(root[1:]),
        {n: median(t) for n, t in level.items()},
        median(rest),
    )


def _draft_once(
    drafter: Drafter, opened: Session, root: list[float], level: dict[int, list[float]], device: torch.device
) -> None:
    """One round's drafting steps, then a commit of LATE tokens whatever they are."""
    token = torch.full((1,), 20, device=device)
    root.append(_timed(lambda: drafter.extend(token, (-1,)).argmax(-1).tolist()))
    for width in WIDTHS:
        parents = torch.zeros(width, dtype=torch.int64, device=device)
        some = token.expand(width)
        level[width].append(
            _timed(lambda p=parents, s=some: drafter.extend(s, p).topk(2, -1).indices.tolist())
        )
    tree = DraftTree(torch.full((LATE + 1,), 20, device=device), chain(LATE), rows=(0, *[-1] * LATE))
    scores = opened.score(tree)
    path = list(range(LATE + 1))
    opened.commit(path)
    drafter.commit(tree, Verdict(path, [20] * (LATE + 1), [False] * LATE, [20] * (LATE + 1)), scores)


def _timed(step: Callable[[], Any]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
