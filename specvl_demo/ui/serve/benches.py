"""Benches that visitors request: many questions, each a run in the queue like any other, folded
into the report of `bench`. A bench has a name that cannot be guessed.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

from specvl_demo import question
from specvl_demo.compare.provenance import disturbance
from specvl_demo.compare.questions import interleave_kinds, read_lines, shipped_questions
from specvl_demo.compare.report import (
    Answer,
    Answers,
    hide_disturbed,
    lanes_of,
    page_of,
    report_of,
    round_robin,
)
from specvl_demo.media import MediaFile
from specvl_demo.methods import base
from specvl_demo.options import NEW_TOKENS, QUESTIONS, REPEATS, Sampling
from specvl_demo.pairs import find
from specvl_demo.places import EXAMPLES
from specvl_demo.records import JsonObject, LaneRecords, Record, dump_trace, gather_lanes
from specvl_demo.report import tables
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import Job, read_without_question, uploaded_file
from specvl_demo.ui.serve.queue import Event
from specvl_demo.ui.serve.uploads import Uploads

MAX_ANSWERS = 1000
"""Answers of one bench: questions × repeats × methods."""
SHARED = {"system", "picture_detail", NEW_TOKENS.name, *Sampling.__dataclass_fields__} - {"seed"}
"""What all questions of a bench have in common."""
MAX_KEPT = 8
"""Benches kept, the newest; of one client only the newest."""


@dataclass
class BenchRun:
    """One bench.

    methods: AR first. jobs: One for each question. measured: One for each repeat that was begun.
    facts: Of what computes it, as the machine of `bench --json`.
    """

    id: str
    client: str | None
    pair: str
    methods: Sequence[str]
    repeats: int
    jobs: Sequence[Job]
    measured: list[Answers] = field(default_factory=list)
    done: int = 0
    loads: list[float] = field(default_factory=list)
    facts: JsonObject = field(default_factory=dict)

    @property
    def questions(self) -> list[question.Question]:
        return [job.question for job in self.jobs]

    @property
    def n_steps(self) -> int:
        """How many steps there are: every question in every repeat."""
        return self.repeats * len(self.jobs)

    def next_step(self) -> Step | None:
        """Return the next question to be answered; None if all are."""
        return Step(self, self.done) if self.done < self.n_steps else None

    def store_lanes(self, step: Step, lanes: Sequence[LaneRecords]) -> None:
        """Store the lanes of a step."""
        if step.number != self.done:  # another tab was faster
            return
        number = step.repeat_number
        if number == len(self.measured):
            self.measured.append(defaultdict(list))
        for lane in lanes:
            self.measured[number][lane.begin.method].append(Answer.of_lane(lane))
        self.loads += [lane.end.load for lane in lanes if lane.end and lane.end.load is not None]
        self.done += 1

    def report(self) -> JsonObject:
        """Return the report as `bench --json` prints it."""
        return report_of(
            self.facts | disturbance(mean(self.loads or [0.0])),
            self.pair,
            self.questions,
            self.jobs[0].choices(),
            self.measured,
            self.repeats,
        )

    def page_data(self) -> JsonObject:
        """Return the progress, the report, and its tables with their cells as text."""
        drawn = draw_report(self.report(), self._progress())
        return {**self.step_counts(), "done": self.done, **drawn, "answers": self._answer_rows()}

    def lanes_of_kind(self, kind: Any) -> tuple[str, list[LaneRecords]]:
        """Return the first answered question of a kind, and all methods' lanes."""
        for case, *lanes in self._answered_questions():
            if case.kind == kind:
                return case.words, lanes
        raise ValueError(messages.NO_BENCH)

    def _answered_questions(self) -> Iterator[tuple[Any, ...]]:
        """Yield each answered question, and all methods' lanes of the first repeat."""
        for first in self.measured[:1]:
            yield from zip(self.questions, *(lanes_of(first[name]) for name in self.methods))

    def _answer_rows(self) -> list[JsonObject]:
        """Return each answered question, its files, and every method's answer in the first repeat;
        cut: The tokens of those that were not finished.
        """
        return [
            {
                "question": case.words,
                "media": case.paths,
                "reference": case.reference,
                "answers": {lane.begin.title: lane.text for lane in lanes},
                "cut": {
                    lane.begin.title: len(lane.token_ids)
                    for lane in lanes
                    if lane.end.stop == "length"
                },
            }
            for case, *lanes in self._answered_questions()
        ]

    def _progress(self) -> str:
        """Return the pair and what is missing, as the first sentence of a report."""
        so_far = f" So far {self.done} of {self.n_steps} questions were asked, repeats included."
        return f"{find(self.pair).title}.{so_far * (self.done < self.n_steps)}"

    def step_counts(self) -> dict[str, int]:
        """Return how many questions are asked, how often each, and how many steps that makes."""
        return {"total": self.n_steps, "questions": len(self.jobs), "repeats": self.repeats}

    def to_archive(self) -> bytes:
        """Return the report as `pack_report` packs it, figures of every answer, and all traces."""
        report = self.report()
        timings = report["timings"]
        files = {"answers.csv": tables.to_csv(timings, list(timings[0]) if timings else [])}
        for repeat, measured in enumerate(self.measured, 1):
            for name in self.methods:
                for case, lane in zip(self.questions, lanes_of(measured[name])):
                    path = f"traces/{case.id}/{name}-{repeat}.jsonl"
                    files[re.sub(r"[^\w/.=-]|\.(?=\.)", "_", path)] = dump_trace(lane.records)
        return pack_report(report, files, self._progress())


def pack_report(report: JsonObject, more: Mapping[str, str], *first: str) -> bytes:
    """Return a report as JSON, its conditions as CSV, its tables as CSV, LaTeX and Markdown, its
    figure, and more files, in one archive. first: Sentences before its own.
    """
    page = page_of(_as_told(report), *first)
    conditions = [
        {"name": name, "value": value if isinstance(value, str) else json.dumps(value)}
        for name, value in (report["machine"] | report["settings"]).items()
    ]
    files = {
        "bench.json": json.dumps(report, indent=1, ensure_ascii=False),
        "conditions.csv": tables.to_csv(conditions, ["name", "value"]),
        "bench.md": page.to_markdown(),
        "bench.svg": page.figure,
        **more,
    }
    for number, (heading, rows, columns) in enumerate(page.tables, 1):
        name = f"{number} {heading.split(',')[0]}".lower().replace(" ", "-")
        files[f"{name}.csv"] = tables.to_csv(rows, columns)
        files[f"{name}.tex"] = tables.to_latex(rows, columns)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            if text:  # without one believed speedup there is no figure
                archive.writestr(name, text)
    return packed.getvalue()


def read_report(text: Any) -> tuple[JsonObject, JsonObject]:
    """Return a report of `bench --json`, without a text the recorded one, and how the page draws
    it; ValueError if it is none.
    """
    try:
        report = json.loads(text or (EXAMPLES / "comparison.json").read_bytes())
        return report, {**draw_report(report), "answers": []}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError(messages.NO_REPORT) from None


def _as_told(report: JsonObject) -> JsonObject:
    """Return a report with the titles of methods beside their names, without what was disturbed."""
    rows = []
    for row in report["rows"]:
        name = row.get("name", row["method"])
        title = base.METHODS[name].title if name in base.METHODS else name
        rows.append({**row, "name": name, "method": title})
    return hide_disturbed({**report, "rows": rows, "timings": []})


def draw_report(report: JsonObject, *first: str) -> JsonObject:
    """Return a report with its tables, their cells as text. first: Sentences before its own."""
    report = _as_told(report)
    page = page_of(report, *first)
    shown = [
        {"heading": heading, "columns": columns, "rows": tables.cell_grid(rows, columns)}
        for heading, rows, columns in page.tables
    ]
    return {**vars(page), "tables": shown, **report}


@dataclass
class Step:
    """One question of a bench while it is computed."""

    bench: BenchRun
    number: int
    records: list[Record] = field(default_factory=list)

    @property
    def repeat_number(self) -> int:
        return self.number // len(self.bench.jobs)

    @property
    def job(self) -> Job:
        job = self.bench.jobs[self.number % len(self.bench.jobs)]
        return replace(job, lanes=tuple(round_robin(job.lanes, self.repeat_number)))

    def store_records(self, events: Sequence[Event]) -> list[Event]:
        """Store the records of these events, of the last one in the bench; return the others."""
        for event in events:
            self.bench.facts |= event.get("facts", {})
        self.records += [event["record"] for event in events if "record" in event]
        if events and events[-1]["k"] == "done":
            lanes = gather_lanes(self.records)
            if len(lanes) == len(self.bench.methods) and all(lane.is_whole for lane in lanes):
                self.bench.store_lanes(self, lanes)
        return [
            {"k": "status", "stage": f"{event['record'].title} answers…"}
            if event["k"] == "begin"
            else event
            for event in events
            if event["k"] not in ("round", "end", "facts")
        ]


class BenchRuns:
    """All visitors' benches, which hold their files as long as they are kept."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads
        self._all: dict[str, BenchRun] = {}

    def start(self, payload: Any, folders: Sequence[Path], client: str | None) -> BenchRun:
        """Start a bench; see `read_bench`. A client's last one is dropped."""
        bench = read_bench(payload, folders, client)
        files = (path for job in bench.jobs for path in job.question.paths)
        self._uploads.hold_files(bench.id, files)  # first: the last one may have the same
        for earlier in list(self._all.values()):
            if client is not None and earlier.client == client:
                self.drop(earlier.id)
        self._all[bench.id] = bench
        while len(self._all) > MAX_KEPT:
            self.drop(next(iter(self._all)))
        return bench

    def find(self, name: Any) -> BenchRun:
        if bench := self._all.get(str(name)):
            return bench
        raise ValueError(messages.NO_BENCH)

    def drop(self, name: str) -> None:
        self._all.pop(name, None)
        self._uploads.release_files(name)


def read_bench(payload: Any, folders: Sequence[Path], client: str | None) -> BenchRun:
    """Return the bench in plain data from outside.

    It has the fields of a race except question, media and history, and in addition `lines`
    (questions, one line of JSON each as in `bench --data`, with pictures named in `files`; empty
    for the pair's own held-out ones), `questions` (their maximum number) and `repeats`.
    """
    if not isinstance(payload, Mapping):
        raise ValueError(question.NOTHING)
    first = read_without_question(payload)
    question.read_sampling(payload)  # told of the bench, not of its first line
    n = QUESTIONS.check(payload.get(QUESTIONS.name, QUESTIONS.default))
    repeats = REPEATS.check(payload.get(REPEATS.name, REPEATS.default))
    shared = {name: payload[name] for name in SHARED if name in payload}
    questions = islice(_read_questions(payload, first.pair, [*folders, EXAMPLES], shared), n)
    jobs = [
        replace(
            first,
            question=replace(question, sampling=replace(question.sampling, seed=seed)),
            timed=True,
        )
        for seed, question in enumerate(questions)
    ]
    if not jobs:
        raise ValueError(messages.NO_QUESTIONS)
    jobs[0].choices()  # the page leaves out what is not defined for sampling
    total = len(jobs) * repeats * len(first.lanes)
    if total > MAX_ANSWERS:
        raise ValueError(messages.BENCH_TOO_LARGE.format(n=total, most=MAX_ANSWERS))
    methods = [name for name, _ in first.lanes]
    return BenchRun(secrets.token_urlsafe(12), client, first.pair, methods, repeats, jobs)


def _read_questions(
    payload: Mapping[str, Any], pair: str, folders: Sequence[Path], shared: JsonObject
) -> Iterator[question.Question]:
    """Yield the sent lines' questions; without lines the pair's held-out ones, by kind in turn."""
    lines = payload.get("lines")
    sent = question.list_of(payload.get("files"), Mapping, "Files", "a list")
    if lines not in (None, ""):
        files = {str(file.get("name")): file for file in sent}

        def sent_file(item: Any) -> MediaFile:
            file = files.get(str(item)) or files.get(str(item).rpartition("/")[2])
            if file is None:
                raise ValueError(messages.NO_PICTURE.format(name=str(item)[:100]))
            return uploaded_file(file, folders)

        yield from read_lines(
            question.text_of(lines, "Lines").splitlines(),
            str(payload.get("name") or "questions.jsonl"),
            lambda line: question.read({**line, **shared}, sent_file, visitor=True),
        )
        return
    yield from interleave_kinds(shipped_questions(find(pair), "evaluate", **shared))
