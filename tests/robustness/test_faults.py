"""Faults put in on purpose: the visitor reads what happened, the next run works, nobody else is touched."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from specvl_demo import pairs, records, registry
from specvl_demo.methods.chain import Chain
from specvl_demo.pairs import Checkpoint, Pair
from specvl_demo.records import Begin, Record, Round
from specvl_demo.ui import messages
from specvl_demo.ui.page.handlers import Behaviour
from specvl_demo.ui.serve import decoding, uploads
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.route_filter import RouteFilter
from specvl_demo.ui.serve.uploads import SPARE_BYTES
from specvl_demo.ui.serve.workers import ProcessWorker, reason
from specvl_demo.ui.serve.zerogpu import ZeroGpuWorker
from specvl_demo.vlm import loading, target
from tests.pocketlike import save_pair
from tests.robustness import echo
from tests.robustness.support import WAIT_S, Guest, job, until

# ---------------------------------------------------------------- on real models, tiny and random


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    small = Checkpoint(str(folder / "drafter"), 1e6, "", True)
    return Pair(
        "light", "light", "llava", Checkpoint(str(folder / "target"), 1e6, "", True), {"small": small}
    )


@pytest.fixture(scope="module")
def models(pair: Pair) -> decoding.Engine:
    made = decoding.Engine()
    made.get(pair, ["small"], lambda _: None)
    return made


@pytest.fixture
def queue(models: decoding.Engine, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue whose runs are computed in a thread of this process, where faults can be put in."""
    monkeypatch.setattr(pairs, "find", lambda _: pair)

    def compute(asked: Job) -> Iterator[dict[str, Any]]:
        yield from models(asked, bool)

    return Queue(ZeroGpuWorker("light", lambda duration: lambda fn: fn, compute))


def question() -> Job:
    return Job("light", (("ar", {}), ("chain", {})), "what is this", max_new_tokens=12)


def answer(guest: Guest) -> dict[str, list[int]]:
    """The ids of a run that went well, by lane: in what order lanes take turns is a matter of clocks."""
    guest.until("done")
    assert not guest.of("error"), guest.of("error")
    assert [event["record"].stop for event in guest.of("end")] == ["length"] * 2
    said: dict[str, list[int]] = {}
    for event in guest.of("round"):
        said.setdefault(event["record"].lane, []).extend(token.id for token in event["record"].tokens)
    return said


def partial(guest: Guest, folder: Path) -> list[Record]:
    """What a visitor can save of a run that failed: a valid trace in which every lane has its end."""
    kept = [event["record"] for event in guest.events if "record" in event]
    records.write(folder / "partial.jsonl", kept)
    lanes = records.validate_trace(map(records.loads, (folder / "partial.jsonl").open(encoding="utf-8")))
    ends = [lane.end for lane in lanes]
    # A lane may have been complete before the fault came to another one.
    assert all(end is not None and end.stop in ("error", "length") for end in ends)
    told = [end.message for end in ends if end.stop == "error"]
    assert told == [guest.of("error")[0]["text"]] * len(told) and bool(told) == bool(lanes)
    return kept


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
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.")


def of_python() -> None:
    raise MemoryError


@pytest.mark.parametrize("fault", [too_much, on_a_gpu, of_python])
@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_memory_that_runs_out(
    queue: Queue, where: str, fault: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = answer(Guest(queue, question()))
    with monkeypatch.context() as patch:
        place, at = (target.VLMTarget, 1) if where == "prefill" else (target.VLMSession, 20)
        name = "prefill" if where == "prefill" else "score"
        patch.setattr(place, name, broken(getattr(place, name), at, fault))
        guest = Guest(queue, question())
        guest.until("done")
    assert [event["text"] for event in guest.of("error")] == [messages.NO_MEMORY]
    kept = partial(guest, tmp_path)
    assert any(isinstance(record, Round) for record in kept) == (where == "decode")
    assert answer(Guest(queue, question())) == before


def mistake() -> None:
    raise KeyError("a mistake of ours")


def kernel() -> None:
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x64 and 32x8)\nand a second line")


@pytest.mark.parametrize(
    ("fault", "said"), [(mistake, "a mistake of ours"), (kernel, "mat1 and mat2 shapes cannot be multiplied")]
)
def test_a_drafter_that_raises_in_the_middle(
    queue: Queue, fault: Callable[[], None], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = answer(Guest(queue, question()))
    with monkeypatch.context() as patch:
        patch.setattr(Chain, "propose", broken(Chain.propose, 5, fault))
        guest = Guest(queue, question())
        guest.until("run")
        other = Guest(queue, question())
        guest.until("done")
        other_answer = answer(other)
    (error,) = guest.of("error")
    assert said in error["text"] and "What came until then stays" in error["text"]
    assert "second line" not in error["text"]
    kept = partial(guest, tmp_path)
    assert sum(isinstance(record, Begin) for record in kept) == 2
    assert sum(isinstance(record, Round) for record in kept) >= 1
    # Who waited meanwhile was served, and so is who comes next.
    assert other_answer == before == answer(Guest(queue, question()))


# ---------------------------------------------------------------- the process that computes


@pytest.fixture(scope="module")
def worker() -> Iterator[ProcessWorker]:
    made = ProcessWorker(None, echo.engine)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("how", "said"), [("die", "stopped unexpectedly (SIGKILL"), ("raise", "KeyError: 'a mistake of ours'")]
)
def test_a_worker_that_ends_in_the_middle(worker: ProcessWorker, how: str, said: str, tmp_path: Path) -> None:
    queue = Queue(worker)
    guest = Guest(queue, job(f"who=unlucky rounds=9 fail={how} at=5 each=0.05"))
    guest.until("round")
    pid = worker.pid
    waiting = [Guest(queue, job(f"who=w{number} rounds=6")) for number in range(3)]
    guest.until("done")
    (error,) = guest.of("error")
    assert said in error["text"]
    assert sum(isinstance(record, Round) for record in partial(guest, tmp_path)) == 5
    # Nothing of the others is lost, although the first of them may have been handed to the dying process.
    for number, other in enumerate(waiting):
        other.until("done")
        assert not other.of("error")
        got = [token for event in other.of("round") for token in event["record"].tokens]
        assert [one.id for one in got] == [echo.token(f"w{number}", index) for index in range(6)]
    assert worker.pid != pid


def test_a_worker_that_cannot_live_is_not_started_for_ever(tmp_path: Path) -> None:
    """It ends before it says anything, each time: after the second the visitor is told."""
    made = ProcessWorker(None, echo.dying)
    try:
        queue = Queue(made)
        guest = Guest(queue, job())
        guest.until("done")
        assert "stopped unexpectedly (exit code 7)" in guest.until("error")["text"]
    finally:
        made.close()


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        (SpawnProcess, BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")),
        (threading.Thread, RuntimeError("can't start new thread")),
    ],
    ids=["process", "thread"],
)
@pytest.mark.parametrize("when", ["dead before", "dies of it"])
def test_a_worker_that_cannot_be_started_again_blocks_nobody(
    worker: ProcessWorker, when: str, place: type, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process, or no thread, is to be had: the visitor is told, and the next one is served when it is."""
    queue = Queue(worker)
    before = worker.pid
    if when == "dead before":
        os.kill(before, signal.SIGKILL)
        until(lambda: not worker._process.is_alive(), "the process to end")
    real = place.start

    def start(self: Any) -> None:
        if place is not threading.Thread or self._target == worker._read:
            raise fault
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(place, "start", start)
        guest = Guest(queue, job("fail=die at=-1"))
        guest.until("done")
    assert str(fault) in guest.until("error")["text"] and "could not be started" in guest.events[-2]["text"]
    assert not queue._line and not worker._errands
    after = Guest(queue, job("who=after"))
    after.until("done")
    assert len(after.of("round")) == 3 and not after.of("error")
    assert worker.pid != before


def test_a_signal_is_said_in_words() -> None:
    assert reason(-9) == "SIGKILL, often a sign that memory ran out"
    assert reason(-11) == "SIGSEGV" and reason(1) == "exit code 1"


# ---------------------------------------------------------------- checkpoints


def cut(file: Path, to: int) -> None:
    file.write_bytes(file.read_bytes()[:to])


WEIGHTS = "model.safetensors"
DAMAGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no weights": (lambda d: (d / WEIGHTS).unlink(), "could not be had"),
    "cut in the middle": (lambda d: cut(d / WEIGHTS, 100_000), "damaged or cut short"),
    "cut by a byte": (lambda d: cut(d / WEIGHTS, (d / WEIGHTS).stat().st_size - 1), "damaged or cut short"),
    "cut in the header": (lambda d: cut(d / WEIGHTS, 60), "damaged or cut short"),
    "empty": (lambda d: cut(d / WEIGHTS, 0), "damaged or cut short"),
    "noise": (lambda d: (d / WEIGHTS).write_bytes(random.Random(0).randbytes(5000)), "damaged or cut short"),
    "half of the shards": (lambda d: half(d), "1 of its 2 files of weights are not here"),
    "index of nothing": (lambda d: (d / loading.INDEX).write_text("[]"), "index.json is damaged"),
    "half a configuration": (lambda d: cut(d / "config.json", 40), "not a valid JSON file"),
    "no configuration": (lambda d: (d / "config.json").unlink(), "config.json"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "could not be had"),
}


def half(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    shards = {f"w{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (folder / loading.INDEX).write_text(json.dumps({"weight_map": shards}))


def test_a_checkpoint_that_is_not_whole(
    folder: Path, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The visitor reads what is missing; once it is there the same worker serves the pair."""
    copy = tmp_path / "target"
    damaged = Pair("light", "t", pair.family, Checkpoint(str(copy), 1e6, "", True), {})
    monkeypatch.setattr(pairs, "find", lambda _: damaged)
    monkeypatch.setattr(registry, "available", lambda *_: registry.Verdict(True, ""))
    models = decoding.Engine()
    asked = Job("light", (("ar", {}),), "what", max_new_tokens=2)
    for damage, (change, said) in DAMAGED.items():
        shutil.copytree(folder / "target", copy)
        change(copy)
        (error,) = [event for event in models(asked, bool) if event["k"] == "error"]
        assert said in error["text"] and "Traceback" not in error["text"], damage
        shutil.rmtree(copy)
    shutil.copytree(folder / "target", copy)
    assert "error" not in [event["k"] for event in models(asked, bool)]


def test_a_file_that_came_damaged_is_found_by_its_hash_and_removed(folder: Path, tmp_path: Path) -> None:
    """As the hub's cache has it: a link to a file that is named by its SHA-256."""
    content = (folder / "target" / WEIGHTS).read_bytes()
    blob = tmp_path / "blobs" / hashlib.sha256(content).hexdigest()
    link = tmp_path / "snapshots" / "main" / WEIGHTS
    for place in (blob, link):
        place.parent.mkdir(parents=True)
    blob.write_bytes(content)
    link.symlink_to(blob)
    loading.verify(link.parent, "org/model")
    blob.write_bytes(content[:-5] + b"wrong")
    with pytest.raises(ValueError, match="came damaged .* was removed. Load it again"):
        loading.verify(link.parent, "org/model")
    assert not link.exists() and not blob.exists()


# ---------------------------------------------------------------- the disk


def fails(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


async def passed(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def answered(folder: Path, path: str, size: int | None, room: int = 10_000) -> int:
    """The status of an upload of that many declared bytes, or of a look at another path."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if size is None else [(b"content-length", str(size).encode())]
    method = "POST" if path.startswith(UPLOAD) else "GET"
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    await RouteFilter(passed, [folder], most_bytes=5000, room=room)(scope, None, send)
    return sent[0]["status"]


UPLOAD = "/gradio_api/upload"


@pytest.mark.parametrize("path", [UPLOAD, f"{UPLOAD}/"])
def test_uploads_are_refused_before_they_are_read_when_there_is_no_room(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(size: int | None, room: int = 10_000, free: int = SPARE_BYTES + 10_000) -> int:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))
        return asyncio.run(answered(tmp_path, path, size, room))

    (tmp_path / "older").write_bytes(b"x" * 6000)
    assert status(3000) == 200
    assert status(5000) == 507  # all together would be more than there is room for
    assert status(3000, free=SPARE_BYTES + 2000) == 507  # the disk itself is full
    assert status(10**9, room=10**10, free=10**10) == 413
    assert status(None) == 507  # undeclared: as large as may be
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    assert status(3000) == 507 and uploads.refusal(tmp_path / "later", 1) == messages.NOT_KEPT


def test_an_upload_that_goes_while_all_are_counted_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A visitor leaves in the middle of the look: the next one is answered, by what is still there."""
    for name in ("mine", "gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(b"x" * 6000)
    real = Path.lstat

    def look(path: Path) -> Any:
        if path.parent.name == "gone":
            path.unlink()
        return real(path)

    monkeypatch.setattr(Path, "lstat", look)
    assert asyncio.run(answered(tmp_path, UPLOAD, 3000)) == 200
    assert not (tmp_path / "gone" / "a.png").exists()


def test_nobody_waits_while_uploads_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting, go_on = threading.Event(), threading.Event()

    def slow(*_: Any) -> None:
        counting.set()
        assert go_on.wait(WAIT_S)

    monkeypatch.setattr(uploads, "refusal", slow)

    async def story() -> None:
        upload = asyncio.create_task(answered(tmp_path, UPLOAD, 3000))
        while not counting.is_set():
            await asyncio.sleep(0.01)
        assert await answered(tmp_path, "/config", None) == 200 and not upload.done()
        go_on.set()
        assert await upload == 200

    asyncio.run(story())


def test_a_scene_that_cannot_be_stored_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviour = Behaviour({}, None, [tmp_path])
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, SPARE_BYTES))
        assert behaviour.scene(None) == {"problem": messages.DISK_FULL}
    assert not list(tmp_path.iterdir())  # nothing was written to find that out
    for number, said in ((errno.ENOSPC, messages.DISK_FULL), (errno.EROFS, messages.NOT_KEPT)):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", fails(number))
            assert behaviour.scene(None) == {"problem": said}
    drawn = behaviour.scene({"seed": 1})
    assert Path(drawn["path"]).is_relative_to(tmp_path) and Path(drawn["path"]).read_bytes()[1:4] == b"PNG"


def test_weights_that_do_not_fit_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "snapshot_download", fails(errno.ENOSPC))
    monkeypatch.setattr(loading, "hub_answers", lambda: True)
    with pytest.raises(ValueError, match="org/model could not be had: .*No space left on device"):
        loading.fetch("org/model", lambda _: None)


# ---------------------------------------------------------------- the hub


@pytest.mark.parametrize(
    ("silent", "said"), [(True, "did not answer within"), (False, "did not answer")], ids=["silent", "absent"]
)
def test_a_hub_that_does_not_answer(silent: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes connections and never says anything; one that is not there."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if silent:
            server.listen(8)
        monkeypatch.setattr(loading.constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(loading, "HUB_S", 0.5)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(ValueError, match=f"nobody/nothing could not be had: the hub {said}"):
            loading.fetch("nobody/nothing", lambda _: None)


def test_a_pair_of_the_hub_without_the_hub_is_refused_before_anything_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub = next(one for one in pairs.PAIRS if not one.local)
    asked = Job(hub.id, (("ar", {}),), "what", max_new_tokens=2)
    monkeypatch.setattr(pairs, "find", lambda _: hub)
    monkeypatch.setattr(loading, "snapshot_download", None)
    (error,) = [e for e in decoding.Engine()(asked, bool) if e["k"] == "error"]
    assert hub.id in error["text"] and ("HF_HUB_OFFLINE" in error["text"] or "memory" in error["text"])
