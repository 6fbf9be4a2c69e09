"""Faults put in on purpose: the visitor reads what happened, the next run works, no other fails."""

import errno
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specvl_demo import pairs
from specvl_demo.compare.report import page_of
from specvl_demo.methods.policies import Chain
from specvl_demo.options import Sampling
from specvl_demo.pairs import Checkpoint, PairSpec, placing
from specvl_demo.question import Question
from specvl_demo.records import Begin
from specvl_demo.ui import messages
from specvl_demo.ui.serve import benches, job_runner
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.zerogpu import ZeroGpuWorker
from specvl_demo.vlm import loading, outlines, target
from tests.robustness.support import Guest, saved
from tests.shared.refusals import refuses
from tests.shared.tiny import rounds_of
from tests.shared.visitor import Event

# ---------------------------------------------------------------- on real models, tiny and random


@pytest.fixture(scope="module")
def pair(saved_pair: Path) -> PairSpec:
    folders = (saved_pair / name for name in ("target", "drafter"))
    large, small = (Checkpoint(str(folder), 1e6, "", True) for folder in folders)
    return PairSpec("light", "light", "llava", large, {"small": small})


@pytest.fixture(scope="module")
def models(pair: PairSpec) -> job_runner.JobRunner:
    made = job_runner.JobRunner()
    made.load_pair(pair, ["small"], lambda _: None)
    return made


@pytest.fixture
def queue(models: job_runner.JobRunner, pair: PairSpec, monkeypatch) -> Queue:
    """A queue whose runs are computed in a thread of this process, where faults can be put in."""
    monkeypatch.setattr(pairs, "find", lambda _: pair)

    def compute(asked: Job) -> Iterator[Event]:
        yield from models.events(asked, bool)

    return Queue(ZeroGpuWorker("light", lambda duration: lambda fn: fn, compute, 0.05))


def question() -> Job:
    return Job("light", (("ar", {}), ("chain", {})), Question("what is this", max_new_tokens=12))


def answer(guest: Guest) -> dict[str, list[int]]:
    """The ids of a run that went well, by lane: the order of turns is a matter of clocks."""
    guest.until("done")
    assert not guest.of("error"), guest.of("error")
    assert [event["record"].stop for event in guest.of("end")] == ["length"] * 2
    said = {}
    for event in guest.of("round"):
        said.setdefault(event["record"].lane, []).extend(
            token.id for token in event["record"].tokens
        )
    return said


def broken(real: Callable[..., Any], at: int, fault: Callable[[], Any]) -> Callable[..., Any]:
    """A function that does what it did until the at-th call, which fails."""
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            fault()
        return real(*args, **kwargs)

    return call


def too_much() -> None:
    """Asks this machine's own allocator for more than any machine has."""
    torch.empty(1 << 55)


def on_a_gpu() -> None:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free."
    )


def of_python() -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("where", "fault"), [("prefill", too_much), ("decode", on_a_gpu), ("decode", of_python)]
)
def test_a_run_that_runs_out_of_memory_ends_with_a_sentence_and_keeps_its_answer_so_far(
    queue: Queue, where: str, fault: Callable[[], None], monkeypatch, tmp_path: Path
):
    before = answer(Guest(queue, question()))
    with monkeypatch.context() as patch:
        place, at = (target.VLMTarget, 1) if where == "prefill" else (target.VLMSession, 20)
        name = "prefill" if where == "prefill" else "score"
        patch.setattr(place, name, broken(getattr(place, name), at, fault))
        guest = Guest(queue, question())
        guest.until("done")
    assert [event["text"] for event in guest.of("error")] == [messages.NO_MEMORY]
    assert bool(rounds_of(saved(guest, tmp_path))) == (where == "decode")
    assert answer(Guest(queue, question())) == before


def kernel() -> None:
    raise RuntimeError(
        "mat1 and mat2 shapes cannot be multiplied (1x64 and 32x8)\nand a second line"
    )


def test_a_drafter_that_raises_ends_only_its_own_run_and_the_answer_so_far_stays(
    queue: Queue, monkeypatch, tmp_path: Path
):
    before = answer(Guest(queue, question()))
    with monkeypatch.context() as patch:
        patch.setattr(Chain, "propose", broken(Chain.propose, 5, kernel))
        guest = Guest(queue, question())
        guest.until("run")
        other = Guest(queue, question())
        guest.until("done")
        other_answer = answer(other)
    (error,) = guest.of("error")
    assert "mat1 and mat2 shapes cannot be multiplied" in error["text"]
    assert "The answers are kept" in error["text"] and "second line" not in error["text"]
    kept = saved(guest, tmp_path)
    assert sum(isinstance(record, Begin) for record in kept) == 2
    assert rounds_of(kept)
    # Who waited meanwhile was served, and so is who comes next.
    assert other_answer == before == answer(Guest(queue, question()))


# ---------------------------------------------------------------- checkpoints


def cut(file: Path, to: int) -> None:
    file.write_bytes(file.read_bytes()[:to])


WEIGHTS = "model.safetensors"
DAMAGED = {
    "no weights": (lambda d: (d / WEIGHTS).unlink(), "could not be loaded"),
    "cut in the middle": (lambda d: cut(d / WEIGHTS, 100_000), "damaged or cut short"),
    "cut in the header": (lambda d: cut(d / WEIGHTS, 60), "damaged or cut short"),
    "half of the shards": (lambda d: half(d), "lacks 1 of its 2 weight files"),
    "index of nothing": (lambda d: (d / outlines.INDEX).write_text("[]"), "is not a JSON object"),
    "half a configuration": (lambda d: cut(d / "config.json", 40), "not a valid JSON file"),
    "no configuration": (lambda d: (d / "config.json").unlink(), "config.json"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "could not be loaded"),
}


def half(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    shards = {f"w{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (folder / outlines.INDEX).write_text(json.dumps({"weight_map": shards}))


def test_a_visitor_reads_what_a_checkpoint_lacks_and_is_served_once_it_is_whole(
    saved_pair: Path, pair: PairSpec, tmp_path: Path, monkeypatch
):
    """The visitor reads what is missing; once it is there the same worker serves the pair."""
    copy = tmp_path / "target"
    damaged = PairSpec("light", "t", pair.family, Checkpoint(str(copy), 1e6, "", True), {})
    monkeypatch.setattr(pairs, "find", lambda _: damaged)
    monkeypatch.setattr(placing, "place", lambda *_: placing.Placement(True, "", roles=[]))
    models = job_runner.JobRunner()
    asked = Job("light", (("ar", {}),), Question("what", max_new_tokens=2))
    for damage, (change, said) in DAMAGED.items():
        shutil.copytree(saved_pair / "target", copy)
        change(copy)
        (error,) = [event for event in models.events(asked, bool) if event["k"] == "error"]
        assert said in error["text"] and "Traceback" not in error["text"], damage
        shutil.rmtree(copy)
    shutil.copytree(saved_pair / "target", copy)
    assert "error" not in [event["k"] for event in models.events(asked, bool)]


def test_a_comparison_says_what_computes_it(models: Any, pair: PairSpec, monkeypatch):
    """As `bench --json` does, at every temperature: the seeds too."""
    for module in (pairs, benches):
        monkeypatch.setattr(module, "find", lambda _: pair)
    sampled = [replace(question().question, sampling=Sampling(0.5, seed=seed)) for seed in (0, 1)]
    jobs = [replace(question(), question=each, timed=True) for each in sampled]
    bench = benches.BenchRun("b", None, "light", ["ar", "chain"], 1, jobs)
    while step := bench.next_step():
        events = step.store_records([*models.events(step.job, bool), {"k": "done"}])
        assert {event["k"] for event in events} == {"status", "done"}
    report = bench.report()
    page = page_of(report)
    conditions, machine = page.before[0], page.after[-1]
    weights = report["machine"]["weights"]
    assert list(weights) == ["target", "small"] and weights["small"] in machine
    assert all(word in machine for word in ("thread", "float32 on cpu"))
    assert "temperature 0.5, top_p 1.0, seed 0 to 1, one a question." in conditions


# ---------------------------------------------------------------- the disk


def fails(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_disk_is_named_when_weights_are_fetched(monkeypatch):
    monkeypatch.setattr(loading, "snapshot_download", fails(errno.ENOSPC))
    monkeypatch.setattr(loading, "hub_answers", lambda: True)
    refuses(
        "org/model could not be loaded: .*No space left on device",
        loading.fetch_repo,
        "org/model",
        lambda _: None,
    )


# ---------------------------------------------------------------- the hub


@pytest.mark.parametrize(
    ("silent", "said"),
    [(True, "did not answer within"), (False, "did not answer")],
    ids=["silent", "absent"],
)
def test_a_hub_without_an_answer_ends_the_fetch_in_a_sentence(silent: bool, said: str, monkeypatch):
    """One that takes connections and never says anything; one that is not there."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if silent:
            server.listen(8)
        monkeypatch.setattr(
            loading.constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}"
        )
        monkeypatch.setattr(loading, "HUB_S", 0.5)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        sentence = f"nobody/nothing could not be loaded: the hub {said}"
        refuses(sentence, loading.fetch_repo, "nobody/nothing", lambda _: None)
