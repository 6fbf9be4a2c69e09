"""What a method's forwards cost on this machine: verification by nodes, a drafting step by width, each alone.

Given a loaded pair, a chosen method and a request, times single forwards in a tight loop, as nothing can be
faster than they are together; and counts which of them a method's rounds make. Knows no cases and no tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from specvl_demo import session
from specvl_demo.assemble import assemble
from specvl_demo.core import engine
from specvl_demo.core.engine import Lane, Request, Shared
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Drafter, Session, Start, Verdict
from specvl_demo.methods import Choice
from specvl_demo.records import Round
from specvl_demo.registry import Loaded

NODES = (1, 2, 4, 6, 8, 10, 12, 16, 24, 32)
WIDTHS = (1, 2, 3, 4, 6, 8, 10)
LATE = 3
"""Accepted tokens that a typical round feeds together with its root."""
SOME_TOKEN = 20
"""What is fed while timing: any token costs the same."""
NO_MODEL = ("none", "ngram")
"""Drafters that make no forward: their guesses cost the host's time alone."""


@dataclass(frozen=True)
class StepCosts:
    """Seconds. verify: of one target forward by nodes. root: of the first drafting step of a round. level: of
    a further one by width. rest: of everything else in a round."""

    verify: dict[int, float]
    root: float
    level: dict[int, float]
    rest: float

    @property
    def step(self) -> float:
        """Of a plain step."""
        return self.verify[1]

    def draft(self, widths: Sequence[int]) -> float:
        """Of a round's drafting steps, by how many nodes each feeds; the first feeds the root."""
        return (self.root if widths else 0.0) + sum(between(self.level, width) for width in widths[1:])

    def forwards(self, n_nodes: float, widths: Sequence[int]) -> float:
        """Of all forwards of a round, drafter's and target's, if nothing else took any time."""
        return between(self.verify, n_nodes) + self.draft(widths)


@dataclass
class Work:
    """Which forwards a method's rounds made. widths: by round, nodes that each drafting step fed."""

    rounds: list[Round] = field(default_factory=list)
    widths: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def tau(self) -> float:
        """Tokens per target forward."""
        return sum(len(one.tokens) for one in self.rounds) / len(self.rounds)

    @property
    def nodes(self) -> float:
        """Nodes verified in a round, root included."""
        return mean(len(one.tree.tokens) for one in self.rounds)

    def forwards(self, costs: StepCosts) -> float:
        """Seconds that a round's forwards take at these costs, in the mean."""
        return self.cut(costs, depth=None)[1]

    def cut(self, costs: StepCosts, depth: int | None) -> tuple[float, float]:
        """Tokens a round and seconds of its forwards, had every draft ended at this depth; None: as it was.

        What was accepted deeper is taken away; where rounds would then begin is not followed up.
        """
        tokens, seconds = [], []
        for one, widths in zip(self.rounds, self.widths, strict=True):
            depths = one.tree.depth
            n_nodes = len(depths) if depth is None else sum(d <= depth for d in depths)
            tokens.append(len(one.tokens) if depth is None else min(len(one.tokens), depth + 1))
            seconds.append(costs.forwards(n_nodes, widths[:depth]))
        return mean(tokens), mean(seconds)


class Counted:
    """A drafter that notes how many nodes it was fed; otherwise the drafter it wraps."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.fed: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor | None:
        """Feed nodes; see `core.types.Drafter`."""
        self.fed.append(tokens.shape[0])
        return self._drafter.extend(tokens, parents)


def count(loaded: Loaded, choice: Choice, asked: Iterable[Request]) -> Work:
    """The rounds of a method over these requests with the forwards they made; no clock plays a part in it."""
    work = Work()
    for request in asked:
        parts = assemble(choice, loaded.models)
        counted = Counted(parts.drafter)
        parts = replace(parts, drafter=counted)
        for record in engine.race([Lane(choice.method.name, parts, Shared(request))]):
            if isinstance(record, Round):
                work.rounds.append(record)
                work.widths.append(tuple(counted.fed) if choice.drafter.name not in NO_MODEL else ())
                counted.fed.clear()
    return work


@torch.inference_mode()
def measure(
    loaded: Loaded,
    choice: Choice,
    request: Request,
    repeats: int = 10,
    nodes: Sequence[int] = NODES,
    widths: Sequence[int] = WIDTHS,
) -> StepCosts:
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
        max_nodes=1 + sum(widths) + max(nodes),
    )
    drafts = choice.drafter.name not in NO_MODEL
    if drafts:
        drafter.begin(start)
    opened = target.open(prefill, start.max_new_tokens, max(nodes), drafter.capture)
    verify: dict[int, list[float]] = {n: [] for n in sorted({1, *nodes})}
    level: dict[int, list[float]] = {n: [] for n in widths}
    root: list[float] = []
    for _ in range(repeats + 1):
        for n in verify:
            tree = DraftTree(torch.full((n,), SOME_TOKEN, device=target.decoder.device), chain(n - 1))
            verify[n].append(_timed(lambda tree=tree: opened.score(tree).logits.argmax(-1).tolist()))
        if drafts:
            _draft_once(drafter, opened, root, level, target.decoder.device)
    few = replace(request, max_new_tokens=min(48, request.max_new_tokens))
    race = engine.race(session.lanes(loaded, few, [choice]))
    rest = [r.other_s + r.commit_s for r in race if isinstance(r, Round)]
    return StepCosts(
        verify={n: median(times[1:]) for n, times in verify.items()},
        root=median(root[1:]) if root else 0.0,
        level={n: median(times[1:]) if times else 0.0 for n, times in level.items()},
        rest=median(rest),
    )


def merged(several: Sequence[StepCosts]) -> StepCosts:
    """Medians over several measurements of the same steps."""
    first = several[0]
    return StepCosts(
        verify={n: median(one.verify[n] for one in several) for n in first.verify},
        root=median(one.root for one in several),
        level={n: median(one.level[n] for one in several) for n in first.level},
        rest=median(one.rest for one in several),
    )


def between(known: dict[int, float], x: float) -> float:
    """A straight line between the nearest known points, and on through the last two beyond them."""
    if x in known:
        return known[int(x)]
    places = sorted(known)
    if len(places) == 1:
        return known[places[0]]
    above = next((i for i, place in enumerate(places) if place > x), len(places) - 1)
    low, high = places[max(above - 1, 0)], places[max(above, 1)]
    return known[low] + (known[high] - known[low]) * (x - low) / (high - low)


def _draft_once(
    drafter: Drafter, opened: Session, root: list[float], level: dict[int, list[float]], device: torch.device
) -> None:
    """One round's drafting steps, then a commit of LATE tokens whatever they are."""
    token = torch.full((1,), SOME_TOKEN, device=device)
    root.append(_timed(lambda: drafter.extend(token, (-1,)).argmax(-1).tolist()))
    for width, times in level.items():
        parents = torch.zeros(width, dtype=torch.int64, device=device)
        some = token.expand(width)
        times.append(_timed(lambda p=parents, s=some: drafter.extend(s, p).topk(2, -1).indices.tolist()))
    tree = DraftTree(torch.full((LATE + 1,), SOME_TOKEN, device=device), chain(LATE), rows=(0, *[-1] * LATE))
    scores = opened.score(tree)
    path = list(range(LATE + 1))
    opened.commit(path)
    said = [SOME_TOKEN] * (LATE + 1)
    drafter.commit(tree, Verdict(path, said, [False] * LATE, said), scores)


def _timed(step: Callable[[], Any]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
