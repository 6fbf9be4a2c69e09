"""What is asked: the same everywhere, and never what something was tuned or trained on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specvl_demo import pairs
from specvl_demo.compare import questions
from specvl_demo.compare.measure import BenchOptions
from specvl_demo.media import VideoFrames
from specvl_demo.pairs import PAIRS
from specvl_demo.places import EXAMPLES
from specvl_demo.question import Question
from tests import corpus

POCKET = pairs.find("pocket")


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave files closed."""
    monkeypatch.setattr(Question, "opened", lambda self, _: self)


def contents(questions: list[Question]) -> set[bytes]:
    return {Path(file).read_bytes() for question in questions for file in question.files}


def test_the_shipped_cases_cover_every_kind(unopened: None) -> None:
    cases = questions.of_pair(POCKET)
    assert len({case.id for case in cases}) == len(cases)
    assert [case.kind for case in cases] == list(Counter(questions.POCKET_KINDS).elements())
    followed = next(case for case in cases if case.kind == "follow-up")
    assert [turn.answer is None for turn in followed.turns] == [False, True]
    assert followed.turns[0].shown and not followed.turns[1].shown


def test_nothing_is_chosen_on_what_is_held_out(unopened: None) -> None:
    chosen, judged = questions.of_pair(POCKET, "choose"), questions.of_pair(POCKET, "all")
    assert contents(judged) and not contents(judged) & contents(chosen)


def test_mixed_prompts_go_through_all_kinds_in_turn(unopened: None) -> None:
    asked = questions.of_pair(POCKET, "all")[:11]
    assert len(asked) == 11 == len({case.id for case in asked})
    assert {"text", "follow-up", "clip", "compare"} <= {case.kind for case in asked}
    assert not next(case for case in asked if case.kind == "text").shown


@pytest.mark.parametrize(("n", "most"), [(12, 12), (200, 39)])
def test_few_questions_to_the_photo_pair_are_of_all_kinds(
    n: int, most: int, unopened: None
) -> None:
    asked = BenchOptions(pairs.find("photo"), [], 1, 6, n, None).cases("all")
    assert len(asked) == most == len({case.id for case in asked})
    assert len({case.kind for case in asked}) == 6


def test_the_photo_pair_is_asked_about_pictures_that_are_shipped(unopened: None) -> None:
    """Six kinds; no picture on which settings are chosen is judged on; a pair names its file."""
    (file,) = {pair.questions for pair in PAIRS if pair.knows == "photographs"}
    rows = [json.loads(line) for line in (EXAMPLES / file).read_text().splitlines()]
    judged, chosen = ([r for r in rows if r["split"] == use] for use in ("evaluate", "choose"))
    kinds = {"describe", "story", "short answer", "two pictures", "clip", "text"}
    assert len(judged) >= 24 and {row["kind"] for row in judged} == kinds
    assert {row["kind"] for row in chosen} == kinds
    assert all(row["answer"] for row in rows if row["kind"] == "short answer")
    shown = [{name for row in half for name in files(row)} for half in (judged, chosen)]
    assert not shown[0] & shown[1] and all((EXAMPLES / name).is_file() for name in shown[0])
    read = questions.of_pair(pairs.find("photo"), "choose")
    assert [case.id for case in read] == [row["id"] for row in chosen]
    assert [len(case.files) for case in read] == [len(files(row)) for row in chosen]
    assert POCKET.questions == questions.POCKET


def files(row: dict[str, Any]) -> list[str]:
    """Return the files that a row of a shipped file shows."""
    return [*row.get("images", []), *([row["video"]] if "video" in row else [])]


def test_own_questions_are_read_from_json_lines(tmp_path: Path) -> None:
    corpus.halves().save(tmp_path / "a.png")
    corpus.write_clip(tmp_path / "c.mp4")
    lines: list[dict[str, Any]] = [
        {"question": "What is it?", "image": "a.png", "answer": "halves", "id": "mine"},
        {"prompt": "Compare.", "images": ["a.png", "a.png"]},
        {"question": "What happens?", "video": "c.mp4"},
        {"question": "Who are you?"},
        {
            "question": "And left?",
            "image": "a.png",
            "before": [{"question": "Where is it?", "answer": "right"}],
        },
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    one, two, clip, text, then = questions.of_file(str(file), 9)
    assert (one.id, one.reference, len(one.shown)) == ("mine", "halves", 1)
    assert (two.id, len(two.shown), two.reference) == ("own-2", 2, None)
    assert isinstance(clip.shown[0], VideoFrames) and len(clip.shown[0].frames) > 1
    assert not text.shown
    assert [(turn.question, len(turn.shown), turn.answer) for turn in then.turns] == [
        ("Where is it?", 1, "right"),
        ("And left?", 0, None),
    ]
    assert len(questions.of_file(str(file), 2)) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1: not a line of JSON"),
        ("[1]", "line 1: the line must be an object"),
        ('{"image": "a.png"}', "line 1: a question is needed"),
        ('{"question": "x", "image": "nowhere.png"}', "line 1: There is no file"),
    ],
)
def test_a_bad_line_is_named(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(line)
    with pytest.raises(ValueError, match=said):
        questions.of_file(str(file), 9)
