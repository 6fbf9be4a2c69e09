"""What a conversation keeps for its next question: used only for its own visit, gone when that is
over.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from specvl_demo import pairs
from specvl_demo.core.prefix_cache import PrefixCache
from specvl_demo.pairs import Checkpoint, PairSpec
from specvl_demo.serving import loader
from specvl_demo.ui.serve import decoding
from specvl_demo.ui.serve.jobs import Job, PastTurn
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.workers import ProcessWorker
from specvl_demo.vlm import target
from tests.page.light import Noting, rounds
from tests.pocketlike import save_pair
from tests.robustness.support import Guest


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("media") / "a.png"
    Image.new("RGB", (64, 64), "red").save(path)
    return str(path)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[loader.Loaded]:
    """A tiny random pair."""
    folder = save_pair(tmp_path_factory.mktemp("pair"))
    target = Checkpoint(str(folder / "target"), 1e6, "", True)
    made = loader.load(PairSpec("light", "light", "llava", target, {}), [])
    gc.freeze()  # what the libraries hold need not be looked through for memories
    yield made
    gc.unfreeze()


@pytest.fixture
def engine(loaded: loader.Loaded, monkeypatch: pytest.MonkeyPatch) -> decoding.Engine:
    """The real engine, whose pair is loaded already."""
    monkeypatch.setattr(pairs, "find", lambda _: loaded.pair)
    monkeypatch.setattr(loader, "load", lambda *_, **__: loaded)
    return decoding.Engine()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[PrefixCache | None, bool]]:
    """By request: the memory that it was given, and whether rows of an earlier one lay in it."""
    seen: list[tuple[PrefixCache | None, bool]] = []
    real = decoding.session.request

    def request(*args: Any, cache: PrefixCache | None = None, **more: Any) -> Any:
        seen.append((cache, bool(cache)))
        return real(*args, cache=cache, **more)

    monkeypatch.setattr(decoding.session, "request", request)
    return seen


def first(picture: str, visit: str | None) -> Job:
    return Job("light", (("ar", {}),), "what is this", (picture,), max_new_tokens=6, visit=visit)


def second(picture: str, visit: str | None) -> Job:
    """A follow-up that shows and contains the same as `first`: only the visit distinguishes
    them.
    """
    asked = first(picture, visit)
    return replace(
        asked, media=(), question="and", history=(PastTurn(asked.question, "a b", asked.media),)
    )


def said(engine: decoding.Engine, job: Job) -> list[int]:
    events = list(engine(job, bool))
    assert not [event for event in events if event["k"] == "error"], events[-1]
    return [
        token.id for event in events if event["k"] == "round" for token in event["record"].tokens
    ]


def kept() -> list[PrefixCache]:
    """Every memory that is held anywhere in this process."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is PrefixCache]


def test_a_visitor_goes_on_from_what_was_kept(
    engine: decoding.Engine, given: list[tuple[PrefixCache | None, bool]], picture: str
) -> None:
    said(engine, first(picture, "a"))
    said(engine, second(picture, "a"))
    (before, filled), (after, going_on) = given
    assert before is after and not filled and going_on


@pytest.mark.parametrize("whose", ["b", None])
def test_nobody_goes_on_from_what_another_visitor_left(
    engine: decoding.Engine,
    given: list[tuple[PrefixCache | None, bool]],
    picture: str,
    whose: str | None,
) -> None:
    """The same pictures and words from another visit are computed afresh, and the first one's are
    dropped.
    """
    said(engine, first(picture, "a"))
    answer = said(engine, second(picture, whose))
    theirs = given[0][0]
    assert given[1][0] is not theirs and not given[1][1]
    given.clear()
    del theirs
    assert len(kept()) == (whose is not None)  # theirs alone, or nobody's
    said(engine, second(picture, "a"))  # who left it does not find it again
    assert not given[0][1]
    assert answer == said(decoding.Engine(), second(picture, whose))


@pytest.mark.parametrize("whose", ["a", None])
def test_the_similarity_map_goes_on_from_the_races_rows(
    engine: decoding.Engine, picture: str, whose: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that each prefill of the target computed: the prompt's once, then what the race has not
    fed.
    """
    rows, real = [], target.prefill

    def prefill(*args: Any) -> Any:
        made = real(*args)
        rows.append(made[1].shape[1])
        return made

    monkeypatch.setattr(target, "prefill", prefill)
    said(engine, first(picture, whose))
    assert rows[0] > 10 and len(rows) == 2 and rows[1] == 1


def test_what_was_kept_is_gone_when_its_visitor_leaves(
    engine: decoding.Engine, picture: str
) -> None:
    said(engine, first(picture, "a"))
    engine.forget("b")
    assert len(kept()) == 1
    engine.forget("a")
    assert not kept()


def test_who_leaves_in_the_middle_leaves_nothing(engine: decoding.Engine, picture: str) -> None:
    """The run in hand goes on with what it has; nothing of it is there afterwards."""
    running = engine(first(picture, "a"), bool)
    while next(running)["k"] != "round":
        pass
    engine.forget("a")
    assert [event["k"] for event in running][-2:] == ["end", "heat"]
    assert not kept()


def test_the_process_forgets_between_jobs(tmp_path: Path) -> None:
    """Told in the middle of a job, the process drops the conversation when the job has let go of
    it.
    """
    ledger = tmp_path / "ledger"
    worker = ProcessWorker(str(ledger), Noting)
    queue = Queue(worker)
    try:
        one = Guest(queue, Job("light", (("ar", {}),), "100", visit="a"))
        one.until("begin")
        queue.forget("a")
        one.until("done")
        another = Guest(queue, Job("light", (("ar", {}),), "1", visit="b"))
        another.until("done")
    finally:
        worker.close()
    lines = ledger.read_text().splitlines()
    assert lines == ["begin", *["round"] * 100, "end", "forget a", "begin", "round", "end"]


class Listening:
    """A worker that computes nothing and records forgotten visits."""

    capacity = 1

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._put: dict[str, Any] = {}

    def start(self, run: str, job: Job, put: Any) -> None:
        self._put[run] = put
        for event in rounds(2):
            put(event)
        if job.question == "done":
            put({"k": "done"})

    def stop(self, run: str) -> None:
        self._put[run]({"k": "done"})

    def kill(self, run: str) -> None: ...

    def forget(self, visit: str) -> None:
        self.heard.append(visit)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("how", "visit", "forgotten"),
    [("leaves", "a", ["a"]), ("leaves", None, []), ("stops", "a", []), ("done", "a", [])],
)
def test_only_who_leaves_is_forgotten(how: str, visit: str | None, forgotten: list[str]) -> None:
    """A run that lost its listener is its page's end; Stop and the end of a race are not."""
    worker = Listening()
    queue = Queue(worker)
    guest = Guest(queue, Job("light", (("ar", {}),), how, visit=visit))
    guest.until("round")
    if how == "stops":
        queue.stop(guest.until("run")["run"], visit)
    if how != "leaves":
        guest.until("done")
    guest.leave()
    assert worker.heard == forgotten
