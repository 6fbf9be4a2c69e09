"""Products with few rows: packed in half precision where it holds the numbers, else the
library's.
"""

from __future__ import annotations

import copy

import pytest
import torch

from specvl_demo.core.tree import chain, shape_of
from specvl_demo.core.types import Capture
from specvl_demo.decoders import kernels, packed_decoder, packed_linear, rotated
from specvl_demo.decoders.calibration import min_padded_rows, random_ids, started, text_context
from specvl_demo.decoders.packed_decoder import PackedDecoder
from specvl_demo.decoders.packed_linear import PackedLinear, in_half
from specvl_demo.decoders.sequence import prefill
from specvl_demo.vlm.encoder import VLM
from tests.conftest import tiny_llava, tiny_prompt

packs_8_bit = pytest.mark.skipif(not kernels.available(), reason="our own kernels do not run here")
packs = pytest.mark.skipif(
    packed_linear.PACKING is None, reason="this torch packs no half precision"
)
by_rows = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "AVX2",
    reason="torch's kernels for AVX2 add up a few rows in another order than more",
)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 150])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(8, 48), (2400, 48), (6400, 48)])
@pytest.mark.parametrize("private", [True, False])
@torch.inference_mode()
def test_every_way_gives_the_product(
    rows: int, bias: bool, shape: tuple[int, int], private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where this torch lacks the operators that pack: they are none of its public ones."""
    if not private:
        monkeypatch.setattr(packed_linear, "PACKING", None)
    weight, x = numbers(*shape).half().float(), numbers(rows, shape[1], seed=1)
    plus = numbers(shape[0], seed=2) if bias else None
    told = (x.double() @ weight.double().t()).float()
    one = PackedLinear(weight)
    want = told if plus is None else told + plus
    assert torch.allclose(one(x, None if plus is None else plus[None]), want, atol=1e-4)
    out = torch.full_like(told, torch.nan)
    one.into(out, x, plus)
    assert torch.allclose(out, want, atol=1e-4)
    out = torch.ones_like(told)
    one.onto(out, x)
    assert torch.allclose(out, 1 + told, atol=1e-4)


@packs
@by_rows
@torch.inference_mode()
def test_a_row_has_the_same_bits_however_many_there_are() -> None:
    one, x = PackedLinear(numbers(6400, 96).half().float()), numbers(64, 96, seed=1)
    whole = one(x)
    assert all(
        torch.equal(one(x[at : at + n]), whole[at : at + n])
        for n in (1, 2, 5, 8, 13)
        for at in (0, 7)
    )


def test_half_precision_must_hold_every_number() -> None:
    """All that float16 holds, bfloat16 by a power of two, and nothing that would be rounded."""
    held = in_half(numbers(50, 50).half().float())
    assert held is not None and held[1] == 1
    small = (numbers(50, 50) * 1e-5).bfloat16()
    shifted = in_half(small)
    assert (
        shifted is not None
        and shifted[1] < 1
        and torch.equal(shifted[0] * shifted[1], small.float())
    )
    for weight in (
        numbers(50, 50),
        torch.tensor([[1e30, 1e-30]]),
        torch.tensor([[torch.inf]]),
        torch.zeros(2, 2),
    ):
        assert in_half(weight) is None


@packs
@torch.inference_mode()
def test_only_a_drafters_numbers_are_rounded() -> None:
    weight, x = numbers(6400, 48), numbers(3, 48, seed=1)
    told = x @ weight.t()
    torch.testing.assert_close(PackedLinear(weight)(x), told, atol=1e-5, rtol=1e-5)
    for bits, error in ((16, 1e-3), (8, 2e-2)):
        rounded = PackedLinear(weight, bits)
        assert rounded.n_bytes in (bits // 8 * weight.numel(), 2 * weight.numel())
        assert 0 < (rounded(x) - told).std() < error * told.std()


@packs
@torch.inference_mode()
def test_bfloat16_is_nearer_to_the_truth_than_the_librarys() -> None:
    """Only weights are in bfloat16; and its steps are exact."""
    model = tiny_llava(kv_heads=2)
    half = copy.deepcopy(model).bfloat16()

    def logits(vlm: VLM) -> torch.Tensor:
        hidden = prefill(vlm.decoder, [vlm.encode(tiny_prompt()).context("all")], 0)[1]
        return vlm.decoder.logits(hidden)[0].float()

    truth, fused = logits(VLM(model, "truth", backend="hf")), VLM(half, "fused")
    assert isinstance(fused.decoder, PackedDecoder) and min_padded_rows(fused.decoder) in (1, 4)
    library = logits(VLM(half, "library", backend="hf"))
    assert (logits(fused) - truth).abs().mean() < (library - truth).abs().mean()


@packs
@by_rows
@torch.inference_mode()
def test_a_tree_sums_as_plain_steps_do_at_any_length() -> None:
    decoder = VLM(tiny_llava(kv_heads=2).bfloat16(), "fused").decoder
    ids, shape, path = (
        random_ids(decoder, 180),
        shape_of((-1, 0, 0, 1, 2, 4, 4, 6)),
        [0, 2, 4, 6, 7],
    )
    least = min_padded_rows(decoder)
    for before in (124, 126, 128):
        start = started(decoder, ids[:before])
        stepped, branched = start.fork(200), start.fork(200)
        tokens = ids[:8].clone()
        tokens[path] = ids[before : before + len(path)]
        for stream in (stepped, branched):
            stream.cache.clear()
        tree = branched.score(decoder.embed(tokens)[None], shape, least=least)[0]
        for node, token in zip(path, ids[before:], strict=False):
            row = stepped.score(decoder.embed(token[None])[None], chain(0), least=least)[0, 0]
            stepped.keep([0])
            assert torch.equal(row, tree[node]), (before, node)


def test_without_packing_bfloat16_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "PACKING", None)
    assert "half precision" in str(packed_decoder.why_not(tiny_llava().bfloat16().get_decoder()))


@packs_8_bit
@torch.inference_mode()
def test_8_bits_come_close_and_a_row_has_the_same_bits_however_many_there_are() -> None:
    weight, x = numbers(640, 96), numbers(64, 96, seed=1)
    one, told = PackedLinear(weight, 8, 8), x @ weight.t()
    whole = one(x)
    # Two roundings to about 1/127 of the largest number, of 96 summands each.
    assert (whole - told).std() < 0.02 * told.std()
    assert all(
        torch.equal(one(x[at : at + n]), whole[at : at + n])
        for n in (1, 2, 5, 8, 13)
        for at in (0, 7)
    )
    out = torch.ones_like(told)
    one.onto(out, x)
    assert torch.allclose(out, 1 + whole, atol=1e-5)
    assert torch.equal(one(torch.zeros(1, 96)), torch.zeros(1, 640))


@pytest.mark.parametrize("n", [7, 48, 64, 576])
def test_a_rotation_spreads_a_large_number_and_keeps_lengths(n: int) -> None:
    turn = rotated.Rotation.of(n)(torch.eye(n))
    assert torch.allclose(turn @ turn.t(), torch.eye(n), atol=1e-5)
    power = n & -n
    assert turn.abs().max() <= (2 * power / n if power < n else 1) ** 0.5 / power**0.5 + 1e-6


@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_before_rounding_a_rotated_decoder_is_the_same_model(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_llava(kv_heads=2)
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    if bias:
        for layer in decoder.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                part.bias = torch.nn.Parameter(numbers(len(part.weight)))
    plain = PackedDecoder(decoder, head)
    monkeypatch.setattr(rotated, "PackedLinear", lambda weight, *_, **__: Whole(weight))
    turned = rotated.RotatedDecoder(decoder, head)
    ids = random_ids(plain, 40)
    contexts = [[text_context(one, ids)] for one in (plain, turned)]
    capture = Capture(layers=(1,))
    _, a, kept = prefill(plain, contexts[0], 0, capture)
    _, b, mine = prefill(turned, contexts[1], 0, capture)
    assert torch.allclose(kept.layers[1], mine.layers[1], atol=1e-4)
    assert torch.allclose(plain.logits(a), turned.logits(b), atol=1e-3)


class Whole(PackedLinear):
    """A matrix as it is."""

    def packed(self, x: torch.Tensor) -> None:
        return None

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(weight)
        self.matrix = None
        self._table = weight.t().contiguous()


@packs_8_bit
@torch.inference_mode()
def test_rows_with_a_given_range_are_clipped_to_it() -> None:
    weight, x = numbers(640, 96), numbers(5, 96, seed=1)
    one, told = PackedLinear(weight, 8, 8, largest=4.0), x @ weight.t()
    assert (one(x) - told).std() < 0.03 * told.std()
    clipped = torch.full((1, 96), 9.0)
    assert torch.allclose(one(clipped), one(clipped.clamp(max=4.0)), atol=1e-5)
    out = torch.ones_like(told)
    one.onto(out, x)
    assert torch.allclose(out, 1 + one(x), atol=1e-5)


@packs_8_bit
@torch.inference_mode()
def test_a_decoder_in_8_bits_comes_close_and_proves_exact_steps() -> None:
    model = tiny_llava()
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    plain, turned = (
        PackedDecoder(decoder, head),
        rotated.RotatedDecoder(decoder, head),
    )
    assert min_padded_rows(turned) is not None
    ids = random_ids(plain, 40)
    a, b = (one.logits(prefill(one, [text_context(one, ids)], 0)[1]) for one in (plain, turned))
    assert (a - b).std() < 0.1 * a.std()
