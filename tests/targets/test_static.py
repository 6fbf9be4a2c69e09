"""Steps of fixed shapes give what ordinary steps give: rows padded, the whole cache under a mask."""

from __future__ import annotations

import random

import pytest
import torch

from specvl_demo.core.tree import TreeShape, shape_of
from specvl_demo.core.types import Context
from specvl_demo.targets.hf import HFDecoder
from specvl_demo.targets.shapes import random_model
from specvl_demo.targets.static import BUCKETS, StaticDecoder
from specvl_demo.targets.stream import Stream, prefill
from specvl_demo.targets.vlm import VLM
from tests.conftest import tiny_llava, tiny_prompt


def bushes(n: int, seed: int) -> list[TreeShape]:
    rng = random.Random(seed)
    sizes = [rng.choice((1, 2, 3, 5, 9, 17, 33)) for _ in range(n)]
    return [shape_of((-1, *(rng.randrange(i) for i in range(1, size)))) for size in sizes]


def decode(decoder: HFDecoder, start: Stream, rounds: int = 8) -> torch.Tensor:
    """Trees of many sizes, a path of each kept; drafting forwards in between."""
    stream, said = start.fork(256), []
    for number, shape in enumerate(bushes(rounds, 3)):
        tokens = torch.arange(len(shape)) + 5 * number
        said.append(decoder.logits(stream.score(decoder.embed(tokens)[None], shape))[0])
        path = shape.path(len(shape) - 1)
        stream.keep(path)
        hidden = stream.root(decoder.embed(torch.tensor([[3, 4, 5]])))
        said.append(decoder.logits(hidden)[0])
        stream.extend(decoder.embed(torch.tensor([[6, 7]])), [0, 0])
        said.append(decoder.logits(stream.extend(decoder.embed(torch.tensor([[8]])), [1]))[0])
        stream.keep([0, 1, 3])
    return torch.cat(said)


@pytest.mark.parametrize("decoder", ["qwen2", "llama"])
def test_fixed_shapes_change_nothing(decoder: str) -> None:
    model = tiny_llava(kv_heads=2, decoder=decoder)
    encoded = VLM(model, "tiny", backend="hf").encode(tiny_prompt())
    plain, static = HFDecoder(model), StaticDecoder(model)
    starts = [prefill(backend, [encoded.context("t")], 0)[0] for backend in (plain, static)]
    torch.testing.assert_close(decode(static, starts[1]), decode(plain, starts[0]), atol=1e-4, rtol=1e-4)


def test_fixed_shapes_serve_three_axes_and_windows() -> None:
    import transformers as hf

    model = random_model("tiny-qwen2.5", "float32", "cpu")
    text = model.config.get_text_config().to_dict() | {"layer_types": None, "sliding_window": 7}
    keep = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    keep += ("num_key_value_heads", "vocab_size", "sliding_window")
    config = hf.LlavaConfig(
        vision_config=tiny_llava().config.vision_config,
        text_config=hf.MistralConfig(**{name: text[name] for name in keep}),
        image_token_id=3,
    )
    for one in (model, hf.LlavaForConditionalGeneration(config).eval()):
        plain, static = HFDecoder(one), StaticDecoder(one)
        x = plain.embed(torch.arange(20))[None]
        starts = []
        for backend in (plain, static):
            at = torch.arange(20)
            context = Context(
                "t",
                at,
                torch.zeros(20, dtype=torch.bool),
                x[0],
                at if backend.axes == 1 else at.expand(3, -1),
                20,
                at,
            )
            starts.append(prefill(backend, [context], 0)[0])
        torch.testing.assert_close(decode(static, starts[1]), decode(plain, starts[0]), atol=1e-4, rtol=1e-4)


def test_a_row_count_has_its_buffers_once() -> None:
    model = tiny_llava(kv_heads=2)
    static = StaticDecoder(model)
    encoded = VLM(model, "tiny", backend="hf").encode(tiny_prompt())
    stream = prefill(static, [encoded.context("t")], 0)[0].fork(200)
    for shape in bushes(12, 1):
        stream.score(static.embed(torch.arange(len(shape)))[None], shape)
        stream.keep([0])
    assert set(stream.cache.steps) <= set(BUCKETS)
    before = {size: step.x.data_ptr() for size, step in stream.cache.steps.items()}
    for shape in bushes(12, 1):
        stream.score(static.embed(torch.arange(len(shape)))[None], shape)
    assert {size: step.x.data_ptr() for size, step in stream.cache.steps.items()} == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_give_what_ordinary_steps_give() -> None:
    model = tiny_llava(kv_heads=2).cuda()
    encoded = VLM(model, "tiny", backend="hf").encode(tiny_prompt())
    with torch.device("cuda"):
        plain, static = HFDecoder(model), StaticDecoder(model)
        starts = [prefill(backend, [encoded.context("t")], 0)[0] for backend in (plain, static)]
        got, wanted = decode(static, starts[1]), decode(plain, starts[0])
    torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-3)
