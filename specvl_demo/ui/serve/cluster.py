"""Workers on several GPUs of a machine or on a cluster, with Ray: each an actor with its own
models.

Runs as many jobs at once as there are actors, one in each, so that every clock is accurate. Ray
restarts an actor that dies; the visitor of its run sees an error. If Ray itself dies on this
machine, it is started again, or joined again. Ray is optional: it is imported when workers are
made.
"""

from __future__ import annotations

import os
import queue
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specvl_demo import places
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Event
from specvl_demo.ui.serve.workers import SAID, loading

RETRY_S = 0.5
LOSE_S = 30.0
"""How long runs may take to end after Ray itself has died on this machine."""
REACH_S = 5.0
PLACE = re.compile(r"(?:ray://)?(?:\[([^\]]+)\]|([^:/\[\]]+)):(\d+)")
"""An address with a host and a port; Ray finds any other form by itself."""
UNREACHED = (
    "There is no Ray cluster at {address}: the connection failed ({reason}); start it there (`ray"
    " start --head`), or name another one with --cluster."
)


@dataclass(frozen=True)
class Parcel:
    """A job with the bytes of its files, which other machines of the cluster do not have."""

    job: Job
    files: dict[str, bytes]

    @classmethod
    def of(cls, job: Job) -> Parcel:
        return cls(job, {path: Path(path).read_bytes() for path in job.question.files})

    def unpack(self, folder: Path) -> Job:
        """Write the files into a folder, and return the job with their new paths."""
        there = {}
        for number, (path, content) in enumerate(self.files.items()):
            there[path] = str(folder / f"{number}{Path(path).suffix}")
            Path(there[path]).write_bytes(content)
        question = self.job.question.moved(there)
        return replace(self.job, question=question)


class Actor:
    """An actor with its own models; it runs one job at a time, and receives Stop in parallel."""

    def __init__(self, first_pair: str | None) -> None:
        # Only the actor imports torch.
        from specvl_demo.ui.serve.decoding import Engine as Models  # noqa: PLC0415

        self._compute = Models(first_pair)
        self._compute.prepare()
        self._stopped: str | None = None

    def run(self, run: str, parcel: Parcel) -> Iterator[Event]:
        with tempfile.TemporaryDirectory(prefix="specvl-") as folder:
            yield from self._events(run, parcel.unpack(Path(folder)))

    def stop(self, run: str) -> None:
        self._stopped = run

    def _events(self, run: str, job: Job) -> Iterator[Event]:
        """Yield a job's events, computed in a thread so that the progress of loading is sent while
        it loads.
        """
        events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()

        def compute() -> None:
            try:
                ended, tell = lambda: self._stopped == run, lambda text: events.put(loading(text))
                for event in self._compute(job, ended, tell):
                    events.put(event)
            except BaseException as fault:  # noqa: BLE001 - raised again where Ray sees it
                events.put(fault)
            events.put(None)

        thread = threading.Thread(target=compute, daemon=True)
        thread.start()
        try:
            while (item := events.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._stopped = run  # also if the events are no longer read
            thread.join()

    def ready(self) -> bool:
        """Return once its models are loaded."""
        return True


def reach(address: str) -> None:
    """Check that something listens at a cluster's address; ValueError with a sentence if not.

    Ray would retry a dead address for minutes, and then report it in pages of output.
    """
    place = PLACE.fullmatch(address)
    if place is None:
        return
    try:
        socket.create_connection((place[1] or place[2], int(place[3])), REACH_S).close()
    except (OSError, OverflowError, UnicodeError) as fault:  # no answer, no such port, no such name
        reason = getattr(fault, "strerror", None) or fault
        raise ValueError(UNREACHED.format(address=address, reason=reason)) from fault


class RayWorkers:
    """A `queue.Worker` over `capacity` actors.

    Args:
        address: A running cluster ("auto" finds one on this machine); None starts one here.
        gpus: What each actor takes, a fraction if they share one.
        engine: What runs in an actor.
    """

    def __init__(
        self,
        capacity: int,
        first_pair: str | None = None,
        address: str | None = None,
        gpus: float = 0.0,
        engine: type = Actor,
    ) -> None:
        # A call after the end must fail; by default it would start another cluster.
        os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
        os.environ.update(places.importing({}))  # Ray's processes inherit it
        try:
            import ray  # noqa: PLC0415 - optional, and heavy
        except ImportError as fault:
            raise ValueError(
                "Several workers need the package ray, which is not installed."
            ) from fault
        self._ray = ray
        self.capacity = capacity
        self._first_pair, self._address, self._gpus = first_pair, address, gpus
        self._engine = engine
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._runs: dict[str, Any] = {}
        self._stopped: set[str] = set()
        self._closed = False
        self._actors: list[Any] = []
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Ray's processes end with the thread that starts them, so a run's thread must not do it.
        self._opener = ThreadPoolExecutor(1)
        self._connect()

    def start(self, run: str, job: Job, put: Callable[[Event], None]) -> None:
        put({"k": "status", "stage": "starting"})
        threading.Thread(target=self._follow, args=(run, job, put), daemon=True).start()

    def stop(self, run: str) -> None:
        with self._lock:
            self._stopped.add(run)
            actor = self._runs.get(run)
            if actor is not None and not self._closed:
                actor.stop.remote(run)

    def kill(self, run: str) -> None:
        """End the actor; Ray restarts it, and its clients get an error event."""
        with self._lock:
            actor = self._runs.get(run)
            if actor is not None and not self._closed:
                self._ray.kill(actor, no_restart=False)

    def close(self) -> None:
        """End the actors, and the cluster if it was started here. Ray is not called after that."""
        with self._lock:
            self._closed = True
            for actor in self._actors:
                self._ray.kill(actor)
            self._ray.shutdown()

    def _connect(self) -> None:
        """Start or join the cluster, and make the actors."""
        if not self._ray.is_initialized():
            if self._address:
                reach(self._address)
            # A cluster of only this machine listens only to this machine.
            local = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            resources = {} if self._address else {"num_cpus": self.capacity, **local}
            self._ray.init(address=self._address, log_to_driver=False, **resources)
        # Two calls at once in an actor: the job and Stop. Restarted without limit, but a lost run
        # is not computed twice: its visitor sees an error.
        limits = {"num_cpus": 1, "num_gpus": self._gpus, "max_restarts": -1, "max_concurrency": 2}
        actor = self._ray.remote(**limits)(self._engine)
        made = [actor.remote(self._first_pair) for _ in range(self.capacity)]
        with self._lock:
            if self._closed:
                self._ray.shutdown()
                return
            self._actors, self._free = made, queue.SimpleQueue()
            for one in made:
                self._free.put(one)

    def _open(self) -> None:
        """Connect again, if there are no actors."""
        with self._opening:
            if not (self._actors or self._closed):
                self._opener.submit(self._connect).result()

    def _follow(self, run: str, job: Job, put: Callable[[Event], None]) -> None:
        """Follow one run, from a free actor to done. An actor that died is free again when it is
        back.
        """
        actor = None
        errors = self._ray.exceptions
        died = False
        try:
            actor = self._seat(run)
            for reference in self._stream(run, actor, job) if actor is not None else ():
                put(self._ray.get(reference))
        except Exception as fault:
            if self._closed:  # the server is ending, which Ray reports in many ways
                return
            died = isinstance(fault, (errors.RayActorError, errors.RayTaskError))
            if actor is None:
                text = messages.ENGINE_NO_START.format(reason=_last(fault))
            elif isinstance(fault, errors.RayActorError):
                text = messages.ENGINE_DIED.format(reason=type(fault).__name__)
            elif isinstance(fault, (errors.RayError, OSError)):
                text = messages.RUN_FAILED.format(reason=_last(fault))
            else:
                raise
            put({"k": "error", "text": text})
            if isinstance(fault, errors.RayTaskError):  # its state is unknown: start a fresh one
                self._ray.kill(actor, no_restart=False)
        finally:
            put({"k": "done"})
            lost = died and not self._back(actor)
            with self._lock:
                self._runs.pop(run, None)
                self._stopped.discard(run)
                if actor in self._actors and not lost:
                    self._free.put(actor)
            if lost:
                self._lose(actor)

    def _seat(self, run: str) -> Any | None:
        """Return a free actor once there is one; None if the run is stopped before."""
        while True:
            with self._lock:
                if self._closed or run in self._stopped:
                    return None
                actors, free = self._actors, self._free
            if not actors:
                self._open()
                continue
            try:
                actor = free.get(timeout=RETRY_S)
            except queue.Empty:
                continue
            with self._lock:
                if actor in self._actors:
                    self._runs[run] = actor
                    return actor

    def _stream(self, run: str, actor: Any, job: Job) -> Iterable[Any]:
        """Return the stream of a job's events; empty for a run that was stopped before it began."""
        parcel = Parcel.of(job)
        with self._lock:
            if self._closed or run in self._stopped:
                return ()
            return actor.run.options(num_returns="streaming").remote(run, parcel)

    def _back(self, actor: Any) -> bool:
        """Wait until a dead actor has been restarted; False if Ray will not restart it."""
        errors = self._ray.exceptions
        while True:
            with self._lock:
                if self._closed or actor not in self._actors:
                    return True
                readiness = actor.ready.remote()
            try:
                self._ray.get(readiness)
                return True
            except errors.ActorDiedError:
                return False
            except errors.RayActorError:
                time.sleep(RETRY_S)
            except errors.RayError:
                if not self._closed:
                    raise

    def _lose(self, actor: Any) -> None:
        """Make all actors anew: Ray does not restart them if its own process has died here."""
        with self._opening:
            with self._lock:
                if self._closed or actor not in self._actors:
                    return  # another run has seen it
                self._actors = []
            # Ray must not be shut down while other threads wait for it; their runs are ending.
            until = time.monotonic() + LOSE_S
            while self._runs and time.monotonic() < until:
                time.sleep(RETRY_S)
            with self._lock:
                if not self._closed:
                    self._ray.shutdown()
        with suppress(Exception):  # the next run tries again, and its visitor is told
            self._open()


def _last(fault: Exception) -> str:
    """Return the last line of what an exception says."""
    return str(fault).strip().split("\n")[-1][:SAID]
