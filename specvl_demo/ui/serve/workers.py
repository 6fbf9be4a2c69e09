"""What computes behind the queue: a process next to the page, actors of a cluster, or a GPU that a
Space lends.

Decoding shares neither interpreter nor memory with the serving of the page, so that watching
visitors cost decoding nothing, and a crash of one does not end the other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING

from specvl_demo.media import sandbox
from specvl_demo.pairs.machine import detect_machine, on_zerogpu
from specvl_demo.ui import messages
from specvl_demo.ui.serve import zerogpu
from specvl_demo.ui.serve.cluster import RayWorkers
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Event, Worker, failure_sentence

if TYPE_CHECKING:  # only the process that computes imports torch
    from specvl_demo.ui.serve.job_runner import JobRunner

CLOSE_S = 5.0
END_S = 1.0
"""How long the current round may take to end on shutdown."""


def make_worker(
    pair: str, count: int = 1, address: str | None = None, gpus_each: float | None = None
) -> Worker:
    """Return the worker of this machine; a count above 1, or the address of a cluster, uses Ray.

    gpus_each: What each of Ray's workers takes; None for one if this machine has any.
    """
    if on_zerogpu():
        import spaces  # noqa: PLC0415 - only there; it must come before anything that touches CUDA

        return zerogpu.load_worker(pair, spaces.GPU)
    if count > 1 or address is not None:
        gpus = float(bool(detect_machine().gpus)) if gpus_each is None else gpus_each
        return RayWorkers(count, pair, address, gpus)
    return ProcessWorker(pair)


def open_job_runner(first_pair: str | None) -> JobRunner:
    """Return what computes in the process: a runner, with this pair loaded in advance."""
    sandbox.keep_private()
    from specvl_demo.ui.serve.job_runner import JobRunner  # noqa: PLC0415

    return JobRunner(first_pair)


class ProcessWorker(Worker):
    """Computes jobs in a child process, one at a time, so that every clock is accurate. It loads
    `first_pair` at once. open_compute: makes what computes, in the process.
    """

    def __init__(
        self, first_pair: str | None, open_compute: Callable[..., JobRunner] = open_job_runner
    ) -> None:
        self._open = partial(open_compute, first_pair)
        self._sending = threading.Lock()
        self._running: str | None = None
        self._closed = False
        self._start_process()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def stop(self, run: str) -> None:
        self._send_command("stop", run)

    def kill(self, run: str) -> None:
        """End the process; its visitor gets an error event."""
        if run == self._running:
            self._process.kill()

    def close(self) -> None:
        """End the process, after its current round if that takes no longer than END_S."""
        self._closed = True
        self._send_command("end")
        if self._process.is_alive():
            self._process.join(END_S)
            self._process.kill()  # a long forward

    def events(self, run: str, job: Job) -> Iterator[Event]:
        """Yield the events of the process; if it ends, the last one says so."""
        if not self._process.is_alive():
            try:
                self._start_process()
            except OSError as fault:
                yield messages.error_event(messages.ENGINE_NO_START.format(reason=fault), "failed")
                return
        self._running = run
        told = False
        self._send_command("job", run, job)
        try:
            while True:
                whose, event = self._pipe.recv()
                if whose != run:  # said while another run was on its way out
                    continue
                if event["k"] == "done":
                    return
                told = told or event["k"] == "error"
                yield event
        except (EOFError, OSError):
            self._process.join(CLOSE_S)
            self._process.kill()
            self._process.join()
            if not (told or self._closed):
                died = messages.ENGINE_DIED.format(reason=exit_reason(self._process.exitcode))
                yield messages.error_event(died, "failed")
        finally:
            self._running = None

    def _start_process(self) -> None:
        # Spawned, not forked: the page's process has threads, half of which torch would inherit.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=run_worker_process, args=(theirs, self._open), daemon=True
        )
        try:
            self._process.start()
        finally:
            theirs.close()

    def _send_command(self, what: str, whose: str = "", job: Job | None = None) -> None:
        # A process that is dying is seen and reported where its events are read.
        with suppress(OSError), self._sending:
            self._pipe.send((what, whose, job))


def exit_reason(exitcode: int | None) -> str:
    """Return why a process ended, in words: its exit code, or the signal that ended it."""
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}"
    name = signal.Signals(-exitcode).name
    return f"{name}, often a sign that memory ran out" if name == "SIGKILL" else name


def run_worker_process(pipe: Connection, open_compute: Callable[[], JobRunner]) -> None:
    """Compute the jobs that come through a pipe, one after the other, until it closes: what runs in
    the process of a `ProcessWorker`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the page's to handle
    there = _WorkerProcess(pipe)
    compute = open_compute()
    compute.prepare(there.report_loading)
    there.run_jobs(compute)


class _WorkerProcess:
    """The process's end of the pipe. Jobs run in the main thread; a second one hears Stop. Whoever
    takes a job out of `_waiting` reports its end.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._line: SimpleQueue[str | None] = SimpleQueue()
        self._waiting: dict[str, Job] = {}
        self._running: str | None = None
        self._stopped: str | None = None
        self._sending = threading.Lock()
        threading.Thread(target=self._receive_commands, daemon=True).start()

    def report_loading(self, text: str) -> None:
        """Report the progress of loading to all who wait."""
        for run in list(self._waiting):
            self._send_event(run, messages.loading_event(text))

    def run_jobs(self, compute: JobRunner) -> None:
        while (run := self._line.get()) is not None:
            self._running = run
            job = self._waiting.pop(run, None)
            if job is not None:  # otherwise its visitor has already seen its end
                self._compute_job(compute, run, job)

    def _compute_job(self, compute: JobRunner, run: str, job: Job) -> None:
        try:
            tell = lambda text: self._send_event(run, messages.loading_event(text))  # noqa: E731
            for event in compute.events(job, lambda: self._stopped == run, tell):
                self._send_event(run, event)
        except BaseException as fault:
            self._send_event(run, messages.error_event(failure_sentence(fault), "failed"))
            raise  # the state of this process is unknown: the page starts a fresh one
        self._send_event(run, {"k": "done"})

    def _send_event(self, run: str, event: Event) -> None:
        with suppress(OSError), self._sending:  # if the page is gone, `_receive_commands` ends it
            self._pipe.send((run, event))

    def _receive_commands(self) -> None:
        while True:
            try:
                what, whose, job = self._pipe.recv()
            except (EOFError, OSError):  # the page is gone
                what = "end"
            if what == "job" and whose != self._stopped:
                self._waiting[whose] = job
                self._line.put(whose)
            elif what == "job":  # its Stop came first
                self._send_event(whose, {"k": "done"})
            elif what == "stop":
                # A job that has not begun ends at once, also while something is being loaded.
                self._stopped = whose
                if self._waiting.pop(whose, None) is not None:
                    self._send_event(whose, {"k": "done"})
            else:
                self._waiting.clear()
                self._stopped = self._running
                self._line.put(None)
                time.sleep(END_S)
                os._exit(0)  # do not wait for loading or for a long round
