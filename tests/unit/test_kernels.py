"""Our own layers compute what torch's operations do, a row with the bits of a plain step; products
have the bits of FBGEMM's. Without a compiler or the processor others are used: packed in half
precision where it holds the numbers, else the library's.
"""

import copy
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specvl_demo import places
from specvl_demo.core.tree import chain, shape_of
from specvl_demo.core.types import NO_AUX, AuxRequest
from specvl_demo.decoders import kernels, packed_decoder, packed_linear
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.calibration import (
    min_invariant_rows,
    prefilled_sequence,
    sample_ids,
    text_context,
)
from specvl_demo.decoders.forward import AuxStates, ForwardInput
from specvl_demo.decoders.layer_stack import LayerWeights, takes_layers
from specvl_demo.decoders.lean import LeanDecoder
from specvl_demo.decoders.packed_decoder import PackedDecoder, RotatedDecoder
from specvl_demo.decoders.packed_linear import PackedLinear, log_softmax, to_half
from specvl_demo.decoders.sequence import PrefilledSequence, prefill
from specvl_demo.native import build_kernels
from specvl_demo.native.build_kernels import LEVELS, SOURCE, CpuLevel
from specvl_demo.vlm.encoder import VLM
from tests.shared.refusals import refuses
from tests.shared.tiny import tiny_llava

SHAPES = [(576, 576), (96, 1536), (4096, 64)]
TREE = shape_of((-1, 0, 0, 1, 2, 4, 4, 6))

compiles = pytest.mark.skipif(build_kernels._compiler() is None, reason="no C compiler")
run_here = pytest.mark.skipif(not kernels.available(), reason="our kernels do not run here")


@run_here
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("bits", "error"), [(16, 1e-3), (8, 6e-3)])
@torch.inference_mode()
def test_integers_come_close_whatever_the_rows_are(shape: tuple[int, int], bits: int, error: float):
    weight = numbers(*shape)
    weight[3] *= 1e-10
    weight[5] = 0
    weight[7] = 1  # all its bits count
    own = kernels.pack_integers(weight, bits)
    assert own is not None
    x = numbers(17, shape[1], seed=1)
    x[1], x[2], x[3, 1:], x[4] = 0, x[2] * 1e6, x[3, 1:] * 1e-6, 1
    expected = (x.double() @ weight.double().t()).float()
    size = x.norm(dim=1, keepdim=True) * weight.norm(dim=1)
    assert ((own(x) - expected).abs() <= error * size + 1e-30).all()


@run_here
@torch.inference_mode()
def test_a_row_that_is_not_finite_stays_so():
    """Integers would turn it into an answer."""
    x = numbers(3, 48)
    x[0, 3], x[1, 17] = torch.nan, torch.inf
    weight = numbers(64, 48)
    for one in (
        kernels.pack_integers(weight, 8),
        kernels.pack_8_bits(weight, None),
        kernels.pack_8_bits(weight, 4.0),
    ):
        assert one is not None
        finite = one(x).isfinite()
        assert not finite[:2].any() and finite[2].all()


@run_here
@torch.inference_mode()
def test_a_row_has_the_same_bits_alone():
    for one in (
        kernels.pack_floats(numbers(64, 48).half().float(), 0.5),
        kernels.pack_floats(numbers(64, 48), None),
        kernels.pack_floats(numbers(45, 48), None),  # a vocabulary may have any size
        kernels.pack_integers(numbers(64, 48), 8),
    ):
        x = numbers(40, 48, seed=1)
        assert one is not None
        whole = one(x)
        for at in range(0, 40, 7):
            assert torch.equal(one(x[at : at + 1]), whole[at : at + 1])


def decoders(width: int, kind: str) -> tuple[PackedDecoder, LeanDecoder]:
    """A random decoder with heads of a width, by our own layers and by torch's operations."""
    model = tiny_llava(kv_heads=2)
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    if width != 16:
        config = decoder.config
        config.head_dim = width
        decoder = type(decoder)(config).eval().requires_grad_(False)
        for weight in decoder.parameters():
            weight.copy_(numbers(*weight.shape) * 0.1 + (weight.ndim == 1))
    if kind == "half":
        decoder.bfloat16()
    by_torch = LeanDecoder(copy.deepcopy(decoder).float(), copy.deepcopy(head).float())
    return (RotatedDecoder if kind == "8bit" else PackedDecoder)(decoder, head), by_torch


KINDS = ["float", "half", "8bit"]


@run_here
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [16, 128])
@torch.inference_mode()
def test_our_layers_give_the_states_that_torch_gives(width: int, kind: str):
    """Prompts, chains and trees, of one sequence and of two with padding, and aux states."""
    said = []
    for decoder in decoders(width, kind):
        found = []
        ids, padding = sample_ids(decoder, 60), torch.zeros(2, 1, 1, 60)
        padding[1, ..., :4] = torch.finfo(torch.float32).min
        for batch in (1, 2):
            cache, at = decoder.new_cache(batch, 60), torch.arange(60)[None]
            for size, mask in (
                (40, None),
                (1, None),
                (3, chain(2).mask(41, torch.float32, decoder.device)),
                (len(TREE), TREE.mask(44, torch.float32, decoder.device)),
                (1, padding[:batch, ..., :53]),
            ):
                kept, end = AuxStates(AuxRequest(layers=(1, 3))), cache.length + size
                rows = decoder.embed(ids[cache.length : end]).expand(batch, -1, -1)
                places = at[:, cache.length : end]
                call = ForwardInput(rows, places, cache, mask=mask, aux=kept)
                found += [decoder.forward(call), *kept.layers.values()]
                assert torch.equal(rows[0], decoder.embed(ids[end - size : end]))  # it is kept
        said.append([one.float() for one in found])
    for own, told in zip(*said, strict=True):
        assert own.shape == told.shape
        assert (own - told).std() < (0.1 if kind == "8bit" else 2e-3) * told.std()


def check_path(decoder: LanguageBackend, n_before: int, least: int) -> None:
    """A path in a tree has the bits of plain steps after so many tokens; least: rows of a step."""
    ids, path = sample_ids(decoder, n_before + len(TREE)), [0, 2, 4, 6, 7]
    start = prefilled_sequence(decoder, ids[:n_before])
    stepped, branched = start.fork(200), start.fork(200)
    for sequence in (stepped, branched):
        sequence.cache.zero_unused()
    tokens = ids[n_before:]
    torch.set_num_threads(3)  # bits do not depend on their number
    tree = branched.score(decoder.embed(tokens)[None], TREE, min_rows=least)[0, path]
    torch.set_num_threads(1)
    for depth, token in enumerate(tokens[path]):
        step = stepped.score(decoder.embed(token[None])[None], chain(0), min_rows=least)
        stepped.commit_nodes([0])
        assert torch.equal(step[0, 0], tree[depth]), (n_before, depth)


@run_here
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [16, 128])
@torch.inference_mode()
def test_a_path_in_a_tree_has_the_bits_of_plain_steps(width: int, kind: str):
    own, _ = decoders(width, kind)
    assert min_invariant_rows(own) == 1
    check_path(own, 40, 1)


def prefilled(decoder: LanguageBackend, aux_request: AuxRequest = NO_AUX) -> PrefilledSequence:
    return prefill(decoder, [text_context(decoder, sample_ids(decoder, 40))], 0, aux_request)


@run_here
@torch.inference_mode()
def test_what_is_captured_changes_no_bit():
    """Lanes whose drafters read the target's layers or attention continue as AR does."""
    own, by_torch = decoders(32, "float")
    every = AuxRequest(layers=(0, 1, 3), attention=(0, 2), rows=(-1, -3, 5))
    plain, hidden, _ = prefilled(own)
    sequence, same, kept = prefilled(own, every)
    _, _, told = prefilled(by_torch, every)
    assert torch.equal(hidden, same)
    assert torch.equal(plain.cache.blocks[0], sequence.cache.blocks[0])
    assert kept.attention.keys() == {0, 2} and kept.layers.keys() == {0, 1, 3}
    for layer, attention in kept.attention.items():
        torch.testing.assert_close(attention, told.attention[layer], atol=1e-4, rtol=1e-3)


@run_here
@torch.inference_mode()
def test_a_full_cache_and_a_position_without_a_rotation_are_refused():
    """A library in C would write beyond the one, and read beyond the other's table."""
    own, _ = decoders(16, "float")
    cache, rows = own.new_cache(1, 4), own.embed(sample_ids(own, 5))[None]
    refuses("room for 4 rows", own.forward, ForwardInput(rows, torch.arange(5)[None], cache))
    for outside in (-1, len(own._cos_sin)):
        with pytest.raises(IndexError, match=f"below {len(own._cos_sin)}"):
            own.forward(ForwardInput(rows[:, :2], torch.tensor([[0, outside]]), cache))


@pytest.mark.parametrize("size", [16, 37, 5])
@pytest.mark.parametrize("never", [[], [1, 3]])
def test_our_log_probabilities_equal_those_of_torch(size: int, never: list[int]):
    logits, at = 9 * numbers(3, size), torch.tensor(never, dtype=torch.int64)
    told = logits.index_fill(-1, at, -torch.inf).log_softmax(-1)
    own = log_softmax(logits.clone(), at)
    torch.testing.assert_close(own, told, atol=1e-5, rtol=1e-5)


def test_sizes_that_our_kernels_lack_are_left_to_torch():
    assert kernels.pack_integers(torch.zeros(32, 24), 8) is None
    assert kernels.pack_8_bits(torch.zeros(32, 24), None) is None
    assert not takes_layers([LayerWeights(*[PackedLinear(torch.zeros(32, 24))] * 4)], 16)


SMALL = """
int multiply(void) { return 1; }
int run_layers(void) { return 1; }
int draft_levels(void) { return 1; }
void log_softmax(void) {}
int weigh_mixtures(void) { return 0; }
"""
"""A library that is built in no time."""


@pytest.fixture
def afresh(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """An empty cache, of which a small library is loaded anew; afterwards, as before."""
    source = tmp_path / "small.c"
    source.write_text(SMALL)
    monkeypatch.setattr(build_kernels, "SOURCE", source)
    monkeypatch.setenv(places.CACHE_VARIABLE, str(tmp_path / "cache"))
    kernels._load_library.cache_clear()
    yield tmp_path / "cache"
    kernels._load_library.cache_clear()


@run_here
@compiles
def test_our_kernels_are_built_once_and_leave_nothing_else(afresh: Path, monkeypatch):
    assert kernels.available()
    built = build_kernels.library_path(afresh, build_kernels.cpu_levels()[0])
    assert set(afresh.iterdir()) == {built, build_kernels.hash_path(built)}
    kernels._load_library.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("was built again"))
    assert kernels.available()


@pytest.mark.parametrize("fault", ["no compiler", "it fails", "no folder", "another system", "off"])
def test_without_our_kernels_products_are_the_librarys(fault: str, afresh: Path, monkeypatch):
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
    assert not kernels.available()
    weight, x = numbers(6400, 48).half().float(), numbers(3, 48, seed=1)
    assert torch.allclose(PackedLinear(weight)(x), x @ weight.t(), atol=1e-4)
    decoder = VLM(tiny_llava(), "tiny").decoder
    assert type(decoder) is LeanDecoder and decoder.output.packed is not None


@run_here
@compiles
def test_a_part_of_a_library_is_built_again(afresh: Path):
    """Loading it would end the process."""
    built = build_kernels.build(afresh)
    built.write_bytes(built.read_bytes()[:10_000])
    assert kernels.available()


@run_here
@compiles
def test_what_another_user_built_is_not_loaded(afresh: Path, monkeypatch):
    build_kernels.build(afresh)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(kernels, "_ROOT", 54321)
    assert not kernels.available()


@run_here
@compiles
def test_an_image_without_a_compiler_can_take_it_from_one_that_has_it(tmp_path: Path):
    """The file that builds it needs nothing but the standard library and its neighbour."""
    script = Path(build_kernels.__file__)
    (tmp_path / script.name).write_bytes(script.read_bytes())
    (tmp_path / build_kernels.SOURCE.name).write_text(SMALL)
    (tmp_path / build_kernels._HEADER).write_text("")
    subprocess.run([sys.executable, "-I", script.name, "made"], check=True, cwd=tmp_path)
    built = list((tmp_path / "made").iterdir())
    names = [level.name for level in build_kernels.LEVELS if build_kernels._runs_on_system(level)]
    assert {file.suffix for file in built} == {".so", ".sha256"}
    assert all(any(name in file.name for file in built) for name in names)


@run_here
@compiles
def test_a_processor_gets_no_library_that_it_cannot_run(afresh: Path, monkeypatch):
    """A folder of them may be shared by several machines, or come with an image."""
    best = build_kernels.build(afresh)
    processors = afresh / "cpuinfo"
    monkeypatch.setattr(build_kernels, "_PROCESSORS", processors)
    last = [level for level in build_kernels.LEVELS if build_kernels._runs_on_system(level)][-1]
    processors.write_text(f"flags : fpu {last.features}\n")
    assert build_kernels.cpu_levels() == [last]
    assert last.name in build_kernels.build(afresh).name
    processors.write_text("flags : fpu sse2\n")
    assert not build_kernels.can_build(afresh)
    with pytest.raises(OSError, match="AVX2"):
        build_kernels.build(afresh)
    monkeypatch.undo()
    assert best.exists()


PROGRAM = Path(__file__).with_name("kernels_bits.c")
CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
BUILT_FOR_RUNNING = tuple(flag for flag in build_kernels.FLAGS if flag not in ("-fPIC", "-shared"))


EMULATED = f'-DEMULATED="{Path(__file__).with_name("emulated_tiles.h")}"'


def check_bits(level: CpuLevel, folder: Path, *more: str) -> None:
    """Hold the lines that the program prints, built for a level, to those that are kept."""
    program, run = folder / level.name, []
    compiler = build_kernels._compiler()
    assert compiler is not None
    if platform.machine() not in level.machines:
        if not (shutil.which(CROSS) and shutil.which(EMULATOR)):
            pytest.skip(f"{CROSS} and {EMULATOR} are not installed")
        compiler, run = CROSS, [EMULATOR, "-cpu", "max"]
    elif not build_kernels._cpu_features().issuperset(level.features.split()):
        pytest.skip(f"this processor is no {level.name}")
    options = (*BUILT_FOR_RUNNING, *level.options.split(), f'-DKERNELS="{SOURCE}"', *more)
    if run:
        options += ("-static",)
    command = [compiler, *options, "-o", str(program), str(PROGRAM), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([*run, str(program)], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == PROGRAM.with_suffix(".txt").read_text().splitlines()


# Each is compiled for some seconds.
CASES = [
    pytest.param(level, id=level.name, marks=() if level.name == "avx2" else pytest.mark.slow)
    for level in LEVELS
]


@compiles
@pytest.mark.parametrize("level", CASES)
def test_every_processor_computes_the_same_bits(level: CpuLevel, tmp_path: Path):
    check_bits(level, tmp_path)


@compiles
def test_matrix_tiles_compute_the_same_bits(tmp_path: Path):
    """What processors with AMX run, by the emulated instructions: few processors have it."""
    check_bits(build_kernels.cpu_levels()[-1], tmp_path, EMULATED)


@run_here
@compiles
@torch.inference_mode()
def test_what_is_packed_for_matrix_tiles_gives_the_same_bits(tmp_path: Path, monkeypatch, request):
    weight, x = numbers(96, 192), numbers(21, 192, seed=1)

    def products() -> list[torch.Tensor]:
        packed = [
            *(kernels.pack_integers(weight, bits) for bits in (8, 16)),
            *(kernels.pack_8_bits(weight, largest) for largest in (None, 4.0)),
        ]
        return [matrix(x[:rows]) for matrix in packed if matrix is not None for rows in (1, 21)]

    expected, level = products(), build_kernels.cpu_levels()[-1]
    monkeypatch.setattr(build_kernels, "FLAGS", (*build_kernels.FLAGS, EMULATED))
    monkeypatch.setattr(build_kernels, "cpu_levels", lambda: [level])
    monkeypatch.setenv(places.CACHE_VARIABLE, str(tmp_path))
    request.addfinalizer(kernels._load_library.cache_clear)
    kernels._load_library.cache_clear()
    assert kernels._constant("split_weights")
    assert all(map(torch.equal, products(), expected))


packs = pytest.mark.skipif(packed_linear.PACKING is None, reason="torch packs no half precision")
by_rows = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "AVX2",
    reason="torch's kernels for AVX2 add up a few rows in another order than more",
)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 3, 150])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(8, 48), (6400, 48)])
@pytest.mark.parametrize("private", [True, False])
@torch.inference_mode()
def test_every_way_gives_the_product(
    rows: int, bias: bool, shape: tuple[int, int], private: bool, monkeypatch
):
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
    one.write_product(out, x, plus)
    assert torch.allclose(out, want, atol=1e-4)
    out = torch.ones_like(told)
    one.add_product(out, x)
    assert torch.allclose(out, 1 + told, atol=1e-4)


def test_half_precision_must_hold_every_number():
    """All that float16 holds, bfloat16 by a power of two, and nothing that would be rounded."""
    held = to_half(numbers(50, 50).half().float())
    assert held is not None and held[1] == 1
    small = (numbers(50, 50) * 1e-5).bfloat16()
    shifted = to_half(small)
    assert shifted is not None and shifted[1] < 1
    assert torch.equal(shifted[0] * shifted[1], small.float())
    for weight in (
        numbers(50, 50),
        torch.tensor([[1e30, 1e-30]]),
        torch.tensor([[torch.inf]]),
        torch.zeros(2, 2),
    ):
        assert to_half(weight) is None


@packs
@torch.inference_mode()
def test_only_a_drafters_numbers_are_rounded():
    weight, x = numbers(6400, 48), numbers(3, 48, seed=1)
    told = x @ weight.t()
    torch.testing.assert_close(PackedLinear(weight)(x), told, atol=1e-5, rtol=1e-5)
    for bits, error in ((16, 1e-3), (8, 2e-2)):
        rounded = PackedLinear(weight, bits)
        assert 0 < (rounded(x) - told).std() < error * told.std()


@packs
@by_rows
@torch.inference_mode()
def test_a_tree_sums_as_plain_steps_do_at_any_length():
    decoder = VLM(tiny_llava(kv_heads=2).bfloat16(), "fused").decoder
    for n_before in (124, 126, 128):
        check_path(decoder, n_before, min_invariant_rows(decoder))


@pytest.mark.parametrize("n", [7, 48, 64, 576])
def test_a_rotation_spreads_a_large_number_and_keeps_lengths(n: int):
    turn = packed_decoder.Hadamard.of(n)(torch.eye(n))
    assert torch.allclose(turn @ turn.t(), torch.eye(n), atol=1e-5)
    power = n & -n
    assert turn.abs().max() <= (2 * power / n if power < n else 1) ** 0.5 / power**0.5 + 1e-6


@run_here
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_before_rounding_a_rotated_decoder_is_the_same_model(bias: bool, monkeypatch):
    model = tiny_llava(kv_heads=2)
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    if bias:
        for layer in decoder.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                part.bias = torch.nn.Parameter(numbers(len(part.weight)))
    plain = PackedDecoder(decoder, head)
    monkeypatch.setattr(packed_decoder, "PackedLinear", lambda w, *_, **__: PackedLinear(w))
    turned = RotatedDecoder(decoder, head)
    aux_request = AuxRequest(layers=(1,))
    _, a, kept = prefilled(plain, aux_request)
    _, b, mine = prefilled(turned, aux_request)
    assert torch.allclose(kept.layers[1], mine.layers[1], atol=1e-4)
    assert torch.allclose(plain.logits(a), turned.logits(b), atol=1e-3)


@run_here
@torch.inference_mode()
def test_rows_with_a_given_range_are_clipped_to_it():
    weight, x = numbers(640, 96), numbers(5, 96, seed=1)
    one, told = PackedLinear(weight, 8, 8, largest=4.0), x @ weight.t()
    assert (one(x) - told).std() < 0.03 * told.std()
    clipped = torch.full((1, 96), 9.0)
    assert torch.allclose(one(clipped), one(clipped.clamp(max=4.0)), atol=1e-5)
    out = torch.ones_like(told)
    one.add_product(out, x)
    assert torch.allclose(out, 1 + one(x), atol=1e-5)
