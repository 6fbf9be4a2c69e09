"""Our own layers compute what torch's operations do, a row with the bits of a plain step; products
have the bits of FBGEMM's. Without a compiler or the processor, others are used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specvl_demo import places
from specvl_demo.core.tree import chain, shape_of
from specvl_demo.core.types import Capture
from specvl_demo.decoders import kernels
from specvl_demo.decoders.calibration import min_padded_rows, random_ids, started, text_context
from specvl_demo.decoders.forward import Captured, ForwardInput
from specvl_demo.decoders.layer_stack import LayerParts, stacked
from specvl_demo.decoders.packed_decoder import PackedDecoder
from specvl_demo.decoders.packed_linear import PackedLinear, log_softmax
from specvl_demo.decoders.rotated import RotatedDecoder
from specvl_demo.decoders.sequence import prefill
from specvl_demo.native import build_kernels
from tests.conftest import VOCAB, tiny_llava
from tests.unit.test_packed_linear import numbers

ROWS = (1, 2, 8, 14, 15, 29)
SHAPES = [(576, 576), (96, 1536), (4096, 64)]
TREE = shape_of((-1, 0, 0, 1, 2, 4, 4, 6))

half_here = pytest.mark.skipif(
    kernels.floats(torch.zeros(32, 16), None) is None,
    reason="our own kernels do not run here",
)
compiles = pytest.mark.skipif(build_kernels._compiler() is None, reason="no C compiler")
in_8_bits = pytest.mark.skipif(not kernels.available(), reason="our own kernels do not run here")


@half_here
@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_half_precision_has_fbgemms_bits(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = numbers(*shape).half().float()
    own = PackedLinear(weight)
    monkeypatch.setattr(kernels, "floats", lambda *_: None)
    other = PackedLinear(weight)
    assert own.matrix is not None and other.matrix is None
    for rows in (3, *ROWS[2:]):
        x = numbers(rows, shape[1], seed=rows)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            if own.n_bytes == 2 * own.numel:
                assert torch.equal(own(x), other(x)), (rows, threads)
            torch.testing.assert_close(own(x), other(x), atol=1e-4, rtol=1e-5)


@in_8_bits
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("most", [None, 4.0])
@torch.inference_mode()
def test_8_bits_are_those_of_rounded_numbers(shape: tuple[int, int], most: float | None) -> None:
    weight = numbers(*shape)
    own = kernels.eight_bits(weight, most)
    assert own is not None
    step = weight.abs().amax(1, keepdim=True) / 127
    rounded = (weight / step).round().double()
    for rows in ROWS:
        x = 3 * numbers(rows, shape[1], seed=rows)
        unit = (x.abs().amax(1, keepdim=True) if most is None else torch.tensor(most)) / 127
        whole = (x / unit).round().clamp(-128, 127).double()
        told = (whole @ rounded.t()).float() * unit * step.t()
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(own(x))
            # A number in the middle between two steps may be rounded to either.
            wrong = (found[-1] - told).abs()
            assert (wrong <= 1.01 * unit * weight.abs().amax(1)).all()
            assert (wrong > 1e-4 * told.std()).float().mean() < 0.2
        assert torch.equal(*found)


@in_8_bits
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("bits", "error"), [(16, 1e-3), (8, 6e-3)])
@torch.inference_mode()
def test_integers_come_close_whatever_the_rows_are(
    shape: tuple[int, int], bits: int, error: float
) -> None:
    weight = numbers(*shape)
    weight[3] *= 1e-10
    weight[5] = 0
    weight[7] = 1  # all its bits count
    own = kernels.integers(weight, bits)
    assert own is not None
    x = numbers(17, shape[1], seed=1)
    x[1], x[2], x[3, 1:], x[4] = 0, x[2] * 1e6, x[3, 1:] * 1e-6, 1
    told = (x.double() @ weight.double().t()).float()
    size = x.norm(dim=1, keepdim=True) * weight.norm(dim=1)
    assert ((own(x) - told).abs() <= error * size + 1e-30).all()


@in_8_bits
@torch.inference_mode()
def test_a_row_that_is_not_finite_stays_so() -> None:
    """Integers would turn it into an answer."""
    x = numbers(3, 48)
    x[0, 3], x[1, 17] = torch.nan, torch.inf
    weight = numbers(64, 48)
    for one in (
        kernels.integers(weight, 8),
        kernels.eight_bits(weight, None),
        kernels.eight_bits(weight, 4.0),
    ):
        assert one is not None
        finite = one(x).isfinite()
        assert not finite[:2].any() and finite[2].all()


@half_here
@torch.inference_mode()
def test_a_row_has_the_same_bits_alone() -> None:
    for one in (
        kernels.floats(numbers(64, 48).half().float(), 0.5),
        kernels.floats(numbers(64, 48), None),
        kernels.floats(numbers(45, 48), None),  # a vocabulary may have any size
        kernels.integers(numbers(64, 48), 8),
    ):
        x = numbers(40, 48, seed=1)
        assert one is not None
        whole = one(x)
        for at in range(0, 40, 7):
            assert torch.equal(one(x[at : at + 1]), whole[at : at + 1])


def decoders(width: int, kind: str) -> tuple[PackedDecoder, PackedDecoder]:
    """A random decoder with heads of a width, by our own layers and by torch's operations."""
    model = tiny_llava(kv_heads=2)
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    if width != 16:
        config = decoder.config
        config.head_dim = width
        decoder = type(decoder)(config).eval().requires_grad_(False)
        for weight in decoder.parameters():
            weight.copy_(numbers(*weight.shape) * 0.1 + (weight.ndim == 1))

    def made() -> PackedDecoder:
        if kind == "8bit":
            return RotatedDecoder(decoder, head)
        return PackedDecoder(decoder.bfloat16() if kind == "half" else decoder, head)

    own, by_torch = made(), made()
    assert own._stack is not None
    by_torch._stack = None
    return own, by_torch


KINDS = ["float", "half", pytest.param("8bit", marks=in_8_bits)]


@half_here
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
@torch.inference_mode()
def test_layers_are_those_of_torch(width: int, kind: str) -> None:
    """Prompts, chains and trees, of one sequence and of two with padding, and what is captured."""
    said = []
    for decoder in decoders(width, kind):
        found = []
        ids, padding = random_ids(decoder, 60), torch.zeros(2, 1, 1, 60)
        padding[1, ..., :4] = torch.finfo(torch.float32).min
        for batch in (1, 2):
            cache, at = decoder.new_cache(batch, 60), torch.arange(60)[None]
            for size, mask in (
                (40, None),
                (1, None),
                (3, chain(2).additive(41, torch.float32, decoder.device)),
                (len(TREE), TREE.additive(44, torch.float32, decoder.device)),
                (1, padding[:batch, ..., :53]),
            ):
                kept, end = Captured(Capture(layers=(1, 3))), cache.length + size
                rows = decoder.embed(ids[cache.length : end]).expand(batch, -1, -1)
                places = at[:, cache.length : end]
                call = ForwardInput(rows, places, cache, mask=mask, captured=kept)
                found += [decoder.forward(call), *kept.layers.values()]
                assert torch.equal(rows[0], decoder.embed(ids[end - size : end]))  # it is kept
        said.append([one.float() for one in found])
    for own, told in zip(*said, strict=True):
        assert own.shape == told.shape
        # Where rows are rounded to 8 bits, one step of one number changes all that follows.
        assert (own - told).std() < (0.05 if kind == "8bit" else 2e-3) * told.std()


@half_here
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
@torch.inference_mode()
def test_a_path_in_a_tree_has_the_bits_of_plain_steps(width: int, kind: str) -> None:
    own, _ = decoders(width, kind)
    assert min_padded_rows(own) == 1
    ids = random_ids(own, 60)
    path = [0, 2, 4, 6, 7]
    tree, plain = (started(own, ids[:40], 60) for _ in range(2))
    tokens = ids[40 : 40 + len(TREE)]
    hidden = tree.score(own.embed(tokens)[None], TREE, least=1)[0, path]
    for depth, token in enumerate(tokens[path]):
        step = plain.score(own.embed(token[None])[None], chain(0), least=1)
        plain.keep([0])
        assert torch.equal(step[0, 0], hidden[depth])


@in_8_bits
@torch.inference_mode()
def test_a_vocabulary_whose_head_has_no_8_bits_has_exact_steps_too() -> None:
    model = tiny_llava(kv_heads=2, vocab=VOCAB + 5)
    decoder = RotatedDecoder(model.get_decoder(), model.get_output_embeddings())
    assert decoder._stack is not None
    assert min_padded_rows(decoder) == 1


@half_here
@torch.inference_mode()
def test_what_is_captured_changes_no_bit() -> None:
    """Lanes whose drafters read the target's layers or attention continue as AR does."""
    own, by_torch = decoders(32, "float")
    every = Capture(layers=(0, 1, 3), attention=(0, 2), rows=(-1, -3, 5))
    ids = random_ids(own, 40)
    contexts = [[text_context(one, ids)] for one in (own, by_torch)]
    plain, hidden, _ = prefill(own, contexts[0], 0)
    stream, same, kept = prefill(own, contexts[0], 0, every)
    _, _, told = prefill(by_torch, contexts[1], 0, every)
    assert torch.equal(hidden, same)
    assert torch.equal(plain.cache.blocks[0], stream.cache.blocks[0])
    assert kept.attention.keys() == {0, 2} and kept.layers.keys() == {0, 1, 3}
    for layer, attention in kept.attention.items():
        torch.testing.assert_close(attention, told.attention[layer], atol=1e-4, rtol=1e-3)


@half_here
@torch.inference_mode()
def test_a_full_cache_is_refused_before_anything_is_written() -> None:
    own, _ = decoders(16, "float")
    cache, rows = own.new_cache(1, 4), own.embed(random_ids(own, 5))[None]
    with pytest.raises(ValueError, match="room for 4 rows"):
        own.forward(ForwardInput(rows, torch.arange(5)[None], cache))


@half_here
@torch.inference_mode()
def test_a_position_without_a_rotation_is_refused() -> None:
    """A library in C would read beyond the table."""
    own, _ = decoders(16, "float")
    cache, rows = own.new_cache(1, 4), own.embed(random_ids(own, 2))[None]
    for outside in (-1, len(own._cos_sin)):
        with pytest.raises(IndexError, match=f"below {len(own._cos_sin)}"):
            own.forward(ForwardInput(rows, torch.tensor([[0, outside]]), cache))


@pytest.mark.parametrize("size", [16, 37, 5])
@pytest.mark.parametrize("never", [[], [1, 3]])
def test_log_probabilities_are_those_of_torch(size: int, never: list[int]) -> None:
    logits, at = 9 * numbers(3, size), torch.tensor(never, dtype=torch.int64)
    told = logits.index_fill(-1, at, -torch.inf).log_softmax(-1)
    own = log_softmax(logits.clone(), at)
    torch.testing.assert_close(own, told, atol=1e-5, rtol=1e-5)


def test_other_sizes_are_left_to_torch() -> None:
    assert kernels.integers(torch.zeros(32, 24), 8) is None
    assert kernels.eight_bits(torch.zeros(32, 24), None) is None
    assert stacked([LayerParts(None, None, None, None)], 2, 2, 16, 1e-3) is None


SMALL = """
int multiply(void) { return 1; }
int run_layers(void) { return 1; }
int draft_chain(void) { return 1; }
void log_softmax(void) {}
"""
"""A library that is built in no time."""


@pytest.fixture
def afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, of which a small library is loaded anew; afterwards, as before."""
    source = tmp_path / "small.c"
    source.write_text(SMALL)
    monkeypatch.setattr(build_kernels, "SOURCE", source)
    monkeypatch.setenv(places.CACHE_VARIABLE, str(tmp_path / "cache"))
    kernels._loaded.cache_clear()
    yield tmp_path / "cache"
    kernels._loaded.cache_clear()


@half_here
@compiles
def test_it_is_built_once_and_leaves_nothing_else(
    afresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels.floats(torch.zeros(32, 16), None) is not None
    built = build_kernels.library(afresh, build_kernels.levels()[0])
    assert set(afresh.iterdir()) == {built, build_kernels.mark(built)}
    kernels._loaded.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("was built again"))
    assert kernels.floats(torch.zeros(32, 16), None) is not None


@pytest.mark.parametrize("fault", ["no compiler", "it fails", "no folder", "another system", "off"])
def test_without_it_products_are_fbgemms(
    fault: str, afresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "no compiler":
        monkeypatch.setattr(build_kernels, "COMPILERS", ("no-such-compiler",))
    elif fault == "it fails":
        monkeypatch.setattr(build_kernels, "FLAGS", ("--no-such-flag",))
    elif fault == "no folder":
        afresh.write_text("a file")
    elif fault == "off":
        monkeypatch.setenv(build_kernels.VARIABLE, "off")
    else:
        monkeypatch.setattr(build_kernels.sys, "platform", "win32")
    assert kernels.floats(torch.zeros(32, 16), None) is None
    assert not kernels.available()
    weight, x = numbers(6400, 48).half().float(), numbers(3, 48, seed=1)
    assert torch.allclose(PackedLinear(weight)(x), x @ weight.t(), atol=1e-4)


@half_here
@compiles
@pytest.mark.parametrize("left", [0, 16, 10_000])
def test_a_part_of_a_library_is_built_again(afresh: Path, left: int) -> None:
    """Loading it would end the process."""
    built = build_kernels.build(afresh)
    assert built.stat().st_size > left
    built.write_bytes(built.read_bytes()[:left])
    assert kernels.floats(torch.zeros(32, 16), None) is not None


@half_here
@compiles
def test_what_a_broken_compiler_built_is_told_and_built_again(
    afresh: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    empty = tmp_path / "empty.c"
    empty.write_text("")
    with monkeypatch.context() as broken:
        broken.setattr(build_kernels, "library", lambda folder, _: folder / "kernels.so")
        broken.setattr(build_kernels, "SOURCE", empty)
        assert kernels.floats(torch.zeros(32, 16), None) is None
        assert "slower" in caplog.text and not (afresh / "kernels.so").exists()
    kernels._loaded.cache_clear()
    assert kernels.floats(torch.zeros(32, 16), None) is not None


@half_here
@compiles
def test_what_another_user_built_is_not_loaded(
    afresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_kernels.build(afresh)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(kernels, "_ROOT", 54321)
    assert kernels.floats(torch.zeros(32, 16), None) is None


@half_here
@compiles
def test_an_image_without_a_compiler_can_take_it_from_one_that_has_it(tmp_path: Path) -> None:
    """The file that builds it needs nothing but the standard library and its neighbour."""
    script = Path(build_kernels.__file__)
    (tmp_path / script.name).write_bytes(script.read_bytes())
    (tmp_path / build_kernels.SOURCE.name).write_text(SMALL)
    (tmp_path / build_kernels._HEADER).write_text("")
    subprocess.run([sys.executable, "-I", script.name, "made"], check=True, cwd=tmp_path)
    built = list((tmp_path / "made").iterdir())
    names = [level.name for level in build_kernels.LEVELS if build_kernels._fits(level)]
    assert {file.suffix for file in built} == {".so", ".sha256"}
    assert all(any(name in file.name for file in built) for name in names)


@half_here
@compiles
def test_a_processor_gets_no_library_that_it_cannot_run(
    afresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of them may be shared by several machines, or come with an image."""
    best = build_kernels.build(afresh)
    processors = afresh / "cpuinfo"
    monkeypatch.setattr(build_kernels, "_PROCESSORS", processors)
    last = [level for level in build_kernels.LEVELS if build_kernels._fits(level)][-1]
    processors.write_text(f"flags : fpu {last.features}\n")
    assert build_kernels.levels() == [last]
    assert last.name in build_kernels.build(afresh).name
    processors.write_text("flags : fpu sse2\n")
    assert "AVX2" in str(build_kernels.why_not(afresh))
    with pytest.raises(OSError, match="AVX2"):
        build_kernels.build(afresh)
    monkeypatch.undo()
    assert best.exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang") is None, reason="there is no clang")
def test_clang_builds_it_without_threads_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_kernels, "COMPILERS", ("clang",))
    assert b"omp_get" not in build_kernels.build(tmp_path).read_bytes()


@half_here
@compiles
def test_an_old_compiler_builds_for_less_than_the_processor_has(
    afresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(build_kernels.VARIABLE, raising=False)
    *better, last = build_kernels.levels()
    unknown = [level._replace(options="--no-such-option") for level in better]
    monkeypatch.setattr(build_kernels, "LEVELS", (*unknown, last))
    assert last.name in build_kernels.build(afresh).name
