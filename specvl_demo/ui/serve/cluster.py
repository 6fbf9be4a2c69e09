"""Workers on several GPUs of a machine or on a cluster, with Ray: each an actor with its own
models, which computes one job at a time, so that every clock is accurate. Ray restarts an actor
that dies. Ray is optional: it is imported when workers are made.
"""

from __future__ import annotations

import os
import queue
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specvl_demo import places
from specvl_demo.pairs.machine import GPU_SHARE
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import MAX_FAULT_CHARS, Event, Worker

RETRY_S = 0.5
CLOSE_S = 2.0
"""How long runs may take to end with their actors before Ray is shut down."""


@dataclass(frozen=True)
class JobParcel:
    """A job with the bytes of its files, which other machines of the cluster do not have."""

    job: Job
    files: dict[str, bytes]

    @classmethod
    def of(cls, job: Job) -> JobParcel:
        return cls(job, {path: Path(path).read_bytes() for path in job.question.paths})

    def unpack(self, folder: Path) -> Job:
        """Write the files into a folder, and return the job with their new paths."""
        there = {}
        for number, (path, content) in enumerate(self.files.items()):
            there[path] = str(folder / f"{number}{Path(path).suffix}")
            Path(there[path]).write_bytes(content)
        question = self.job.question  # a visitor's, of which all that is shown is a file
        media = [file._replace(path=there[file.path]) for file in question.files]
        return replace(self.job, question=question.with_media(media))


class ComputeActor:
    """An actor with its own models; it runs one job at a time, and receives Stop in parallel.

    share: The part of a GPU's memory that is its own.
    """

    def __init__(self, first_pair: str | None, share: str = "1") -> None:
        os.environ[GPU_SHARE] = share
        # Only the actor imports torch.
        from specvl_demo.ui.serve.job_runner import JobRunner  # noqa: PLC0415

        self._runner = JobRunner(first_pair)
        self._runner.prepare()
        self._stopped: str | None = None

    def compute(self, run: str, parcel: JobParcel) -> Iterator[Event]:
        with tempfile.TemporaryDirectory(prefix="specvl-") as folder:
            job = parcel.unpack(Path(folder))
            yield from self._runner.events(job, lambda: self._stopped == run)

    def stop(self, run: str) -> None:
        self._stopped = run

    def wait_until_ready(self) -> None:
        """Return once its models are loaded."""


class RayWorkers(Worker):
    """`capacity` actors.

    address: A running cluster ("auto" finds one on this machine); None starts one here.
    gpus: What each actor takes, a fraction if they share one. kind: The class of what runs.
    """

    def __init__(
        self,
        capacity: int,
        first_pair: str | None = None,
        address: str | None = None,
        gpus: float = 0.0,
        kind: type = ComputeActor,
    ) -> None:
        # A call after the end must fail; by default it would start another cluster.
        os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
        # The page, too, promises no more than fits into the part.
        part = {GPU_SHARE: str(gpus)} if 0 < gpus < 1 else {}
        os.environ.update(places.import_env(part))  # Ray's processes inherit it
        try:
            import ray  # noqa: PLC0415 - optional, and heavy
        except ImportError as fault:
            raise ValueError("Several workers need the package ray: install it.") from fault
        self._ray = ray
        self.capacity = capacity
        # A cluster of only this machine listens only to this machine.
        local = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        resources = {} if address else {"num_cpus": capacity, **local}
        ray.init(address=address, log_to_driver=False, **resources)
        # Two calls at once in an actor: the job and Stop. Restarted without limit, but a lost run
        # is not computed twice: its visitor sees an error.
        limits = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": -1, "max_concurrency": 2}
        actor = ray.remote(**limits)(kind)
        self._running: dict[str, Any] = {}
        self._stopped: set[str] = set()
        self._closed = False
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(capacity):
            self._free.put(actor.remote(first_pair, *part.values()))

    def stop(self, run: str) -> None:
        self._stopped.add(run)
        if actor := self._running.get(run):
            actor.stop.remote(run)

    def kill(self, run: str) -> None:
        """End the actor; Ray restarts it, and its visitor gets an error event."""
        if actor := self._running.get(run):
            self._ray.kill(actor, no_restart=False)

    def close(self) -> None:
        """End the actors, and the cluster if it was started here. No run calls Ray after that: Ray
        would end this process.
        """
        self._closed = True
        for actor in list(self._running.values()):
            self._ray.kill(actor)
        until = time.monotonic() + CLOSE_S
        while self._running and time.monotonic() < until:
            time.sleep(0.02)
        self._ray.shutdown()

    def events(self, run: str, job: Job) -> Iterator[Event]:
        """Yield what an actor computes. One that has died takes no other run until it is back."""
        errors = self._ray.exceptions
        self._running[run] = actor = self._free.get()
        try:
            if self._closed or run in self._stopped:  # before an actor was free
                return
            stream = actor.compute.options(num_returns="streaming").remote(run, JobParcel.of(job))
            for reference in stream:
                yield self._ray.get(reference)
        except errors.RayActorError as fault:
            if not self._closed:
                died = messages.ENGINE_DIED.format(reason=type(fault).__name__)
                yield messages.error_event(died, "failed")
            self._wait_for_restart(actor)
        except errors.RayTaskError as fault:  # its state is unknown: start a fresh one
            reason = str(fault).strip().split("\n")[-1][:MAX_FAULT_CHARS]
            yield messages.error_event(messages.RUN_FAILED.format(reason=reason), "failed")
            self._ray.kill(actor, no_restart=False)
            self._wait_for_restart(actor)
        finally:
            self._running.pop(run, None)
            self._stopped.discard(run)
            self._free.put(actor)

    def _wait_for_restart(self, actor: Any) -> None:
        """Wait until a dead actor has been restarted. Ray does not if its own process has died on
        this machine: the page then ends, for whatever supervises it to start it again.
        """
        errors = self._ray.exceptions
        while not self._closed:
            try:
                self._ray.get(actor.wait_until_ready.remote())
                return
            except errors.ActorDiedError:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            except errors.RayActorError:
                time.sleep(RETRY_S)
