"""What a worker computes: the events of a job, from loaded models, whatever happens.

Given jobs, one at a time, gives events: what stage it is at, the records of the race, and where a run cannot
go on a sentence that says why. Holds the models between jobs. Knows nothing of pipes, of clusters, of Gradio.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from specvl_demo import media, pairs, registry, session
from specvl_demo.core.engine import Request
from specvl_demo.core.heat import heat
from specvl_demo.core.memory import Memory
from specvl_demo.core.types import Sampling
from specvl_demo.records import Begin, End, Round
from specvl_demo.targets import loading
from specvl_demo.ui import words
from specvl_demo.ui.child import SAID, Tell
from specvl_demo.ui.jobs import MOST_SHOWN, Job
from specvl_demo.ui.thumbs import shown

KINDS = {Begin: "begin", Round: "round", End: "end"}
# torch has a class of its own for a full GPU alone; on a CPU its allocator says so in words.
SHORT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")


class Ended(Exception):
    """The run was stopped, or its visitor has left, while something was being loaded."""


class Engine:
    """Computes jobs one after the other, on models that it keeps, and keeps one visit's conversation.

    first_pair is loaded now.
    """

    def __init__(self, first_pair: str | None) -> None:
        self._models = Models()
        if first_pair is not None:
            with suppress(ValueError):  # why it cannot be loaded is told to whoever asks for it
                self._models.get(pairs.find(first_pair), None, lambda _: None)

    def __call__(
        self, job: Job, cancelled: Callable[[], bool], tell: Tell = lambda _: None
    ) -> Iterator[dict[str, Any]]:
        """The events of a job, see `guarded`."""
        return guarded(self._models, job, cancelled, tell)

    def forget(self, visit: str) -> None:
        """Drop what is kept of a visit's conversation. A job in hand goes on with what it was given."""
        self._models.forget(visit)


def guarded(
    models: Models, job: Job, cancelled: Callable[[], bool], tell: Tell = lambda _: None
) -> Iterator[dict[str, Any]]:
    """The events of a job; what a visitor can put right, and what a run can survive, ends in a sentence.

    Everything else is raised: whoever runs this says so and starts afresh, since nobody knows its state.
    """

    def told(text: str) -> None:
        if cancelled():
            raise Ended
        tell(text)

    said = None
    try:
        yield from events(models, job, cancelled, told)
    except Ended:
        return
    except MemoryError:
        said = words.NO_MEMORY
    except RuntimeError as fault:  # torch says so when memory, a kernel or a shape fails
        if _short_of_memory(fault):
            said = words.NO_MEMORY
        elif isinstance(fault, torch.AcceleratorError):
            raise  # after such a fault the device answers nothing any more
        else:
            said = words.RUN_FAILED.format(reason=_line(fault))
    except OSError as fault:
        said = words.RUN_FAILED.format(reason=_line(fault))
    except ValueError as fault:
        said = str(fault)
    if said is not None:
        loading.release()  # only now is everything gone that the run held
        yield {"k": "error", "text": said}


def _line(fault: Exception) -> str:
    lines = str(fault).strip().splitlines()
    return lines[0][:SAID] if lines else type(fault).__name__


def _short_of_memory(fault: RuntimeError) -> bool:
    return isinstance(fault, torch.OutOfMemoryError) or any(
        sign in str(fault).lower() for sign in SHORT_OF_MEMORY
    )


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
    if cancelled():
        return
    *before, now = _read(job, pair.n_frames)
    turns = [session.turn(t.question, items, t.answer) for t, items in zip(job.history, before, strict=True)]
    turns.append(session.turn(job.question, now))
    seen = shown([item for items in (*before, now) for item in items], job.names)
    first = {"question": job.question, "media": seen}
    asked = session.request(
        loaded,
        turns,
        job.max_new_tokens,
        Sampling(job.temperature, job.top_p, seed=job.seed),
        job.system,
        cancelled=cancelled,
        memory=models.memory(job.visit, follows=bool(job.history)),
    )
    if cancelled():
        return
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


def _read(job: Job, n_frames: int) -> list[list[media.Picture | media.Clip]]:
    """What every earlier turn showed, and what this one shows; one time limit for all of it."""
    shares = [*(turn.media for turn in job.history), job.media]
    limits = media.Limits(max_items=MOST_SHOWN)
    found = iter(media.load_any([path for share in shares for path in share], n_frames, limits))
    return [[next(found) for _ in share] for share in shares]


class Models:
    """The pair in memory: one at a time, with the drafters asked for so far."""

    def __init__(self) -> None:
        self._loaded: registry.Loaded | None = None
        self._roles: list[pairs.Role] = []
        self._memory: Memory | None = None
        self._visit: str | None = None

    def has(self, pair: pairs.Pair, roles: list[pairs.Role]) -> bool:
        """Whether nothing needs loading."""
        return self._loaded is not None and self._loaded.pair == pair and set(roles) <= set(self._roles)

    def get(self, pair: pairs.Pair, roles: list[pairs.Role] | None, tell: Tell) -> registry.Loaded:
        """The pair with these drafters (None: all there are); a new pair takes the place of the last."""
        roles = list(registry.roles_here(pair)) if roles is None else roles
        if self._loaded is None or not self.has(pair, roles):
            kept = self._roles if self._loaded is not None and self._loaded.pair == pair else []
            self._loaded = self._memory = None  # their memory is needed
            self._roles = list(dict.fromkeys([*kept, *roles]))
            self._loaded = registry.load(pair, self._roles, progress=tell)
        return self._loaded

    def memory(self, visit: str | None, follows: bool) -> Memory | None:
        """What is kept of this visit's conversation; None for who comes without a visit.

        There is one memory: a first question, and any question of somebody else, drops what was kept.
        """
        if not follows or visit != self._visit:
            self._memory = None
        self._visit = visit
        if self._memory is None and visit is not None:
            self._memory = Memory()
        return self._memory

    def forget(self, visit: str) -> None:
        """The visit is over: nothing of it stays, neither its pictures nor what was computed from them."""
        if visit == self._visit:
            self._memory = self._visit = None
            loading.release()
