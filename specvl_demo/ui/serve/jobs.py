"""Reads a job, which is a question and who answers it, from what a page or a program sent: plain
data, which may be anything at all. The question itself is read by `question.read`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

from specvl_demo import pairs
from specvl_demo.core.detokenizer import replace_surrogates
from specvl_demo.media import MediaFile
from specvl_demo.methods import base
from specvl_demo.options import Dtype, Quantised
from specvl_demo.question import (
    NOTHING,
    SETTINGS_FORM,
    Question,
    kind_of,
    listed,
    read,
    wrong_kind,
)
from specvl_demo.ui import messages
from specvl_demo.ui.serve.uploads import located

MOST_LANES = 6
MOST_NAME = 120
HZ = 30.0
"""How often a second the events of a run are sent at most."""


@dataclass(frozen=True)
class Job:
    """One race: a question, and the lanes that answer it; dtype, quantised: None by default."""

    pair: str
    lanes: tuple[tuple[str, Mapping[str, Any]], ...]
    question: Question
    dtype: Dtype | None = None
    quantised: Quantised | None = None
    timed: bool = False
    """Whether the lanes run one after the other with their forwards timed, as in a bench."""
    visit: str | None = field(default=None, compare=False)
    """Whose conversation it belongs to; None to keep nothing for another question."""
    watchers: tuple[int, ...] = field(default=(), compare=False)
    """Processes of this machine that show it; see `Load`."""
    hz: float = field(default=HZ, compare=False)
    """How often a second its events are sent: a page that draws less asks for fewer."""
    client: str | None = field(default=None, compare=False)
    """The address it came from: clients take turns in the line."""


def read_job(data: Any, folders: Sequence[Path], baseline: bool = True) -> Job:
    """Return the job in plain data from outside, about files in these folders; ValueError if none.

    baseline: Whether the plain model runs first, unless the data decline it.
    """
    if not isinstance(data, Mapping):
        raise ValueError(NOTHING)
    pair = pairs.find(_shortened(data.get("pair")))
    question = read(data, partial(uploaded, folders=folders), visitor=True)
    return Job(
        pair.id,
        _lanes(data, baseline and data.get("baseline", True) is not False),
        question,
        dtype=_one_of(data, "dtype", get_args(Dtype), "The dtype"),
        quantised=_one_of(data, "quantised", get_args(Quantised), "The packing of weights"),
        hz=_hz(data.get("hz")),
    )


def uploaded(item: Any, folders: Sequence[Path]) -> MediaFile:
    """Return an uploaded file; visitors can name only files inside the given folders."""
    if not isinstance(item, Mapping):
        raise wrong_kind("Pictures and clips", "an uploaded file, or a list of them", item)
    name, raw = replace_surrogates(str(item.get("name") or ""))[:MOST_NAME], item.get("path")
    path = located(raw, folders) if isinstance(raw, str) else None
    if path is None or not path.is_file():
        raise ValueError(messages.NO_FILE.format(name=name or "The file"))
    return MediaFile(str(path), name=name)


def _hz(value: Any) -> float:
    """Return a rate between one a second and the most; the most if none, or no number, is given."""
    number = isinstance(value, int | float) and math.isfinite(value)
    return min(HZ, max(1.0, float(value))) if number else HZ


def _lanes(data: Mapping[str, Any], baseline: bool) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return the methods, each with its parameters, whose bounds the method table has."""
    names = listed(data.get("methods"), str, "The methods", "a list of names")
    names = list(dict.fromkeys(base.find(_shortened(name)).name for name in names))
    if baseline:
        names = ["ar", *(name for name in names if name != "ar")]
    if len(names) - ("ar" in names) > MOST_LANES:
        raise ValueError(messages.TOO_MANY_LANES.format(most=MOST_LANES, n=len(names) - 1))
    settings = data.get("settings")
    what = f"an object with the parameters of each method by name, such as {SETTINGS_FORM}"
    if not isinstance(settings, Mapping | None):
        raise wrong_kind("Settings", what, settings)
    for method, params in (settings or {}).items():
        if not isinstance(params, Mapping | None):
            under = f"{_shortened(method)!r} is {kind_of(params)}"
            raise ValueError(f"Settings must be {what}; under {under}.")
        base.find(_shortened(method))
        for name, value in (params or {}).items():
            if not isinstance(value, bool | int | float | str):
                setting = f"The setting {_shortened(name)!r}"
                raise wrong_kind(setting, "a number, text, true or false", value)
    return tuple((name, dict((settings or {}).get(name) or {})) for name in names)


def _shortened(value: Any) -> Any:
    """Return a sent value for use in a sentence: text shortened, anything else by its kind."""
    if isinstance(value, str):
        return replace_surrogates(value)[:MOST_NAME]
    if isinstance(value, int) and abs(value) >= 10**12:
        return "a number of more than 12 digits"
    return value if value is None or isinstance(value, int | float) else kind_of(value)


def _one_of(data: Mapping[str, Any], key: str, choices: Sequence[str], what: str) -> Any:
    """Return one of some words; None if nothing is given."""
    value = data.get(key)
    if value in (None, ""):
        return None
    if value not in choices:
        told = {"what": what, "known": ", ".join(choices), "value": _shortened(value)}
        raise ValueError(messages.NOT_ONE_OF.format(**told))
    return value
