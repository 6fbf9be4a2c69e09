"""One parser for every door: the same question, however it is written down."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from specvl_demo.cli.parse import parse
from specvl_demo.question import MAX_CHARACTERS, Question, Turn, line_of, named, read
from specvl_demo.ui.serve.jobs import read_job
from tests.robustness.support import offered


def page(folder: Path) -> Question:
    file = {"path": str(folder / "a.png"), "name": "mine"}
    asked = {"pair": "p", "question": "what", "media": [file], "seed": 3, "max_new_tokens": 9}
    return read_job(asked, [offered("p")], [folder]).question


def endpoint(folder: Path) -> Question:
    asked = {"pair": "p", "prompt": "what", "image": {"path": str(folder / "a.png")}, "video": None}
    sampling = {"seed": 3, "max_new_tokens": 9, "answer_prefix": "", "picture_detail": None}
    return read_job(asked | sampling, [offered("p")], [folder]).question


def command(folder: Path) -> Question:
    words = ["generate", "--method", "ar", "--prompt", "what", "--image", str(folder / "a.png")]
    return read(vars(parse([*words, "--seed", "3", "--max-new-tokens", "9"])))


def line(folder: Path) -> Question:
    text = json.dumps({"id": "x", "query": "what", "images": ["a.png"], "answer": ["halves"]})
    sampling = {"seed": 3, "max_new_tokens": 9}
    return read(line_of(text) | sampling, partial(named, folders=[folder]))


@pytest.mark.parametrize("door", [page, endpoint, command, line])
def test_every_door_reads_the_same_question(
    tmp_path: Path, door: Callable[[Path], Question]
) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    question = door(tmp_path)
    assert (question.words, question.files) == ("what", [str(tmp_path / "a.png")])
    assert (question.seed, question.max_new_tokens, question.temperature) == (3, 9, 0.0)
    assert question.prefix in ((), "") and not question.earlier and not question.system


def test_what_a_line_shows_belongs_to_its_first_turn() -> None:
    before = [{"question": "Where?", "answer": "left"}]
    question = read({"question": "And now?", "image": "a.png", "before": before})
    assert [len(turn.shown) for turn in question.turns] == [1, 0]
    assert question.files == ["a.png"] and question.earlier[0].answer == "left"


def test_only_a_visitors_text_is_limited() -> None:
    words = "a" * (MAX_CHARACTERS + 1)
    assert read({"question": words}).words == words
    with pytest.raises(ValueError, match=f"at most {MAX_CHARACTERS} are allowed"):
        read({"question": words}, visitor=True)


def test_a_model_is_shown_no_more_pixels_than_it_is_to_be() -> None:
    def shown(width: int, height: int, **detail: float) -> tuple[int, int]:
        asked = Question("?", (Image.new("RGB", (width, height)),), **detail)
        (image,) = asked.opened(8).media
        return image.size

    assert shown(1000, 1000) == (1000, 1000)
    assert shown(4000, 3000) == (1290, 968)
    assert shown(4000, 3000, picture_detail=3.0) == (2000, 1500)


def test_a_question_without_words_asks_for_a_description() -> None:
    picture = Image.new("RGB", (40, 30))
    earlier = (Turn("", (picture, picture), "two"),)
    opened = Question(media=(picture,), earlier=earlier).opened(8)
    assert opened.words == "Describe the picture."
    assert opened.earlier[0].question == "Describe the pictures."
    assert opened.opened(8) == opened
