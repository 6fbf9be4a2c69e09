"""Workers behind the page: actors of a cluster, and the calls that a ZeroGPU Space lends."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specvl_demo import pairs
from specvl_demo.media import MediaFile
from specvl_demo.pairs.fitting import Options
from specvl_demo.question import Question, Turn
from specvl_demo.ui import messages
from specvl_demo.ui.serve import zerogpu
from specvl_demo.ui.serve.cluster import ComputeActor, JobParcel, RayWorkers
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.workers import ProcessWorker
from specvl_demo.ui.serve.zerogpu import ZeroGpuWorker, estimate_lease_s
from tests.conftest import second_try
from tests.page.fake_page import Event, Played, compute, started
from tests.robustness.support import Guest
from tests.shared.server import run_python

EACH_S = 0.05
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
def test_two_visitors_are_served_at_once(cluster: RayWorkers, tmp_path: Path):
    picture = tmp_path / "a.png"
    picture.write_bytes(b"12345")
    queue = Queue(cluster)
    first = Visitor(queue, job(40))
    second = Visitor(queue, job(40, media=(MediaFile(str(picture)),)))
    assert first.pid() != second.pid()
    for visitor in (first, second):
        visitor.until("done")
        assert visitor.kinds("begin", "round", "end") == ["begin", *["round"] * 40, "end"]
        assert not visitor.kinds("queue", "error")
    # Side by side, not one after the other: each began before the other was done.
    assert max(first.times[0], second.times[0]) < min(first.times[-1], second.times[-1])
    assert next(e["files"] for e in second.events if "files" in e) == [5]


@clustered
def test_a_worker_killed_in_the_middle_is_replaced_and_its_visitor_reads_why(cluster: RayWorkers):
    queue = Queue(cluster)
    unlucky, lucky = Visitor(queue, job(400)), Visitor(queue, job(60))
    killed = unlucky.pid()
    unlucky.until("round", 3)
    assert lucky.pid() != killed
    os.kill(killed, signal.SIGKILL)
    assert "engine stopped" in unlucky.until("error")["text"]
    unlucky.until("done")
    # What came until then is a whole trace: the lane has its end, with what it had.
    end = unlucky.until("end")["record"]
    assert end.stop == "error" and end.totals.n_rounds == len(unlucky.kinds("round")) >= 3
    assert "engine stopped" in end.message
    lucky.until("done")
    assert lucky.kinds("begin", "round", "end") == ["begin", *["round"] * 60, "end"]
    assert not lucky.kinds("error")
    # Both seats serve again, one of them in a new process.
    again = [Visitor(queue, job(100_000)) for _ in range(2)]
    pids = {visitor.pid() for visitor in again}
    assert len(pids) == 2 and killed not in pids
    for visitor in again:
        queue.stop(visitor.until("run")["run"])
        visitor.until("done")
        assert not visitor.kinds("error")


@pytest.fixture
def process() -> Iterator[ProcessWorker]:
    made = ProcessWorker(None, Played)
    yield made
    made.close()


@pytest.mark.parametrize("which", ["process", pytest.param("cluster", marks=clustered)])
def test_a_stop_that_comes_before_its_job_ends_it(which: str, request: pytest.FixtureRequest):
    """The queue stops a run as soon as it has begun; the thread that sends its job may be later."""
    worker = request.getfixturevalue(which)
    worker.stop("r")
    assert not list(worker.events("r", job(10**9)))
    assert [event["k"] for event in worker.events("s", job(1))][-1] == "end"


def test_an_actor_ends_its_run_at_stop(monkeypatch):
    monkeypatch.setattr("specvl_demo.ui.serve.job_runner.JobRunner", Played)
    actor = ComputeActor(None)
    running = actor.compute("r", JobParcel.of(job(10**9)))
    assert [next(running)["k"] for _ in range(2)] == ["begin", "round"]
    actor.stop("r")
    assert len(list(running)) < 3
    events = actor.compute("s", JobParcel.of(job(1)))
    assert [event["k"] for event in events] == ["begin", "round", "end"]


def test_a_parcel_carries_files_to_another_machine(tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "a.png").write_bytes(b"a")
    (here / "b.mp4").write_bytes(b"bb")
    picture, clip = (MediaFile(str(here / name)) for name in ("a.png", "b.mp4"))
    asked = job(media=(picture,), earlier=(Turn("q", (clip,), "a"),))
    first, last = map(Path, JobParcel.of(asked).unpack(there).question.paths)
    assert last.read_bytes() == b"a" and last.parent == there
    assert first.suffix == ".mp4" and first.read_bytes() == b"bb"


Compute = Callable[[Job], Iterator[Event]]


def lend(asked: list[Any]) -> Callable[..., Any]:
    """What `spaces.GPU` is where it lends: a decorator with a duration, around a generator."""

    def decorator(duration: Callable[[Job], int]) -> Callable[..., Any]:
        def lent(compute: Compute) -> Compute:
            def call(job: Job) -> Iterator[Event]:
                asked.append(duration(job))
                yield from compute(job)

            return call

        return lent

    return decorator


def slowly(job: Job) -> Iterator[Event]:
    yield from compute(job, bool)


def space(compute: Compute = slowly, pair: str = "light") -> tuple[Queue, list[int]]:
    """The line before a Space, and the seconds that each run requests."""
    asked = []
    return Queue(ZeroGpuWorker(pair, lend(asked), compute, EACH_S)), asked


def test_a_space_lends_a_gpu_for_each_run_as_long_as_it_needs():
    queue, asked = space()
    visitor = Visitor(queue, job(5))
    visitor.until("done")
    assert visitor.kinds("begin", "round", "end") == ["begin", *["round"] * 5, "end"]
    assert asked == [estimate_lease_s(job(5), EACH_S)]
    short, long = (estimate_lease_s(job(max_new_tokens=n), EACH_S) for n in (32, 1024))
    assert 10 < short < long <= 60
    small, large = (zerogpu.max_token_s(pairs.find(name)) for name in ("photo", "llava-1.5-7b"))
    assert small < large / 2


def test_answers_that_no_call_has_time_for_are_cut_and_it_is_said():
    """The requested time stays within a day's 120 s, of which a whole card counts twice."""
    heard = []

    def short(asked: Job) -> Iterator[Event]:
        heard.append(asked)
        yield from slowly(replace(asked, question=Question("rounds=2")))

    queue, seconds = space(short)
    visitor = Visitor(queue, replace(job(max_new_tokens=400), lanes=(("ar", {}),) * 5))
    visitor.until("done")
    assert heard[0].question.max_new_tokens == 140 and seconds[0] <= 60
    (error,) = visitor.of("error")
    assert error["text"] == messages.ONLY_SO_MANY.format(n=140, asked=400, seconds=60)


def test_a_lent_run_ends_at_stop_with_what_it_had():
    queue, _ = space()
    visitor = Visitor(queue, job(500))
    run = visitor.until("run")["run"]
    visitor.until("round", 3)
    queue.stop(run)
    visitor.until("done")
    end = visitor.until("end")["record"]
    assert end.stop == "cancelled" and end.totals.n_rounds == len(visitor.kinds("round")) < 500


def out_of_quota(job: Job) -> Iterator[Event]:
    raise RuntimeError("You have exceeded your GPU quota")
    yield {}


@pytest.mark.parametrize(
    ("compute", "pair", "asked", "said"),
    [
        (out_of_quota, "light", {}, "exceeded your GPU quota"),
        (slowly, "other", {}, "only to the pair 'other'"),
        (slowly, "light", {"options": Options("float32")}, "precision"),
    ],
    ids=["quota", "another pair", "other weights"],
)
def test_what_a_space_cannot_do_is_said(compute: Any, pair: str, asked: dict[str, Any], said: str):
    """Its own words about a quota; and it serves what it has loaded alone."""
    visitor = Visitor(space(compute, pair)[0], replace(job(5), **asked))
    assert said in visitor.until("error")["text"]
    visitor.until("done")


@pytest.mark.slow
def test_spaces_is_imported_before_anything_asks_for_cuda(tmp_path: Path, monkeypatch):
    """`spaces` refuses to start once CUDA was initialised, so it comes before a look at the
    machine; anywhere else it is not imported."""
    (tmp_path / "spaces.py").write_text(
        "import os, sys\n"
        "print('spaces comes', file=sys.stderr)\n"
        "torch = sys.modules.get('torch')\n"
        "assert torch is None or not torch.cuda.is_initialized()\n"
        "assert os.environ['HF_DEACTIVATE_ASYNC_LOAD'] == '1'\n"
        "def __getattr__(name): sys.exit('then a worker')\n"
    )
    env = {"SPACES_ZERO_GPU": "true", "PYTHONPATH": str(tmp_path)}
    done = run_python("app.py", "--pair", "pocket", timeout=120, **env)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["spaces comes", "then a worker"]
    monkeypatch.delenv("SPACES_ZERO_GPU", raising=False)
    monkeypatch.delitem(sys.modules, "spaces", raising=False)
    zerogpu.import_spaces()
    assert "spaces" not in sys.modules


@pytest.mark.slow
def test_the_real_package_lends_three_calls_that_load_nothing_and_all_are_released(tmp_path: Path):
    """The second is stopped by its visitor; a fourth wants a drafter that was not prepared, and is
    refused before a GPU is lent. Scheduler and move to CUDA are mocked; see `zerogpu_app`.
    """
    pytest.importorskip("spaces", reason="needs the package spaces, see [dev] in pyproject.toml")
    done = run_python("-m", "tests.robustness.zerogpu_app", tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    first, stopped, third, refused = (
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
    )
    assert not first["errors"] + stopped["errors"] + third["errors"], (
        done.stderr[-3000:] + done.stdout[-3000:]
    )
    assert [call["released"] for call in (first, stopped, third)] == [1, 2, 3]
    assert {call["last"] for call in (first, stopped, third)} == {"done"}
    assert stopped["rounds"] < first["rounds"] == third["rounds"]
    assert not {"loading"} & {*first["stages"], *stopped["stages"], *third["stages"]}
    assert refused["released"] == 3 and "EAGLE-2 head" in refused["errors"][0]
