"""What a method's forwards cost on this machine: verification by nodes, a drafting step by width.

Given a loaded pair, a chosen method and a request, times single forwards in turns, drafter and target one
after the other as in a round but with nothing between them, and the same forwards inside a method's rounds;
and counts which of them the rounds make. Knows no cases and no tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import mean, median
from typing import Any, cast

import torch
from torch import Tensor

from specvl_demo import session
from specvl_demo.assemble import assemble
from specvl_demo.core import engine
from specvl_demo.core.engine import Lane, Request, Shared
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import (
    NOTHING,
    Drafter,
    Prefill,
    Scores,
    Session,
    Start,
    Stopwatch,
    Target,
    Verdict,
)
from specvl_demo.methods import Choice
from specvl_demo.records import Record, Round
from specvl_demo.registry import Loaded

NODES = (1, 2, 4, 6, 8, 10, 12, 16, 24, 32)
WIDTHS = (1, 2, 3, 4, 6, 8, 10)
LATE = 3
"""Accepted tokens that a typical round feeds together with its root."""
BITE = 16
"""Tokens that an answer grows by at once where it is only lengthened."""
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
    """Which forwards a method's rounds made. widths: by round, nodes that each drafting step fed. verify_s,
    steps_s: by round, seconds of the target's forward and of each drafting step, as they ran in the round.
    before: by round, tokens of prompt and answer that lay before it.
    """

    rounds: list[Round] = field(default_factory=list)
    widths: list[tuple[int, ...]] = field(default_factory=list)
    verify_s: list[float] = field(default_factory=list)
    steps_s: list[tuple[float, ...]] = field(default_factory=list)
    before: list[int] = field(default_factory=list)

    def add(
        self, round_: Round, widths: tuple[int, ...], verify: float, steps: tuple[float, ...], before: int
    ) -> None:
        """One more round."""
        self.rounds.append(round_)
        self.widths.append(widths)
        self.verify_s.append(verify)
        self.steps_s.append(steps)
        self.before.append(before)

    def take(self, other: Work) -> None:
        """All rounds of another one too."""
        seconds = other.verify_s, other.steps_s
        for one in zip(other.rounds, other.widths, *seconds, other.before, strict=True):
            self.add(*one)

    def lowered(self, bare: StepCosts) -> StepCosts:
        """Costs of bare forwards, or their mean in these rounds where that is less.

        What a round takes cannot be less than its forwards at these costs, in the mean over these rounds:
        each cost is at most the mean of what it stands for.
        """
        verify: dict[int, list[float]] = defaultdict(list)
        level: dict[int, list[float]] = defaultdict(list)
        roots: list[float] = []
        for one, widths, spent, steps in zip(
            self.rounds, self.widths, self.verify_s, self.steps_s, strict=True
        ):
            verify[len(one.tree.tokens)].append(spent)
            roots += steps[:1]
            for width, seconds in zip(widths[1:], steps[1:], strict=True):
                level[width].append(seconds)

        def least(known: dict[int, float], seen: dict[int, list[float]]) -> dict[int, float]:
            both = {n: min(between(known, n), mean(times)) for n, times in seen.items()} if known else {}
            return {**known, **both}

        root = min(bare.root, mean(roots)) if roots else bare.root
        return replace(bare, verify=least(bare.verify, verify), root=root, level=least(bare.level, level))

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


class _Watched:
    """The drafter of a lane, or the target's session: notes what it is fed and how long each forward takes;
    otherwise what it wraps."""

    def __init__(self, inner: Any, seen: _Seen) -> None:
        self._inner, self._seen = inner, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor | None:
        """Feed nodes; see `core.types.Drafter`."""
        with self._seen.noted(tokens.shape[0]):
            return self._inner.extend(tokens, parents)

    def score(self, tree: DraftTree) -> Scores:
        """One forward over a tree; see `core.types.Session`."""
        with self._seen.noted(None):
            return self._inner.score(tree)

    def open(self, *args: Any, **kwargs: Any) -> Session:
        """A lane's session; see `core.types.Target`."""
        return cast("Session", _Watched(self._inner.open(*args, **kwargs), self._seen))


class _Seen:
    """The forwards of one round. widths: nodes of every drafting step."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def start(self) -> None:
        """A round begins."""
        self.widths: list[int] = []
        self._watch.start()

    @contextmanager
    def noted(self, width: int | None) -> Iterator[None]:
        """A drafting step of this width, or verification."""
        self._watch.lap("")
        yield
        self._watch.lap("verify" if width is None else str(len(self.widths)))
        if width is not None:
            self.widths.append(width)

    def read(self) -> tuple[float, tuple[float, ...]]:
        """Seconds of verification, and of every drafting step."""
        laps = self._watch.read()
        return laps["verify"], tuple(laps[str(i)] for i in range(len(self.widths)))


def run(loaded: Loaded, choice: Choice, request: Request) -> tuple[list[Record], Work]:
    """A method's records of a request, with the forwards that its rounds made."""
    seen, work = _Seen(request.target.stopwatch()), Work()
    target = cast("Target", _Watched(request.target, seen))
    parts = assemble(choice, loaded.models)
    drafts = choice.drafter.name not in NO_MODEL
    if drafts:
        parts = replace(parts, drafter=cast("Drafter", _Watched(parts.drafter, seen)))
    lane = Lane(choice.method.name, parts, Shared(replace(request, target=target)))
    records: list[Record] = [lane.begin()]
    while not lane.done:
        before = len(request.prompt) + lane.totals.n_tokens
        seen.start()
        round_ = lane.step()
        if round_ is not None:
            records.append(round_)
            verify, steps = seen.read()
            work.add(round_, tuple(seen.widths), verify, steps, before)
    return [*records, lane.end()], work


def count(loaded: Loaded, choice: Choice, asked: Iterable[Request]) -> Work:
    """The rounds of a method over these requests with the forwards they made."""
    work = Work()
    for request in asked:
        work.take(run(loaded, choice, request)[1])
    return work


@torch.inference_mode()
def measure(
    loaded: Loaded,
    choice: Choice,
    request: Request,
    repeats: int = 10,
    nodes: Sequence[int] = NODES,
    widths: Sequence[int] = WIDTHS,
    before: int = 0,
) -> StepCosts:
    """Medians of single steps on a request that has just begun, or at `before` tokens of prompt and answer.

    Every tree is scored after a round's drafting steps: what the drafter reads drives some of the target's
    weights out of the caches, and no order of a round's forwards could avoid that.
    """
    parts = assemble(choice, loaded.models)
    drafter, target = parts.drafter, request.target
    shared = Shared(request)
    encoded, prefill = shared.encoded(target), shared.prefill(drafter.capture)
    sizes, more = sorted({1, *nodes}), max(0, before - len(request.prompt))
    start = Start(
        prompt=request.prompt,
        encoded=encoded,
        prefill=prefill,
        encode=shared.encoded,
        target_decoder=target.decoder,
        vocabulary=target.vocabulary,
        sampling=request.sampling,
        max_new_tokens=(repeats + 2) * (LATE + 1) * len(sizes) + more,
        max_nodes=1 + sum(widths) + max(nodes),
    )
    drafts = choice.drafter.name not in NO_MODEL
    if drafts:
        drafter.begin(start)
    turns = _Turns(drafter if drafts else None, target, prefill, start)
    turns.grow(more)
    verify: dict[int, list[float]] = {n: [] for n in sizes}
    level: dict[int, list[float]] = {n: [] for n in widths}
    root: list[float] = []
    for _ in range(repeats + 1):
        for n in sizes:
            if drafts:
                turns.draft(root, level)
            verify[n].append(turns.score(n))
            if drafts:
                turns.commit()
    few = replace(request, max_new_tokens=min(48, request.max_new_tokens))
    race = engine.race(session.lanes(loaded, few, [choice]))
    rest = [r.other_s + r.commit_s for r in race if isinstance(r, Round)]
    return StepCosts(
        verify={n: median(times[1:]) for n, times in verify.items()},
        root=median(root[len(sizes) :]) if root else 0.0,
        level={n: median(times[len(sizes) :]) if times else 0.0 for n, times in level.items()},
        rest=median(rest),
    )


def middle(several: Sequence[StepCosts]) -> StepCosts:
    """The medians of several measurements of the same steps."""
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


class _Turns:
    """Drafter and target in turns on some tokens, whatever they are."""

    def __init__(self, drafter: Drafter | None, target: Target, prefill: Prefill, start: Start) -> None:
        self._drafter, self._device = drafter, target.decoder.device
        capture = NOTHING if drafter is None else drafter.capture
        self._opened = target.open(prefill, start.max_new_tokens, start.max_nodes, capture)
        self._watch = target.stopwatch()

    def grow(self, more: int) -> None:
        """So many more tokens for the target to look back at."""
        for first in range(0, more, BITE):
            n = min(BITE, more - first)
            self._opened.score(self._chain(n))
            self._opened.commit(list(range(n)))

    def draft(self, root: list[float], level: dict[int, list[float]]) -> None:
        """One round's drafting steps. A single node goes below the one before it, as in a chain, which needs
        no mask."""
        drafter, token = self._drafter, torch.full((1,), SOME_TOKEN, device=self._device)
        root.append(_timed(self._watch, lambda: drafter.extend(token, (-1,))))
        for width, times in level.items():
            below = (0,) if width == 1 else torch.zeros(width, dtype=torch.int64, device=self._device)
            some = token.expand(width)
            times.append(_timed(self._watch, lambda p=below, s=some: drafter.extend(s, p)))

    def score(self, n: int) -> float:
        """Seconds that a chain of n nodes takes; none of them is kept."""
        tree = self._chain(n)
        return _timed(self._watch, lambda: self._opened.score(tree))

    def commit(self) -> None:
        """LATE accepted tokens that the drafter was not fed; its next root comes with them."""
        tree, said = self._chain(LATE + 1), [SOME_TOKEN] * (LATE + 1)
        verdict = Verdict(list(range(LATE + 1)), said, [False] * LATE, said)
        self._drafter.commit(tree, verdict, self._opened.score(tree))

    def _chain(self, n: int) -> DraftTree:
        tokens = torch.full((n,), SOME_TOKEN, device=self._device)
        return DraftTree(tokens, chain(n - 1), rows=(0, *[-1] * (n - 1)))


def _timed(watch: Stopwatch, step: Callable[[], Any]) -> float:
    watch.start()
    step()
    watch.lap("all")
    return watch.read()["all"]
