"""The decoding process: holds the models, runs one race at a time, sends what happens to the page's process.

Given jobs over a pipe, gives batches of (run, event). Decodes in its main thread; a second thread listens for
Stop, a third one sends, so that a slow reader never holds up a round. Knows nothing of Gradio.
"""

from __future__ import annotations

import base64
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from specvl_demo import media, pairs, registry, session
from specvl_demo.core.engine import Request
from specvl_demo.core.heat import heat
from specvl_demo.core.types import Sampling
from specvl_demo.records import Begin, End, Round, Totals
from specvl_demo.ui import words
from specvl_demo.ui.jobs import Job
from specvl_demo.ui.thumbs import shown

SEND_EVERY_S = 0.04
Tell = Callable[[str], None]
KINDS = {Begin: "begin", Round: "round", End: "end"}


def serve(pipe: Connection, first_pair: str | None) -> None:
    """Serve jobs until the pipe closes. first_pair is loaded before anybody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the page's to handle
    outbox, stopped = Outbox(pipe), set()
    jobs: queue.SimpleQueue[tuple[str, Job] | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, jobs, stopped), daemon=True).start()
    models = Models()
    if first_pair is not None:
        with suppress(ValueError):  # why it cannot be loaded is told to whoever asks for it
            models.get(pairs.find(first_pair), None, lambda _: None)
    while (item := jobs.get()) is not None:
        run, job = item
        _serve_one(models, run, job, outbox, stopped)
        outbox.put(run, {"k": "done"})
        stopped.discard(run)
    outbox.flush()


def _listen(pipe: Connection, jobs: queue.SimpleQueue, stopped: set[str]) -> None:
    while True:
        try:
            what, run, job = pipe.recv()
        except (EOFError, OSError):  # the page is gone
            stopped.add("*")
            jobs.put(None)
            return
        if what == "stop":
            stopped.add(run)
        else:
            jobs.put((run, job))


def _serve_one(models: Models, run: str, job: Job, outbox: Outbox, stopped: set[str]) -> None:
    """One job, its events into the outbox."""

    def tell(text: str) -> None:
        outbox.put(run, {"k": "status", "stage": "loading", "detail": text})

    try:
        for event in guarded(models, job, lambda: run in stopped or "*" in stopped, tell):
            outbox.put(run, event)
    except BaseException:
        outbox.put(run, {"k": "done"})
        outbox.flush()
        raise  # nobody knows what state this process is in: the page starts a fresh one


def guarded(
    models: Models, job: Job, cancelled: Callable[[], bool], tell: Tell = lambda _: None
) -> Iterator[dict[str, Any]]:
    """The events of a job; what a visitor can put right, and what a run can survive, ends in a sentence."""
    lanes: dict[str, Totals] = {}
    try:
        for event in events(models, job, cancelled, tell):
            _count(lanes, event)
            yield event
    except GeneratorExit:
        raise
    except ValueError as fault:
        yield from _closing(lanes, str(fault))
    except MemoryError:
        yield from _closing(lanes, words.NO_MEMORY)
    except RuntimeError as fault:  # torch says so when memory, a kernel or a shape fails
        yield from _closing(lanes, words.RUN_FAILED.format(reason=str(fault).split("\n")[0][:300]))
    except BaseException as fault:
        yield from _closing(lanes, words.RUN_FAILED.format(reason=f"{type(fault).__name__}: {fault}"[:300]))
        raise


def _count(lanes: dict[str, Totals], event: dict[str, Any]) -> None:
    record = event.get("record")
    if isinstance(record, Begin):
        lanes[record.lane] = Totals()
    elif isinstance(record, Round):
        lanes[record.lane] = lanes[record.lane].plus(record)
    elif isinstance(record, End):
        del lanes[record.lane]


def _closing(lanes: dict[str, Totals], sentence: str) -> Iterator[dict[str, Any]]:
    """The ends of the lanes that were running, with what they had, then what happened."""
    for name, totals in lanes.items():
        yield {"k": "end", "record": End(name, "error", totals, None, sentence)}
    yield {"k": "error", "text": sentence}


def events(
    models: Models, job: Job, cancelled: Callable[[], bool], tell: Tell = lambda _: None
) -> Iterator[dict[str, Any]]:
    """All that happens in a job, as events for the page; `tell` hears how far loading is."""
    pair = pairs.find(job.pair)
    choices = [registry.choose(pair, name, settings, job.temperature) for name, settings in job.lanes]
    roles = list(dict.fromkeys(choice.drafter.role for choice in choices if choice.drafter.role))
    if not models.has(pair, roles):
        yield {"k": "status", "stage": "loading", "detail": pair.title}
    loaded = models.get(pair, roles, tell)
    if job.media or job.history:
        yield {"k": "status", "stage": "media"}
    before = [(turn, _read(turn.media, pair.n_frames)) for turn in job.history]
    now = _read(job.media, pair.n_frames)
    turns = [session.turn(turn.question, media, turn.answer) for turn, media in before]
    turns.append(session.turn(job.question, now))
    seen = shown([item for _, media in before for item in media] + now, job.names)
    first = {"question": job.question, "media": seen}
    asked = session.request(
        loaded,
        turns,
        job.max_new_tokens,
        Sampling(job.temperature, job.top_p, seed=job.seed),
        job.system,
        cancelled=cancelled,
    )
    yield {"k": "status", "stage": "prefill"}
    answers: dict[str, list[int]] = {}
    for record in session.race(loaded, asked, choices):
        if isinstance(record, Round):
            answers.setdefault(record.lane, []).extend(token.id for token in record.tokens)
        elif isinstance(record, Begin) and first:  # with the first lane; once is enough
            record, first = replace(record, notes={**record.notes, **first}), {}
        yield {"k": KINDS[type(record)], "record": record}
    if not cancelled():
        yield {"k": "heat", "lanes": _heat(asked, answers)}


def _heat(asked: Request, answers: dict[str, list[int]]) -> dict[str, list[str]]:
    """By lane, for every token: a byte a visual position, base64. Equal answers are computed once."""
    known = {ids: heat(asked, ids) for ids in {tuple(ids) for ids in answers.values()}}
    text = {
        ids: [base64.b64encode(bytes(row)).decode() for row in rows.tolist()] for ids, rows in known.items()
    }
    return {lane: text[tuple(ids)] for lane, ids in answers.items()}


def _read(paths: tuple[str, ...], n_frames: int) -> list[media.Picture | media.Clip]:
    return [media.load_any(path, n_frames) for path in paths]


class Models:
    """The pair in memory: one at a time, with the drafters asked for so far."""

    def __init__(self) -> None:
        self._loaded: registry.Loaded | None = None
        self._roles: list[pairs.Role] = []

    def has(self, pair: pairs.Pair, roles: list[pairs.Role]) -> bool:
        """Whether nothing needs loading."""
        return self._loaded is not None and self._loaded.pair == pair and set(roles) <= set(self._roles)

    def get(self, pair: pairs.Pair, roles: list[pairs.Role] | None, tell: Tell) -> registry.Loaded:
        """The pair with these drafters (None: all there are); a new pair takes the place of the last."""
        roles = list(registry.roles_here(pair)) if roles is None else roles
        if self._loaded is None or not self.has(pair, roles):
            kept = self._roles if self._loaded is not None and self._loaded.pair == pair else []
            self._loaded = None  # its memory is needed
            self._roles = list(dict.fromkeys([*kept, *roles]))
            self._loaded = registry.load(pair, self._roles, progress=tell)
        return self._loaded


class Outbox:
    """Sends events in small batches from a thread of its own."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, run: str, event: dict[str, Any]) -> None:
        """Take an event and return at once."""
        with self._lock:
            self._waiting.append((run, event))

    def flush(self) -> None:
        """Send what waits."""
        with self._sending:
            with self._lock:
                batch, self._waiting = self._waiting, []
            if batch:
                self._pipe.send(batch)

    def _run(self) -> None:
        while True:
            time.sleep(SEND_EVERY_S)
            try:
                self.flush()
            except OSError:  # the page is gone; the listening thread ends this process
                return
