"""Reads a job, which is a question and who answers it, from what a page or a program sent: plain
data, which may be anything at all. The question itself is read by `question.read`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from specvl_demo import pairs
from specvl_demo.core.detokenizer import replace_surrogates
from specvl_demo.media import MediaFile
from specvl_demo.methods.base import Choice
from specvl_demo.pairs.fitting import AS_IT_FITS, Options
from specvl_demo.question import NOTHING, Question, read, text_of, wrong_kind
from specvl_demo.serving import choosing
from specvl_demo.ui import messages
from specvl_demo.ui.serve.uploads import path_within

MAX_LANES = 6
HZ = 30.0
"""How often a second the events of a run are sent at most."""


@dataclass(frozen=True)
class Job:
    """One race: a question, the lanes that answer it, and how their pair is loaded."""

    pair: str
    lanes: tuple[tuple[str, Mapping[str, Any]], ...]
    question: Question = Question()
    options: Options = AS_IT_FITS
    timed: bool = False
    """Whether the lanes run one after the other, as in a bench."""
    visit: str | None = field(default=None, compare=False)
    """Whose run it is: only that visit can stop it."""
    watchers: tuple[int, ...] = field(default=(), compare=False)
    """Processes of this machine that show it; see `MachineLoad`."""
    hz: float = field(default=HZ, compare=False)
    """How often a second its events are sent: a page that draws less asks for fewer."""
    client: str | None = field(default=None, compare=False)
    """The address it came from: clients take turns in the line."""

    def choices(self) -> list[Choice]:
        """Return its lanes, set up for its pair; ValueError if one of them cannot be."""
        pair = pairs.find(self.pair)
        temperature = self.question.sampling.temperature
        return [choosing.choose(pair, *lane, temperature) for lane in self.lanes]


def read_job(data: Any, folders: Sequence[Path], baseline: bool = True) -> Job:
    """Return the job in plain data from outside, about files in these folders; ValueError if none.

    baseline: Whether the plain model runs first, unless the data decline it.
    """
    if not isinstance(data, Mapping):
        raise ValueError(NOTHING)
    job = read_without_question(data, baseline and data.get("baseline", True) is not False)
    find = partial(uploaded_file, folders=folders)
    return replace(job, question=read(data, find, visitor=True))


def read_without_question(data: Mapping[str, Any], baseline: bool = True) -> Job:
    """Return such a job without its question."""
    pair = pairs.find(text_of(data.get("pair"), "The pair", choosing.MAX_NAME))
    lanes = choosing.read_lanes(data.get("methods"), data.get("settings"), baseline)
    if (n := sum(name != "ar" for name, _ in lanes)) > MAX_LANES:
        raise ValueError(messages.TOO_MANY_LANES.format(most=MAX_LANES, n=n))
    options = Options.read(data.get("dtype"), data.get("quantised"))
    return Job(pair.id, tuple(lanes), options=options, hz=_read_rate(data.get("hz")))


def uploaded_file(item: Any, folders: Sequence[Path]) -> MediaFile:
    """Return an uploaded file; visitors can name only files inside the given folders."""
    if not isinstance(item, Mapping):
        raise wrong_kind("Pictures and clips", "an uploaded file, or a list of them", item)
    name = replace_surrogates(str(item.get("name") or ""))[: choosing.MAX_NAME]
    raw = item.get("path")
    path = path_within(raw, folders) if isinstance(raw, str) else None
    if path is None or not path.is_file():
        raise ValueError(messages.NO_FILE.format(name=name or "The file"))
    return MediaFile(str(path), name=name)


def _read_rate(value: Any) -> float:
    """Return a rate between one a second and the most; the most if none, or no number, is given."""
    number = isinstance(value, int | float) and math.isfinite(value)
    return min(HZ, max(1.0, float(value))) if number else HZ
