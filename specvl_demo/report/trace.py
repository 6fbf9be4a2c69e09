"""Saved races: JSON lines read with suspicion, checked, summed up and written.

A trace may come from a stranger: its size is bounded before it is parsed, every value's type is checked
against the records, and whatever is wrong ends in a sentence with a line number. Knows records only.
"""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specvl_demo import records
from specvl_demo.records import Begin, End, Record, RecordError, Round
from specvl_demo.report import metrics, spans, tables
from specvl_demo.report.metrics import Lane

MAX_BYTES = 64 * 2**20
MAX_LINE_BYTES = 8 * 2**20
MAX_LINES = 100_000
MAX_LANES = 32
MAX_PROBLEMS = 20
MAX_DEPTH = 32  # of lists in lists where a record may hold anything

_KINDS: dict[str, type] = {"begin": Begin, "round": Round, "end": End}


class TraceError(ValueError):
    """A trace that cannot be used; the message is one sentence."""


@dataclass(frozen=True)
class Problem:
    """Something wrong with a trace; `line` is None where it concerns the whole."""

    line: int | None
    message: str

    def __str__(self) -> str:
        return self.message if self.line is None else f"line {self.line}: {self.message}"


def write(path: str | os.PathLike[str], lines: Iterable[Record]) -> None:
    """Write records as a trace. TraceError where the file cannot be written."""
    try:
        records.write(Path(path), lines)
    except OSError as fault:
        raise TraceError(f"{path} cannot be written: {fault.strerror or fault}.") from None


def load(path: str | os.PathLike[str]) -> list[Lane]:
    """The lanes of a trace, in order. TraceError with the first problem where it has any."""
    lanes, problems = inspect(path)
    if problems:
        raise TraceError(f"{Path(path).name} is not a sound trace: {problems[0]}.")
    return lanes


def inspect(path: str | os.PathLike[str]) -> tuple[list[Lane], list[Problem]]:
    """The lanes of a trace, and what is wrong with it, at most MAX_PROBLEMS; any problem leaves no lanes."""
    try:
        return inspect_text(_read(Path(path)))
    except TraceError as fault:
        return [], [Problem(None, str(fault).rstrip("."))]


def inspect_text(text: str) -> tuple[list[Lane], list[Problem]]:
    """`inspect` for text at hand."""
    good: list[Record] = []
    problems: list[Problem] = []
    for number, line in enumerate(_lines(text), 1):
        if number > MAX_LINES:
            problems.append(Problem(number, f"more than {MAX_LINES} lines"))
            break
        if not line.strip():
            continue
        found = _check_line(line)
        if isinstance(found, str):
            problems.append(Problem(number, found))
        else:
            good.append(found)
        if len(problems) >= MAX_PROBLEMS:
            break
    if not problems and not good:
        problems.append(Problem(None, "holds no record"))
    lanes: list[Lane] = []
    if not problems:
        try:
            lanes = [Lane(*lane) for lane in records.validate_trace(good).values()]
            if len(lanes) > MAX_LANES:
                raise RecordError(f"{len(lanes)} lanes, at most {MAX_LANES} are accepted")
        except RecordError as fault:
            lanes, problems = [], [Problem(None, str(fault))]
    return lanes, problems


def summary(lanes: Iterable[Lane]) -> str:
    """A trace as plain text: what was asked, a table of its lanes, each lane's answer with origins marked.

    In the answer, text of the target stands bare, accepted drafts as [drafted], relaxed ones as {relaxed}.
    """
    lanes = list(lanes)
    first = lanes[0].begin
    head = [
        _one_line(f"{first.pair} · {first.device} · {first.dtype} · {_sampling(first)} · {_versions(first)}"),
        f"Prompt ({first.n_prompt} tokens, {first.n_visual} visual): {_one_line(first.prompt)}",
        "",
        tables.render(tables.lane_rows(lanes), tables.LANE_COLUMNS, "markdown"),
        "tau counts tokens per target forward, the target's own token included.",
    ]
    for lane in lanes:
        head += ["", f"{_one_line(lane.begin.title)}{_fate(lane)}", "  " + _marked(lane)]
        remark = _remark(lane, lanes)
        if remark:
            head.append("  " + remark)
    return "\n".join(head)


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            raise TraceError(f"There is no file {path}.")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise TraceError(f"{path.name} is larger than {MAX_BYTES >> 20} MB, the most a trace may be.")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as fault:
        raise TraceError(f"{path.name} is not UTF-8 text (byte {fault.start}).") from None
    except OSError as fault:
        raise TraceError(f"{path.name} cannot be read: {fault.strerror or fault}.") from None
    except ValueError as fault:  # a zero byte in the name
        if isinstance(fault, TraceError):
            raise
        raise TraceError(f"{path!r} is no file name.") from None


def _lines(text: str) -> Iterator[str]:
    # Not splitlines: JSON strings may hold U+2028 and friends as they are.
    return iter(text.split("\n"))


def _check_line(line: str) -> Record | str:
    """The record of a line, or what is wrong with it."""
    if len(line) > MAX_LINE_BYTES:
        return f"longer than {MAX_LINE_BYTES >> 20} MB"
    try:
        data = json.loads(line, parse_constant=_no_constant)
    except RecursionError:
        return "nested too deeply"
    except ValueError as fault:
        return f"not a line of JSON: {_one_line(str(fault))}"
    if not isinstance(data, dict) or data.get("kind") not in tuple(_KINDS):
        return f"not a record: `kind` must be one of {', '.join(_KINDS)}"
    if data["kind"] == "begin" and data.get("schema") != records.SCHEMA:
        return (
            f"format {_short(data.get('schema'))} is not readable here, this version reads {records.SCHEMA}"
        )
    wrong = _mismatch({k: v for k, v in data.items() if k != "kind"}, _KINDS[data["kind"]], data["kind"])
    if wrong:
        return wrong
    try:
        return records.from_dict(data)
    except RecordError as fault:
        return _one_line(str(fault))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _mismatch(value: Any, kind: Any, where: str) -> str | None:
    """What keeps a JSON value from being of a type, None where it is. Types as the records use them."""
    if kind is Any:
        return None if _shallow(value, MAX_DEPTH) else f"{where} is nested more than {MAX_DEPTH} deep"
    if kind is float:
        ok = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        return None if ok else _wrong(where, "a number", value)
    if kind is int:
        ok = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
        return None if ok else _wrong(where, "a whole number", value)
    if kind is bool:
        return None if isinstance(value, bool) else _wrong(where, "true or false", value)
    if kind is str:
        return _check_text(value, where)
    if kind is type(None):
        return None if value is None else _wrong(where, "null", value)
    if is_dataclass(kind):
        return _mismatch_fields(value, kind, where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return None if value in inner else _wrong(where, f"one of {', '.join(map(str, inner))}", value)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in inner:
            return None
        found = [_mismatch(value, one, where) for one in inner if one is not type(None)]
        return None if None in found else found[0]
    if origin is list:
        if not isinstance(value, list):
            return _wrong(where, "a list", value)
        each = (_mismatch(item, inner[0], f"{where}[{i}]") for i, item in enumerate(value))
        return next((one for one in each if one), None)
    if not isinstance(value, dict):
        return _wrong(where, "an object", value)
    each = (_check_text(k, where) or _mismatch(v, inner[1], f"{where}.{_short(k)}") for k, v in value.items())
    return next((one for one in each if one), None)


def _shallow(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_shallow(item, levels - 1) for item in inner)


def _mismatch_fields(value: Any, kind: type, where: str) -> str | None:
    if not isinstance(value, dict):
        return _wrong(where, "an object", value)
    hints = _hints(kind)
    for name in value:
        if name not in hints:
            return f"{where} has an unknown field {_short(name)}"
    for item in fields(kind):
        if item.name not in value:
            if item.default is MISSING and item.default_factory is MISSING:
                return f"{where} lacks the field {item.name}"
            continue
        wrong = _mismatch(value[item.name], hints[item.name], f"{where}.{item.name}")
        if wrong:
            return wrong
    return None


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _check_text(value: Any, where: str) -> str | None:
    if not isinstance(value, str):
        return _wrong(where, "text", value)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return f"{where} holds half a character (a lone surrogate)"
    return None


def _wrong(where: str, needed: str, value: Any) -> str:
    return f"{where} must be {needed}, got {_short(value)}"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."


def _one_line(text: str, most: int = 200) -> str:
    text = tables.one_line(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def _sampling(begin: Begin) -> str:
    temperature = begin.sampling.get("temperature", 0)
    return "greedy" if not temperature else f"temperature {temperature}, seed {begin.sampling.get('seed')}"


def _versions(begin: Begin) -> str:
    return (
        ", ".join(f"{name} {version}" for name, version in begin.versions.items()) or "no versions recorded"
    )


def _fate(lane: Lane) -> str:
    if lane.end is None:
        return " (cut short: the trace has no end for this lane)"
    return f" (stopped: {lane.end.stop}{f', {_one_line(lane.end.message)}' if lane.end.message else ''})"


def _marked(lane: Lane) -> str:
    brackets = {"draft": "[{}]", "relaxed": "{{{}}}", "target": "{}"}
    return _one_line("".join(brackets[origin].format(text) for origin, text in spans.runs(lane.rounds)), 4000)


def _remark(lane: Lane, lanes: list[Lane]) -> str | None:
    ar = next((one for one in lanes if one.begin.method == "ar"), None)
    if ar is None or ar is lane:
        return None
    beside = metrics.compare(lane, ar)
    return beside.doubt() or beside.why_slow()
