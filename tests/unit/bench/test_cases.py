"""What is asked: the same everywhere, and never what something was tuned or trained on."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from specvl_demo import pairs
from specvl_demo.bench import cases, data
from specvl_demo.bench.measure import BenchOptions
from specvl_demo.pairs import PAIRS
from specvl_demo.places import EXAMPLES
from specvl_demo.vlm.prompts import VideoFrames
from tests import corpus


def test_the_shipped_cases_are_the_same_everywhere_and_cover_every_kind() -> None:
    first, second = cases.pocket(), cases.pocket()
    assert [case.question for case in first] == [case.question for case in second]
    assert len({case.name for case in first}) == len(first)
    kinds = {case.kind for case in first}
    assert {"describe", "clip", "chart", "compare", "count", "where", "follow-up"} <= kinds
    followed = next(case for case in first if case.kind == "follow-up")
    assert [turn.answer is None for turn in followed.turns] == [False, True]
    assert followed.turns[0].shown and not followed.turns[1].shown


def test_nothing_is_tuned_on_what_is_held_out() -> None:
    tuned, judged = cases.calibration(), cases.pocket()

    def pixels(case: cases.Case) -> set[bytes]:
        clips = (one.frames if isinstance(one, VideoFrames) else (one,) for one in case.shown)
        return {frame.tobytes() for frames in clips for frame in frames}

    held_out = set().union(*(pixels(case) for case in judged))
    assert not any(pixels(case) & held_out for case in tuned)


def test_mixed_prompts_go_through_all_kinds_in_turn() -> None:
    asked = cases.mixed(11)
    assert len(asked) == 11 == len({case.name for case in asked})
    assert {"text", "follow-up", "clip", "compare"} <= {case.kind for case in asked}
    assert not next(case for case in asked if case.kind == "text").shown


@pytest.mark.parametrize(("n", "most"), [(12, 12), (200, 39)])
def test_few_questions_to_the_photo_pair_are_of_all_kinds(
    n: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "load_any", lambda files, n_frames: files)  # nothing looks at them
    asked = BenchOptions(pairs.find("photo"), [], 1, 6, n, None).cases("all")
    assert len(asked) == most == len({case.name for case in asked})
    assert len({case.kind for case in asked}) == 6


def test_the_photo_pair_is_asked_about_pictures_that_are_shipped() -> None:
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
    read = data.shipped(EXAMPLES / file, "choose", 2)
    assert [case.name for case in read] == [row["id"] for row in chosen]
    assert [len(case.shown) for case in read] == [len(files(row)) for row in chosen]
    assert pairs.find("pocket").questions == cases.QUESTIONS.name


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
    one, two, clip, text, then = data.find(file, 9)
    assert (one.name, one.reference, len(one.shown)) == ("mine", "halves", 1)
    assert (two.name, len(two.shown), two.reference) == ("own-2", 2, None)
    assert isinstance(clip.shown[0], VideoFrames) and len(clip.shown[0].frames) > 1
    assert not text.shown
    assert [(turn.question, len(turn.shown), turn.answer) for turn in then.turns] == [
        ("Where is it?", 1, "right"),
        ("And left?", 0, None),
    ]
    assert len(data.find(file, 2)) == 2


def test_mmspec_is_read_from_a_splits_folder(tmp_path: Path) -> None:
    """Its lines name pictures inside `images`, several turns, and a topic to group by."""
    (tmp_path / "images" / "general_vqa").mkdir(parents=True)
    corpus.halves().save(tmp_path / "images" / "general_vqa" / "img_000001.png")
    line = {
        "id": "img_000001",
        "image": "general_vqa/img_000001.png",
        "turns": ["What plant is this?", "What is the weather like?"],
        "category": "Landscape with reeds and lake",
        "topic": "general vqa",
    }
    (tmp_path / data.MMSPEC).write_text(json.dumps(line))
    (case,) = data.find(str(tmp_path), 9)
    assert (case.name, case.question) == ("img_000001", "What plant is this?")
    assert (case.kind, len(case.shown)) == ("general vqa", 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1: not a line of JSON"),
        ("[1]", "line 1: the line must be an object"),
        ('{"image": "a.png"}', "a question is needed"),
        ('{"question": "x", "image": "nowhere.png"}', "line 1: There is no file"),
    ],
)
def test_a_bad_line_is_named(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(line)
    with pytest.raises(ValueError, match=said):
        data.find(file, 9)


PICTURE = corpus.halves()
ROWS: dict[str, dict[str, Any]] = {
    "lmms-lab/ChartQA": {
        "type": "human_test",
        "image": PICTURE,
        "question": "How high?",
        "answer": "7",
    },
    "HuggingFaceM4/ChartQA": {
        "image": PICTURE,
        "query": "How high?",
        "label": ["7"],
        "human_or_machine": 0,
    },
    "lmms-lab/textvqa": {
        "image": PICTURE,
        "question": "What does it say?",
        "answers": ["stop", "halt"],
    },
    "lmms-lab/ScienceQA": {
        "image": PICTURE,
        "question": "Which?",
        "choices": ["north", "south"],
        "answer": 1,
        "hint": "Magnets.",
    },
    "lmms-lab/llava-bench-in-the-wild": {
        "image": PICTURE,
        "question": "Describe.",
        "gpt_answer": "Halves.",
    },
    "lmms-lab/SEED-Bench": {
        "image": [PICTURE, PICTURE],
        "question": "Which?",
        **{f"choice_{letter}": letter * 2 for letter in "abcd"},
        "answer": "B",
    },
    "OpenGVLab/MVBench": {
        "video": "c.mp4",
        "question": "What?",
        "candidates": ["x", "y"],
        "answer": "y",
    },
    "wchai/lmms_VDC_test": {"video_name": "c", "question": "ignored", "caption": "Two halves."},
}
"""A row of every data set, as published: names and types of columns."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A `datasets` package that gives ROWS; notes what it was asked."""
    asked: list[tuple[Any, ...]] = []

    def load_dataset(
        path: str, name: str | None, split: str, streaming: bool
    ) -> list[dict[str, Any]]:
        asked.append((path, name, split, streaming))
        return [ROWS[path]] * 3

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return asked


@pytest.mark.parametrize("name", ROWS)
def test_published_data_sets_become_cases(
    name: str, hub: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    corpus.write_clip(tmp_path / "c.mp4")
    found = data.find(name, 2, media=tmp_path, n_frames=3)
    assert len(found) == 2 and hub[0][0] == name and hub[0][3] is True
    case = found[0]
    assert case.question.strip() and case.reference and case.shown
    if name in ("lmms-lab/ScienceQA", "lmms-lab/SEED-Bench"):
        assert "\nA. " in case.question and case.reference == "B"
        assert len(case.shown) == (2 if "SEED" in name else 1)
    if "video" in ROWS[name] or "video_name" in ROWS[name]:
        assert isinstance(case.shown[0], VideoFrames) and len(case.shown[0].frames) == 3
    else:
        assert isinstance(case.shown[0], Image.Image) and case.shown[0].mode == "RGB"


def test_what_a_data_set_needs_is_said(
    hub: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="--media"):
        data.find("OpenGVLab/MVBench", 1)
    with pytest.raises(ValueError, match="OWNER/NAME"):
        data.find("nowhere.jsonl", 1)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE forbids"):
        data.find("lmms-lab/ChartQA", 1)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install datasets"):
        data.find("lmms-lab/ChartQA", 1)


def test_a_folder_in_the_published_layout_is_read(tmp_path: Path) -> None:
    """Parquet files below data/, pictures as bytes, the columns' kinds in the file: what the hub
    holds.
    """
    datasets = pytest.importorskip("datasets", reason="reads data sets with `datasets`")
    import pyarrow
    from pyarrow import parquet

    text = datasets.Value("string")
    kinds = datasets.Features({"image": datasets.Image(), "question": text, "answer": text})
    stored = {"bytes": corpus.encode(PICTURE, "PNG"), "path": "a.png"}
    rows = [{"image": stored, "question": f"How high, {n}?", "answer": str(n)} for n in range(3)]
    file = tmp_path / "ChartQA" / "data" / "test-00000-of-00001.parquet"
    file.parent.mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=kinds.arrow_schema), file)
    found = data.find(str(tmp_path / "ChartQA"), 2)
    assert [case.reference for case in found] == ["0", "1"] and found[0].name == "ChartQA-0"
    (shown,) = found[0].shown
    assert shown.size == PICTURE.size and shown.getpixel((0, 0)) == corpus.RED
