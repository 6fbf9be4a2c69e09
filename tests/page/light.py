"""Engines without models for tests of workers, which yield real records. Those that run in a
separate process are here, where nothing heavy is imported.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from specvl_demo.records import Begin, End, Round, Token, Totals, Tree
from specvl_demo.ui.serve.cluster import Parcel, RayWorkers
from specvl_demo.ui.serve.jobs import Job


def begin(lane: str = "ar") -> Begin:
    return Begin(
        request="r",
        lane=lane,
        method="ar",
        title="Autoregressive",
        settings={},
        lossless=True,
        pair="light",
        models={"target": "light", "drafter": None},
        sampling={"temperature": 0.0},
        max_new_tokens=9,
        dtype="float32",
        device="cpu",
        versions={},
        prompt="?",
        n_prompt=2,
        n_visual=0,
        spans=[],
        vision_s=0.0,
        prefill_s=0.0,
        draft_prefill_s=0.0,
        seen=[],
    )


def round_(index: int) -> Round:
    tree = Tree(tokens=[1], parent=[-1], texts=["a"], draft_logp=None, target_logp=None)
    return Round(
        lane="ar",
        index=index,
        tokens=[Token(7, "word ", "target")],
        tree=tree,
        path=[0],
        clock_s=0.01 * (index + 1),
        draft_s=0.0,
        verify_s=0.01,
        commit_s=0.0,
        other_s=0.0,
    )


def rounds(n: int) -> Iterator[dict[str, Any]]:
    """Yield begin, n rounds and end, like a worker."""
    totals = Totals()
    yield {"k": "begin", "record": begin()}
    for index in range(n):
        record = round_(index)
        totals = totals.plus(record)
        yield {"k": "round", "record": record}
    yield {"k": "end", "record": End("ar", "length", totals, None)}


def started(count: int) -> RayWorkers:
    """Actors of this engine on this machine."""
    # Ray starts its processes with this environment; unset, some of them would look for the
    # network.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    while True:
        try:
            return RayWorkers(count, engine=LightEngine)
        except Exception as fault:  # noqa: BLE001 - Ray raises nothing more special
            # Ray gives its own processes half a minute to start, too little on a machine that is
            # very busy.
            if "timed out during startup" not in str(fault):
                raise
            sys.modules["ray"].shutdown()


class Slow:
    """Loads until a file is there; then every job is answered at once."""

    def __init__(self, go: str | None) -> None:
        self._go = Path(str(go))

    def prepare(self, tell: Callable[[str], None]) -> None:
        self._go.with_name("began").touch()
        while not self._go.exists():
            tell("Reading the weights")
            time.sleep(0.05)

    def __call__(self, job: Job, ended: Any, tell: Any) -> Iterator[dict[str, Any]]:
        yield {"k": "status", "stage": "prefill"}


class LightEngine:
    """An actor's engine. A job's question is its number of rounds; files arrive with the parcel."""

    def __init__(self, first_pair: str | None) -> None:
        self._stopped: set[str] = set()

    def run(self, run: str, parcel: Parcel) -> Iterator[dict[str, Any]]:
        job: Job = parcel.job
        sizes = sorted(len(content) for content in parcel.files.values())
        here = {"pid": os.getpid(), "files": sizes}
        yield {"k": "status", "stage": "here", **here}
        for event in rounds(int(job.question)):
            time.sleep(0.05)
            if run in self._stopped:
                return
            yield event

    def stop(self, run: str) -> None:
        self._stopped.add(run)

    def ready(self) -> bool:
        return True
