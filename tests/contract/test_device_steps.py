"""Without a GPU: every step that a graph captures runs on the meta device, where the host can read
nothing, and attention gets what CUDA's kernels can read.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specvl_demo.core.tree import chain
from specvl_demo.core.types import Growth, Vocabulary
from specvl_demo.decoders import attention, flash_rows, lean
from specvl_demo.decoders.attention import (
    align_mask,
    attend,
    attend_grouped,
    kernels_accept,
    repeat_mask,
)
from specvl_demo.decoders.backend import Backend
from specvl_demo.decoders.batch_invariance import MAX_NODES
from specvl_demo.decoders.calibration import prefilled_sequence
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.graphs import StepShape
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.decoders.recurrent import RecurrentDecoder
from specvl_demo.methods.heads.checkpoints import FORMATS, Head
from specvl_demo.methods.heads.features import HeadPrompt
from specvl_demo.methods.heads.files import canonical_tensor_name
from specvl_demo.methods.mtp import MTPHead
from tests.contract.families.conftest import often
from tests.contract.families.test_vendor_drafters import layer_tensors
from tests.cuda import (
    GPU,
    FakeGraph,
    KernelsTakeAll,
    OnDeviceOnly,
    graphs_on_the_processor,
    with_graphs,
)
from tests.shared import zoo
from tests.shared.heads import DFLASH, GEOMETRY, random_tensors
from tests.shared.tiny import tiny_llava
from tests.unit.test_graphs import decode

cuda = pytest.fixture(graphs_on_the_processor)

SPAN = 300
SHAPES = [StepShape(1, (), 0), StepShape(8, (0, 2), 0), StepShape(8, (1,), MAX_NODES)]
"""A plain step, a tree that keeps layer states, and an exact one that does."""
TREE = StepShape(4, (), 0, (Growth(2, (2, (2, 5), 1), 6), Vocabulary(30, (5,))))
"""A step that drafts a tree of six fed nodes."""


def compute(backend: Backend, shape: StepShape) -> Any:
    """Run what a graph of this shape would capture."""
    cache = backend.runner.acquire(backend, 1, SPAN)
    step = backend.runner._new_step(backend, cache, shape)
    with torch.inference_mode(), OnDeviceOnly(), KernelsTakeAll():
        backend.runner._run_step(backend, step, cache)
    if shape.tree is not None:
        return [len(part) for part in step.made]
    hidden, layers = step.made
    assert hidden.device.type == "meta"
    assert set(layers) == {i for i in shape.layers if i < len(cache.layouts)}
    return hidden


def on_meta(model: torch.nn.Module) -> Any:
    return model.to(torch.bfloat16).to("meta")


def decoders_of(model: Any) -> list[Backend]:
    """The library's, and the lean one where it takes the model."""
    decoder, made = model.get_decoder(), [HFDecoder(model)]
    if lean.runs_lean(decoder):
        made.append(lean.LeanDecoder(decoder, model.get_output_embeddings()))
    return made


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("name", often(zoo.FAMILIES))
def test_steps_of_every_family_stay_on_the_device(name: str, flash: bool, monkeypatch):
    monkeypatch.setattr(flash_rows, "keeps_rows", lambda *_: flash)
    model = on_meta(zoo.FAMILIES[name].build()[0])
    for inner in decoders_of(model):
        for shape in SHAPES:
            hidden = compute(with_graphs(inner), shape)
            assert hidden.shape == (1, shape.rows, inner.width)
        assert inner.window or compute(inner, TREE) == [6] * 4 + [5] + [6] * 5


def test_logits_are_not_rounded_to_half_precision():
    """Rounded, the highest two are often equal, and an answer is AR's by chance only."""
    model = on_meta(tiny_llava())
    for decoder in (HFDecoder(model), lean.LeanDecoder(model.get_decoder(), model.lm_head)):
        hidden = torch.empty(1, 3, decoder.width, dtype=torch.bfloat16, device="meta")
        assert decoder.logits(hidden).dtype == torch.float32


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("qwen3-vl", "gemma3") else pytest.mark.slow)
        for name in zoo.FAMILIES
    ],
)
@pytest.mark.parametrize("place", ["cpu", GPU])
@torch.inference_mode()
def test_replays_of_every_family_say_what_its_steps_say(name: str, place: str, request: Any):
    """Nothing that differs from step to step is left to Python, which no replay runs again."""
    with torch.inference_mode(mode=False):
        model = zoo.FAMILIES[name].build()[0].eval()
        truth = decode(HFDecoder(model), 3)
        model.to(place)
    if place == "cpu":
        request.getfixturevalue("cuda")
    for inner in decoders_of(model):
        made = decode(with_graphs(inner), 3)
        torch.testing.assert_close(made, truth, atol=1e-3, rtol=1e-3, check_device=False)
        assert inner.runner.refused is None
    assert FakeGraph.captured or place != "cpu"


def head(kind: str, decoder: Any) -> Any:
    """A head of this kind on the meta device, where no draft vocabulary can be read."""
    there = {
        canonical_tensor_name(name): tensor.to("meta", torch.bfloat16)
        for name, tensor in random_tensors(kind).items()
        if name not in ("lm_head.weight", "d2t", "t2d")
    }
    own = {"method": kind}
    return FORMATS[kind].build(Head(kind, there, GEOMETRY, DFLASH, f"tiny {kind}", own), decoder)


@pytest.fixture(scope="module")
def deep() -> HFDecoder:
    return with_graphs(HFDecoder(on_meta(tiny_llava(layers=8))))


@pytest.mark.parametrize("kind", ["eagle2", "eagle3", "hivis", "dream", "dflash"])
def test_steps_of_every_head_stay_on_the_device(kind: str, deep: HFDecoder):
    made = head(kind, deep)
    assert made.fixed
    for rows in (1, 8):
        assert compute(made, StepShape(rows, (), 0)).shape == (1, rows, made.width)
    assert kind == "dflash" or compute(made, TREE) == [6] * 4 + [5] + [6] * 5


def test_a_dflash_block_is_drafted_without_waiting_for_the_device(deep: HFDecoder):
    made = head("dflash", deep)
    states = torch.empty(20, 3 * 64, dtype=torch.bfloat16, device="meta")
    root = torch.zeros(1, dtype=torch.int64, device="meta")
    with torch.inference_mode(), OnDeviceOnly(), KernelsTakeAll() as took:
        cache = made.new_cache(1, SPAN)
        made.append_rows(cache, states)
        assert made.draft(cache, root).shape == (3, 64)
    assert took.n == 2


def test_dream_reads_a_prompt_with_kernels_that_take_its_masks(deep: HFDecoder):
    """Some of the picture has no queries: of 41 rows, 30."""
    made = head("dream", deep)
    seen = torch.arange(11, 41, device="meta")
    x = torch.empty(30, 128, dtype=torch.bfloat16, device="meta")
    head_prompt = HeadPrompt(x, seen, x[-1:, :64], seen[-1:], seen, holes=11)
    hidden = torch.empty(41, 64, dtype=torch.bfloat16, device="meta")
    start = SimpleNamespace(prefill=SimpleNamespace(hidden=hidden), max_nodes=4, growth=None)
    with torch.inference_mode(), KernelsTakeAll() as took:
        sequence = made.prefill(start, head_prompt, 60)
        sequence.cache.at = None
        sequence.run_root(x[None, :1])
        sequence.extend(x[None, :3], [0, 0, 0])
    assert took.n >= 9


def test_the_layer_of_a_recurrent_target_drafts_on_the_device():
    """Qwen3.5's MTP layer, which is the library's."""
    model = zoo.RECURRENT["qwen3.5"]()[0]
    tensors = {
        k.removeprefix("mtp."): v.bfloat16().to("meta") for k, v in layer_tensors(model).items()
    }
    decoder = RecurrentDecoder(on_meta(model))
    config = model.config.get_text_config()
    geometry = replace(
        GEOMETRY,
        width=config.hidden_size,
        head_width=config.head_dim,
        kv_heads=config.num_key_value_heads,
    )
    made = MTPHead(Head("mtp", tensors, geometry, {}, "tiny mtp", {"method": "mtp"}), decoder)
    x = torch.empty(1, 3, geometry.width, dtype=torch.bfloat16, device="meta")
    at = torch.zeros(decoder.axes, 1, 3, dtype=torch.int64, device="meta")
    mask = chain(2).mask(5, x.dtype, x.device)
    cache = made.new_cache(1, SPAN)
    cache.length = 5
    with torch.inference_mode(), OnDeviceOnly(), KernelsTakeAll() as took:
        assert made.decode(ForwardInput(x, at, cache, mask=mask)).shape == x.shape
    assert took.n == 1
    assert compute(with_graphs(made), StepShape(2, (), 0)).shape == (1, 2, geometry.width)


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_trees_fed_level_by_level_have_masks_that_kernels_take(kv_heads: int):
    """Step by step too, where a mask is cut out of a larger one."""
    decoder = HFDecoder(on_meta(tiny_llava(kv_heads=kv_heads)))
    with torch.inference_mode(), KernelsTakeAll() as took:
        sequence = prefilled_sequence(decoder, torch.arange(21, device="meta"), 100)
        x = torch.empty(1, 1, 64, dtype=torch.bfloat16, device="meta")
        sequence.run_root(x)
        sequence.extend(x.expand(1, 2, 64), [0, 0])
        sequence.extend(x.expand(1, 3, 64), [1, 1, 2])
    assert took.n == 4 * decoder.n_layers


def bfloat16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def test_masks_that_begin_between_two_words_are_copied():
    """As DREAM's: its features begin one row after its queries. Strides do not show it."""
    queries, keys, mask = bfloat16(1, 4, 8, 16), bfloat16(1, 4, 64, 16), bfloat16(1, 1, 8, 65)
    wide = torch.zeros(1, 1, 8, 128, dtype=torch.bfloat16)
    wide[..., :65] = mask
    shifted = wide[..., 1:65]
    for bad in (shifted, mask[..., 1:], mask[..., :64].transpose(2, 3).contiguous().mT):
        assert not kernels_accept(queries, keys, keys, bad)
        good = align_mask(bad)
        assert kernels_accept(queries, keys, keys, good) and torch.equal(good, bad)
    assert align_mask(wide).data_ptr() == wide.data_ptr()
    for rows in (
        (queries, keys[..., 1:, :12], keys[..., :12]),
        (queries[..., 1:], keys, keys),
        (queries, keys.float(), keys),
    ):
        assert not kernels_accept(*rows, None)
    assert not kernels_accept(queries, keys[:, :2], keys[:, :2], wide[..., :64])
    assert not kernels_accept(queries, keys, keys, wide)


@pytest.mark.parametrize("rows", [1, 7])
def test_heads_packed_as_rows_attend_alike(rows: int):
    queries, keys, values = (
        bfloat16(2, heads, n, 16).float() for heads, n in ((6, rows), (2, 24), (2, 24))
    )
    mask = torch.randn(rows, 24)
    truth = attend(queries, keys, values, mask)
    made = (
        attend_grouped(queries, keys, values, repeat_mask(mask, 3))
        .transpose(1, 2)
        .reshape(truth.shape)
    )
    torch.testing.assert_close(made, truth, atol=1e-5, rtol=1e-5)
    with KernelsTakeAll() as took:
        there = [one.to("meta") for one in (queries, keys, values)]
        for given in (mask.to("meta"), None):
            assert attend(*there, given).shape == truth.shape
        assert attend(*there, None, True).shape == truth.shape
    assert took.n == 3


def test_heads_share_keys_only_where_a_kernel_reads_them_so(monkeypatch):
    """On older cards torch would write out the scores of a whole prompt, several times."""
    monkeypatch.setattr(attention, "shares_heads", lambda device: False)
    monkeypatch.setattr(attention, "fused", lambda queries, keys, *_: keys)
    queries, keys = (bfloat16(1, heads, 300, 16).to("meta") for heads in (6, 2))
    assert attend(queries, keys, keys, causal=True).shape == (300, 6 * 16)


def test_a_step_that_reads_a_number_is_found(deep: HFDecoder):
    """The modes of these tests, on what they are for."""
    here, there = torch.ones(3), torch.ones(3, device="meta")
    for reads in (
        lambda: there + here,
        lambda: there.copy_(here),
        lambda: there[torch.tensor([True, False, True])],
        lambda: bool(there.sum() > 1),
        lambda: there.nonzero(),
    ):
        with pytest.raises((RuntimeError, NotImplementedError)), OnDeviceOnly():
            reads()
