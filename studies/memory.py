"""Real sizes on this machine: memory as predicted and measured, and answers that must be equal.

    python -m studies.memory smolvlm [--dtype bfloat16] [--methods ar,chain,sage,tabed]

Uses random weights at the published sizes, through the library's own classes and processors, from
folders as for `--target` and `--drafter`: a race on a picture, then one on a clip. Reports this
process's peak memory and `availability.needs_bytes`, whether the answers are AR's, and the
library's warnings. The tokenizer is a small one; the vocabularies have their published sizes.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as library

from specvl_demo.decoders.timing import peak_bytes
from specvl_demo.media import load_any
from specvl_demo.pairs.machine import gb
from specvl_demo.records import Begin, Round
from specvl_demo.serving import availability, choosing, custom, loader, session
from specvl_demo.serving.availability import Options
from tests.contract.families import zoo

PICTURE, CLIP = "examples/coffee.jpg", "examples/clip.webm"
NEW_TOKENS = 8


def _layers(width: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def _text(width: int, inner: int, layers: int, heads: int, kv: int, vocab: int) -> dict[str, Any]:
    return _layers(width, inner, layers, heads) | {
        "num_key_value_heads": kv,
        "head_dim": width // heads,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "initializer_range": 0.02,
    }


_SIGLIP = _layers(768, 3072, 12, 12) | {"image_size": 512, "patch_size": 16}
_SO400M = _layers(1152, 4304, 26, 16) | {"image_size": 384, "patch_size": 14}
_QWEN2 = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "patch_size": 14}
_ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}

SIZES: Mapping[str, tuple[str, tuple[Mapping[str, Any], ...]]] = {
    "smolvlm": (
        "smolvlm",
        (
            {"text": _text(960, 2560, 32, 15, 5, 49280), "vision": _SIGLIP},
            {"text": _text(576, 1536, 30, 9, 3, 49280), "vision": _SIGLIP},
        ),
    ),
    "onevision": (
        "llava-onevision",
        (
            {"text": _text(896, 4864, 24, 14, 2, 152000), "vision": _SO400M},
            {"text": _text(448, 1216, 2, 7, 1, 152000), "vision": _SO400M},
        ),
    ),
    "qwen2-vl": (
        "qwen2-vl",
        (
            {"text": _text(1536, 8960, 28, 12, 2, 151936), "vision": _QWEN2},
            {"text": _text(512, 1536, 2, 4, 1, 151936), "vision": _QWEN2},
        ),
    ),
}
"""Family of `zoo`, then target and drafter. Where no drafter so small was published, it has two
layers of this project's own.
"""


def build(name: str, which: int, folder: str) -> None:
    """Save one model of a name in SIZES with its processor, in bfloat16 as they were published."""
    family, both = SIZES[name]
    small, processor = zoo.build(family)
    config, size = small.config, both[which]
    text, vision = config.get_text_config(), config.vision_config
    for one, changes in ((text, size["text"]), (vision, size["vision"])):
        for key, value in changes.items():
            setattr(one, key, value)
    if getattr(text, "layer_types", None):
        text.layer_types = ["full_attention"] * text.num_hidden_layers
    if name == "smolvlm":
        config.scale_factor = 4
        processor.image_seq_len = (vision.image_size // vision.patch_size // 4) ** 2
        processor.image_processor.size = {"longest_edge": 2048}
        for cuts in (processor.image_processor, processor.video_processor):
            cuts.max_image_size = {"longest_edge": 512}
        processor.video_processor.size = {"longest_edge": 512}
    elif name == "onevision":
        square = {"height": 384, "width": 384}
        grid = [[384 * r, 384 * c] for r in range(1, 7) for c in range(1, 7)]
        config.image_grid_pinpoints = processor.image_processor.image_grid_pinpoints = grid
        processor.image_processor.size = processor.video_processor.size = square
        processor.num_image_tokens = (384 // 14) ** 2
    else:
        vision.hidden_size = text.hidden_size
        text.rope_parameters = dict(_ROPE)
        pixels = {"shortest_edge": 4 * 28**2, "longest_edge": 1280 * 28**2}
        processor.image_processor.size = processor.video_processor.size = pixels
    config.tie_word_embeddings = text.tie_word_embeddings = name != "smolvlm"
    torch.manual_seed(which)
    model = type(small)._from_config(config, dtype=torch.bfloat16)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def cut(model: Any, n_layers: int) -> None:
    """Let a vision tower's later layers return their input.

    Their weights are still read, so that they are in memory as if they had computed. Layers reuse
    each other's memory, so the peak does not depend on their number unless the library keeps what
    they return.
    """
    text = model.get_decoder()
    inside = {id(one) for one in text.modules()}
    (tower,) = (
        one
        for one in model.modules()
        if isinstance(one, torch.nn.ModuleList) and len(one) > n_layers and id(one) not in inside
    )
    for layer in tower[n_layers:]:
        for weight in layer.parameters():
            weight.sum()
        layer.forward = lambda states, *_, **__: states


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("name", choices=SIZES)
    options.add_argument("--dtype", choices=availability.DTYPE_BYTES, default="bfloat16")
    options.add_argument("--methods", default="ar,chain,sage,tabed")
    options.add_argument(
        "--folder", help="folder of the weights, written if missing (default: a temporary one)"
    )
    options.add_argument(
        "--layers", type=int, help="compute only so many layers of a vision tower (default: all)"
    )
    asked = options.parse_args()
    say: Callable[[str], Any] = partial(print, flush=True)
    with tempfile.TemporaryDirectory() as once:
        folders = [f"{asked.folder or once}/{asked.name}-{which}" for which in range(2)]
        for which, folder in enumerate(folders):
            if not Path(folder, "config.json").is_file():
                words = (asked.name, which, folder)
                process = multiprocessing.get_context("spawn").Process(target=build, args=words)
                process.start()
                process.join()
        heard: list[str] = []
        listener = logging.StreamHandler(sys.stderr)
        listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
        library.get_logger().addHandler(listener)
        warnings.showwarning = lambda message, *_, **__: heard.append(str(message))
        pair = custom.custom_pair(*folders)
        loaded = loader.load(pair, options=Options(asked.dtype))
        if asked.layers is not None:
            for one in (loaded.models.target.vlm, *loaded.models.drafters.values()):
                cut(one.model, asked.layers)
        say(f"loaded: {gb(peak_bytes(torch.device('cpu')))}")
        for path in (PICTURE, CLIP):
            turns = [session.turn("What is this?", load_any([path], pair.n_frames))]
            request = session.request(loaded, turns, NEW_TOKENS)
            choices = [choosing.choose(pair, name) for name in asked.methods.split(",")]
            answers: dict[str, list[int]] = {}
            for record in session.race(loaded, request, choices):
                if isinstance(record, Begin):
                    answers[record.lane] = []
                    say(f"{record.lane}: {record.n_prompt} tokens, {record.exactness}")
                elif isinstance(record, Round):
                    answers[record.lane] += [token.id for token in record.tokens]
            first = next(iter(answers.values()))
            equal = all(answer == first for answer in answers.values())
            told = "equal" if equal else f"differ: {answers}"
            say(f"{path}: {len(first)} tokens, answers {told}")
            real = replace(pair, n_tokens=len(request.prompt) + NEW_TOKENS)
            needs = availability.needs_bytes(real, asked.dtype, n_lanes=len(choices))
            peak = peak_bytes(torch.device("cpu"))
            say(f"predicted {gb(needs)}, measured so far {gb(peak)}: {peak / needs:.2f}")
        say(f"warnings: {heard or 'none'}")


if __name__ == "__main__":
    main()
