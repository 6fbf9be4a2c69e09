"""What computes behind the queue: a process next to the page, actors of a cluster, or a GPU that a
Space lends.

Given the options and the environment, makes the one worker. Decoding shares neither interpreter nor
memory with the serving of the page, so that watching visitors cost the engine nothing, and a crash
of one does not end the other. Its process starts with the page, and again if it dies. Knows nothing
of the computation.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue

from specvl_demo.core.faults import cause, loses_device
from specvl_demo.media import sandbox
from specvl_demo.pairs.machine import detect
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Event, Put, Worker, refusal

CLOSE_S = 5.0
END_S = 1.0
"""How long the current round may take to end on shutdown."""
SAID = 300
"""Characters of an error that are shown to a visitor."""
NO_START = (OSError, RuntimeError)
"""What is raised if the system cannot create a process, or Python a thread."""
Tell = Callable[[str], None]
Compute = Callable[[Job, Callable[[], bool], Tell], Iterator[Event]]
"""(job, whether it is to end, callback for the progress of loading) -> the job's events.

May have `prepare(tell)`, called before the first job, whose progress waiting visitors see.
"""


@dataclass(frozen=True)
class Cluster:
    """How many runs are computed at once and where. A count above 1, or an address, uses Ray.

    gpus_each: What each worker takes; None for one if this machine has any.
    """

    count: int = 1
    address: str | None = None
    gpus_each: float | None = None


def make(pair: str, cluster: Cluster) -> Worker:
    # Both use this module.
    from specvl_demo.ui.serve import zerogpu  # noqa: PLC0415

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


def decoding(first_pair: str | None) -> Compute:
    """Return what computes in the process: the engine, with this pair loaded in advance."""
    sandbox.keep_private()
    # Only that process imports torch.
    from specvl_demo.ui.serve.decoding import Engine  # noqa: PLC0415

    return Engine(first_pair)


def loading(text: str) -> Event:
    """Return an event with the progress of loading."""
    return {"k": "status", "stage": "loading", "detail": text}


@dataclass
class PendingJob:
    """A job that was handed over. heard: its process has sent an event of it. tries: how often it
    was sent.
    """

    job: Job
    put: Put
    heard: bool = False
    tries: int = 0


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
        process = context.Process(target=compute, args=(theirs, self._open), daemon=True)
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
        # A process that is dying is seen and reported by the thread that reads the pipe.
        with suppress(OSError):
            self._pipe.send((what, whose, job))

    def _read(self, pipe: Connection, process: BaseProcess) -> None:
        """Pass on the events of a process until it ends; then report that, or start it again."""
        with suppress(EOFError, OSError):
            while True:
                run, event = pipe.recv()
                if pending := self._pending.get(run):
                    pending.heard = True
                    if event["k"] == "done":
                        self._pending.pop(run, None)
                    pending.put(event)
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


def compute(pipe: Connection, open_engine: Callable[[], Compute]) -> None:
    """Compute the jobs that come through a pipe, one after the other, until it closes: what runs in
    the process of a `ProcessWorker`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the page's to handle
    there = _Process(pipe)
    engine = open_engine()
    if prepare := getattr(engine, "prepare", None):
        prepare(there.tell_waiting)
    there.serve(engine)


class _Process:
    """The process's end of the pipe. Jobs run in the main thread; a second one hears Stop.

    Events are sent between rounds, on no lane's clock. Whoever takes a job out of `_waiting`
    reports its end: the main thread, or Stop for a job that has not begun.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._line: SimpleQueue[str | None] = SimpleQueue()
        self._waiting: dict[str, Job] = {}
        self._running: str | None = None
        self._stopped: str | None = None
        self._sending = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def tell_waiting(self, text: str) -> None:
        """Report the progress of loading to all who wait."""
        for run in list(self._waiting):
            self._send(run, loading(text))

    def serve(self, engine: Compute) -> None:
        while (run := self._line.get()) is not None:
            self._running = run
            job = self._waiting.pop(run, None)
            if job is not None:  # otherwise its visitor has already seen its end
                self._compute(engine, run, job)

    def _compute(self, engine: Compute, run: str, job: Job) -> None:
        try:
            tell = lambda text: self._send(run, loading(text))  # noqa: E731
            for event in engine(job, lambda: self._stopped == run, tell):
                self._send(run, event)
        except BaseException as fault:
            if loses_device(fault):
                problem = messages.DEVICE_LOST.format(reason=cause(fault)[:SAID])
            else:
                name = f"{type(fault).__name__}: {fault}"[:SAID]
                problem = messages.RUN_FAILED.format(reason=name)
            for event in refusal(problem):
                self._send(run, event)
            raise  # the state of this process is unknown: the page starts a fresh one
        self._send(run, {"k": "done"})

    def _send(self, run: str, event: Event) -> None:
        with suppress(OSError), self._sending:  # if the page is gone, `_listen` ends this process
            self._pipe.send((run, event))

    def _listen(self) -> None:
        while True:
            try:
                what, whose, job = self._pipe.recv()
            except (EOFError, OSError):  # the page is gone
                what = "end"
            if what == "job":
                self._waiting[whose] = job
                self._line.put(whose)
            elif what == "stop":
                # A job that has not begun ends at once, also while something is being loaded.
                if self._waiting.pop(whose, None) is not None:
                    self._send(whose, {"k": "done"})
                elif whose == self._running:
                    self._stopped = whose
            else:
                self._waiting.clear()
                self._stopped = self._running
                self._line.put(None)
                time.sleep(END_S)
                os._exit(0)  # do not wait for loading or for a long round
