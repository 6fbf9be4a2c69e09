"""A method's rounds with the time that the models' forwards took of them, by wrapping drafter and
session: exactly what a round runs is timed, by the device's own clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from msgspec import structs

from specvl_demo.core.engine import Lane, Request, SharedPrefill
from specvl_demo.core.types import Drafter, Session, Stopwatch, Target
from specvl_demo.methods.base import Choice, build_parts
from specvl_demo.records import Record
from specvl_demo.serving.loader import Loaded

FORWARDS = ("extend", "draft_chain", "score")


def run(loaded: Loaded, choice: Choice, request: Request, name: str | None = None) -> list[Record]:
    """Return a method's records of a request; each round notes its forwards' `forward_s`."""
    watch = request.target.stopwatch()
    target = cast("Target", _Timed(request.target, watch))
    parts = build_parts(choice, loaded.models)
    if choice.drafter.runs_a_model:
        parts = replace(parts, drafter=cast("Drafter", _Timed(parts.drafter, watch)))
    lane = Lane(name or choice.method.name, parts, SharedPrefill(replace(request, target=target)))
    records: list[Record] = [lane.begin()]
    while not lane.done:
        watch.start()
        round_ = lane.step()
        if round_ is not None:
            notes = round_.notes | {"forward_s": watch.read().get("forward", 0.0)}
            records.append(structs.replace(round_, notes=notes))
    return [*records, lane.end()]


class _Timed:
    """Wraps a drafter, or the target and its session, and times its forwards."""

    def __init__(self, inner: Any, watch: Stopwatch) -> None:
        self._inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in FORWARDS:
            return attribute

        def timed(*arguments: Any) -> Any:
            self._watch.skip()
            result = attribute(*arguments)
            self._watch.lap("forward")
            return result

        return timed

    def open(self, *args: Any, **kwargs: Any) -> Session:
        return cast("Session", _Timed(self._inner.open(*args, **kwargs), self._watch))
