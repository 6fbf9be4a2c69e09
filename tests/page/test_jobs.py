"""What a visitor asks for is taken whole or refused in a sentence: nothing is cut or changed
silently.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specvl_demo.question import MAX_FILES, MAX_TURNS, Question
from specvl_demo.ui.serve import benches
from specvl_demo.ui.serve.jobs import read_job
from tests.robustness.support import offered


@pytest.fixture
def media(tmp_path: Path) -> list[dict[str, str]]:
    """One file more than fits in a question."""
    paths = [tmp_path / f"{number}.png" for number in range(MAX_FILES + 1)]
    for path in paths:
        path.write_bytes(b"x")
    return [{"path": str(path), "name": f"my {path.name}"} for path in paths]


def read(tmp_path: Path, **asked: Any) -> Question:
    return read_job({"pair": "p", "question": "?", **asked}, [offered("p")], [tmp_path]).question


def test_a_conversation_is_taken_whole(tmp_path: Path, media: list[dict[str, str]]) -> None:
    turns = [{"question": f"q{number}", "answer": "a", "media": []} for number in range(MAX_TURNS)]
    turns[0]["media"] = media[:MAX_FILES]
    found = read(tmp_path, history=turns, media=media[:1])
    assert [turn.question for turn in found.earlier] == [
        f"q{number}" for number in range(MAX_TURNS)
    ]
    assert len(found.earlier[0].shown) == MAX_FILES
    sent = [*media[:MAX_FILES], media[0]]
    assert [file.name for file in found.shown] == [item["name"] for item in sent]


def test_an_answers_beginning_is_text_or_tokens(tmp_path: Path) -> None:
    assert (
        read(tmp_path, prefix="The picture \ud800").prefix
        == "The picture \N{REPLACEMENT CHARACTER}"
    )
    assert read(tmp_path, prefix=[1, 2]).prefix == (1, 2) and read(tmp_path).prefix == ()


def test_a_comparison_is_a_bounded_number_of_jobs_in_turned_order() -> None:
    """Every question in every repeat; a method that cannot sample is left out at a temperature."""
    methods = {"ar": True, "chain": True, "ngram": True, "lvspec": True}
    pairs = [{**offered("pocket"), "methods": methods}]
    asked = {"pair": "pocket", "methods": ["chain", "ngram"], "questions": 2, "repeats": 2}
    bench = benches.read(asked, pairs, [], None)
    assert bench.methods == ["ar", "chain", "ngram"] and bench.total == 4
    step = benches.Step(bench, 3)
    assert [name for name, _ in step.job.lanes] == ["chain", "ngram", "ar"]
    assert step.job.timed and (step.job.question.seed, step.job.question.temperature) == (1, 0)
    lossy = {"methods": ["lvspec", "chain"], "temperature": 0.8}
    sampled = benches.read(asked | lossy, pairs, [], None)
    assert (sampled.methods, sampled.left_out) == (["ar", "chain"], ["lvspec"])
    assert sampled.jobs[0].question.temperature == 0.8
