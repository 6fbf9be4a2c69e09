"""The page's handlers: runs, Stop, parameters of a method, answers for programs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import gradio as gr
import msgspec

from specvl_demo import question
from specvl_demo.media import MediaFile, load_files
from specvl_demo.pairs.machine import computed_s, n_cores
from specvl_demo.records import JsonObject, LaneRecords, Record, dump_trace, gather_lanes
from specvl_demo.report import figure, html, remarks, trace
from specvl_demo.ui import messages
from specvl_demo.ui.page import catalog
from specvl_demo.ui.serve.benches import BenchRuns, pack_report, read_report
from specvl_demo.ui.serve.jobs import Job, read_job, uploaded_file
from specvl_demo.ui.serve.queue import Queue, Run, refusal_events
from specvl_demo.ui.serve.uploads import Uploads
from specvl_demo.ui.serve.watching import watcher_pids

MAX_SHARED_BYTES = 8 * 2**20
READING_S = 5.0
"""How long a trace waits for others: one of long answers may take seconds."""


@dataclass
class Caller:
    """Where a request comes from: a visit, an address, its port there."""

    visit: str | None = None
    client: str | None = None
    port: int | None = None


@dataclass
class PageHandlers:
    """The page's handlers; a ValueError is a sentence for the visitor.

    Args:
        folders: Where the files of a question may be.
        files: What else a page may fetch.
    """

    catalog: JsonObject
    queue: Queue
    uploads: Uploads
    folders: Sequence[Path]
    files: Sequence[Path] = ()
    benches: BenchRuns = field(init=False)
    _reading: threading.Lock = field(default_factory=threading.Lock)
    """Held while a trace is read: one takes seconds and tens of MB at most."""

    def __post_init__(self) -> None:
        self.benches = BenchRuns(self.uploads)

    async def run_job(self, event: gr.EventData, request: gr.Request) -> AsyncGenerator[str, None]:
        """Run the race, or the question of a bench, that a page requests, or refuse it."""
        caller = Caller(request.session_hash, *(request.client or ()))
        payload = event._data  # what a script sends with an event has no public name
        step = None
        try:
            if isinstance(payload, Mapping) and "bench" in payload:
                step = self.benches.find(payload["bench"]).next_step()
                job = step.job if step else None
            else:
                job = read_job(payload, self.folders)
            if job:
                await self._open_files(caller, job)
        except ValueError as fault:
            yield Run().encode_batch(refusal_events(str(fault)))
            return
        if job is None:  # another tab has finished the bench
            yield Run().encode_batch([{"k": "done"}])
            return
        try:
            async with self._events(caller, job) as running:
                async for run, events in running:
                    yield run.encode_batch(step.store_records(events) if step else events)
        except Exception as fault:
            sentence = messages.PAGE_FAILED.format(reason=type(fault).__name__)
            yield Run().encode_batch(refusal_events(sentence))
            raise  # a bug in this program: the log needs the traceback

    async def stream_records(
        self, payload: Any, baseline: bool, caller: Caller
    ) -> AsyncGenerator[list[Record], None]:
        """Yield the records of a race as they are made, for a program: at least an empty list every
        BEAT_S.

        Raises ValueError if it cannot continue, of a run `Refusal`. What was computed until the
        limit of time, and whole answers after which something else failed, are no errors.
        """
        job = read_job(payload, self.folders, baseline)
        job.choices()  # what can be refused is refused before a stream has begun
        await self._open_files(caller, job)
        faults = []
        heard: list[Record] = []
        async with self._events(caller, job) as running:
            async for _, events in running:
                faults += [event for event in events if event["k"] == "error"]
                payloads = (event.get("record") for event in events)
                records = [record for record in payloads if isinstance(record, Record)]
                heard += records
                yield records
        lanes = gather_lanes(heard)
        if not faults or sum(lane.is_whole for lane in lanes) == len(job.lanes):
            return
        code = faults[0].get("code")
        if code != "late" or not any(lane.rounds for lane in lanes):
            raise messages.Refusal(faults[0]["text"], code)

    def start_bench(self, payload: Any, caller: Caller) -> JsonObject:
        """Start a bench, whose steps `run_job` computes; return {bench} and its size."""
        bench = self.benches.start(payload, self.folders, caller.client)
        return {"bench": bench.id, **bench.step_counts()}

    def bench_progress(self, name: Any, _: Caller) -> JsonObject:
        """Return the progress of a bench, and its report."""
        state = self.benches.find(name).page_data()
        for answer in state["answers"]:
            answer["media"] = [catalog.file_reference(Path(path)) for path in answer["media"]]
        return state

    def bench_archive(self, payload: Any, caller: Caller) -> JsonObject:
        """Return a bench's tables and traces, or the tables of {report: as in `open_report`}, as
        one archive, removed with the visit.
        """
        if isinstance(payload, Mapping):
            packed = pack_report(read_report(payload.get("report"))[0], {})
        else:
            packed = self.benches.find(payload).to_archive()
        return self._write_file(caller, "bench.zip", packed)

    def bench_race(self, payload: Any, _: Caller) -> JsonObject:
        """Return the race on a bench's first question of a kind. payload: {bench, kind}."""
        payload = payload if isinstance(payload, Mapping) else {}
        words, lanes = self.benches.find(payload.get("bench")).lanes_of_kind(payload.get("kind"))
        lines = dump_trace(record for lane in lanes for record in lane.records)
        compared = msgspec.to_builtins(remarks.race_remarks(lanes))
        return {"question": words, "lines": lines, "compared": compared}

    def open_report(self, text: Any, _: Caller) -> JsonObject:
        """Return what `bench --json` printed as the page draws it; without a text the recorded one,
        with its questions.
        """
        report = read_report(text)[1]
        pair = report["settings"]["pair"]
        return report if text else report | {"asked": catalog.held_out_questions(pair)}

    def read_catalog(self, _: Any, caller: Caller) -> JsonObject:
        """Return everything that can be chosen, and the visit that is to hold uploads."""
        return {**self.catalog, "visit": caller.visit}

    def stop_run(self, run: Any, caller: Caller) -> None:
        """Stop a visitor's run; runs of other visits continue."""
        if isinstance(run, str):
            self.queue.stop(run, caller.visit)

    def computing_time(self, _: Any, caller: Caller) -> JsonObject:
        """Return the cores, and the seconds that this server, and the visitor's browser if it is on
        this machine, have computed so far: a page that asks twice knows what its drawing costs.
        """
        return {"seconds": computed_s(watcher_pids(caller.client, caller.port)), "cores": n_cores()}

    def method_panel(self, payload: Any, _: Caller) -> JsonObject:
        """Return what can be set on a method with the requested parts."""
        payload = payload if isinstance(payload, Mapping) else {}
        settings = payload.get("settings")
        return catalog.method_panel(
            str(payload.get("pair")),
            str(payload.get("method")),
            settings if isinstance(settings, Mapping) else {},
        )

    def compare_trace(self, path: Any, caller: Caller) -> JsonObject:
        """Return how the lanes of an uploaded trace compare."""
        with self._read_trace(self._find_trace(path, caller)) as lanes:
            return msgspec.to_builtins(remarks.race_remarks(lanes))

    def export_race(self, payload: Any, caller: Caller) -> JsonObject:
        """Return an uploaded trace as one file that is removed with the visit.

        payload: {path, as, earlier, example}: as 'figure' an SVG figure, else the page as one file;
        earlier: the conversation's [{question, answer}]; example: its name, if it is one.
        """
        payload = payload if isinstance(payload, Mapping) else {}
        asked = question.read({"question": "?", "history": payload.get("earlier")}, visitor=True)
        earlier = [(turn.question, turn.answer or "") for turn in asked.earlier]
        file = self._find_trace(payload.get("path"), caller)
        if Path(file).stat().st_size > MAX_SHARED_BYTES:
            raise ValueError(messages.NOT_SHARED)
        with self._read_trace(file) as lanes:
            if payload.get("as") == "figure":
                drawn = figure.race_svg(lanes, chosen=bool(payload.get("example")))
                return self._write_file(caller, "race.svg", drawn.encode())
            page = html.race_page(lanes, earlier, self.catalog.get("notes"), payload.get("example"))
            return self._write_file(caller, "race.html", page.encode())

    def check_clip(self, item: Any, _: Caller) -> None:
        """Raise MediaError if an uploaded clip, which a browser does not show, cannot be read."""
        _decode_once((uploaded_file(item, self.folders),))

    def _write_file(self, caller: Caller, name: str, content: bytes) -> JsonObject:
        """Write a file for a visitor, and return its address."""
        made = self.uploads.write_file(caller.visit, name, content)
        return {"url": catalog.file_reference(made)["url"]}

    def _find_trace(self, path: Any, caller: Caller) -> str:
        """Return a trace that the visit has uploaded; ValueError if it is not there."""
        file = uploaded_file({"path": path, "name": "The race"}, self.folders)
        if not self.uploads.is_held(file.path, caller.visit):
            raise ValueError(messages.NO_FILE.format(name=file.name))
        return file.path

    @contextmanager
    def _read_trace(self, file: str) -> Iterator[list[LaneRecords]]:
        """Open a trace while no other is open; ValueError with a sentence if it is none, or if
        others take too long.
        """
        if not self._reading.acquire(timeout=READING_S):
            raise ValueError(messages.SHARING)
        try:
            lanes, problems = trace.inspect_file(file)
            if problems:
                raise ValueError(problems[0])
            yield lanes
        finally:
            self._reading.release()

    async def _open_files(self, caller: Caller, job: Job) -> None:
        """Hold a question's files, and decode those that came here, before it waits in line;
        ValueError if one is gone, or cannot be decoded.
        """
        for file in job.question.files:  # a bench read their names long ago
            if not Path(file.path).is_file():
                raise ValueError(messages.NO_FILE.format(name=file.name))
        self.uploads.hold_files(caller.visit, job.question.paths)
        folder = str(self.uploads.folder)
        files = tuple(file for file in job.question.files if file.path.startswith(folder))
        await asyncio.to_thread(_decode_once, files)

    def _events(self, caller: Caller, job: Job) -> aclosing[AsyncGenerator[Any, None]]:
        """Return the events of the job, which is the caller's, closed at the end."""
        shown_by = watcher_pids(caller.client, caller.port)
        job = replace(job, visit=caller.visit, client=caller.client, watchers=shown_by)
        return aclosing(self.queue.events(job))


@lru_cache
def _decode_once(files: tuple[MediaFile, ...]) -> None:
    """Decode files that were not yet; they are named after their content, or by chance."""
    load_files(files)
