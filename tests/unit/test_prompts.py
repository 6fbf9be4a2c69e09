"""What a model reads of a question: the times of clips, the order of texts and pictures."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from specvl_demo.media import PLACE, VideoFrames
from specvl_demo.question import Question
from specvl_demo.vlm.prompts import PromptBuilder
from tests.contract.families import zoo

UNEVEN = (0.0, 3.0, 6.0, 9.0, 10.0, 10.4, 10.8, 11.0)


def builder(family: str) -> PromptBuilder:
    model, processor = zoo.FAMILIES[family].build()
    return PromptBuilder(processor, model)


def said(prompter: PromptBuilder, question: Question) -> str:
    """The prompt as the model reads it."""
    ids = prompter.prompt(question, room=1).ids.tolist()
    return prompter._decode(ids, keep_special=True)


@pytest.mark.parametrize(
    ("family", "pattern", "times"),
    [
        ("qwen3-vl", r"<([\d.]+) seconds>", ["1.5", "7.5", "10.2", "10.9"]),  # means of pairs
        ("glm4v", r"<\|end_of_image\|>(\d+)", ["0", "6", "10", "10"]),  # the first of each pair
    ],
)
def test_a_prompt_names_the_times_at_which_frames_are_shown(
    family: str, pattern: str, times: list[str]
) -> None:
    frames = tuple(
        Image.fromarray(np.full((64, 64, 3), 20 * i, np.uint8)) for i in range(len(UNEVEN))
    )
    text = said(builder(family), Question("What happens?", (VideoFrames(frames, UNEVEN),)))
    assert re.findall(pattern, text) == times


def test_pictures_stand_where_a_question_marks_their_places() -> None:
    prompter, picture = builder("qwen3-vl"), zoo.picture(1, 56, 56)
    shown = r"<\|vision_start\|>(?:<\|image_pad\|>)+<\|vision_end\|>"
    asked = Question(f"before:{PLACE}after:{PLACE}", (picture, picture))
    assert re.search(f"before:{shown}after:{shown}", said(prompter, asked))
    # A mark that somebody typed stands for nothing.
    plain = said(prompter, Question(f"what{PLACE} is this", (picture, picture)))
    assert re.search(f"{shown}{shown}what is this", plain)
