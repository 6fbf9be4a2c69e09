"""Captions by a tiny random Florence-2: one for every picture, in the target's words."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specvl_demo.drafters.florence import FlorenceCaptions
from specvl_demo.targets.prompts import Turn
from specvl_demo.targets.vlm import VLM
from tests.conftest import tiny_llava, tiny_prompt
from tests.families.zoo import _tokenizer, picture


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
        text_config=text, vision_config=vision, image_token_id=words.convert_tokens_to_ids("<image>")
    )
    model = hf.Florence2ForConditionalGeneration(config).eval()
    return FlorenceCaptions(model, processor, lambda text: [10, *range(11, 11 + len(text))], length=6)


def test_one_caption_a_picture_in_the_targets_words(captions: FlorenceCaptions) -> None:
    eyes = VLM(tiny_llava(), "tiny")
    prompt = tiny_prompt(pictures=2)
    turns = (Turn("what is this?", (picture(0), picture(1))),)
    encoded = eyes.encode(replace(prompt, source=(turns, "")))
    # Two pictures side by side are one run, and the first of them speaks for it.
    assert [len(caption) > 0 for caption in captions(encoded, eyes)] == [True]
    first = captions._caption(encoded, 0)
    assert first[0] == 10 and captions(encoded, eyes) == [first]
    assert captions(eyes.encode(tiny_prompt(pictures=0)), eyes) == []


def test_without_the_pictures_it_says_so(captions: FlorenceCaptions) -> None:
    eyes = VLM(tiny_llava(), "tiny")
    with pytest.raises(ValueError, match="leave the caption view out"):
        captions(eyes.encode(tiny_prompt()), eyes)
