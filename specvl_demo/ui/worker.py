"""The worker behind the page: a process of its own that decodes, started with the page, again when it dies.

Decoding shares neither interpreter nor memory with the serving of the page, so that a visitor watching costs
the engine nothing, and a crash of one is not a crash of the other. Standard library only.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from specvl_demo.ui import words
from specvl_demo.ui.jobs import Job

CLOSE_S = 5.0


class ProcessWorker:
    """Computes jobs in a child process, one at a time, so that every clock is honest.

    first_pair is loaded at once: the first visitor need not wait.
    """

    capacity = 1

    def __init__(self, first_pair: str | None = None) -> None:
        self._first_pair = first_pair
        self._takers: dict[str, Callable[[dict[str, Any]], None]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._begin()

    def start(self, run: str, job: Job, put: Callable[[dict[str, Any]], None]) -> None:
        """Hand a job over; its events come back through `put`, from another thread."""
        with self._lock:
            self._takers[run] = put
            if self._process is None or not self._process.is_alive():
                self._begin()
            put({"k": "status", "stage": "starting"})
            try:
                self._pipe.send(("job", run, job))
            except OSError as fault:
                self._lost(run, str(fault))

    def stop(self, run: str) -> None:
        """Ask the process to end this job after the round it is in."""
        with self._lock:
            if run in self._takers:
                try:
                    self._pipe.send(("stop", run, None))
                except OSError as fault:
                    self._lost(run, str(fault))

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._closed = True
            self._pipe.close()
        self._process.join(CLOSE_S)
        if self._process.is_alive():
            self._process.terminate()

    def _begin(self) -> None:
        # Spawned, not forked: the page's process has threads, and torch must not inherit half of them.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_enter, args=(theirs, self._first_pair), daemon=True)
        self._process.start()
        theirs.close()
        threading.Thread(target=self._read, args=(self._pipe, self._process), daemon=True).start()

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
            waiting = [] if self._closed else list(self._takers)
            for run in waiting:
                self._lost(run, f"exit code {process.exitcode}")

    def _give(self, run: str, event: dict[str, Any]) -> None:
        put = self._takers.get(run)
        if put is not None:
            put(event)
        if event["k"] == "done":
            self._takers.pop(run, None)

    def _lost(self, run: str, reason: str) -> None:
        put = self._takers.pop(run, None)
        if put is not None:
            put({"k": "error", "text": words.ENGINE_DIED.format(reason=reason)})
            put({"k": "done"})


def _enter(pipe: Connection, first_pair: str | None) -> None:
    """The child's first call."""
    from specvl_demo.ui.decoding import serve  # noqa: PLC0415 - torch belongs to that process alone

    serve(pipe, first_pair)
