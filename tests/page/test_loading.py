"""While a pair is loaded visitors hear how far it is, may leave, and are not timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specvl_demo import pairs, registry, verdicts
from specvl_demo.ui.serve import decoding
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.workers import ProcessWorker
from tests.page.test_workers import Visitor

LIMIT_S = 1.5
JOB = Job(pair="slow", lanes=(("ar", {}),), question="?")


class Slow:
    """Loads until a file is there; then every job is answered at once."""

    def __init__(self, go: Path) -> None:
        self._go = go

    def prepare(self, tell: Callable[[str], None]) -> None:
        self._go.with_name("began").touch()
        while not self._go.exists():
            tell("Reading the weights")
            time.sleep(0.05)

    def __call__(self, job: Job, cancelled: Callable[[], bool], tell: Any) -> Iterator[dict[str, Any]]:
        yield {"k": "status", "stage": "prefill"}


def slow(go: str | None) -> Slow:
    return Slow(Path(str(go)))


def test_who_waits_for_the_first_load_is_told_may_stop_and_is_not_timed(tmp_path: Path) -> None:
    """The limit is far shorter than the load; the one who stops is done at once, the other is served."""
    worker = ProcessWorker(str(tmp_path / "go"), slow)
    try:
        while not (tmp_path / "began").exists():
            time.sleep(0.05)
        queue = Queue(worker, limit_s=LIMIT_S, grace_s=LIMIT_S)
        leaves = Visitor(queue, JOB)
        while not [event for event in leaves.events if event.get("detail") == "Reading the weights"]:
            time.sleep(0.05)
        pid = worker.pid
        run = leaves.until("run")["run"]
        queue.stop(run)
        leaves.until("done")
        stays = Visitor(queue, JOB)
        time.sleep(2 * LIMIT_S)
        (tmp_path / "go").touch()
        stays.until("done")
        assert not [e for visitor in (leaves, stays) for e in visitor.events if e["k"] == "error"]
        assert [event for event in stays.events if event.get("stage") == "prefill"]
        assert worker.pid == pid, "the process that loads was not killed"
    finally:
        worker.close()


def test_a_silent_load_is_told_again() -> None:
    said: list[str] = []
    with decoding.repeated(said.append, every_s=0.01) as tell:
        tell("Reading the weights")
        time.sleep(0.2)
    n = len(said)
    assert n > 3 and set(said) == {"Reading the weights"}
    time.sleep(0.05)
    assert len(said) == n


def test_drafters_that_would_crowd_each_other_out_are_loaded_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what a job asks for is loaded; what was there before stays as long as all of it fits."""
    pair, loads = pairs.find("llava-1.6-7b"), []

    def load(
        pair: pairs.Pair, roles: list[pairs.Role], progress: object, options: verdicts.Options
    ) -> registry.Loaded:
        loads.append(list(roles))
        return registry.Loaded(pair, None, None, None, None, {})

    def available(pair: pairs.Pair, machine: object, options: object, roles: list) -> verdicts.Verdict:
        return verdicts.Verdict(len(roles) <= 2, "")

    monkeypatch.setattr(registry, "load", load)
    monkeypatch.setattr(registry, "available", available)
    models = decoding.Engine()
    for roles in (["small"], ["hivis"], ["small"], ["dream"]):
        models.get(pair, roles, lambda text: None)
    assert loads == [["small"], ["small", "hivis"], ["dream"]]
