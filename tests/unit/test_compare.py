"""Methods measured side by side on a tiny pair: counts are right, what is told can be read. And
what is asked: the same everywhere, never what something was tuned or trained on.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specvl_demo import pairs
from specvl_demo.compare import questions, report
from specvl_demo.compare.peers import GAMMA, PEERS, LibraryPeers
from specvl_demo.compare.report import HF_GENERATE, Answer
from specvl_demo.methods.base import choose
from specvl_demo.pairs import PAIRS
from specvl_demo.places import EXAMPLES
from specvl_demo.question import Question
from tests.shared import corpus
from tests.shared.lanes import ar_lane, chain_lane
from tests.shared.refusals import refuses

CHAIN = choose("chain", {"gamma": 3})
SETTINGS = {
    "pair": "pocket",
    "cases": ["c"],
    "references": 1,
    "max_new_tokens": 9,
    "repeats": 2,
    "sampling": "greedy",
    "methods": {},
}


def test_rates_are_sums_over_sums_also_over_repeats():
    first, library = [Answer([1] * 4, 1.0, 1.5, 2.0, 4)], [Answer([1] * 4, 0.5, 0.5, 4.0, 3)]
    second = [Answer([1] * 4, 1.0, 1.5, 1.0, 4), Answer([1] * 2, 1.0, 1.5, 5.0, 2)]
    assert report.tokens_per_s(first) == 2.0 and report.tokens_per_s(second) == 1.0
    assert report.tokens_per_s(second, total=True) == 0.75
    assert report.speedup(library, first) == 0.375 and report.speedup([], first) is None
    repeat = {"ar": first, HF_GENERATE: library}
    row = report.shared_figures([repeat, {"ar": second}], HF_GENERATE)
    assert row["speedup_vs_ar"] == row["tokens_per_s"] / (10 / 8) == 0.75 / 1.25
    assert report.spread([2.0]) is None
    assert report.spread([8.0, 10.0, 12.0, 10.0, 100.0]) == pytest.approx((12 - 10) / 10)


def test_an_interval_resamples_questions_and_quality_counts_shared_words():
    repeat = {"ar": timed(*[1.0] * 5), "chain": timed(0.25, 0.5, 0.5, 0.5, 1.0)}
    low, high = report.interval_over_questions([repeat, repeat], "chain") or (0.0, 0.0)
    assert 1 <= low < report.speedup(repeat["chain"], repeat["ar"]) < high <= 4  # type: ignore[operator]
    assert report.interval_over_questions([repeat], "ar") is None
    repeat["chain"].pop()
    assert report.interval_over_questions([repeat], "chain") is None  # of four questions
    assert report.f1("A red, red star.", "the red star") == pytest.approx(2 * 2 / (4 + 3))
    assert report.f1("no", "yes") == 0.0


def timed(*seconds: float) -> list[Answer]:
    """Answers of ten tokens each."""
    return [Answer([1] * 10, 0.0, 0.1, each, 10, ar_lane()) for each in seconds]


def test_methods_are_told_apart_by_the_ratio_of_their_speeds_on_the_same_questions():
    """However much the questions differ: both intervals of the speedup overlap."""
    repeat = {
        "ar": timed(*[1.0] * 6),
        "sage": timed(0.2, 0.3, 0.4, 0.6, 0.8, 0.9),
        "chain": timed(0.22, 0.33, 0.44, 0.66, 0.88, 0.99),
        "ngram": timed(0.9, 0.8, 0.6, 0.4, 0.3, 0.25),
    }
    rows = report.method_rows([repeat], repeat, [Question("?")] * 6)
    overlap = [row["interval"] for row in rows if row["interval"]]
    assert max(low for low, _ in overlap) < min(high for _, high in overlap)
    assert [row["fastest_over"] is None for row in rows] == [False, True, False, False]
    assert rows[2]["fastest_over"] == pytest.approx([1.1, 1.1])
    told = {"machine": {}, "rows": rows, "settings": SETTINGS}
    assert "do not tell sage, the fastest, from ngram: over" in report.page_of(told).before[-1]


def test_a_row_says_where_its_methods_speed_comes_from():
    lanes = ar_lane(), chain_lane()
    repeat = {lane.begin.method: [Answer.of_lane(lane)] for lane in lanes}
    ar, chain = report.method_rows([repeat], repeat, [Question("?")])
    assert ar["note"] is None and chain["note"].startswith("2.80×: 3.5 tokens a check, and")


def test_the_librarys_assistant_drafts_as_many_tokens_as_our_chain():
    ours = [choose("ar"), CHAIN]
    assert [LibraryPeers(None, PEERS, some).gamma for some in (ours, ours[:1])] == [3, GAMMA]  # type: ignore[arg-type]


def test_what_compares_times_is_rough_where_the_machine_was_busy():
    """No speedup but a rough one, no limit, no cost in AR steps, as a figure or in a sentence."""
    row = dict.fromkeys([*report.COLUMNS, *report.TOTAL, *report.COMPARED], 2.0)
    row |= {"by_kind": {"where": {"tau": 3.0, "speedup_vs_ar": 3.1}}, "note": "3.3 AR steps"}
    row["interval"] = row["fastest_over"] = None
    machine = {"busy": False, "others_share_meanwhile": 0.6}
    told = {"machine": machine, "rows": [row | {"method": "chain"}], "settings": SETTINGS}
    assert report.hide_disturbed(told) is told
    assert "in 1 question that came with one" in report.page_of(told).before[0]
    machine["busy"] = True
    (busy,) = report.hide_disturbed(told)["rows"]
    assert busy["speedup_about"] == "about 2.0×" and busy["speedup_vs_ar"] is None
    assert busy["by_kind"]["where"] == {"tau": 3.0, "speedup_vs_ar": None}  # above τ
    assert busy["tau"] == 2.0 == busy["tokens_per_s"]
    shown = report.page_of(report.hide_disturbed(told))
    assert "speedups are rough and may be far off" in shown.before[-1]
    assert shown.after[1:] == [report.provenance_line(machine)]  # behind its settings
    named = {column for _, _, columns in shown.tables for column in columns}
    assert {"tokens/s, disturbed", "first token, ms, disturbed", "× our AR, rough"} <= named
    assert not named & {"tokens/s", *(report.HEADS.get(key, key) for key in report.COMPARED)}
    assert "limit:" not in "".join(shown.before)
    assert "others used 60 % of the machine" in report.provenance_line(machine)


POCKET = pairs.find("pocket")


@pytest.fixture
def unopened(monkeypatch) -> None:
    """Leave files closed."""
    monkeypatch.setattr(Question, "read_files", lambda self, _: self)


def contents(questions: list[Question]) -> set[bytes]:
    return {Path(file).read_bytes() for question in questions for file in question.paths}


def test_the_shipped_cases_cover_every_kind(unopened: None):
    cases = questions.pair_questions(POCKET)
    assert len({case.id for case in cases}) == len(cases)
    assert [case.kind for case in cases] == list(Counter(questions.POCKET_KINDS).elements())
    followed = next(case for case in cases if case.kind == "follow-up")
    assert [turn.answer is None for turn in followed.turns] == [False, True]
    assert followed.turns[0].shown and not followed.turns[1].shown


def test_nothing_is_chosen_on_what_is_held_out():
    splits = "choose", "evaluate"
    chosen, judged = (questions.shipped_questions(POCKET, split) for split in splits)
    assert contents(judged) and not contents(judged) & contents(chosen)


def test_few_questions_to_the_photo_pair_are_of_all_kinds():
    shipped = questions.shipped_questions(pairs.find("photo"), "evaluate")
    cases = questions.interleave_kinds(shipped)[:12]
    assert len({case.id for case in cases}) == 12 and len({case.kind for case in cases}) == 6


def test_the_photo_pair_is_asked_about_pictures_that_are_shipped():
    """Six kinds; no picture on which settings are chosen is judged on; a pair names its file."""
    (file,) = {pair.questions for pair in PAIRS if pair.knows == "photographs"}
    rows = [json.loads(line) for line in (EXAMPLES / file).read_text().splitlines()]
    judged, chosen = ([r for r in rows if r["split"] == use] for use in ("evaluate", "choose"))
    kinds = {"describe", "story", "short answer", "two pictures", "clip", "text"}
    assert len(judged) >= 24 and {row["kind"] for row in judged} == kinds
    assert {row["kind"] for row in chosen} == kinds
    assert all(row["answer"] for row in rows if row["kind"] == "short answer")
    named = [{name for row in half for name in files(row)} for half in (judged, chosen)]
    assert not named[0] & named[1] and all((EXAMPLES / name).is_file() for name in named[0])
    read = questions.shipped_questions(pairs.find("photo"), "choose")
    assert [case.id for case in read] == [row["id"] for row in chosen]
    assert [len(case.paths) for case in read] == [len(files(row)) for row in chosen]
    assert POCKET.questions == questions.POCKET


def files(row: dict[str, Any]) -> list[str]:
    """Return the files that a row of a shipped file shows."""
    return [*row.get("images", []), *([row["video"]] if "video" in row else [])]


OWN = """
{"question": "What is it?", "image": "a.png", "answer": "halves", "id": "mine"}
{"prompt": "Compare.", "images": ["a.png", "a.png"]}
{"question": "What happens?", "video": "c.mp4"}
{"question": "Who are you?"}
{"question": "Left?", "image": "a.png", "before": [{"question": "Where?", "answer": "right"}]}

"""


def test_own_questions_are_read_from_json_lines(tmp_path: Path):
    corpus.halves().save(tmp_path / "a.png")
    corpus.write_clip(tmp_path / "c.mp4")
    file = tmp_path / "own.jsonl"
    file.write_text(OWN.lstrip())
    first, two, clip, text, then = questions.file_questions(str(file), 9, PAIRS[0])
    assert (first.id, first.reference, len(first.all_media)) == ("mine", "halves", 1)
    assert (two.id, len(two.all_media), two.reference) == ("own-2", 2, None)
    assert len(clip.all_media[0].frames) > 1
    assert not text.all_media
    assert [(turn.question, len(turn.shown), turn.answer) for turn in then.turns] == [
        ("Where?", 1, "right"),
        ("Left?", 0, None),
    ]
    assert len(questions.file_questions(str(file), 2, PAIRS[0])) == 2
    file.write_text('{"question": " ", "image": "a.png"}')
    refuses("line 1: a question is needed, under", questions.file_questions, str(file), 9, PAIRS[0])
