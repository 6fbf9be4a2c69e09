"""The lean decoder computes what the library's does, in few operations, over the same weights."""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from specvl_demo.core.tree import chain, shape_of
from specvl_demo.core.types import AuxRequest
from specvl_demo.decoders import flash_rows, grouped_attention, lean
from specvl_demo.decoders.attention import attend, fused
from specvl_demo.decoders.backend import Backend
from specvl_demo.decoders.batch_invariance import attention_order
from specvl_demo.decoders.calibration import prefilled_sequence, text_context
from specvl_demo.decoders.forward import AuxStates, ForwardInput
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.decoders.lean import LeanDecoder
from specvl_demo.decoders.sequence import prefill
from specvl_demo.vlm import towers
from specvl_demo.vlm.encoder import VLM
from tests.contract.families.conftest import load, often, prompt_of
from tests.cuda import (
    GPU,
    FakeCuda,
    FakeGraph,
    KernelsTakeAll,
    Launches,
    OnDeviceOnly,
    attend_rows,
    graphs_on_the_processor,
    with_graphs,
)
from tests.shared import zoo
from tests.shared.refusals import refuses

cuda = pytest.fixture(graphs_on_the_processor)

TAKEN = [
    "llava",
    "llava-qwen2",
    "llava-next",
    "llava-onevision",
    "qwen2-vl",
    "qwen2.5-vl",
    "qwen3-vl",
    "idefics3",
    "smolvlm",
    "mistral3",
    "internvl",
]
MAX_OPERATIONS = 14
"""Of a layer without norms of its queries and keys, which add three."""


def lean_of(model: Any) -> LeanDecoder:
    return LeanDecoder(model.get_decoder(), model.get_output_embeddings())


def answers(decoder: Backend) -> list[torch.Tensor]:
    """Hidden states, logits, aux states of a prefill of two views, of trees and an exact step."""
    rng, ids = random.Random(1), torch.arange(40) + 5
    context = text_context(decoder, ids)
    if decoder.axes == 3:
        at = torch.arange(len(ids))
        context = replace(context, positions=torch.stack((at, at // 2, at % 7)))
    aux_request = AuxRequest(layers=(0, 2, 3), attention=(1,))
    sequence, hidden, kept = prefill(decoder, [context], 200, aux_request)
    made = [hidden, *(kept.layers[i] for i in (0, 2, 3)), kept.attention[1]]
    for size in (1, 7, 40, 3):
        shape = shape_of((-1, *(rng.randrange(i) for i in range(1, size))))
        kept = AuxStates(AuxRequest(layers=(1, 3), attention=(2,)))
        hidden = sequence.score(decoder.embed(torch.arange(size) + 9)[None], shape, kept)
        made += [hidden, decoder.logits(hidden), kept.layers[1], kept.layers[3], kept.attention[2]]
        sequence.commit_nodes(shape.path(size - 1))
    exact = sequence.fork(300)
    exact.cache.zero_unused()
    made.append(exact.score(decoder.embed(ids[:5])[None], chain(4), min_rows=8)[:, :5])
    several, hidden, _ = prefill(decoder, [context, text_context(decoder, ids[:9])], 60)
    tree = several.score(decoder.embed(ids[:4]).expand(2, -1, -1), shape_of((-1, 0, 0, 1)))
    return [*made, hidden[0], hidden[1, -9:], tree]


@pytest.mark.parametrize("family", often(zoo.FAMILIES))
@torch.inference_mode()
def test_a_lean_decoder_computes_what_the_library_does(family: str):
    (model, _), (twin, _) = zoo.build(family), zoo.build(family)
    assert lean.runs_lean(model.get_decoder()) == (family in TAKEN)
    if family not in TAKEN:
        refuses("cannot run lean", lean_of, model)
        return
    mine, library = answers(lean_of(model)), answers(HFDecoder(twin))
    torch.testing.assert_close(mine, library, atol=1e-4, rtol=1e-4)
    for name, weight in twin.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_differs_by_rounding_only(dtype: torch.dtype):
    truth = answers(HFDecoder(zoo.build("qwen3-vl")[0]))
    models = [zoo.build("qwen3-vl")[0].to(dtype) for _ in range(2)]
    mine, library = answers(lean_of(models[0])), answers(HFDecoder(models[1]))
    for one, other, exact in zip(mine, library, truth, strict=True):
        far = (other.float() - exact).abs().mean()
        assert (one.float() - exact).abs().mean() <= 1.5 * far + 1e-3


def test_no_weight_is_stored_twice():
    model, _ = zoo.build("llava-qwen2")
    layer, other = model.get_decoder().layers[0], model.get_decoder().layers[1]
    other.mlp.up_proj.weight = layer.mlp.up_proj.weight  # as drafters share what their target has
    before = layer.mlp.up_proj.weight.clone()
    first = lean_of(model)._layers[0]
    attn = layer.self_attn
    for one in (attn.k_proj, attn.v_proj):
        for mine, whole in ((one.weight, first.qkv._table), (one.bias, first.bias)):
            assert mine.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert other.mlp.up_proj.weight is layer.mlp.up_proj.weight
    assert torch.equal(layer.mlp.up_proj.weight, before)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("family", often(TAKEN))
def test_a_lean_layer_is_few_operations(family: str, exact: bool, monkeypatch):
    """Exact steps add the tail, its attention, and four that join both."""
    monkeypatch.setattr(flash_rows, "keeps_rows", lambda *_: True)
    model, _ = zoo.build(family)
    decoder = lean_of(model.to(torch.bfloat16).to("meta"))
    every, counts = decoder._layers, []
    for layers in (2, 3):
        decoder._layers, decoder.n_layers = every[:layers], layers
        cache = decoder.new_cache(1, 128)
        cache.advance(100)
        axes = (3,) if decoder.axes == 3 else ()
        call = ForwardInput(
            torch.empty(1, 8, decoder.width, dtype=decoder.dtype, device="meta"),
            torch.empty(*axes, 1, 8, dtype=torch.int64, device="meta"),
            cache,
            mask=torch.empty(1, 1, 8, 108 + 64 * exact, dtype=decoder.dtype, device="meta"),
            columns=torch.empty(8, 64, dtype=torch.int64, device="meta") if exact else None,
        )
        with torch.inference_mode(), OnDeviceOnly(), Launches() as counted:
            decoder.decode(call)
        counts.append(counted.n)
    norms = 3 if every[0].head_norm is not None else 0
    assert counts[1] - counts[0] <= MAX_OPERATIONS + norms + 6 * exact


def attended(way: grouped_attention.Way, *call: torch.Tensor) -> torch.Tensor:
    """What a layer attends to if this way was found to be the fastest."""
    queries, keys, values, mask = call
    attention = grouped_attention.FastestAttention()
    attention._chosen[1, queries.shape[2], 512] = way
    return attention.prepare(queries, [keys], [values], mask, steady=True)(0)


@pytest.mark.parametrize("size", [1, 5])
@torch.inference_mode()
def test_every_way_attends_alike(size: int):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(1, 6, size, 16, generator=generator)
    keys, values = torch.randn(2, 1, 2, 512, 16, generator=generator)
    seen = torch.rand(size, 512, generator=generator) < 0.4
    seen[:, 300:] = False
    mask = torch.zeros(size, 512).masked_fill_(~seen, torch.finfo(torch.float32).min)
    told = attend(queries, keys, values, mask)
    ways = grouped_attention.attention_ways(1, 512)
    assert len(ways) > 3 and len(grouped_attention.attention_ways(2, 512)) == 2

    def as_on_cuda(*call: torch.Tensor) -> torch.Tensor:
        """Kernels there write row by row, not head by head."""
        return ways[0](*call).transpose(1, 2).contiguous().transpose(1, 2)

    for way in (*ways, as_on_cuda):
        made = attended(way, queries, keys, values, mask)
        torch.testing.assert_close(made, told, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 5])
def test_every_way_of_attention_runs_on_the_device(size: int):
    """Also the operators that only a GPU has."""

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    call = empty(1, 6, size, 16), *empty(2, 1, 2, 512, 16), empty(1, 1, size, 512)
    for way in grouped_attention.attention_ways(1, 512):
        with torch.inference_mode(), OnDeviceOnly(), KernelsTakeAll():
            made = attended(way, *call)
        assert made.shape == (size, 6 * 16) and made.dtype == torch.bfloat16


def test_the_fastest_way_that_is_right_is_chosen(monkeypatch):
    def way(seconds: float, change: float, *call: torch.Tensor) -> torch.Tensor:
        if seconds < 1:
            raise RuntimeError("not on this device")
        return fused(*call) + change

    ways = [partial(way, *of) for of in ((4.0, 0.0), (3.0, 0.001), (2.0, 1.0), (0.5, 0.0))]
    rows = torch.ones(1, 2, 3, 16)
    calls, taken = [(rows, rows, rows, torch.zeros(1, 1, 3, 3))] * 2, []
    slow = dict(zip(ways, (4.0, 3.0, 2.0, 0.5)))

    def seconds(run: Any, _: torch.device) -> float:
        run()
        taken.append(run.args[0])
        return slow[run.args[0]]

    monkeypatch.setattr(grouped_attention, "_replay_seconds", seconds)
    assert grouped_attention.fastest(ways, calls) is ways[1]
    assert taken == ways[:2]


@torch.inference_mode()
def test_ways_of_attention_are_timed_as_they_are_replayed(cuda: FakeCuda):
    """A host that queues their launches slowly would choose by its own speed."""
    rows, calls = torch.ones(1, 2, 3, 16), [0, 0]

    def counted(which: int, *call: torch.Tensor) -> torch.Tensor:
        calls[which] += 1
        return fused(*call)

    layers = [(rows, rows, rows, torch.zeros(1, 1, 3, 3))] * 16
    grouped_attention.fastest([partial(counted, 0), partial(counted, 1)], layers)
    # The truth; then for each a trial, a run before its capture, and the capture.
    assert calls == [1 + 1 + 2 * 16, 1 + 2 * 16] and FakeGraph.captured == 2


@pytest.mark.parametrize("family", often(["qwen2-vl", "qwen2.5-vl", "qwen3-vl", "glm4v"]))
def test_a_tower_sees_the_same_in_all_windows_at_once(family: str, monkeypatch):
    calls, attention = [], torch.nn.functional.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(args[0].shape)
        return attention(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    models, made = [zoo.build(family)[0] for _ in range(2)], []
    mine = VLM(models[0], family)
    monkeypatch.setattr(towers, "make_lean", lambda model: None)
    for vlm in (mine, VLM(models[1], family)):
        calls.clear()
        made.append((vlm.encode(prompt_of(load(family), "clip")), len(calls)))
    (one, few), (other, many) = made
    assert few < many and not any(isinstance(p, torch.nn.Conv3d) for p in models[0].modules())
    torch.testing.assert_close(one.embeds, other.embeds, atol=1e-5, rtol=1e-5)
    assert models[0].state_dict().keys() == models[1].state_dict().keys()


def exact_call(heads: int, kv_heads: int, width: int, place: str = "cpu") -> tuple[Any, ...]:
    """What a chain of five after 100 tokens attends with, without numbers."""
    device = torch.device(place)
    mask, _, columns = attention_order(chain(4), 5, 100, 512, None, device)
    shapes = (1, heads, 5, width), (2, 1, kv_heads, 512, width)
    empty = (torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in shapes)
    return *empty, mask, columns, width**-0.5


def test_the_flash_kernel_is_used_only_where_rows_keep_their_bits(monkeypatch):
    call = exact_call(4, 2, 16)
    assert not flash_rows.keeps_rows(*call)  # it is a GPU's
    monkeypatch.setattr(flash_rows, "attend_rows", attend_rows)
    assert flash_rows.keeps_rows(*call)
    for change in (lambda made: made + 0.001 * len(made), lambda made: 1.1 * made):

        def other(*given: Any, change: Any = change) -> tuple[torch.Tensor, torch.Tensor]:
            made, sums = attend_rows(*given)
            return change(made), sums

        monkeypatch.setattr(flash_rows, "attend_rows", other)
        assert not flash_rows.keeps_rows(*call)


@pytest.mark.parametrize("place", [GPU])
@pytest.mark.parametrize("heads", [28, 4])
def test_the_flash_kernel_keeps_rows_on_a_gpu(heads: int, place: str):
    assert flash_rows.keeps_rows(*exact_call(heads, 4, 128, place))


@pytest.mark.parametrize("n_before", [40, 100])
@pytest.mark.parametrize("flash", [False, True])
@torch.inference_mode()
def test_exact_replays_say_what_the_library_says(
    flash: bool, n_before: int, cuda: FakeCuda, monkeypatch
):
    monkeypatch.setattr(flash_rows, "attend_rows", attend_rows)
    monkeypatch.setattr(flash_rows, "keeps_rows", lambda *_: flash)
    with torch.inference_mode(mode=False):
        models = [zoo.build("qwen2.5-vl")[0] for _ in range(2)]
    made = []
    for decoder in (with_graphs(lean_of(models[0])), HFDecoder(models[1])):
        sequence = prefilled_sequence(decoder, torch.arange(n_before) + 5, 200).fork(200)
        sequence.cache.zero_unused()
        for number in range(4):
            shape = shape_of((-1, 0, 0, 1, 1, 2)[: 1 + number])
            x = decoder.embed(torch.arange(len(shape)) + number)[None]
            hidden = sequence.score(x, shape, min_rows=4)[:, : len(shape)]
            made.append(decoder.logits(hidden))
            sequence.commit_nodes(shape.path(number))
    assert FakeGraph.captured
    torch.testing.assert_close(made[:4], made[4:], atol=1e-4, rtol=1e-4)
