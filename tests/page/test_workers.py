"""Workers behind the page: actors of a cluster on this machine, and the calls that a ZeroGPU Space
lends.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from gradio.context import LocalContext

from specvl_demo import pairs
from specvl_demo.media import MediaFile
from specvl_demo.question import Question, Turn
from specvl_demo.ui import messages
from specvl_demo.ui.serve import workers, zerogpu
from specvl_demo.ui.serve.cluster import Actor, Parcel, RayWorkers
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.workers import ProcessWorker, Tell
from specvl_demo.ui.serve.zerogpu import ZeroGpuWorker, estimate
from tests.conftest import second_try
from tests.page.fake_page import compute, started
from tests.robustness.support import Guest

WAIT_S, EACH_S = 200, 0.05
clustered = pytest.mark.slow
"""Starting Ray takes half a minute of every core, and so does ending it."""


def job(n_rounds: int = 4, **changes: Any) -> Job:
    question = Question(f"rounds={n_rounds} each={EACH_S}", **changes)
    return Job("light", (("ar", {}),), question)


class Visitor(Guest):
    def kinds(self, *kinds: str) -> list[str]:
        return [event["k"] for event in self.events if event["k"] in kinds]

    def pid(self) -> int:
        self.until("begin")
        return next(event["pid"] for event in self.events if "pid" in event)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayWorkers]:
    """Two actors on this machine."""
    pytest.importorskip("ray", reason="several workers need ray")
    made = started(2)
    yield made
    made.close()


@second_try("a busy machine may hold one of the two processes up until the other is done")
@clustered
def test_two_visitors_are_served_at_once(cluster: RayWorkers, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"12345")
    queue = Queue(cluster)
    first, second = (
        Visitor(queue, job(40)),
        Visitor(queue, job(40, media=(MediaFile(str(picture)),))),
    )
    assert first.pid() != second.pid()
    for visitor in (first, second):
        visitor.until("done")
        assert visitor.kinds("begin", "round", "end") == ["begin", *["round"] * 40, "end"]
        assert not visitor.kinds("queue", "error")
    # Side by side, not one after the other: each began before the other was done.
    assert max(first.times[0], second.times[0]) < min(first.times[-1], second.times[-1])
    assert next(e["files"] for e in second.events if "files" in e) == [5]


@clustered
def test_a_third_visitor_waits_for_a_seat(cluster: RayWorkers) -> None:
    queue = Queue(cluster)
    early = [Visitor(queue, job(30)) for _ in range(2)]
    for visitor in early:
        visitor.until("round")
    late = Visitor(queue, job(2))
    assert late.until("queue")["place"] == 1
    late.until("done")
    assert late.kinds("round") == ["round"] * 2


@clustered
def test_a_worker_killed_in_the_middle_is_replaced_and_its_visitor_told(
    cluster: RayWorkers,
) -> None:
    queue = Queue(cluster)
    unlucky, lucky = Visitor(queue, job(400)), Visitor(queue, job(60))
    killed = unlucky.pid()
    unlucky.until("round", 3)
    assert lucky.pid() != killed
    os.kill(killed, signal.SIGKILL)
    assert "stopped unexpectedly" in unlucky.until("error")["text"]
    unlucky.until("done")
    # What came until then is a whole trace: the lane has its end, with what it had.
    end = unlucky.until("end")["record"]
    assert end.stop == "error" and end.totals.n_rounds == len(unlucky.kinds("round")) >= 3
    assert "stopped unexpectedly" in end.message
    lucky.until("done")
    assert lucky.kinds("begin", "round", "end") == [
        "begin",
        *["round"] * 60,
        "end",
    ] and not lucky.kinds("error")
    # Both seats serve again, one of them in a new process.
    again = [Visitor(queue, job(100_000)) for _ in range(2)]
    pids = {visitor.pid() for visitor in again}
    assert len(pids) == 2 and killed not in pids
    for visitor in again:
        queue.stop(visitor.until("run")["run"])
        visitor.until("done")
        assert not visitor.kinds("error")


@clustered
def test_a_cluster_that_dies_is_started_again_and_its_visitors_told(cluster: RayWorkers) -> None:
    """The raylet: Ray's process on this machine, without which no actor is restarted."""
    queue = Queue(cluster)
    unlucky = [Visitor(queue, job(100_000)) for _ in range(2)]
    before = {visitor.pid() for visitor in unlucky}
    raylet = [p for p in psutil.Process().children() if p.name().startswith("raylet")]
    raylet[-1].kill()
    for visitor in unlucky:
        assert "stopped unexpectedly" in visitor.until("error")["text"]
        visitor.until("done")
    again = [Visitor(queue, job(100_000)) for _ in range(2)]
    pids = {visitor.pid() for visitor in again}
    assert len(pids) == 2 and not pids & before
    for visitor in again:
        queue.stop(visitor.until("run")["run"])
        visitor.until("done")
        assert not visitor.kinds("error")


class Loading:
    """A computation that loads until it is released, then yields rounds until it is stopped, or
    raises.
    """

    def __init__(self, first_pair: str | None) -> None:
        self.go_on = threading.Event()

    def prepare(self) -> None: ...

    def __call__(self, job: Job, ended: Callable[[], bool], tell: Tell) -> Iterator[dict[str, Any]]:
        tell("1 of 2")
        assert self.go_on.wait(WAIT_S)
        tell("2 of 2")
        if job.question.words == "fault":
            raise KeyError("a mistake of ours")
        yield from compute(job, ended)


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Actor:
    """What an actor is, in this process, over `Loading`."""
    monkeypatch.setattr("specvl_demo.ui.serve.decoding.Engine", Loading)
    return Actor(None)


def test_an_actor_says_how_far_loading_is_while_it_loads(actor: Actor) -> None:
    running = actor.run("r", Parcel.of(job(2)))
    assert next(running) == {"k": "status", "stage": "loading", "detail": "1 of 2"}
    actor._compute.go_on.set()  # only now can it go on
    assert [event.get("detail", event["k"]) for event in running] == [
        "2 of 2",
        "begin",
        "round",
        "round",
        "end",
    ]


def test_an_actor_raises_what_its_run_raised(actor: Actor) -> None:
    actor._compute.go_on.set()
    with pytest.raises(KeyError, match="a mistake of ours"):
        list(actor.run("r", Parcel.of(replace(job(), question=Question("fault")))))
    assert [event["k"] for event in actor.run("s", Parcel.of(job(1)))][2:] == [
        "begin",
        "round",
        "end",
    ]


def test_an_actor_that_is_no_longer_listened_to_ends_its_run(actor: Actor) -> None:
    before = set(threading.enumerate())
    actor._compute.go_on.set()
    running = actor.run("r", Parcel.of(job(10**9)))
    while next(running)["k"] != "round":
        pass
    running.close()  # returns when the run is over
    assert set(threading.enumerate()) <= before


def test_a_parcel_carries_files_to_another_machine(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "a.png").write_bytes(b"a")
    (here / "b.mp4").write_bytes(b"bb")
    picture, clip = (MediaFile(str(here / name)) for name in ("a.png", "b.mp4"))
    asked = job(media=(picture,), earlier=(Turn("q", (clip,), "a"),))
    first, last = map(Path, Parcel.of(asked).unpack(there).question.files)
    assert last.read_bytes() == b"a" and last.parent == there
    assert first.suffix == ".mp4" and first.read_bytes() == b"bb"


def lend(asked: list[Any]) -> Callable[..., Any]:
    """What `spaces.GPU` is where it lends: a decorator with a duration, around a generator
    function.
    """

    def decorator(duration: Callable[[Job], int]) -> Callable[..., Any]:
        def lent(compute: Callable[[Job], Iterator[Any]]) -> Callable[[Job], Iterator[Any]]:
            def call(job: Job) -> Iterator[Any]:
                asked.append(duration(job))
                yield from compute(job)

            return call

        return lent

    return decorator


def slowly(job: Job) -> Iterator[dict[str, Any]]:
    yield from compute(job, bool)


def space(
    compute: Callable[[Job], Iterator[Any]] = slowly, pair: str = "light"
) -> tuple[Queue, list[int]]:
    """The line before a Space, and the seconds that each run requests."""
    asked: list[int] = []
    return Queue(ZeroGpuWorker(pair, lend(asked), compute, EACH_S)), asked


def test_a_space_lends_a_gpu_for_each_run_as_long_as_it_needs() -> None:
    queue, asked = space()
    visitor = Visitor(queue, job(5))
    visitor.until("done")
    assert visitor.kinds("begin", "round", "end") == ["begin", *["round"] * 5, "end"]
    assert asked == [estimate(job(5), EACH_S)]
    short, long = (estimate(job(max_new_tokens=n), EACH_S) for n in (32, 1024))
    assert 10 < short < long <= 120
    small, large = (zerogpu.token_s(pairs.find(name)) for name in ("photo", "llava-1.5-7b"))
    assert small < large / 2


@pytest.mark.parametrize(("user", "n"), [(None, 220), ("ada", 400)])
def test_without_an_account_answers_are_cut_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, user: str | None, n: int
) -> None:
    """The requested time stays within a day's 120 s, of which the half card counts 1.5 times."""
    payload = base64.urlsafe_b64encode(json.dumps({"user": user}).encode()).decode().rstrip("=")
    headers = {"x-ip-token": f"head.{payload}.signature"}
    there = SimpleNamespace(get=lambda _: SimpleNamespace(headers=headers))
    monkeypatch.setattr(LocalContext, "request", there)
    heard: list[Job] = []

    def short(asked: Job) -> Iterator[dict[str, Any]]:
        heard.append(asked)
        yield from slowly(replace(asked, question=Question("rounds=2")))

    queue, seconds = space(short)
    asked = replace(job(max_new_tokens=400), lanes=(("ar", {}),) * 5)
    visitor = Visitor(queue, asked)
    visitor.until("done")
    assert heard[0].question.max_new_tokens == n and (seconds[0] <= 80) == (user is None)
    said = [event["text"] for event in visitor.events if event["k"] == "error"]
    told = messages.ONLY_SO_MANY.format(n=n, asked=400, seconds=80)
    assert said == ([] if user else [told])


def test_a_lent_run_ends_at_stop_with_what_it_had() -> None:
    queue, _ = space()
    visitor = Visitor(queue, job(500))
    run = visitor.until("run")["run"]
    visitor.until("round", 3)
    queue.stop(run)
    visitor.until("done")
    end = visitor.until("end")["record"]
    assert end.stop == "cancelled" and end.totals.n_rounds == len(visitor.kinds("round")) < 500


def out_of_quota(job: Job) -> Iterator[dict[str, Any]]:
    raise RuntimeError("You have exceeded your GPU quota")
    yield {}


@pytest.mark.parametrize(
    ("compute", "pair", "asked", "said"),
    [
        (out_of_quota, "light", {}, "exceeded your GPU quota"),
        (slowly, "other", {}, "only to the pair 'other'"),
        (slowly, "light", {"dtype": "float32"}, "precision"),
    ],
    ids=["quota", "another pair", "other weights"],
)
def test_what_a_space_cannot_do_is_said(
    compute: Any, pair: str, asked: dict[str, Any], said: str
) -> None:
    """Its own words about a quota; and it serves what it has loaded alone."""
    visitor = Visitor(space(compute, pair)[0], replace(job(5), **asked))
    assert said in visitor.until("error")["text"]
    visitor.until("done")


def test_elsewhere_none_of_this_has_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPACES_ZERO_GPU", raising=False)
    monkeypatch.setattr(ProcessWorker, "_begin", lambda self: None)
    assert not zerogpu.wanted()
    assert isinstance(workers.make("pocket", workers.Cluster()), ProcessWorker)
