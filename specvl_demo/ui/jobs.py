"""What a visitor asks for, checked.

Given the plain data a page or a program sent, which may be anything at all; gives a Job, or a ValueError
whose sentence can be shown as it is. Knows no engine, no Gradio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specvl_demo.core.text import whole
from specvl_demo.ui import words

MOST_LANES = 4
MOST_FILES = 8
MOST_SHOWN = 16
"""Pictures and clips of a whole conversation."""
MOST_TEXT = 20_000
MOST_TURNS = 16
MOST_TOKENS = 1024
COLDEST = 1e-3
"""The lowest temperature that is not greedy."""
MOST_NAME = 120


@dataclass(frozen=True)
class Turn:
    """One earlier exchange of a conversation."""

    question: str
    answer: str
    media: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One race: the inputs that all lanes share, and the lanes. media: paths of files that really exist."""

    pair: str
    lanes: tuple[tuple[str, Mapping[str, Any]], ...]
    question: str
    media: tuple[str, ...] = ()
    history: tuple[Turn, ...] = ()
    system: str = ""
    max_new_tokens: int = 160
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    names: tuple[str, ...] = field(default=(), compare=False)
    """What the visitor calls the files, those of the history first."""
    visit: str | None = field(default=None, compare=False)
    """Whose conversation it belongs to; None: nothing is kept for another question."""


def read_job(
    data: Any, pairs: Sequence[str], methods: Sequence[str], folders: Sequence[Path], baseline: bool = True
) -> Job:
    """The job in plain data from outside. folders: where files may lie. baseline: the plain model leads."""
    if not isinstance(data, Mapping):
        raise ValueError(words.NOTHING_ASKED)
    pair = _known(data.get("pair"), pairs, words.NO_PAIR)
    question = _text(data.get("question", ""), "The question")
    files = _files(data.get("media"))
    earlier = [item if isinstance(item, Mapping) else {} for item in _list(data.get("history"))]
    if len(earlier) > MOST_TURNS:
        raise ValueError(words.TOO_MANY_TURNS.format(most=MOST_TURNS, n=len(earlier)))
    if not question.strip() and not files:
        raise ValueError(words.NOTHING_ASKED)
    names = [_known(name, methods, words.NO_METHOD) for name in _list(data.get("methods"))]
    names = list(dict.fromkeys(names))
    if baseline:
        names = ["ar", *(name for name in names if name != "ar")]
    if len(names) - ("ar" in names) > MOST_LANES:
        raise ValueError(words.TOO_MANY_LANES.format(most=MOST_LANES, n=len(names) - 1))
    settings = data.get("settings")
    settings = settings if isinstance(settings, Mapping) else {}
    return Job(
        pair=pair,
        lanes=tuple((name, _settings(settings.get(name))) for name in names),
        question=question,
        media=tuple(_file(item, folders) for item in files),
        names=tuple(_name(item) for turn in (*earlier, data) for item in _files(turn.get("media"))),
        history=tuple(_turn(item, folders) for item in earlier),
        system=_text(data.get("system", ""), "The system prompt"),
        max_new_tokens=int(_number(data, "max_new_tokens", 160, 1, MOST_TOKENS, "The token limit")),
        temperature=_temperature(data),
        top_p=_number(data, "top_p", 1.0, 1e-3, 1.0, "Top-p"),
        seed=int(_number(data, "seed", 0, 0, 2**31 - 1, "The seed")),
    )


def _settings(values: Any) -> dict[str, Any]:
    """Parameters by name; their own checks stand in the method table."""
    values = values if isinstance(values, Mapping) else {}
    return {str(key): value for key, value in values.items() if isinstance(value, bool | int | float | str)}


def _name(item: Mapping[str, Any]) -> str:
    return whole(str(item.get("name") or ""))[:MOST_NAME]


def _files(value: Any) -> list[Mapping[str, Any]]:
    """The files of one question."""
    files = [item for item in _list(value) if isinstance(item, Mapping)]
    if len(files) > MOST_FILES:
        raise ValueError(words.TOO_MANY_FILES.format(most=MOST_FILES, n=len(files)))
    return files


def _turn(item: Mapping[str, Any], folders: Sequence[Path]) -> Turn:
    return Turn(
        _text(item.get("question", ""), "A question"),
        _text(item.get("answer", ""), "An answer"),
        tuple(_file(m, folders) for m in _files(item.get("media"))),
    )


def _file(item: Mapping[str, Any], folders: Sequence[Path]) -> str:
    """The path of an uploaded file; only files inside the given folders exist for a visitor."""
    name = _name(item) or "The file"
    raw = item.get("path")
    if not isinstance(raw, str) or "\0" in raw:
        raise ValueError(words.NO_FILE.format(name=name))
    try:
        path = Path(raw).resolve()
        inside = any(path.is_relative_to(folder.resolve()) for folder in folders) and path.is_file()
    except (OSError, ValueError, RuntimeError):  # too long, half a character, links that go round
        inside = False
    if not inside:
        raise ValueError(words.NO_FILE.format(name=name))
    return str(path)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _known(value: Any, known: Sequence[str], sentence: str) -> str:
    if value not in known:
        raise ValueError(sentence.format(name=_brief(value), known=", ".join(known)))
    return value


def _brief(value: Any) -> Any:
    """What was sent, as it may stand in a sentence: text cut short and whole, anything else by its kind."""
    if isinstance(value, str):
        return whole(value)[:MOST_NAME]
    small = value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**12)
    return value if small else type(value).__name__


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(words.NOT_TEXT.format(what=what, kind=type(value).__name__))
    if len(value) > MOST_TEXT:
        raise ValueError(words.TOO_MUCH_TEXT.format(what=what, n=len(value), most=MOST_TEXT))
    return whole(value)


def _temperature(data: Mapping[str, Any]) -> float:
    """As `core.types.Sampling` takes it, said before anything is loaded."""
    value = _number(data, "temperature", 0.0, 0.0, 10.0, "The temperature")
    if 0.0 < value < COLDEST:
        raise ValueError(words.TOO_COLD.format(low=COLDEST, value=value))
    return value


def _number(data: Mapping[str, Any], key: str, default: float, low: float, high: float, what: str) -> float:
    value = data.get(key, default)
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not good:
        raise ValueError(words.NOT_A_NUMBER.format(what=what, low=low, high=high, value=_brief(value)))
    return value
