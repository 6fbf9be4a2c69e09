"""Captions by a tiny random Florence-2: one for every picture, in the target's words."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from specvl_demo.core.engine import Lane, SharedPrefill, race
from specvl_demo.core.types import Prefill
from specvl_demo.methods.base import Models, assemble, choose
from specvl_demo.records import Begin, Round
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.florence import FlorenceCaptions
from specvl_demo.vlm.prompts import Turn
from specvl_demo.vlm.target import VLMTarget
from tests.conftest import ask, tiny_llava, tiny_prompt
from tests.contract.families.zoo import _tokenizer, picture


@pytest.fixture(scope="module")
def captions() -> FlorenceCaptions:
    import transformers as hf

    torch.manual_seed(0)
    words = _tokenizer(["<image>"], {"image_token": "<image>"})
    image = hf.CLIPImageProcessor(size={"height": 64, "width": 64}, do_center_crop=False)
    image.image_seq_length = 5
    processor = hf.Florence2Processor(image, words)
    text = {
        "model_type": "bart",
        "vocab_size": len(words),
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 128,
        "init_std": 1.0,
    }
    vision = {
        "depths": (1, 1, 1, 1),
        "embed_dim": (8, 8, 8, 16),
        "num_heads": (1, 1, 1, 1),
        "num_groups": (1, 1, 1, 1),
        "window_size": 2,
        "projection_dim": 32,
    }
    config = hf.Florence2Config(
        text_config=text,
        vision_config=vision,
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    model = hf.Florence2ForConditionalGeneration(config).eval()
    return FlorenceCaptions(
        model, processor, lambda text: [10, *range(11, 11 + len(text))], length=6
    )


def test_one_caption_a_picture_in_the_targets_words(captions: FlorenceCaptions) -> None:
    eyes = VLM(tiny_llava(), "tiny")
    prompt = tiny_prompt(pictures=2)
    turns = (Turn("what is this?", (picture(0), picture(1))),)
    encoded = eyes.encode(replace(prompt, source=(turns, "")))
    # Two pictures side by side are one run, and the first of them speaks for it.
    assert [len(caption) > 0 for caption in captions(encoded, eyes)] == [True]
    first = captions._caption(picture(0))
    assert first[0] == 10 and captions(encoded, eyes) == [first]
    assert captions(eyes.encode(tiny_prompt(pictures=0)), eyes) == []


def test_without_the_pictures_it_says_so(captions: FlorenceCaptions) -> None:
    eyes = VLM(tiny_llava(), "tiny")
    with pytest.raises(ValueError, match="leave the caption view out"):
        captions(eyes.encode(tiny_prompt()), eyes)


class _Meeting:
    """A processor and a target that wait for each other: they meet only if both are at work at
    once.
    """

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.describing, self.prefilling = threading.Event(), threading.Event()
        self.met = False

    def __call__(self, **asked: Any) -> Any:
        self.describing.set()
        self.met = self.prefilling.wait(30)
        return self.processor(**asked)

    def batch_decode(self, *ids: Any, **how: Any) -> list[str]:
        return self.processor.batch_decode(*ids, **how)


def test_captions_are_made_while_the_target_prefills(captions: FlorenceCaptions) -> None:
    """In a race the plain model's prefill is its own: it neither waits for captions nor shares with
    them.
    """
    meeting = _Meeting(captions.processor)
    passes: list[bool] = []

    class Target(VLMTarget):
        def prefill(self, *asked: Any, **more: Any) -> Prefill:
            passes.append(
                meeting.describing.is_set() or len(passes) > 0 and meeting.describing.wait(30)
            )
            meeting.prefilling.set() if len(passes) > 1 else None
            return super().prefill(*asked, **more)

    model = tiny_llava()
    target = Target(VLM(model, "tiny"))
    models = Models(
        target,
        {"small": VLM(model, "small")},
        {"newline": (9,), "caption": (8, 7)},
        lambda length: FlorenceCaptions(captions.model, meeting, captions.words, length),
    )
    turns = (Turn("what is this?", (picture(0),)),)
    shared = SharedPrefill(
        ask(target, replace(tiny_prompt(), source=(turns, "")), max_new_tokens=12)
    )
    tabed = choose("tabed", {"views": "multimodal+caption", "caption_length": 6})
    lanes = [
        Lane(c.method.name, assemble(c, models), shared)
        for c in (choose("ar"), tabed, choose("chain"))
    ]
    records = list(race(lanes))
    assert meeting.met and passes == [False, True]
    told = {
        r.lane: next(s.words for s in r.seen if s.view == "caption")
        for r in records
        if isinstance(r, Begin) and r.lane == "tabed"
    }
    assert told["tabed"], "what the caption view saw is told"
    said = {
        lane.name: [
            t.id for r in records if isinstance(r, Round) and r.lane == lane.name for t in r.tokens
        ]
        for lane in lanes
    }
    assert said["tabed"] == said["ar"] == said["chain"]


def test_a_captioner_that_fails_says_so_where_its_captions_are_wanted(
    captions: FlorenceCaptions,
) -> None:
    def broken(**_: Any) -> Any:
        raise ValueError("no such picture")

    prompt = replace(tiny_prompt(), source=((Turn("what?", (picture(0),)),), ""))
    one = FlorenceCaptions(captions.model, broken, captions.words)
    one.ahead(prompt)
    eyes = VLM(tiny_llava(), "tiny")
    with pytest.raises(ValueError, match="no such picture"):
        one(eyes.encode(prompt), eyes)
