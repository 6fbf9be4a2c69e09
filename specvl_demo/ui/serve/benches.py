"""Benches that visitors request: many questions, each a run in the queue like any other.

Given a request, checked by the same rules as a race, yields one Job after the other and folds the
results into the report of `bench`. A bench is kept for KEPT_S after its page has left, under a name
that cannot be guessed, so that a reloaded page can continue it. Knows no engine, no Gradio.
"""

from __future__ import annotations

import io
import re
import secrets
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from specvl_demo import records
from specvl_demo.bench import data
from specvl_demo.bench.data import DataRow
from specvl_demo.bench.provenance import BUSY_SHARE
from specvl_demo.methods import base
from specvl_demo.options import QUESTIONS, REPEATS, TEMPERATURE
from specvl_demo.pairs import find
from specvl_demo.places import EXAMPLES
from specvl_demo.records import LaneRecords, Record, gather
from specvl_demo.report import answers, tables
from specvl_demo.report.answers import Repeat
from specvl_demo.serving import choosing
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import Job, read_job
from specvl_demo.ui.serve.run import Event

if TYPE_CHECKING:
    from specvl_demo.bench.pages import Page

MOST_TEMPERATURES, MOST_WAYS = 4, 9
MOST_ANSWERS = 1000
"""Answers of one bench: questions × repeats × temperatures × ways of decoding."""
MOST_KEPT = 8
"""Benches kept, the newest; of one client only the newest."""
KEPT_S = 2 * 3600.0


@dataclass
class Bench:
    """One bench. jobs: by temperature, then by question. names: its ways of decoding, AR first."""

    id: str
    client: str | None
    pair: str
    questions: Sequence[DataRow]
    names: Sequence[str]
    temperatures: Sequence[float]
    repeats: int
    jobs: Sequence[Sequence[Job]]
    measured: dict[tuple[int, float], Repeat] = field(default_factory=dict)
    done: int = 0
    loads: list[float] = field(default_factory=list)
    used: float = field(default_factory=time.monotonic)

    @property
    def order(self) -> list[tuple[int, float, int]]:
        """(repeat, temperature, question) of every step."""
        return [
            (repeat, temperature, at)
            for repeat, temperature in product(range(self.repeats), self.temperatures)
            for at in range(len(self.questions))
        ]

    def step(self) -> Step | None:
        """Return the next question to be answered; None if all are."""
        self.used = time.monotonic()
        order = self.order
        return Step(self, self.done, *order[self.done]) if self.done < len(order) else None

    def take(self, step: Step, lanes: Sequence[LaneRecords], forward_s: Sequence[float]) -> None:
        """Store the lanes of a step, in the order in which they ran."""
        if step.number != self.done:  # another tab was faster
            return
        repeat = self.measured.setdefault((step.repeat, step.temperature), Repeat())
        for name, lane, seconds in zip(
            answers.turned(self.names, step.repeat), lanes, forward_s, strict=True
        ):
            repeat.add(name, lane, seconds)
        self.loads += [lane.end.load for lane in lanes if lane.end and lane.end.load is not None]
        self.done += 1

    def report(self) -> dict[str, Any]:
        """Return the report as `bench --json` prints it, with rows for every temperature."""
        found = []
        for temperature in self.temperatures:
            repeats = [one for (_, t), one in self.measured.items() if t == temperature]
            rows = answers.rows(
                repeats,
                self.names if repeats else (),
                [one.kind for one in self.questions],
                [one.reference for one in self.questions],
            )
            several = len(self.temperatures) > 1
            for row in rows:
                label = f"{row['method']}, T={temperature:g}" if several else row["method"]
                found.append({**row, "method": label, "name": row["method"], "T": temperature})
        others = mean(self.loads) if self.loads else 0.0
        busy = {"busy": others > BUSY_SHARE, "others_share_before": 0.0}
        machine: dict[str, Any] = {**busy, "others_share_meanwhile": others}
        if self.measured:
            begin = next(iter(self.measured.values())).lanes["ar"][0].begin
            machine |= {"device": begin.device, "dtype": begin.dtype, "versions": begin.versions}
        first = self.jobs[0][0]
        settings = {
            "pair": self.pair,
            "cases": [one.name for one in self.questions],
            "max_new_tokens": first.max_new_tokens,
            "repeats": self.repeats,
            "sampling": ", ".join(f"T={t:g}" if t else "greedy" for t in self.temperatures),
            "methods": {
                name: choosing.choose(find(self.pair), method, given).settings
                for name, (method, given) in zip(self.names, first.lanes, strict=True)
            },
            "peers": [],
        }
        return answers.held_back({"machine": machine, "settings": settings, "rows": found})

    def _titled(self) -> dict[str, Any]:
        """Return the report with the titles of the methods in place of their names."""

        def titled(way: str) -> str:
            name, *settings = re.split("(?=[ ,])", way, maxsplit=1)
            return base.find(name).title + "".join(settings)

        report = self.report()
        rows = [row | {"method": titled(row["method"])} for row in report["rows"]]
        return report | {"rows": rows}

    def state(self) -> dict[str, Any]:
        """Return the progress, the report, and the tables of the report with their cells as
        text.
        """
        report = self._titled()
        page = self._page(report)
        shown = [
            {"heading": heading, "columns": columns, "rows": tables.grid(rows, columns)}
            for heading, rows, columns in page.named()
            if rows
        ]
        sentences = {"before": page.before, "after": page.after}
        return {**self.size(), "done": self.done, **sentences, "tables": shown, **report}

    def _page(self, report: Mapping[str, Any]) -> Page:
        """Return tables and sentences of a report, the pair and what is missing told first."""
        from specvl_demo.bench import pages  # noqa: PLC0415 - plotly takes a second to load

        page, total = pages.answers(dict(report)), len(self.order)
        so_far = f" So far {self.done} of {total} questions were asked, repeats included."
        page.before.insert(0, f"{find(self.pair).title}.{so_far if self.done < total else ''}")
        return page

    def size(self) -> dict[str, int]:
        """Return how many questions are asked, how often each, and how many steps that makes."""
        often = {"repeats": self.repeats, "temperatures": len(self.temperatures)}
        return {"total": len(self.order), "questions": len(self.questions), **often}

    def files(self) -> bytes:
        """Return tables as CSV, Markdown and LaTeX, and a trace of every answer, in one archive."""
        page, packed = self._page(self._titled()), io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bench.md", page.markdown())
            for number, (heading, rows, columns) in enumerate(page.named(), 1):
                name = f"{number} {heading.split(',')[0]}".lower().replace(" ", "-")
                archive.writestr(f"{name}.csv", tables.csv(rows, columns))
                archive.writestr(f"{name}.tex", tables.latex(rows, columns))
            for (repeat, temperature), one in self.measured.items():
                for name, lanes in one.lanes.items():
                    for question, lane in zip(self.questions, lanes):
                        where = f"traces/{question.name}/{name} T={temperature:g} {repeat + 1}"
                        lines: list[Record | None] = [lane.begin, *lane.rounds, lane.end]
                        text = "".join(f"{records.dumps(line)}\n" for line in lines if line)
                        archive.writestr(f"{_file_name(where)}.jsonl", text)
        return packed.getvalue()


@dataclass
class Step:
    """One question of a bench while it is computed."""

    bench: Bench
    number: int
    repeat: int
    temperature: float
    at: int
    records: list[Record] = field(default_factory=list)
    forward_s: list[float] = field(default_factory=list)

    @property
    def job(self) -> Job:
        one = self.bench.jobs[self.bench.temperatures.index(self.temperature)][self.at]
        return replace(one, lanes=tuple(answers.turned(one.lanes, self.repeat)))

    def hear(self, events: Sequence[Event]) -> list[Event]:
        """Store the records of these events; return the other events, for the page.

        With the last event, the bench takes the results if they are complete.
        """
        left = []
        for event in events:
            if "record" in event:
                self.records.append(event["record"])
            elif event["k"] == "forwards":
                self.forward_s = event["seconds"]
            else:
                left.append(event)
            if event["k"] == "done" and len(self.forward_s) == len(self.bench.names):
                self.bench.take(self, gather(self.records), self.forward_s)
        return left


class Benches:
    """The benches of all visitors. forget: called with the name of one whose files may be
    removed.
    """

    def __init__(self, forget: Callable[[str], None] = lambda _: None) -> None:
        self._forget = forget
        self._all: OrderedDict[str, Bench] = OrderedDict()

    def start(
        self,
        payload: Any,
        pairs: Sequence[Mapping[str, Any]],
        folders: Sequence[Path],
        client: str | None,
    ) -> Bench:
        """Start a bench; see `read`. A client's last one is dropped."""
        bench = read(payload, pairs, folders, client)
        now = time.monotonic()
        for one in list(self._all.values()):
            if (client is not None and one.client == client) or now - one.used > KEPT_S:
                self.drop(one.id)
        self._all[bench.id] = bench
        while len(self._all) > MOST_KEPT:
            self.drop(next(iter(self._all)))
        return bench

    def find(self, name: Any) -> Bench:
        if not isinstance(name, str) or name not in self._all:
            raise ValueError(messages.NO_BENCH)
        return self._all[name]

    def drop(self, name: str) -> None:
        self._all.pop(name, None)
        self._forget(name)


def read(
    payload: Any, pairs: Sequence[Mapping[str, Any]], folders: Sequence[Path], client: str | None
) -> Bench:
    """Return the bench in plain data from outside.

    It has the fields of a race except question, media, history and temperature, and in addition
    `lines` (questions, one line of JSON each as in `bench --data`, with pictures named in `files`;
    empty for the pair's own held-out ones), `questions` (their maximum number), `repeats`,
    `temperatures`, and `vary` ({parameter: values}, tried on the methods that have it).

    Raises:
        ValueError: With a sentence if it is not valid.
    """
    if not isinstance(payload, Mapping):
        raise ValueError(messages.NOTHING_ASKED)
    most, repeats = (
        option.check(payload.get(option.name, option.default)) for option in (QUESTIONS, REPEATS)
    )
    temperatures = payload.get("temperatures") or [0.0]
    if not isinstance(temperatures, list) or len(temperatures) > MOST_TEMPERATURES:
        raise ValueError(messages.BENCH_BOUND.format(what="temperatures", most=MOST_TEMPERATURES))
    temperatures = list(dict.fromkeys(map(TEMPERATURE.check, temperatures)))
    vary, given = payload.get("vary") or {}, payload.get("files") or []
    if not isinstance(vary, Mapping) or not all(isinstance(one, list) for one in vary.values()):
        wanted, kind = "a parameter with a list of values", "anything else"
        raise ValueError(messages.WRONG_KIND.format(what="Vary", wanted=wanted, kind=kind))
    if not isinstance(given, list):
        raise ValueError(messages.WRONG_KIND.format(what="Files", wanted="a list", kind="one"))
    files = {str(item.get("name")): item for item in given if isinstance(item, Mapping)}
    questions: list[DataRow] = []
    jobs: list[list[Job]] = [[] for _ in temperatures]
    names: list[str] = []
    folders = [*folders, EXAMPLES]
    base_job = dict(payload) | {"history": [], "baseline": True}
    lines, source = payload.get("lines"), str(payload.get("name") or "questions.jsonl")
    pair = read_job({**base_job, "question": "?", "media": []}, pairs, folders).pair
    if lines is not None and not isinstance(lines, str):
        raise ValueError(messages.WRONG_KIND.format(what="Lines", wanted="text", kind="an object"))
    found = data.each(lines.splitlines(), source, data.question) if lines else _own(pair)
    for question in found:
        if len(questions) == most:
            break
        shown = [_shown(one, files) for one in question.shown]
        turns: list[dict[str, Any]] = [
            {"question": q, "answer": a, "media": []} for q, a in question.before
        ]
        if turns:  # what is shown belongs to the first turn
            turns[0]["media"], shown = shown, []
        for at, temperature in enumerate(temperatures):
            one = {"question": question.text, "media": shown, "history": turns}
            seed = {"temperature": temperature, "seed": len(questions)}
            job = read_job(base_job | one | seed, pairs, folders)
            names, lanes = _ways(job, vary)
            jobs[at].append(replace(job, lanes=lanes, alone=True))
        questions.append(question)
    if not questions:
        raise ValueError(messages.NO_QUESTIONS)
    total = len(questions) * repeats * len(temperatures) * len(names)
    if total > MOST_ANSWERS:
        raise ValueError(messages.BENCH_TOO_LARGE.format(n=total, most=MOST_ANSWERS))
    name = secrets.token_urlsafe(12)
    return Bench(name, client, pair, questions, names, temperatures, repeats, jobs)


def _ways(
    job: Job, vary: Mapping[str, Sequence[Any]]
) -> tuple[list[str], tuple[tuple[str, Mapping[str, Any]], ...]]:
    """Return names and lanes of a job with a parameter varied on the methods that have it."""
    names, lanes, taken = [], [], False
    for method, settings in job.lanes:
        grid = [(name, value) for name, values in vary.items() for value in values]
        known = {param.name for param in base.parameters(method, {})} if method != "ar" else set()
        tried = [(name, value) for name, value in grid if name in known]
        taken |= bool(tried)
        for name, value in tried or [("", None)]:
            lane = {**settings, name: value} if name else settings
            choosing.choose(find(job.pair), method, lane, job.temperature)
            names.append(f"{method} {name}={value}" if name else method)
            lanes.append((method, lane))
    if vary and not taken:
        raise ValueError(messages.NOT_VARIED.format(names=", ".join(vary)))
    if len(names) > MOST_WAYS:
        raise ValueError(messages.BENCH_BOUND.format(what="ways of decoding", most=MOST_WAYS))
    return names, tuple(lanes)


def _own(pair: str) -> Iterator[DataRow]:
    """Yield the pair's own held-out questions, one of each kind in turn."""
    path = EXAMPLES / find(pair).questions
    by_kind: dict[str, list[DataRow]] = {}
    with path.open(encoding="utf-8") as file:
        held_out = data.each(file, path.name, data.question, lambda row: row["split"] == "evaluate")
        for one in held_out:
            shown = tuple({"path": f"{EXAMPLES.name}/{name}", "name": name} for name in one.shown)
            by_kind.setdefault(one.kind, []).append(replace(one, shown=shown))
    for number in range(max(map(len, by_kind.values()), default=0)):
        yield from (some[number] for some in by_kind.values() if number < len(some))


def _shown(one: Any, files: Mapping[Any, Any]) -> Mapping[str, Any]:
    """Return the uploaded file that a line names."""
    if isinstance(one, Mapping):
        return one
    found = files.get(one) or files.get(str(one).rpartition("/")[2])
    if found is None:
        raise ValueError(messages.NO_PICTURE.format(name=str(one)[:100]))
    return found


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "/ ._=-" else "_" for c in name).replace("..", "_")
