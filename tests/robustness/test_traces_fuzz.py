"""Traces from strangers: hundreds of damaged ones, each answered in a sentence."""

import copy
import json
import random
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specvl_demo import records
from specvl_demo.__main__ import main
from specvl_demo.places import EXAMPLES
from specvl_demo.report import trace

ROUNDS = 3
SCRIPT = "<img src=x onerror=alert(1)>"


@cache
def recorded() -> list[list[dict[str, Any]]]:
    """The shipped races, shortened to a few rounds a lane with totals that fit."""
    races = []
    for path in sorted(EXAMPLES.glob("*.trace.jsonl")):
        lanes, problems = trace.inspect_file(path)
        assert not problems
        race = []
        for lane in lanes:
            rounds = lane.rounds[:ROUNDS]
            begin = msgspec.to_builtins(lane.begin)
            begin["notes"] = {"question": "x"}
            end = records.End(lane.begin.lane, "length", records.fold(rounds))
            race += [begin, *map(msgspec.to_builtins, rounds), msgspec.to_builtins(end)]
        races.append(race)
    return races


VALUES = (
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    2**31,
    2**62,
    2**63,
    -(2**64),
    10**40,
    0.5,
    1e-300,
    1e308,
    "",
    "x",
    SCRIPT,
    "=1+1",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "x" * 5_000,
    "__proto__",
    [],
    [[]],
    [None],
    [1] * 50,
    {},
    {"a": None},
    {"__proto__": 1},
    {"": 1},
)


def places(value: Any, holder: Any = None, key: Any = None) -> Iterator[tuple[Any, Any]]:
    """Every (holder, key) within a value."""
    if holder is not None:
        yield holder, key
    if isinstance(value, dict | list):
        for k, v in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(v, value, k)


@cache
def mutant(seed: int) -> str:
    """One recorded race with one to three things wrong, as text."""
    rng = random.Random(seed)
    race = copy.deepcopy(rng.choice(recorded()))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if seed % 3:
            _change_a_value(rng.choice(race), rng)
        else:
            _change_the_order(race, rng)
    return "\n".join(json.dumps(record, ensure_ascii=seed % 2 == 0) for record in race)


def _change_a_value(record: dict[str, Any], rng: random.Random) -> None:
    holder, key = rng.choice(list(places(record)))
    change = rng.randrange(6)
    value = holder[key]
    if change == 0:
        del holder[key]
    elif change == 1 and isinstance(holder, dict):
        holder[rng.choice(("extra", "__proto__", SCRIPT, ""))] = rng.choice(VALUES)
    elif change == 2 and isinstance(value, list) and value:
        value.append(copy.deepcopy(value[-1]))
    elif change == 3 and isinstance(value, int | float) and not isinstance(value, bool):
        holder[key] = value + rng.choice((-1, 1, 2**40, 0.5))
    elif change == 4:
        deep = 1
        for _ in range(rng.choice((5, 40, 200))):
            deep = [deep]
        holder[key] = deep
    else:
        holder[key] = rng.choice(VALUES)


def _change_the_order(race: list[dict[str, Any]], rng: random.Random) -> None:
    at, other = rng.randrange(len(race)), rng.randrange(len(race))
    change = rng.randrange(4)
    if change == 0:
        race[at], race[other] = race[other], race[at]
    elif change == 1:
        race.insert(other, copy.deepcopy(race[at]))
    elif change == 2:
        del race[at]
    else:
        del race[at:]
    if not race:
        race.append({})


N = 400


def test_hundreds_of_damaged_traces_are_answered():
    """Seeded mutants: sound ones are summed up, all others told in short plain lines."""
    sound = 0
    for seed in range(N):
        text = mutant(seed)
        lanes, problems = trace.inspect_text(text)
        assert bool(lanes) != bool(problems), seed
        assert len(problems) <= trace.MAX_PROBLEMS
        for problem in problems:
            assert problem.isprintable() and len(problem) < 1_000, (seed, problem)
        if lanes:
            sound += 1
            assert all(line.isprintable() for line in trace.summary(lanes).split("\n")), seed
            for lane in lanes:
                n_tokens = lane.end and lane.end.totals.n_tokens
                assert n_tokens in (None, records.fold(lane.rounds).n_tokens)
    sys.stdout.write(f"{N} damaged traces: {N - sound} refused, {sound} still sound\n")
    assert 16 < sound < N / 2, sound  # changes that leave a race sound exist, most do not


HOSTILE = {
    "not UTF-8": b"\xff\xfe" + "{}".encode("utf-16-le") * 50,
    "compressed": b"\x1f\x8b\x08\0" + bytes(range(256)),
    "deep": b'{"kind":' * 200_000,
    "deep inside": b'{"kind": "begin", "notes": ' + b'{"a":' * 900 + b"1" + b"}" * 901,
    "a number of 100,000 digits": b'{"kind": "round", "index": ' + b"9" * 100_000 + b"}",
    "more than a float holds": b'{"kind": "round", "clock_s": 1e999}',
    "NaN": b'{"kind": "round", "clock_s": NaN}',
    "a line of 9 MB": b'{"kind": "' + b"x" * 9_000_000 + b'"}',
    "100,001 lines": b"\n" * 100_001 + b"{}",
    "a thousand wrong lines": b"{}\n" * 1_000,
    "another format": b'{"kind": "begin", "schema": 99}',
    "the name of a type": b'{"kind": "__proto__"}\n{"kind": ["begin"]}\n{"kind": null}',
    "nothing": b"",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_the_command_says_what_is_wrong(what: str, tmp_path: Path, capsys):
    """`trace check` and `trace show`: exit code 2, one sentence, no traceback."""
    path = tmp_path / "from\x1b[2J\na stranger.jsonl"
    path.write_bytes(HOSTILE[what])
    for action in ("check", "show"):
        assert main(["trace", action, str(path)]) == 2
        said = capsys.readouterr()
        assert said.err.count("\n") == 1 and said.err.endswith(".\n")
        assert said.err.strip().isprintable()
        assert all(line.isprintable() for line in said.out.splitlines()) and len(said.out) < 10_000


def test_a_file_too_large_is_refused_unread(tmp_path: Path, capsys):
    """A line of 100 MB, a file of a terabyte: the size is asked first."""
    path = tmp_path / "large.jsonl"
    for size in (100 * 2**20, 2**40):
        with path.open("wb") as file:
            file.truncate(size)
        assert main(["trace", "check", str(path)]) == 2
        assert "larger than 64 MB" in capsys.readouterr().err


def test_too_many_lanes_are_refused():
    """Each would be a column of the page."""
    begin = recorded()[0][0]
    many = "\n".join(json.dumps({**begin, "lane": f"lane {i}"}) for i in range(33))
    assert "33 lanes" in trace.inspect_text(many)[1][0]
    assert trace.inspect_text(many.rsplit("\n", 1)[0])[1] == []
