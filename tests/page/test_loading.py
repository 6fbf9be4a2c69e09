"""While a pair is loaded visitors hear how far it is, may leave, and are not timed; of a question
that was computed nothing stays."""

import gc
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from specvl_demo import pairs
from specvl_demo.core.types import Prompt
from specvl_demo.media import MediaFile
from specvl_demo.methods.base import Choice, Models
from specvl_demo.pairs import Checkpoint, PairSpec, fitting
from specvl_demo.pairs.machine import Gpu, Machine
from specvl_demo.pairs.placing import Placement
from specvl_demo.question import Question
from specvl_demo.serving import loader
from specvl_demo.serving.loaded import LoadedPair
from specvl_demo.ui.serve import job_runner
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.workers import ProcessWorker
from tests.page.fake_page import Slow
from tests.robustness.support import Guest, until

LIMIT_S = 1.5
JOB = Job(pair="slow", lanes=(("ar", {}),), question=Question("?"))


def test_a_visitor_sees_the_first_load_may_stop_and_is_not_timed(tmp_path: Path):
    """The limit is shorter than the load; who stops is done at once, the other one is served."""
    worker = ProcessWorker(str(tmp_path / "go"), Slow)
    try:
        until((tmp_path / "began").exists, "the load to begin")
        queue = Queue(worker, limit_s=LIMIT_S, grace_s=LIMIT_S)
        leaves = Guest(queue, JOB)
        until(
            lambda: [one for one in leaves.events if one.get("detail") == "Reading the weights"],
            "how far loading is",
        )
        pid = worker.pid
        run = leaves.until("run")["run"]
        queue.stop(run)
        leaves.until("done")
        stays = Guest(queue, JOB)
        time.sleep(2 * LIMIT_S)
        (tmp_path / "go").touch()
        stays.until("done")
        assert not [e for visitor in (leaves, stays) for e in visitor.events if e["k"] == "error"]
        assert [event for event in stays.events if event.get("stage") == "prefill"]
        assert worker.pid == pid, "the process that loads was not killed"
    finally:
        worker.close()


def test_drafters_that_would_crowd_each_other_out_are_loaded_in_turns(monkeypatch):
    """Only what a job asks for is loaded, beside what is there as long as all of it fits."""
    pair, loads, added, released = pairs.find("llava-1.6-7b"), [], [], []
    target = SimpleNamespace(
        vlm=SimpleNamespace(release_caches=lambda: released.append(len(loads)))
    )

    def load(
        pair: PairSpec, roles: None, tell: object, options: fitting.Options, placement: Placement
    ) -> LoadedPair:
        loads.append(list(placement.roles))
        drafters = dict.fromkeys(placement.roles, target.vlm)
        return LoadedPair(pair, Models(target, drafters), None, None, placement.plan, {})

    def load_drafters(loaded: LoadedPair, roles: list[str], tell: object) -> None:
        added.append(list(roles))
        loaded.models.drafters.update(dict.fromkeys(roles, target.vlm))

    def memory_needs(pair: PairSpec, plan: fitting.LoadPlan, roles: list[str]) -> SimpleNamespace:
        return SimpleNamespace(total=len(roles))

    monkeypatch.setattr(loader, "detect_machine", lambda: Machine(8, 2.3, "x86_64"))
    monkeypatch.setattr(fitting, "memory_needs", memory_needs)
    monkeypatch.setattr(loader, "load_pair", load)
    monkeypatch.setattr(loader, "load_drafters", load_drafters)
    models = job_runner.JobRunner()
    for roles in (["small"], ["hivis"], ["small"], ["dream"]):
        models.load_pair(pair, roles, lambda text: None)
    assert loads == [["small"], ["dream"]] and added == [["small", "hivis"]]
    assert released == [1] * 3  # graphs, before what they belong to is dropped


def test_a_drafter_that_is_loaded_later_leaves_the_targets_graphs():
    released = []
    target, head = (
        SimpleNamespace(name=name, release_caches=lambda name=name: released.append(name))
        for name in ("target", "head")
    )
    models = Models(SimpleNamespace(vlm=target, batch_invariant=False), {})
    loaded = LoadedPair(pairs.find("pocket"), models, None, None, fitting.LoadPlan(), {})
    loaded.calibrate(lambda _: None)
    models.drafters["dream"] = head
    for _ in range(2):
        loaded.calibrate(lambda _: None)
    assert released == ["target", "head"]


@pytest.mark.parametrize(("gib", "names"), [(22, ["ar"]), (31, ["ar", "sage"])])
def test_a_pair_on_a_gpu_captures_its_graphs_while_it_loads(
    gib: int, names: list[str], monkeypatch
):
    """By describing a picture of a photograph's size, also with the drafter that is offered first
    if it has room beside the target; others come with those who ask for them."""
    plan = fitting.LoadPlan("bfloat16", "cuda:0")
    loaded = SimpleNamespace(plan=plan, calibrate=lambda tell: None)
    told, warmed, asked_for = [], [], []

    def warm(loaded: object, asked: tuple[object, ...], choices: list[Choice]) -> None:
        warmed.append((asked[1].media[0].size, [choice.method.name for choice in choices]))

    def load(runner: object, pair: PairSpec, roles: list[str], tell: object) -> SimpleNamespace:
        asked_for.append(roles)
        return loaded

    machine = Machine(8, 64 * 10**9, "x86_64", (Gpu("card", gib * 2**30, (8, 6)),))
    monkeypatch.setattr(job_runner, "detect_machine", lambda: machine)
    monkeypatch.setattr(fitting, "_has_bitsandbytes", lambda: True)
    monkeypatch.setattr(job_runner.JobRunner, "load_pair", load)
    monkeypatch.setattr(job_runner.session, "warm_up", warm)
    monkeypatch.setattr(job_runner.session, "make_request", lambda *asked: asked)
    job_runner.JobRunner("qwen2.5-vl-7b").prepare(told.append)
    assert told == [job_runner.RECORDING] and warmed == [(job_runner.PHOTOGRAPH, names)]
    assert asked_for == [[], ["small"]][: len(names)]


@pytest.mark.parametrize("left", [False, True])
def test_no_prompt_is_left_when_a_run_is_over(
    left: bool, saved_pair: Path, tmp_path: Path, monkeypatch
):
    """Neither of one that ended nor of one whose visitor left in the middle."""
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    target = Checkpoint(str(saved_pair / "target"), 1e6, "", True)
    made = loader.load_pair(PairSpec("light", "light", "llava", target, {}), [])
    monkeypatch.setattr(pairs, "find", lambda _: made.pair)
    monkeypatch.setattr(loader, "load_pair", lambda *_, **__: made)
    lanes = (("ar", {}), ("ngram", {}))
    shown = (MediaFile(str(tmp_path / "a.png")),)
    job = Job("light", lanes, Question("what is this", shown, max_new_tokens=6))
    running = job_runner.JobRunner().events(job, bool)
    kinds = []
    for event in running:
        kinds.append(event["k"])
        if left and event["k"] == "round":
            break
    running.close()
    assert "round" in kinds and "error" not in kinds
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is Prompt]
