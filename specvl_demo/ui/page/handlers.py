"""The page's handlers: runs, Stop, parameters of a method, answers for programs.

Given what can be chosen, a queue that computes, and the folders in which visitors' files may be.
Knows nothing of layout, nothing of models.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr
import msgspec

from specvl_demo import question
from specvl_demo.pairs.machine import computed_s, cores
from specvl_demo.records import End, LaneRecords, Record, Round, validate_trace
from specvl_demo.report import figure, remarks, trace
from specvl_demo.ui import messages
from specvl_demo.ui.page import catalog
from specvl_demo.ui.serve.benches import Benches
from specvl_demo.ui.serve.jobs import Job, read_job, uploaded
from specvl_demo.ui.serve.queue import Queue, Run, refusal
from specvl_demo.ui.serve.uploads import Uploads
from specvl_demo.ui.serve.watching import watchers

MOST_SHARED_BYTES = 8 * 2**20
COMPARING_S = 5.0
"""How long a comparison waits for others: one of long answers may take seconds."""
UNHEARD_S = 10.0
"""How long a run continues after its page or program has disconnected."""


@dataclass
class Caller:
    """Where a request comes from.

    Attributes:
        visit: The visit whose conversation it belongs to.
        client: An address.
        listens: The session or event that receives the answer; one of them is enough.
        port: That of its end of the connection.
    """

    visit: str | None = None
    client: str | None = None
    listens: tuple[str | None, ...] = ()
    port: int | None = None
    heard: float = field(default_factory=time.monotonic)
    """When the page or program was last seen connected (monotonic seconds)."""


def told(method: Callable[[Behaviour, Any, Caller], dict[str, Any]]) -> Callable[..., Any]:
    """Make a method return {'problem': sentence} where it raises a ValueError."""

    @wraps(method)
    def call(self: Behaviour, payload: Any, caller: Caller) -> dict[str, Any]:
        try:
            return method(self, payload, caller)
        except ValueError as fault:
            return {"problem": str(fault)}

    return call


@contextmanager
def one_at_a_time(lock: threading.Lock, busy: str) -> Iterator[None]:
    """Hold a lock; ValueError with this sentence if it is held already."""
    if not lock.acquire(blocking=False):
        raise ValueError(busy)
    try:
        yield
    finally:
        lock.release()


@dataclass
class Behaviour:
    """The page's handlers.

    Attributes:
        catalog: What can be chosen.
        uploads: The files of visitors.
        folders: Where the files of a question may be.
        files: What else a page may fetch.
        listeners: The number of connected listeners, by event or session.
    """

    catalog: dict[str, Any]
    queue: Queue
    uploads: Uploads
    folders: Sequence[Path]
    files: Sequence[Path] = ()
    listeners: Counter[str | None] = field(default_factory=Counter)
    benches: Benches = field(init=False)
    _sharing: threading.Lock = field(default_factory=threading.Lock)
    _comparing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.benches = Benches(self.uploads.leave)

    async def run(self, event: gr.EventData, request: gr.Request) -> AsyncGenerator[str, None]:
        """Run the race, or the question of a bench, that a page requests; a refused request ends in
        one sentence.
        """
        host, port = request.client or (None, None)
        caller = Caller(request.session_hash, host, (request.session_hash,), port)
        payload, step = event._data, None
        try:
            if isinstance(payload, Mapping) and "bench" in payload:
                step = self.benches.find(payload["bench"]).step()
                job = step.job if step else None
            else:
                job = read_job(payload, self.catalog["pairs"], self.folders)
        except ValueError as fault:
            yield Run().pack(refusal(str(fault)))
            return
        if job is None:  # another tab has finished the bench
            yield Run().pack([{"k": "done"}])
            return
        try:
            self.uploads.keep(caller.visit, job.question.files)
            async with aclosing(self.queue.events(self._of(caller, job))) as running:
                async for run, events in running:
                    if self._unheard(caller):
                        return
                    yield run.pack(step.hear(events) if step else events)
        except Exception as fault:
            yield Run().pack(refusal(messages.PAGE_FAILED.format(reason=type(fault).__name__)))
            raise  # a bug in this program: the log needs the traceback

    async def answer(
        self, payload: Any, baseline: bool, caller: Caller
    ) -> AsyncGenerator[list[LaneRecords] | None, None]:
        """Yield None at least every BEAT_S, finally the lanes of a whole race, for a program; see
        `records`.
        """
        records: list[Record] = []
        async with aclosing(self.records(payload, baseline, caller)) as running:
            async for some in running:
                records += some
                yield None
        yield validate_trace(records)

    async def records(
        self, payload: Any, baseline: bool, caller: Caller
    ) -> AsyncGenerator[list[Record], None]:
        """Yield the records of a race as they are made, for a program: at least an empty list every
        BEAT_S.

        Raises:
            ValueError: With the sentence that a page would show, if it cannot continue. What was
                computed until the limit of time, and whole answers after which something else
                failed, are no errors.
        """
        job = read_job(payload, self.catalog["pairs"], self.folders, baseline)
        fault, begun, over = None, False, 0
        late = messages.TOO_LONG.format(seconds=self.queue.limit_s)
        async with aclosing(self.queue.events(self._of(caller, job))) as running:
            async for _, events in running:
                if self._unheard(caller):
                    raise ValueError(messages.UNHEARD.format(seconds=UNHEARD_S))
                for event in events:
                    if event["k"] == "error":
                        fault = fault or event["text"]
                records = [
                    record for event in events if isinstance(record := event.get("record"), Record)
                ]
                begun = begun or any(isinstance(record, Round) for record in records)
                ends = [record for record in records if isinstance(record, End)]
                over += sum(end.stop in ("eos", "length") for end in ends)
                yield records
        if fault and over < len(job.lanes) and not (begun and fault == late):
            raise ValueError(fault)

    @told
    def bench(self, payload: Any, caller: Caller) -> dict[str, Any]:
        """Start a bench of many questions, whose steps `run` computes; return {bench} and its
        size.
        """
        bench = self.benches.start(payload, self.catalog["pairs"], self.folders, caller.client)
        for job in bench.jobs:  # its files stay as long as the bench, also after the visit
            self.uploads.keep(bench.id, job.question.files)
        return {"bench": bench.id, **bench.size()}

    @told
    def benched(self, name: Any, _: Caller) -> dict[str, Any]:
        """Return the progress of a bench, and its report."""
        return self.benches.find(name).state()

    @told
    def packed(self, name: Any, caller: Caller) -> dict[str, Any]:
        """Return the tables and traces of a bench as one archive, which is removed with the
        visit.
        """
        return self._made(caller, "bench.zip", self.benches.find(name).files())

    def known(self, _: Any, __: Caller) -> dict[str, Any]:
        """Return everything that can be chosen."""
        return self.catalog

    def stop(self, run: Any, caller: Caller) -> None:
        """Stop a visitor's run; runs of other visits continue."""
        if isinstance(run, str):
            self.queue.stop(run, caller.visit)

    def batches(self, run: Any, caller: Caller) -> list[str]:
        """Return everything sent of a run of this visit, for a page that missed some."""
        return self.queue.batches(run, caller.visit) if isinstance(run, str) else []

    def drawn(self, _: Any, caller: Caller) -> dict[str, Any]:
        """Return the seconds that this server, and the visitor's browser if it is on this machine,
        have computed so far, and the number of cores.

        A page that asks twice knows what its drawing costs.
        """
        return {"seconds": computed_s(watchers(caller.client, caller.port)), "cores": cores()}

    @told
    def panel(self, payload: Any, _: Caller) -> dict[str, Any]:
        """Return what can be set on a method with the requested parts."""
        payload = payload if isinstance(payload, Mapping) else {}
        settings = payload.get("settings")
        return catalog.panel(
            str(payload.get("pair")),
            str(payload.get("method")),
            settings if isinstance(settings, Mapping) else {},
        )

    @told
    def compared(self, path: Any, caller: Caller) -> dict[str, Any]:
        """Return how the lanes of an uploaded trace compare; its file is then removed.

        Raises:
            ValueError: If it is not a trace, or if too many are being compared.
        """
        if not self._comparing.acquire(timeout=COMPARING_S):
            raise ValueError(messages.SHARING)
        key = secrets.token_urlsafe(12)
        try:
            file = self._own(path, caller)
            self.uploads.keep(key, [path])
            return msgspec.to_builtins(remarks.comparison(_lanes(file)))
        finally:
            self._comparing.release()
            self.uploads.leave(key)

    def _unheard(self, caller: Caller) -> bool:
        """Whether the caller has been disconnected for so long that its run should end."""
        now = time.monotonic()
        if any(self.listeners[key] for key in caller.listens if key):
            caller.heard = now
        return now - caller.heard > UNHEARD_S

    @told
    def share(self, payload: Any, caller: Caller) -> dict[str, Any]:
        """Return an uploaded trace as one file that opens in any browser and is removed with the
        visit.

        asked: Its path, for an HTML file with charts; or {path, as: 'compact' | 'figure', earlier},
        for one without, or for an SVG figure; earlier: the conversation's [{question, answer}].
        """
        with one_at_a_time(self._sharing, messages.SHARING):  # one takes about 30 MB of memory
            return self._shared(payload, caller)

    def _shared(self, payload: Any, caller: Caller) -> dict[str, Any]:
        form, earlier = "page", []
        if isinstance(payload, Mapping):
            asked = question.read(
                {"question": "?", "history": payload.get("earlier")}, visitor=True
            )
            earlier = [(turn.question, turn.answer or "") for turn in asked.earlier]
            payload, form = payload.get("path"), payload.get("as")
        file = self._own(payload, caller)
        if file.stat().st_size > MOST_SHARED_BYTES:
            raise ValueError(messages.NOT_SHARED)
        lanes = _lanes(file)
        if form == "figure":
            return self._made(caller, "race.svg", figure.svg(lanes).encode())
        from specvl_demo.report import html  # noqa: PLC0415 - plotly takes a second to load

        content = html.page(lanes, form == "compact", earlier)
        return self._made(caller, "race.html", content.encode())

    def _made(self, caller: Caller, name: str, content: bytes) -> dict[str, Any]:
        """Write a file for a visitor, and return its address."""
        made = self.uploads.put(caller.client or "", caller.visit, name, content)
        return {"url": catalog.file(made)["url"]}

    def _own(self, path: Any, caller: Caller) -> Path:
        """Return a trace that the caller has uploaded; ValueError if it is not there."""
        if not isinstance(path, str) or not self.uploads.of_client(path, caller.client or ""):
            raise ValueError(messages.NO_FILE.format(name="The race"))
        return Path(uploaded({"path": path, "name": "The race"}, self.folders).path)

    def _of(self, caller: Caller, job: Job) -> Job:
        """Return the job as a caller's."""
        shown_by = watchers(caller.client, caller.port)
        return replace(job, visit=caller.visit, client=caller.client, watchers=shown_by)


def _lanes(file: Path) -> list[LaneRecords]:
    """Return the lanes of a trace; ValueError with a sentence if it is none."""
    lanes, problems = trace.inspect(file)
    if problems:
        raise ValueError(str(problems[0]))
    return lanes
