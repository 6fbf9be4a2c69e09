"""A method's rounds with their forwards: the time of each draft step and each verification.

Drafter and target session are wrapped, so that exactly what a round runs is timed, by the device's
own clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor

from specvl_demo.core.engine import Lane, Request, SharedPrefill
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Drafter, Session, Stopwatch, Target
from specvl_demo.methods.base import Choice, assemble
from specvl_demo.records import Record, Round
from specvl_demo.serving.loader import Loaded


@dataclass(frozen=True)
class TimedRound:
    """A round with its forwards.

    steps: (nodes fed, seconds) of each draft step, the root's first; those of a chain that is
        drafted by one call share its time.
    """

    round: Round
    verify_s: float
    steps: tuple[tuple[int, float], ...]

    @property
    def forward_s(self) -> float:
        return self.verify_s + sum(seconds for _, seconds in self.steps)


def run(
    loaded: Loaded, choice: Choice, request: Request, name: str | None = None
) -> tuple[list[Record], list[TimedRound]]:
    """Return a method's records of a request, and its rounds with their forwards.

    name: Of the lane; None for the method's.
    """
    log = _Log(request.target.stopwatch())
    target = cast("Target", _Logged(request.target, log))
    parts = assemble(choice, loaded.models)
    if choice.drafter.runs_a_model:
        parts = replace(parts, drafter=cast("Drafter", _Logged(parts.drafter, log)))
    lane = Lane(name or choice.method.name, parts, SharedPrefill(replace(request, target=target)))
    records: list[Record] = [lane.begin()]
    rounds = []
    while not lane.done:
        log.start()
        round_ = lane.step()
        if round_ is not None:
            records.append(round_)
            rounds.append(TimedRound(round_, *log.read()))
    return [*records, lane.end()], rounds


class _Log:
    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def start(self) -> None:
        self._steps: list[tuple[int, int]] = []
        """Nodes fed by each step of a call, and how many steps."""
        self._watch.start()

    @contextmanager
    def forward(self, width: int | None) -> Iterator[None]:
        """Log a draft step that feeds so many nodes, or a verification if `width` is None."""
        self._watch.skip()
        yield
        self._watch.lap("verify" if width is None else str(len(self._steps)))
        if width is not None:
            self._steps.append((width, 1))

    def chain(self, n: int) -> None:
        """The last call was a chain of so many steps, of one node each."""
        self._steps[-1] = 1, n

    def read(self) -> tuple[float, tuple[tuple[int, float], ...]]:
        """Return seconds of verification, and (nodes fed, seconds) of every draft step."""
        laps = self._watch.read()
        steps = ((width, laps[str(i)], n) for i, (width, n) in enumerate(self._steps))
        return laps["verify"], tuple(
            (width, seconds / n) for width, seconds, n in steps for _ in range(n)
        )


class _Logged:
    """Wraps a drafter, or the target and its session, and logs its forwards."""

    def __init__(self, inner: Any, log: _Log) -> None:
        self._inner, self._log = inner, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Any:
        with self._log.forward(tokens.shape[0]):
            return self._inner.extend(tokens, parents)

    def draft_chain(self, *arguments: Any) -> Any:
        with self._log.forward(1):
            made = self._inner.draft_chain(*arguments)
        self._log.chain(0 if made is None else len(made[0]))
        return made

    def score(self, tree: DraftTree) -> Any:
        with self._log.forward(None):
            return self._inner.score(tree)

    def open(self, *args: Any, **kwargs: Any) -> Session:
        return cast("Session", _Logged(self._inner.open(*args, **kwargs), self._log))
