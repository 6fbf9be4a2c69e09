"""Traces from strangers: whatever the bytes, there is an answer with line numbers and never a crash."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from specvl_demo import records
from specvl_demo.report import trace
from specvl_demo.report.metrics import Lane
from tests.test_report import ar_lane, chain_lane


def flat(*lanes: Lane) -> list[records.Record]:
    return [record for lane in lanes for record in (lane.begin, *lane.rounds, lane.end) if record]


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "race.jsonl"
    trace.write(path, flat(ar_lane(), chain_lane()))
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
    assert trace.load(sound)[1].text == "abcxefg"


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
        ("end", lambda d: d.update(stop="bored"), "one of eos, length"),
        ("end", lambda d: d.update(totals=None), "end.totals must be an object, got None"),
        (
            "round",
            lambda d: d["tokens"][0].update(id="7"),
            "round.tokens[0].id must be a whole number, got '7'",
        ),
        ("round", lambda d: d["tokens"][0].update(id=True), "must be a whole number, got True"),
        ("round", lambda d: d["tokens"][0].update(text=5), "round.tokens[0].text must be text"),
        ("round", lambda d: d["tree"].update(parent=[-1, 5, 1]), "comes before its child"),
        ("round", lambda d: d.update(path=[0, 2]), "path"),
        ("round", lambda d: d.update(tokens=[]), "at least one token"),
        ("round", lambda d: d.update(clock_s=5.0), "clock"),
        ("round", lambda d: d.update(clock_s=None), "round.clock_s must be a number"),
        ("round", lambda d: d.update(verify_s=-1.0), "verify_s"),
        ("round", lambda d: d.update(index=0), "out of order"),
        ("round", lambda d: d.pop("tree"), "lacks the field tree"),
        ("round", lambda d: d.update(extra=1), "unknown field 'extra'"),
        ("round", lambda d: d.update(candidates=[[{"id": 1}]]), "lacks the field text"),
        ("round", lambda d: d.update(lane="nobody"), "before its begin"),
        ("begin", lambda d: d.update(schema=99), "format 99 is not readable"),
        ("begin", lambda d: d.update(max_new_tokens=3), "limit 3"),
        ("begin", lambda d: d.update(prompt="\ud800"), "half a character"),
        ("begin", lambda d: d.update(spans=[{"kind": "image"}]), "lacks the field media"),
        ("begin", lambda d: d.update(models=["t"]), "begin.models must be an object"),
        ("begin", lambda d: d.update(n_visual=10**30), "must be a whole number"),
        ("begin", lambda d: d.update(lane="ar"), "begins twice"),
        ("begin", lambda d: d.update(kind="bogus"), "`kind` must be one of"),
        ("begin", lambda d: d.update(kind=["begin"]), "`kind` must be one of"),
    ],
)
def test_what_is_wrong_is_said(sound: Path, kind: str, change: object, part: str) -> None:
    lanes, problems = changed(sound, kind, change)
    assert lanes == [] and part in "; ".join(map(str, problems))
    with pytest.raises(trace.TraceError, match="not a sound trace"):
        trace.load(sound)


def test_lossless_with_relaxed_tokens_is_a_contradiction(sound: Path) -> None:
    _, problems = changed(sound, "round", lambda d: d["tokens"][0].update(origin="relaxed"))
    assert "lossless" in str(problems[0])


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "holds no record"),
        (b"\n\n  \n", "holds no record"),
        (b"hello", "line 1: not a line of JSON"),
        (b"[1, 2]", "line 1: not a record"),
        (b"null", "line 1: not a record"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b'{"kind": "round", "clock_s": NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"kind": "end", "n": ' + b"9" * 10_000 + b"}", "not a line of JSON"),
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


def test_size_is_bounded_before_parsing(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_BYTES", 100)
    monkeypatch.setattr(trace.json, "loads", lambda *_: pytest.fail("was parsed"))
    _, problems = trace.inspect(sound)
    assert "larger than" in str(problems[0])


def test_a_line_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_LINE_BYTES", 50)
    _, problems = trace.inspect_text('{"kind": "' + "x" * 100 + '"}')
    assert problems[0].line == 1 and "longer" in problems[0].message


VALUES = [None, True, -1, 0, 1e308, 10**40, "", "x" * 50, "\x1b[2J", [], [[]], {}, {"a": None}, [None], -0.0]


@pytest.mark.parametrize("seed", range(300))
def test_random_damage_never_crashes(sound: Path, seed: int) -> None:
    """Either bytes are changed, or values deep inside records are replaced; the check must always answer."""
    rng = random.Random(seed)
    if seed % 3 == 0:
        data = bytearray(sound.read_bytes())
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        sound.write_bytes(bytes(data))
    else:
        lines = [json.loads(line) for line in sound.read_text().splitlines()]
        for _ in range(rng.randint(1, 3)):
            holder = rng.choice(lines)
            while True:
                key = rng.choice(list(holder if isinstance(holder, dict) else range(len(holder))))
                inner = holder[key]
                if isinstance(inner, dict | list) and inner and rng.random() < 0.8:
                    holder = inner
                    continue
                holder[key] = rng.choice(VALUES)
                break
        sound.write_text("\n".join(map(json.dumps, lines)))
    lanes, problems = trace.inspect(sound)
    assert bool(lanes) != bool(problems)
    if lanes:
        assert trace.summary(lanes)


def test_the_summary_shows_origins_and_nothing_a_terminal_obeys(sound: Path) -> None:
    said = trace.summary(trace.load(sound))
    assert "[abc]x[ef]g" in said
    assert "target's own token included" in said
    lines = sound.read_text().replace('"abcxefg"', '"a"').replace("What is here?", "a\\u001b[2Jb")
    lanes, _ = trace.inspect_text(lines)
    assert "\x1b" not in trace.summary(lanes)
