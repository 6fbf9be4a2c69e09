"""Traces from strangers: whatever the bytes, there is an answer with line numbers and never a crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specvl_demo import records
from specvl_demo.records import Lane
from specvl_demo.report import trace
from tests.unit.test_report import ar_lane, chain_lane


def flat(*lanes: Lane) -> list[records.Record]:
    return [record for lane in lanes for record in (lane.begin, *lane.rounds, lane.end) if record]


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "race.jsonl"
    records.write(path, flat(ar_lane(), chain_lane()))
    return path


def changed(sound: Path, kind: str, change: object) -> tuple[list[Lane], list[trace.Problem]]:
    """Inspect the trace with the last record of a kind changed by a function of its dictionary."""
    lines = [json.loads(line) for line in sound.read_text().splitlines()]
    at = max(i for i, data in enumerate(lines) if data["kind"] == kind)
    change(lines[at])
    sound.write_text("\n".join(json.dumps(data) for data in lines))
    return trace.inspect(sound)


def test_a_written_trace_reads_back_the_same(sound: Path) -> None:
    assert trace.inspect(sound) == ([ar_lane(), chain_lane()], [])


def test_a_trace_cut_short_is_still_one(sound: Path) -> None:
    lines = sound.read_text().splitlines()
    lanes, problems = trace.inspect_text("\n".join(lines[:-1]))
    assert problems == [] and lanes[1].end is None
    assert "cut short" in trace.summary(lanes)


@pytest.mark.parametrize(
    ("kind", "change", "part"),
    [
        ("end", lambda d: d["totals"].update(n_tokens=99), "n_tokens is 99"),
        ("end", lambda d: d["totals"].update(draft_s=9.0), "draft_s is 9.0"),
        ("end", lambda d: d.update(totals=None), "Expected `object`, got `null` - at `$.totals`"),
        (
            "round",
            lambda d: d["tokens"][0].update(id="7"),
            "Expected `int`, got `str` - at `$.tokens[0].id`",
        ),
        ("round", lambda d: d["tokens"][0].update(id=True), "Expected `int`, got `bool`"),
        (
            "round",
            lambda d: d["tokens"][0].update(text=5),
            "Expected `str`, got `int` - at `$.tokens[0].text`",
        ),
        ("round", lambda d: d.update(clock_s=None), "Expected `float`, got `null` - at `$.clock_s`"),
        ("round", lambda d: d.pop("tree"), "missing required field `tree`"),
        ("round", lambda d: d.update(candidates=[[{"id": 1}]]), "missing required field `text`"),
        ("begin", lambda d: d.update(prompt="\ud800"), "surrogate"),
        ("begin", lambda d: d.update(spans=[{"kind": "image"}]), "missing required field `media`"),
        ("begin", lambda d: d.update(models=["t"]), "Expected `object`, got `array` - at `$.models`"),
        ("begin", lambda d: d.update(n_visual=10**30), "Expected `int` <="),
        ("begin", lambda d: d.update(kind=["begin"]), "at `$.kind`"),
    ],
)
def test_what_is_wrong_is_said(sound: Path, kind: str, change: object, part: str) -> None:
    lanes, problems = changed(sound, kind, change)
    assert lanes == [] and part in "; ".join(map(str, problems))


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "holds no record"),
        (b"\n\n  \n", "holds no record"),
        (b"hello", "line 1: JSON is malformed"),
        (b"[1, 2]", "line 1: Expected `object`"),
        (b"null", "line 1: Expected `object`"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b'{"kind": "round", "clock_s": NaN}', "invalid character"),
        (b"[" * 100_000, "Expected `object`"),
        (b'{"kind": "end", "n": ' + b"9" * 10_000 + b"}", "line 1: "),
    ],
)
def test_files_that_are_no_traces(tmp_path: Path, content: bytes, part: str) -> None:
    path = tmp_path / "junk.jsonl"
    path.write_bytes(content)
    lanes, problems = trace.inspect(path)
    assert lanes == [] and part in str(problems[0])


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    for path, part in ((tmp_path / "none", "no file"), (tmp_path, "no file"), (Path("a\0b"), "file")):
        lanes, problems = trace.inspect(path)
        assert lanes == [] and part in str(problems[0])


def test_problems_are_numbered_and_bounded() -> None:
    _, problems = trace.inspect_text("\n".join(["junk"] * 500))
    assert [p.line for p in problems] == list(range(1, trace.MAX_PROBLEMS + 1))


def test_a_line_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_LINE_BYTES", 50)
    _, problems = trace.inspect_text('{"kind": "' + "x" * 100 + '"}')
    assert problems[0].line == 1 and "longer" in problems[0].message


def test_the_summary_shows_origins_and_nothing_a_terminal_obeys(sound: Path) -> None:
    said = trace.summary(trace.inspect(sound)[0])
    assert "[abc]x[ef]g" in said
    assert "target's own token included" in said
    lines = sound.read_text().replace('"abcxefg"', '"a"').replace("What is here?", "a\\u001b[2Jb")
    lanes, _ = trace.inspect_text(lines)
    assert "\x1b" not in trace.summary(lanes)
