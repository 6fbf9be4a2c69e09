"""Checks what a visitor requests.

Given the plain data that a page or a program sent, which may be anything at all, returns a Job, or
raises a ValueError whose sentence can be shown. Knows no engine, no Gradio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from specvl_demo.core.detokenizer import replace_surrogates
from specvl_demo.options import (
    DETAIL,
    MAX_NEW_TOKENS_SERVED,
    NEW_TOKENS,
    SEED,
    TEMPERATURE,
    TOP_P,
    Dtype,
    Number,
    Option,
    Quantised,
)
from specvl_demo.ui import messages
from specvl_demo.ui.serve.uploads import located

MOST_LANES = 6
MOST_FILES = 8
MOST_SHOWN = 16
"""Pictures and clips of a whole conversation."""
MOST_TEXT = 20_000
MOST_TURNS = 16
MOST_NAME = 120
HZ = 30.0
"""How often a second the events of a run are sent at most."""


@dataclass(frozen=True)
class PastTurn:
    question: str
    answer: str
    media: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One race: the inputs that all lanes share, and the lanes.

    Attributes:
        media: Paths of files that really exist.
        dtype, quantised: Of the pair's weights; None for this machine's default.
        picture_detail: The maximum size of a picture in millions of pixels; None for this machine's
            default.
    """

    pair: str
    lanes: tuple[tuple[str, Mapping[str, Any]], ...]
    question: str
    media: tuple[str, ...] = ()
    history: tuple[PastTurn, ...] = ()
    system: str = ""
    max_new_tokens: int = NEW_TOKENS.default
    temperature: float = TEMPERATURE.default
    top_p: float = TOP_P.default
    seed: int = SEED.default
    dtype: Dtype | None = None
    quantised: Quantised | None = None
    picture_detail: float | None = None
    prefix: tuple[int, ...] | str = ()
    """Ids of the tokens that every answer continues, or their text."""
    up_to: bool = False
    """Whether an answer may be shorter than requested where the model's context ends."""
    alone: bool = False
    """Whether the lanes run one after the other with their forwards timed, as in a bench."""
    names: tuple[str, ...] = field(default=(), compare=False)
    """The visitor's names of the files, those of the history first."""
    visit: str | None = field(default=None, compare=False)
    """Whose conversation it belongs to; None to keep nothing for another question."""
    watchers: tuple[int, ...] = field(default=(), compare=False)
    """Processes of this machine that show it; see `Load`."""
    hz: float = field(default=HZ, compare=False)
    """How often a second its events are sent: a page that draws less asks for fewer."""
    client: str | None = field(default=None, compare=False)
    """The address it came from: clients take turns in the line."""

    @property
    def files(self) -> tuple[str, ...]:
        """Return the paths of all its media, those of the history first."""
        return (*(path for turn in self.history for path in turn.media), *self.media)


def read_job(
    data: Any, pairs: Sequence[Mapping[str, Any]], folders: Sequence[Path], baseline: bool = True
) -> Job:
    """Return the job in plain data from outside.

    Args:
        pairs: As the catalog describes them.
        folders: Where files may be.
        baseline: Whether the plain model runs first, unless the data decline it.
    """
    if not isinstance(data, Mapping):
        raise ValueError(messages.NOTHING_ASKED)
    pair = _pair(data.get("pair"), pairs)
    question = _text(data.get("question", ""), "The question")
    earlier = _earlier(data.get("history"))
    # All files are counted before any of them is opened.
    files = _files(data.get("media"))
    shown = [item for turn in earlier for item in _files(turn.get("media"))] + files
    if len(shown) > MOST_SHOWN:
        raise ValueError(messages.TOO_MANY_SHOWN.format(most=MOST_SHOWN, n=len(shown)))
    if not question.strip() and not files:
        raise ValueError(messages.NOTHING_ASKED)
    names = _list(data.get("methods"), str, "The methods", "a list of names")
    names = list(dict.fromkeys(_method(name, pair) for name in names))
    if baseline and data.get("baseline", True) is not False:
        names = ["ar", *(name for name in names if name != "ar")]
    if len(names) - ("ar" in names) > MOST_LANES:
        raise ValueError(messages.TOO_MANY_LANES.format(most=MOST_LANES, n=len(names) - 1))
    settings = _settings(data.get("settings"), pair)
    return Job(
        pair=pair["id"],
        lanes=tuple((name, settings.get(name, {})) for name in names),
        question=question,
        media=tuple(uploaded(item, folders) for item in files),
        names=tuple(_name(item) for item in shown),
        history=tuple(_turn(item, folders) for item in earlier),
        system=_text(data.get("system", ""), "The system prompt"),
        max_new_tokens=_given(data, NEW_TOKENS, MAX_NEW_TOKENS_SERVED),
        up_to=data.get("up_to") is True,
        temperature=_given(data, TEMPERATURE),
        top_p=_given(data, TOP_P),
        seed=_given(data, SEED),
        dtype=_one_of(data, "dtype", get_args(Dtype), "The dtype"),
        quantised=_one_of(data, "quantised", get_args(Quantised), "The packing of weights"),
        picture_detail=None if data.get("picture_detail") is None else _given(data, DETAIL),
        prefix=_prefix(data.get("prefix")),
        hz=_hz(data.get("hz")),
    )


def turns(value: Any) -> list[PastTurn]:
    """Return earlier questions and their answers, without what they showed."""
    return [_turn({**item, "media": None}, ()) for item in _earlier(value)]


def _earlier(value: Any) -> list[Mapping[str, Any]]:
    earlier = _list(value, Mapping, "The history", "a list of earlier questions")
    if len(earlier) > MOST_TURNS:
        raise ValueError(messages.TOO_MANY_TURNS.format(most=MOST_TURNS, n=len(earlier)))
    return earlier


def _hz(value: Any) -> float:
    """Return a rate between one a second and the most; the most if none, or no number, is given."""
    number = isinstance(value, int | float) and math.isfinite(value)
    return min(HZ, max(1.0, float(value))) if number else HZ


def _prefix(value: Any) -> tuple[int, ...] | str:
    """Return text, or token ids; the loaded model checks which of them are text."""
    if isinstance(value, str):
        text, most = replace_surrogates(value), MAX_NEW_TOKENS_SERVED
        n = len(text.encode())  # no token is less than a byte
        if n > most:
            raise ValueError(messages.LONG_PREFIX.format(n=n, what="bytes", most=most))
        return text
    ids = _list(value, int, "The prefix", "a list of token ids")
    if len(ids) > MAX_NEW_TOKENS_SERVED:
        most = MAX_NEW_TOKENS_SERVED
        raise ValueError(messages.LONG_PREFIX.format(n=len(ids), what="tokens", most=most))
    return tuple(ids)


def _settings(values: Any, pair: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return parameters by method and name; the method table has their bounds."""
    if values is None:
        return {}
    wanted = "an object that maps each method to its parameters by name"
    if not isinstance(values, Mapping):
        raise _wrong("Settings", wanted, values)
    for method, given in values.items():
        if not isinstance(given, Mapping | None):
            raise _wrong("Settings", wanted, values)
        _method(method, pair)
        for name, value in (given or {}).items():
            if not isinstance(value, bool | int | float | str):
                what = f"The setting {_brief(name)!r}"
                raise _wrong(what, "a number, text, true or false", value)
    return {method: dict(given or {}) for method, given in values.items()}


def _name(item: Mapping[str, Any]) -> str:
    return replace_surrogates(str(item.get("name") or ""))[:MOST_NAME]


def _files(value: Any) -> list[Mapping[str, Any]]:
    given = [value] if isinstance(value, Mapping) else value
    files = _list(given, Mapping, "Pictures and clips", "an uploaded file, or a list of them")
    if len(files) > MOST_FILES:
        raise ValueError(messages.TOO_MANY_FILES.format(most=MOST_FILES, n=len(files)))
    return files


def _turn(item: Mapping[str, Any], folders: Sequence[Path]) -> PastTurn:
    return PastTurn(
        _text(item.get("question", ""), "A question"),
        _text(item.get("answer", ""), "An answer"),
        tuple(uploaded(m, folders) for m in _files(item.get("media"))),
    )


def uploaded(item: Mapping[str, Any], folders: Sequence[Path]) -> str:
    """Return the path of an uploaded file; visitors can name only files inside the given
    folders.
    """
    name = _name(item) or "The file"
    raw = item.get("path")
    path = located(raw, folders) if isinstance(raw, str) else None
    if path is None or not path.is_file():
        raise ValueError(messages.NO_FILE.format(name=name))
    return str(path)


def _list(value: Any, kind: type, what: str, wanted: str) -> list[Any]:
    """Return a list of one kind; empty if nothing is given."""
    given = [] if value is None else value
    if not isinstance(given, list):
        raise _wrong(what, wanted, given)
    for item in given:
        if not isinstance(item, kind):
            raise _wrong(what, wanted, item)
    return given


def _wrong(what: str, wanted: str, given: Any) -> ValueError:
    return ValueError(messages.WRONG_KIND.format(what=what, wanted=wanted, kind=_kind(given)))


def _kind(value: Any) -> str:
    """Return the name of a JSON value's type for a sentence."""
    names = {type(None): "null", bool: "true or false", str: "text", list: "a list"}
    number = "a number" if isinstance(value, int | float) else "an object"
    return names.get(type(value), number)


def _pair(name: Any, pairs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the pair of this id; the error lists the known ones in the menu's order, those that do
    not run here last.
    """
    pair = next((one for one in pairs if one["id"] == name), None)
    if pair is None:
        known = ", ".join(one["id"] for one in pairs if one["available"])
        others = ", ".join(one["id"] for one in pairs if not one["available"])
        known = messages.PAIRS_ELSEWHERE.format(known=known, others=others) if others else known
        raise ValueError(messages.NO_PAIR.format(name=_brief(name), known=known))
    if not pair["available"]:
        raise ValueError(messages.NOT_HERE.format(pair=pair["id"], reason=pair["reason"]))
    return pair


def _method(name: Any, pair: Mapping[str, Any]) -> str:
    """Return the name of a method. The engine reports why one does not run, since its settings may
    name another drafter.
    """
    methods = pair["methods"]
    if not isinstance(name, str) or name not in methods:
        served = [name for name, verdict in methods.items() if verdict is True]
        known = ", ".join(served)
        if len(served) < len(methods):
            known = messages.METHODS_ELSEWHERE.format(known=known, pair=pair["id"])
        raise ValueError(messages.NO_METHOD.format(name=_brief(name), known=known))
    return name


def _brief(value: Any) -> Any:
    """Return a sent value for use in a sentence: text shortened, anything else by its kind."""
    if isinstance(value, str):
        return replace_surrogates(value)[:MOST_NAME]
    if isinstance(value, int) and abs(value) >= 10**12:
        return "a number of more than 12 digits"
    return value if value is None or isinstance(value, int | float) else _kind(value)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise _wrong(what, "text", value)
    if len(value) > MOST_TEXT:
        raise ValueError(messages.TOO_MUCH_TEXT.format(what=what, n=len(value), most=MOST_TEXT))
    return replace_surrogates(value)


def _one_of(data: Mapping[str, Any], key: str, known: Sequence[str], what: str) -> Any:
    """Return one of some words; None if nothing is given."""
    value = data.get(key)
    if value in (None, ""):
        return None
    if value not in known:
        told = {"what": what, "known": ", ".join(known), "value": _brief(value)}
        raise ValueError(messages.NOT_ONE_OF.format(**told))
    return value


def _given(data: Mapping[str, Any], option: Option[Number], high: float | None = None) -> Number:
    return option.check(data.get(option.name, option.default), high)
