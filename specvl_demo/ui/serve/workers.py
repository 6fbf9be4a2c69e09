"""What computes behind the queue: a process next to the page, actors of a cluster, or a GPU that a
Space lends.

Given the options and the environment, makes the one worker. Decoding shares neither interpreter nor
memory with the serving of the page, so that watching visitors cost the engine nothing, and a crash
of one does not end the other. Its process starts with the page, and again if it dies.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Protocol

from specvl_demo.media import sandbox
from specvl_demo.pairs.machine import detect
from specvl_demo.ui import messages
from specvl_demo.ui.serve import child, zerogpu
from specvl_demo.ui.serve.child import END_S, Compute
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.run import Event, refusal

CLOSE_S = 5.0
NO_START = (OSError, RuntimeError)
"""What is raised if the system cannot create a process, or Python a thread."""
Put = Callable[[Event], None]


class Worker(Protocol):
    """Computes jobs away from the page."""

    @property
    def capacity(self) -> int:
        """How many jobs it computes at once."""
        ...

    def start(self, run: str, job: Job, put: Put) -> None:
        """Begin a job and return; `put` is called from another thread, last with {'k': 'done'}.

        An exception, if it cannot begin, is reported to the visitor.
        """
        ...

    def stop(self, run: str) -> None:
        """End this job within a round. Does nothing if it is already over."""
        ...

    def kill(self, run: str) -> None:
        """End this job although it does not react: its process is replaced."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


@dataclass(frozen=True)
class Cluster:
    """How many runs are computed at once and where. A count above 1, or an address, uses Ray.

    gpus_each: What each worker takes; None for one if this machine has any.
    """

    count: int = 1
    address: str | None = None
    gpus_each: float | None = None


def make(pair: str, cluster: Cluster) -> Worker:
    if zerogpu.wanted():
        import spaces  # noqa: PLC0415 - only there; it must come before anything that touches CUDA

        return zerogpu.worker(pair, spaces.GPU)
    if cluster.count > 1 or cluster.address is not None:
        from specvl_demo.ui.serve.cluster import RayWorkers  # noqa: PLC0415

        gpus = cluster.gpus_each
        if gpus is None:
            gpus = 1.0 if detect().gpus else 0.0
        return RayWorkers(cluster.count, pair, cluster.address, gpus)
    return ProcessWorker(pair)


@dataclass
class PendingJob:
    """A job that was handed over. heard: its process has sent an event of it. tries: how often it
    was sent.
    """

    job: Job
    put: Put
    heard: bool = False
    tries: int = 0


def decoding(first_pair: str | None) -> Compute:
    """Return what computes in the process: the engine, with this pair loaded in advance."""
    sandbox.keep_private()
    # Only that process imports torch.
    from specvl_demo.ui.serve.decoding import Engine  # noqa: PLC0415

    return Engine(first_pair)


class ProcessWorker:
    """Computes jobs in a child process, one at a time, so that every clock is accurate.

    first_pair is loaded at once, so that the first visitor does not wait. open_engine: makes what
    computes, in the process.
    """

    capacity = 1

    def __init__(
        self, first_pair: str | None = None, open_engine: Callable[[str | None], Compute] = decoding
    ) -> None:
        self._open = partial(open_engine, first_pair)
        self._pending: dict[str, PendingJob] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._process: BaseProcess
        self._pipe: Connection
        with self._lock:
            self._begin()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def start(self, run: str, job: Job, put: Put) -> None:
        put({"k": "status", "stage": "starting"})
        with self._lock:
            self._pending[run] = PendingJob(job, put)
            try:
                if not self._process.is_alive():
                    self._begin()
            except NO_START:
                del self._pending[run]
                raise
            self._send(run)

    def stop(self, run: str) -> None:
        with self._lock:
            if run in self._pending:
                self._say("stop", run, None)

    def kill(self, run: str) -> None:
        """End the process; its clients get an error event."""
        with self._lock:
            if run in self._pending:
                self._pending[run].heard = True  # it is not to be tried again
                self._process.kill()

    def close(self) -> None:
        """End the process, after its current round if that takes no longer than END_S."""
        with self._lock:
            self._closed = True
            self._say("end", "", None)
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()  # a long forward

    def _begin(self) -> None:
        # Spawned, not forked: the page's process has threads, half of which torch would inherit.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=child.serve, args=(theirs, self._open), daemon=True)
        try:
            process.start()
            threading.Thread(target=self._read, args=(ours, process), daemon=True).start()
        except NO_START:
            ours.close()  # a process without a listener ends with it
            raise
        finally:
            theirs.close()
        self._pipe, self._process = ours, process

    def _send(self, run: str) -> None:
        self._pending[run].tries += 1
        self._say("job", run, self._pending[run].job)

    def _say(self, what: str, whose: str, job: Job | None) -> None:
        try:
            self._pipe.send((what, whose, job))
        except OSError:
            # The process is dying, which the thread that reads the pipe also sees and reports.
            return

    def _read(self, pipe: Connection, process: BaseProcess) -> None:
        while True:
            try:
                batch = pipe.recv()
            except (EOFError, OSError):
                break
            for run, event in batch:
                self._give(run, event)
        process.join(CLOSE_S)
        with self._lock:
            pipe.close()
            if self._closed or process is not self._process:
                return
            for run, pending in list(self._pending.items()):
                if pending.heard or pending.tries > 1:
                    self._lost(run, messages.ENGINE_DIED.format(reason=reason(process.exitcode)))
            if self._pending:  # they were handed to a process that was already ending
                self._again()

    def _again(self) -> None:
        """Hand everything over again, to a fresh process."""
        try:
            self._begin()
        except NO_START as fault:
            for run in list(self._pending):
                self._lost(run, messages.ENGINE_NO_START.format(reason=fault))
        for run in self._pending:
            self._send(run)

    def _give(self, run: str, event: Event) -> None:
        pending = self._pending.get(run)
        if pending is None:
            return
        pending.heard = True
        if event["k"] == "done":
            self._pending.pop(run, None)
        pending.put(event)

    def _lost(self, run: str, sentence: str) -> None:
        pending = self._pending.pop(run)
        for event in refusal(sentence):
            pending.put(event)


def reason(exitcode: int | None) -> str:
    """Return why a process ended, in words: its exit code, or the signal that ended it."""
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}"
    name = signal.Signals(-exitcode).name
    return f"{name}, often a sign that memory ran out" if name == "SIGKILL" else name
