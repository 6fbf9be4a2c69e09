"""Our own products have the bits of FBGEMM's, with any rows and threads, and attention those of
plain steps; without a compiler or the processor, others are used.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specvl_demo import places
from specvl_demo.core.tree import chain, shape_of
from specvl_demo.decoders import build_kernels, exact, kernels, packed_linear
from specvl_demo.decoders.packed_linear import PackedLinear, PackedLinear8Bit
from tests.unit.test_packed_linear import numbers

ROWS = (1, 2, 8, 14, 15, 29)
SHAPES = [(576, 576), (96, 1536), (4096, 64)]

half_here = pytest.mark.skipif(
    kernels.half(torch.zeros(32, 16)) is None, reason="no compiler, or no AVX-512"
)
both_here = pytest.mark.skipif(
    kernels.eight_bits(torch.zeros(32, 16, dtype=torch.int8), torch.ones(32), None) is None
    or packed_linear.PACKING_8_BIT is None,
    reason="no compiler, or no 8-bit dot products",
)


@half_here
@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_half_precision_has_fbgemms_bits(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = numbers(*shape).half().float()
    own = PackedLinear(weight)
    monkeypatch.setattr(kernels, "half", lambda weight: None)
    other = PackedLinear(weight)
    assert isinstance(own._product, kernels.Matrix)
    assert not isinstance(other._product, kernels.Matrix)
    for rows in (3, *ROWS[2:]):
        x = numbers(rows, shape[1], seed=rows)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(own(x), other(x)), (rows, threads)


@both_here
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("most", [None, 4.0])
@torch.inference_mode()
def test_8_bits_have_fbgemms_bits(
    shape: tuple[int, int], most: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = PackedLinear8Bit(numbers(*shape), most)
    monkeypatch.setattr(kernels, "eight_bits", lambda *_: None)
    other = PackedLinear8Bit(numbers(*shape), most)
    assert own._own is not None and other._own is None
    for rows in ROWS:
        x = 3 * numbers(rows, shape[1], seed=rows)
        # Rows of a wider buffer, as the decoder's are.
        mine, told = (numbers(rows, shape[0] + 1, seed=1)[:, :-1] for _ in range(2))
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(own(x), other(x)), (rows, threads)
            own.onto(mine, x)
            other.onto(told, x)
            assert torch.equal(mine, told), (rows, threads)


@half_here
@torch.inference_mode()
def test_a_row_has_the_same_bits_alone_and_on_another_stride() -> None:
    one, x = kernels.half(numbers(64, 48).half().float()), numbers(40, 48, seed=1)
    assert one is not None
    whole = one(x)
    for at in range(0, 40, 7):
        assert torch.equal(one(x[at : at + 1]), whole[at : at + 1])
    apart = torch.zeros(40, 100)[:, 3:67]
    one.into(apart, x, add=True)
    one.into(apart, x.t().contiguous().t(), add=False)
    assert torch.equal(apart, whole)


@half_here
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(9, 3, 64), (4, 2, 16), (2, 2, 32)])
@pytest.mark.parametrize("before", [5, 126, 150])
@torch.inference_mode()
def test_attention_is_the_blocked_one(heads: int, kv_heads: int, width: int, before: int) -> None:
    """Over the whole cache of one of two layers, for chains and trees."""
    for shape in (chain(0), chain(12), shape_of((-1, 0, 0, 1, 2, 4, 4, 6))):
        cache = numbers(2, 2, 1, kv_heads, before + 40, width + 16)
        cache[..., width:] = 1
        queries = numbers(len(shape), heads, width, seed=1)
        order = exact.blocks(shape, len(shape), before, before + 40, heads // kv_heads)
        keys = cache[1, 0, 0, :, : order.mask.shape[1], :width].transpose(1, 2)
        values = [cache[1, 1, 0, :, a:b, : width + 1] for (a, b), _ in order.parts]
        told = exact.blocked_attention(queries.transpose(0, 1)[None], keys, values, order)
        own = kernels.attention(queries, cache, order.mask.shape[1], order.mask)
        assert own is not None and torch.allclose(own(1), told, atol=1e-5)


@half_here
@torch.inference_mode()
def test_a_path_in_a_tree_attends_as_plain_steps_do() -> None:
    """Bit for bit, though other nodes lie between its keys, and at any place in a vector."""
    before, path, width = 30, [0, 2, 4, 6, 7], 32
    shape = shape_of((-1, 0, 0, 1, 2, 4, 4, 6))
    tree = numbers(1, 2, 1, 2, 80, width + 16)
    stepped, queries = tree.clone(), numbers(len(shape), 4, width, seed=1)
    stepped[..., before : before + len(path), :] = tree[..., [before + at for at in path], :]
    order = exact.blocks(shape, len(shape), before, 80, 2)
    whole = kernels.attention(queries, tree, order.mask.shape[1], order.mask)
    assert whole is not None
    rows = whole(0)[path]
    for depth, node in enumerate(path):
        step = kernels.attention(queries[node : node + 1], stepped, before + depth + 1, None)
        assert step is not None and torch.equal(step(0)[0], rows[depth])


@half_here
@torch.inference_mode()
def test_a_mask_of_one_row_holds_for_all_rows() -> None:
    """As of padding before a prompt."""
    queries, cache, mask = numbers(3, 2, 16), numbers(1, 2, 1, 2, 20, 16), numbers(1, 20, seed=1)
    one = kernels.attention(queries, cache, 20, mask.expand(3, 20))
    each = kernels.attention(queries, cache, 20, mask.repeat(3, 1))
    assert one is not None and each is not None and torch.equal(one(0), each(0))


def test_other_sizes_are_left_to_fbgemm() -> None:
    assert kernels.half(torch.zeros(40, 16)) is None
    assert kernels.attention(torch.zeros(1, 2, 24), torch.zeros(1, 2, 1, 2, 9, 24), 5, None) is None
    assert kernels.eight_bits(torch.zeros(32, 24, dtype=torch.int8), torch.ones(32), None) is None


@pytest.fixture
def afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, of which the library is loaded anew; afterwards, as before."""
    monkeypatch.setenv(places.CACHE_VARIABLE, str(tmp_path / "cache"))
    kernels._loaded.cache_clear()
    yield tmp_path / "cache"
    kernels._loaded.cache_clear()


@half_here
def test_it_is_built_once_and_leaves_nothing_else(
    afresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels.half(torch.zeros(32, 16)) is not None
    built = build_kernels.library(afresh)
    assert set(afresh.iterdir()) == {built, build_kernels.mark(built)}
    kernels._loaded.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("was built again"))
    assert kernels.half(torch.zeros(32, 16)) is not None


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
        monkeypatch.setenv(kernels.VARIABLE, "off")
    else:
        monkeypatch.setattr(build_kernels.sys, "platform", "darwin")
    assert kernels.half(torch.zeros(32, 16)) is None
    assert not kernels.available()
    weight, x = numbers(6400, 48).half().float(), numbers(3, 48, seed=1)
    assert torch.allclose(PackedLinear(weight)(x), x @ weight.t(), atol=1e-4)


@half_here
@pytest.mark.parametrize("left", [0, 16, 35_000])
def test_a_part_of_a_library_is_built_again(afresh: Path, left: int) -> None:
    """Loading it would end the process."""
    built = build_kernels.build(afresh)
    built.write_bytes(built.read_bytes()[:left])
    assert kernels.half(torch.zeros(32, 16)) is not None


@half_here
def test_what_a_broken_compiler_built_is_told_and_built_again(
    afresh: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    empty = tmp_path / "empty.c"
    empty.write_text("")
    with monkeypatch.context() as broken:
        broken.setattr(build_kernels, "library", lambda folder: folder / "kernels.so")
        broken.setattr(build_kernels, "SOURCE", empty)
        assert kernels.half(torch.zeros(32, 16)) is None
        assert "slower" in caplog.text and not (afresh / "kernels.so").exists()
    kernels._loaded.cache_clear()
    assert kernels.half(torch.zeros(32, 16)) is not None


@half_here
def test_what_another_user_built_is_not_loaded(
    afresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_kernels.build(afresh)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(kernels, "_ROOT", 54321)
    assert kernels.half(torch.zeros(32, 16)) is None


@half_here
def test_an_image_without_a_compiler_can_take_it_from_one_that_has_it(tmp_path: Path) -> None:
    """The file that builds it needs nothing but the standard library and its neighbour."""
    for file in (Path(build_kernels.__file__), build_kernels.SOURCE):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    command = [sys.executable, "-I", "build_kernels.py", "made"]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert (tmp_path / "made" / build_kernels.library(tmp_path).name).is_file()
