"""Saved races: JSON lines from any source, read within limits, checked and summarised."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from specvl_demo import records
from specvl_demo.places import AnyPath
from specvl_demo.records import LaneRecords, RecordError
from specvl_demo.report import confidence, remarks, tables
from specvl_demo.report.metrics import runs

MAX_BYTES = 64 * 2**20
MAX_LINE_BYTES = 8 * 2**20
MAX_LINES = 100_000
MAX_LANES = 32
MAX_PROBLEMS = 20

_one_line = partial(tables.one_line, max_chars=200)


def inspect_file(path: AnyPath) -> tuple[list[LaneRecords], list[str]]:
    """Return the lanes of a trace, and its problems, at most MAX_PROBLEMS, one if no line is a
    record; with any problem, no lanes.
    """
    try:
        return inspect_text(read_file(Path(path)))
    except RecordError as fault:
        return [], [str(fault)]


def inspect_text(text: str) -> tuple[list[LaneRecords], list[str]]:
    """As `inspect_file`, of a trace that was read already."""
    good = []
    problems = []
    # Not splitlines: JSON strings may contain U+2028 and similar characters.
    for number, line in enumerate(text.split("\n"), 1):
        if number > MAX_LINES:
            problems.append(f"line {number}: more than {MAX_LINES} lines")
        elif len(line) > MAX_LINE_BYTES:
            problems.append(f"line {number}: longer than {MAX_LINE_BYTES >> 20} MB")
        elif line.strip():
            try:
                good.append(records.loads(line))
            except RecordError as fault:
                problems.append(f"line {number}: {_one_line(str(fault))}")
        if number > MAX_LINES or len(problems) >= MAX_PROBLEMS:
            break
    if problems:
        return [], problems if good else problems[:1]
    try:
        lanes = records.validate_trace(good)
    except RecordError as fault:
        return [], [_one_line(str(fault))]
    if not lanes:
        return [], ["contains no record"]
    if len(lanes) > MAX_LANES:
        return [], [f"{len(lanes)} lanes, but at most {MAX_LANES} are accepted"]
    return lanes, []


def summary(lanes: Sequence[LaneRecords]) -> str:
    """Return a trace as plain text: the question, each lane's answer, in which accepted drafts are
    [drafted] and relaxed ones {relaxed}, and its figures.
    """
    first = lanes[0].begin
    lines = [
        _one_line(tables.run_facts(first)),
        f"Prompt ({first.n_prompt} tokens, {first.n_visual} visual): {_one_line(first.prompt)}",
        "",
    ]
    for lane in lanes:
        lines += [f"{_one_line(lane.begin.title)}{_fate(lane)}", f"  {_bracketed_text(lane)}", ""]
    return "\n".join([*lines, figures_table(lanes)])


def figures_table(lanes: Sequence[LaneRecords]) -> str:
    """Return a table of a race's lanes, and what can be said of them."""
    lines = [
        tables.to_markdown(tables.lane_rows(lanes), tables.LANE_COLUMNS),
        "tau counts tokens per target forward, including the target's own token.",
    ]
    for lane in lanes:
        if remark := remarks.lane_remark(lane, lanes):
            lines.append(f"{_one_line(lane.begin.title)}: {remark}")
    return "\n".join(filter(None, [*lines, confidence.confidence_sentence(lanes)]))


def read_file(path: Path) -> str:
    """Read a file from any source, within limits; RecordError if it cannot be read."""
    try:
        if not path.is_file():
            folder = path.is_dir()
            raise RecordError(f"{path} is a folder" if folder else f"there is no file {path}")
        if path.stat().st_size > MAX_BYTES:
            raise RecordError(f"larger than {MAX_BYTES >> 20} MB, the limit for a trace")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise RecordError(f"not UTF-8 text (byte {fault.start})") from None
    except OSError as fault:
        raise RecordError(f"cannot be read: {fault.strerror or fault}") from None


def _fate(lane: LaneRecords) -> str:
    if lane.end is None:
        return " (cut short: the trace has no end for this lane)"
    message = f", {_one_line(lane.end.message)}" if lane.end.message else ""
    return f" (stopped: {lane.end.stop}{message})"


def _bracketed_text(lane: LaneRecords) -> str:
    brackets = {"draft": "[{}]", "relaxed": "{{{}}}", "target": "{}"}
    marked = (brackets[origin].format(text) for origin, text in runs(lane.rounds))
    return tables.one_line("".join(marked), 4000)
