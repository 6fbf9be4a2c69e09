"""What a visitor asks for is taken whole or refused in a sentence: nothing is cut or changed
silently.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specvl_demo.ui.serve import benches
from specvl_demo.ui.serve.jobs import MOST_FILES, MOST_TURNS, Job, read_job
from tests.robustness.support import offered


@pytest.fixture
def media(tmp_path: Path) -> list[dict[str, str]]:
    """One file more than fits in a question."""
    paths = [tmp_path / f"{number}.png" for number in range(MOST_FILES + 1)]
    for path in paths:
        path.write_bytes(b"x")
    return [{"path": str(path), "name": f"my {path.name}"} for path in paths]


def read(tmp_path: Path, **asked: Any) -> Job:
    return read_job({"pair": "p", "question": "?", **asked}, [offered("p")], [tmp_path])


def test_a_conversation_is_taken_whole_or_refused(
    tmp_path: Path, media: list[dict[str, str]]
) -> None:
    turns = [{"question": f"q{number}", "answer": "a", "media": []} for number in range(MOST_TURNS)]
    turns[0]["media"] = media[:MOST_FILES]
    found = read(tmp_path, history=turns, media=media[:1])
    assert [turn.question for turn in found.history] == [
        f"q{number}" for number in range(MOST_TURNS)
    ]
    assert len(found.history[0].media) == MOST_FILES
    assert found.names == tuple(item["name"] for item in [*media[:MOST_FILES], media[0]])
    with pytest.raises(
        ValueError, match=f"at most {MOST_TURNS} earlier questions, got {MOST_TURNS + 1}"
    ):
        read(tmp_path, history=[*turns, turns[1]])


@pytest.mark.parametrize("where", ["now", "earlier"])
def test_files_are_taken_whole_or_refused(
    tmp_path: Path, media: list[dict[str, str]], where: str
) -> None:
    asked = {"media": media} if where == "now" else {"history": [{"question": "q", "media": media}]}
    with pytest.raises(ValueError, match=f"at most {MOST_FILES} pictures .* got {MOST_FILES + 1}"):
        read(tmp_path, **asked)


def test_an_unknown_pair_is_refused_with_those_of_the_menu(tmp_path: Path) -> None:
    pairs = [offered("p"), offered("large", "Needs about 15 GB."), offered("q")]
    with pytest.raises(
        ValueError, match="no pair 'nope'. Known: p, q; not on this machine: large[.]$"
    ):
        read_job({"pair": "nope", "question": "?"}, pairs, [tmp_path])
    with pytest.raises(
        ValueError, match="^large does not run on this machine: Needs about 15 GB[.]$"
    ):
        read_job({"pair": "large", "question": "?"}, pairs, [tmp_path])


@pytest.mark.parametrize("asked", [{"methods": ["nope"]}, {"settings": {"nope": {}}}])
def test_an_unknown_method_is_refused_with_those_that_the_pair_can_draft_with(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    pair = offered("p", chain=True, eagle3="eagle3 needs an EAGLE-3 head; p has none here.")
    said = (
        "no method 'nope'. Known: ar, chain; others do not run with p here: request one to see"
        " the reason[.]$"
    )
    with pytest.raises(ValueError, match=said):
        read_job({"pair": "p", "question": "?", **asked}, [pair], [tmp_path])
    everything = offered("p", chain=True)
    with pytest.raises(ValueError, match="no method 'nope'. Known: ar, chain[.]$"):
        read_job({"pair": "p", "question": "?", **asked}, [everything], [tmp_path])


def test_an_answers_beginning_is_text_or_tokens_and_bounded(tmp_path: Path) -> None:
    assert (
        read(tmp_path, prefix="The picture \ud800").prefix
        == "The picture \N{REPLACEMENT CHARACTER}"
    )
    assert read(tmp_path, prefix=[1, 2]).prefix == (1, 2) and read(tmp_path).prefix == ()
    for wrong, sentence in (
        ("é" * 513, "beginning has 1026 bytes; at most 1024"),
        ([1] * 1025, "beginning has 1025 tokens; at most 1024"),
        (["The"], "The prefix must be a list of token ids"),
    ):
        with pytest.raises(ValueError, match=sentence):
            read(tmp_path, prefix=wrong)


def test_a_comparison_is_a_bounded_number_of_jobs_in_turned_order() -> None:
    """Every question in every repeat; a method that cannot sample is left out at a temperature;
    what would be too much is refused.
    """
    methods = {"ar": True, "chain": True, "ngram": True, "lvspec": True}
    pairs = [{**offered("pocket"), "methods": methods}]
    asked = {"pair": "pocket", "methods": ["chain", "ngram"], "questions": 2, "repeats": 2}
    bench = benches.read(asked, pairs, [], None)
    assert bench.methods == ["ar", "chain", "ngram"] and bench.total == 4
    step = benches.Step(bench, 3)
    assert [name for name, _ in step.job.lanes] == ["chain", "ngram", "ar"]
    assert step.job.alone and (step.job.seed, step.job.temperature) == (1, 0)
    lossy = {"methods": ["lvspec", "chain"], "temperature": 0.8}
    sampled = benches.read(asked | lossy, pairs, [], None)
    assert (sampled.methods, sampled.left_out) == (["ar", "chain"], ["lvspec"])
    assert sampled.jobs[0].temperature == 0.8
    for wrong, sentence in (
        ({"questions": 101}, "between 1 and 100, not 101"),
        ({"repeats": True}, "between 1 and 10, not True"),
        ({"questions": 60, "repeats": 10}, "would need 1"),
        ({"temperature": []}, "Temperature must be 0, or a number"),
        ({"temperature": 1, "methods": ["lvspec"]}, "LVSpec is not defined for sampling"),
        ({"lines": "{}"}, "line 1: a question is needed"),
        ({"lines": '{"question": "?", "image": "/etc/passwd"}'}, "was not added"),
    ):
        with pytest.raises(ValueError, match=sentence):
            benches.read(asked | wrong, pairs, [], None)
