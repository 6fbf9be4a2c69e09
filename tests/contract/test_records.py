"""Records and traces: round trips, sums, what is refused, and the line that the error names.

Arbitrary bytes are tested in tests/robustness/test_traces_fuzz.py.
"""

import copy
import json
import math
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from specvl_demo import records
from specvl_demo.records import (
    End,
    LikelyToken,
    Round,
    Span,
    Token,
    Tree,
    ViewSeen,
    fold,
    validate_trace,
)
from specvl_demo.report import trace
from specvl_demo.report.metrics import Metrics
from tests.shared.lanes import ar_lane, begin, chain_lane, flat
from tests.shared.refusals import refuses
from tools import record_types

BEGIN = begin(
    "tabed",
    title="TABED",
    settings={"gamma": 2, "views": "multimodal+text-only"},
    max_new_tokens=8,
    prompt="what is “this”?",
    n_prompt=12,
    n_visual=4,
    spans=[Span("image", 0, 0, 2, 6, 2, 2)],
    seen=[ViewSeen("text-only", 3, [0, -1, 7])],
)
FIRST = Round(
    lane="tabed",
    index=0,
    tokens=[Token(5, " a", "draft"), Token(6, " b", "target")],
    tree=Tree([1, 5, 9], [-1, 0, 1], [" x", " a", " z"], [0.0, -0.1, -0.2], [None, -0.3, -0.4]),
    path=[0, 1],
    draft_s=0.01,
    verify_s=0.02,
    commit_s=0.001,
    other_s=0.002,
    clock_s=0.033,
    candidates=[[LikelyToken(5, " a", 0.9)], [LikelyToken(6, " b", 0.8)]],
    views={"multimodal": [[LikelyToken(5, " a", 0.7)], []]},
    notes={"weights": {"multimodal": 1.0}},
)
SECOND = replace(
    FIRST,
    index=1,
    tokens=[Token(7, "é", "target")],
    tree=Tree([6], [-1]),
    path=[0],
    clock_s=0.066,
    candidates=None,
    views=None,
)
END = End("tabed", "length", fold([FIRST, SECOND]), peak_bytes=123)
TRACE = [BEGIN, FIRST, SECOND, END]


def test_a_written_record_has_the_published_fields():
    begin, first = (json.loads(records.dumps(r)) for r in (BEGIN, FIRST))
    assert begin["kind"] == "begin" and begin["schema"] == records.SCHEMA
    assert first["tokens"][0] == {"id": 5, "text": " a", "origin": "draft"}
    assert first["tree"]["parent"] == [-1, 0, 1] and first["tree"]["target_logp"][0] is None
    assert first["candidates"][1] == [{"id": 6, "text": " b", "prob": 0.8}]


def test_what_was_not_measured_is_unknown():
    nothing = fold([])
    assert {nothing.tau, nothing.accepted_per_round} == {None}
    still = replace(SECOND, draft_s=0.0, verify_s=0.0, commit_s=0.0, other_s=0.0)
    assert Metrics(fold([still]), 0.0).tokens_per_s is None


def test_numbers_json_cannot_hold_become_unknown():
    tree = replace(FIRST.tree, draft_logp=[0.0, -math.inf, math.nan])
    data = json.loads(
        records.dumps(replace(FIRST, tree=tree, notes={"x": math.inf, "pair": (1, 2)}))
    )
    assert data["tree"]["draft_logp"] == [0.0, None, None]
    assert data["notes"] == {"x": None, "pair": [1, 2]}


CONTRADICTIONS = r"""
round  tree.parent  [-1, 0]  2 parents
round  tree.parent  [0, 0, 1]  root's parent
round  tree.parent  [-1, 2, 1]  comes before
round  tree.texts  ["a"]  texts has 1
round  path  [0, 2]  does not follow
round  path  [0, 7]  leaves the tree
round  path  [1]  starts at the root
round  path  [0]  1 accepted tokens are not
round  tokens  []  length >= 1
round  tokens.0.id  8  not those of the path
round  tokens.0.origin  "target"  only the last
round  tokens.0.origin  "luck"  Invalid enum value 'luck'
round  candidates  [[]]  one list per emitted token
round  draft_s  -1  >= 0
round  draft_s  "fast"  Expected `float`, got `str`
round  kind  "lap"  Invalid value 'lap'
round  surprise  1  surprise
round  notes  {"nodes": [[[[1]]]]}  got `array`
round  candidates.0.0.prob  1e308  <= 1.001
begin  notes  {"question": 5}  Expected `str`, got `int`
begin  notes  {"media": [{"name": 1, "frames": []}]}  Expected `str`, got `int`
begin  schema  99  Invalid enum value 99.*another format
begin  kind  ["begin"]  at `\$\.kind`
begin  prompt  "\ud800"  surrogate
begin  n_visual  1000000000000000000000000000000  Expected `int` <=
begin  n_prompt  1000000000000  Expected `int` <=
begin  spans.0.rows  1000000000  Expected `int` <=
begin  spans.0.rows  -1  Expected `int` >=
begin  n_visual  13  13 visual
begin  spans.0.stop  40  outside the prompt
end  stop  "tired"  Invalid enum value 'tired'
"""
"""A record, a place in it, what stands there in JSON, and how the error goes. A page that draws
every position must not be told that there are a trillion.
"""


@pytest.mark.parametrize("row", CONTRADICTIONS.strip().splitlines())
def test_contradictions_are_refused(row: str):
    kind, path, value, sentence = row.split("  ")
    record = place = msgspec.to_builtins({"begin": BEGIN, "round": FIRST, "end": END}[kind])
    *way, last = [int(step) if step.isdecimal() else step for step in path.split(".")]
    for step in way:
        place = place[step]
    place[last] = json.loads(value)
    refuses(sentence, records.loads, json.dumps(record))


def test_a_tree_has_a_bounded_number_of_nodes():
    tree = Tree([1] * 5000, list(range(-1, 4999)))
    refuses("length <= 4096", records.loads, records.dumps(replace(FIRST, tree=tree)))


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        ([FIRST], "before its begin"),
        ([BEGIN, BEGIN], "begins twice"),
        ([BEGIN, SECOND], "out of order"),
        ([*TRACE, SECOND], "after its end"),
        ([BEGIN, replace(FIRST, clock_s=9.0)], "clock"),
        ([BEGIN, FIRST, replace(END, totals=fold([FIRST, FIRST]))], "the rounds give"),
        ([replace(BEGIN, max_new_tokens=1), FIRST], "limit 1"),
        (
            [BEGIN, replace(FIRST, tokens=[Token(5, " a", "relaxed"), FIRST.tokens[1]])],
            "lossless but has 1",
        ),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(trace: list[records.Record], sentence: str):
    refuses(sentence, validate_trace, copy.deepcopy(trace))


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "race.jsonl"
    records.write_trace(path, flat(ar_lane(), chain_lane()))
    return path


def test_a_written_trace_reads_back_the_same(sound: Path):
    assert trace.inspect_file(sound) == ([ar_lane(), chain_lane()], [])


def test_a_trace_cut_short_is_still_one(sound: Path):
    lines = sound.read_text().splitlines()
    lanes, problems = trace.inspect_text("\n".join(lines[:-1]))
    assert problems == [] and lanes[1].end is None
    assert "cut short" in trace.summary(lanes)


def test_problems_are_numbered_and_bounded():
    """Of what has no record at all, the first one."""
    junk = "\njunk" * 500
    problems = trace.inspect_text(records.dumps(ar_lane().begin) + junk)[1]
    assert problems[-1].startswith(f"line {trace.MAX_PROBLEMS + 1}: ")
    assert len(problems) == trace.MAX_PROBLEMS
    assert len(trace.inspect_text(junk)[1]) == 1


def test_the_summary_shows_origins(sound: Path):
    said = trace.summary(trace.inspect_file(sound)[0])
    assert "[abc]x[ef]g" in said
    assert "including the target's own token" in said


def test_the_pages_scripts_have_the_types_of_the_schema():
    """Made anew by `python -m tools.record_types`."""
    assert record_types.FILE.read_text(encoding="utf-8") == record_types.declarations()
