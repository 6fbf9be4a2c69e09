"""The functions of `kernels.c`, where a compiler built them and the processor runs them, and the
matrices that they read.

Products read a matrix once for all rows, as fast as memory gives it; those of floats have the bits
of FBGEMM's. Only `packed_linear` and `layer_stack` call this module. Knows nothing of models.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo import places
from specvl_demo.native import build_kernels

GROUP = 32
"""Outputs whose weights lie side by side."""
VECTOR = 16
"""Inputs that are rounded at once."""
_ROOT = 0
_OPENMP = "libgomp.so.1"
_SINGLE, _HALF, _EIGHT, _SIXTEEN, _EIGHT_BY_SIXTEEN, _SPLIT_SIXTEEN = range(6)
"""Kinds of a matrix in kernels.c."""
_MAX_SUM = 0.99 * 2**31
"""Of integers of 32 bits, with room for rounding."""
_HIGHEST = 2**15
"""What rows of 16 bits are counted from where they are split in bytes."""

_ADDRESS = ctypes.c_void_p
_SIZE = ctypes.c_int64
_FLOAT = ctypes.c_float
_INT = ctypes.c_int


def _struct_fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class MatrixStruct(ctypes.Structure):
    """`Matrix` of kernels.c."""

    _fields_ = [
        *_struct_fields(_ADDRESS, "packed start step"),
        *_struct_fields(_SIZE, "k n"),
        ("unit", _FLOAT),
        ("kind", ctypes.c_int32),
    ]


_MATRIX = ctypes.POINTER(MatrixStruct)


class LayerStruct(ctypes.Structure):
    """`Layer` of kernels.c."""

    _fields_ = [
        *_struct_fields(MatrixStruct, "qkv out gate_up down"),
        *_struct_fields(_ADDRESS, "bias norm after_norm"),
        ("kv", _MATRIX),
        ("head_norm", _ADDRESS),
    ]


class StackStruct(ctypes.Structure):
    """`Stack` of kernels.c."""

    _fields_ = [
        ("layers", ctypes.POINTER(LayerStruct)),
        *_struct_fields(_MATRIX, "enter leave"),
        ("norm", _ADDRESS),
        *_struct_fields(_SIZE, "width heads kv_heads head_width"),
        *_struct_fields(_FLOAT, "root scale"),
    ]


class StepStruct(ctypes.Structure):
    """`Step` of kernels.c."""

    _fields_ = [
        *_struct_fields(_ADDRESS, "embedded x input hidden cos_sin cache positions features"),
        *_struct_fields(_SIZE, "n_positions position_sequence layer sequence head row to_values"),
        ("mask", _ADDRESS),
        *_struct_fields(_SIZE, "mask_sequence mask_row sequences rows at holes"),
    ]


class DraftingStruct(ctypes.Structure):
    """`Drafting` of kernels.c."""

    _fields_ = [
        ("stack", ctypes.POINTER(StackStruct)),
        *_struct_fields(_MATRIX, "join head"),
        *_struct_fields(_ADDRESS, "table bias ids never"),
        *_struct_fields(_SIZE, "n n_never n_embeddings steps layers reads"),
    ]


class LevelStruct(ctypes.Structure):
    """`Level` of kernels.c."""

    _fields_ = [
        *_struct_fields(_SIZE, "base rows"),
        *_struct_fields(_ADDRESS, "fed parents position padding weights features made log_probs"),
        *_struct_fields(_ADDRESS, "tokens logp"),
        ("k", _SIZE),
    ]


class HistoryStruct(ctypes.Structure):
    """`History` of kernels.c."""

    _fields_ = [
        *_struct_fields(_ADDRESS, "log_probs logits grid sums"),
        *_struct_fields(_SIZE, "view position row views positions n vectors likely rivals"),
    ]


_STACK = ctypes.POINTER(StackStruct)
_STEP = ctypes.POINTER(StepStruct)
_DRAFTING = ctypes.POINTER(DraftingStruct)
_LEVEL = ctypes.POINTER(LevelStruct)
_TAKEN: dict[str, list[Any]] = {
    "multiply": [_MATRIX, _ADDRESS, _SIZE, _ADDRESS, _SIZE, _INT],
    "run_layers": [_STACK, _STEP, _SIZE, _SIZE, _INT],
    "draft_levels": [_DRAFTING, _STEP, _LEVEL, _SIZE, ctypes.c_double, _INT],
    "log_softmax": [_ADDRESS, _SIZE, _SIZE, _ADDRESS, _SIZE],
    "weigh_mixtures": [ctypes.POINTER(HistoryStruct)],
}
"""What each function of the library takes. They return an int, or nothing that is read."""


@cache
def _load_library() -> ctypes.CDLL | None:
    """Return the library; None where it cannot be had."""
    try:
        path = build_kernels.build(places.cache())
        if path.stat().st_uid not in (_ROOT, os.getuid()):
            raise OSError(f"{path} belongs to another user")
        loaded = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as fault:
        logging.getLogger(__name__).info("%s is not used: %s", build_kernels.SOURCE.name, fault)
        return None
    for name, arguments in _TAKEN.items():
        getattr(loaded, name).argtypes = arguments
    return loaded


def library() -> ctypes.CDLL:
    """Return the library, for what it packed."""
    loaded = _load_library()
    assert loaded is not None, "only what it packed is computed by it"
    return loaded


@cache
def _shares_threads() -> bool:
    """Whether the library's OpenMP is torch's: else its threads would compete with torch's."""
    try:
        ctypes.CDLL(_OPENMP, mode=getattr(os, "RTLD_NOLOAD", 0))
    except OSError:
        return False
    return True


def n_threads() -> int:
    """Return how many threads a call of the library may use."""
    return torch.get_num_threads() if _shares_threads() else 1


def available() -> bool:
    """Return whether our own kernels run here."""
    return _load_library() is not None


class PackedMatrix:
    """A packed matrix [n, k] on a CPU, for rows [rows, k] in float32."""

    def __init__(
        self,
        kind: int,
        size: tuple[int, int],
        packed: Tensor,
        start: Tensor | None = None,
        step: Tensor | None = None,
        unit: float = 0.0,
    ) -> None:
        self.n, self.k = size
        self._whole = -(-self.n // GROUP) * GROUP
        self._memory = packed, start, step
        self.struct = MatrixStruct(
            packed=address(packed),
            start=address(start),
            step=address(step),
            k=self.k,
            n=self._whole,
            unit=unit,
            kind=kind,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Return x Wᵀ, [rows, n]."""
        x = x.contiguous()
        out = torch.empty(x.shape[0], self._whole)
        done = library().multiply(
            self.struct, x.data_ptr(), x.shape[0], out.data_ptr(), self._whole, n_threads()
        )
        if not done:
            raise MemoryError("there is no memory for a copy of the rows of a product")
        return out if self._whole == self.n else out[:, : self.n]


def log_softmax(logits: Tensor, banned: Tensor) -> Tensor:
    """Turn float32 logits [..., R] into log-probabilities in place; banned ones are -inf."""
    n = logits.shape[-1]
    rows = logits.numel() // n
    library().log_softmax(logits.data_ptr(), rows, n, banned.data_ptr(), len(banned))
    return logits


def pack_floats(weight: Tensor, factor: float | None) -> PackedMatrix | None:
    """Pack numbers [n, k]; None where torch takes over.

    factor: What numbers in half precision are multiplied by; None to keep float32.
    """
    n, k = weight.shape
    if not available():
        return None
    numbers = weight.float() if factor is None else weight.half()
    groups = F.pad(numbers, (0, 0, 0, -n % GROUP)).view(-1, GROUP, k)
    kind = _SINGLE if factor is None else _HALF
    return PackedMatrix(kind, (n, k), groups.transpose(1, 2).contiguous(), unit=factor or 1.0)


def pack_8_bits(weight: Tensor, largest: float | None) -> PackedMatrix | None:
    """Round [n, k] to 8 bits, for rows that are rounded to 8; None where torch takes over.

    largest: The number that 127 stands for in every row; None for each row's largest one.
    """
    n, k = weight.shape
    if not available() or n % GROUP or k % VECTOR:
        return None
    exact = weight.float()
    step = exact.abs().amax(1).clamp_min(1e-12) / 127
    numbers = (exact / step[:, None]).round_().to(torch.int8)
    start = -_constant("byte_zero") * numbers.sum(1, dtype=torch.int32)
    unit = None if largest is None else largest / 127
    # Both steps are multiplied in float32.
    step = step * torch.tensor(1 / 127 if unit is None else unit)
    packed = _group_blocks(numbers, _constant("bytes_at_once"))
    return PackedMatrix(_EIGHT, (n, k), packed, start, step, unit or 0.0)


def pack_integers(weight: Tensor, bits: int) -> PackedMatrix | None:
    """Round [n, k] to 16 or 8 bits, for rows that are rounded to 16; None as for `pack_8_bits`."""
    n, k = weight.shape
    if not available() or n % GROUP or k % VECTOR:
        return None
    exact = weight.float()
    largest = 2 ** (bits - 1) - 1
    # Half of a sum's bits for a row of the matrix, if it has as many.
    length = min(_MAX_SUM**0.5, largest * k**0.5)
    step = torch.maximum(exact.norm(dim=1) / length, exact.abs().amax(1) / largest)
    step.clamp_min_(1e-20)
    numbers = (exact / step[:, None]).round_().to(torch.int16 if bits == 16 else torch.int8)
    planes = [numbers]
    kind = _SIXTEEN if bits == 16 else _EIGHT_BY_SIXTEEN
    inputs = _constant("split_weights")
    if bits == 16 and inputs and k % inputs == 0:
        planes = [(numbers >> 8).to(torch.int8), numbers.to(torch.int8)]
        kind = _SPLIT_SIXTEEN
    split = kind == _SPLIT_SIXTEEN or (bits == 8 and bool(_constant("split_rows")))
    packed = torch.stack([_group_blocks(plane, 4 if split else 2) for plane in planes], 1)
    # Sums wrap around, as the library's do.
    start = (-_HIGHEST * split * numbers.sum(1)).to(torch.int32)
    return PackedMatrix(kind, (n, k), packed, start, step, length / _MAX_SUM)


def _constant(name: str) -> int:
    """Return a constant of the library, which says how it reads integers."""
    return ctypes.c_int.in_dll(library(), name).value


def _group_blocks(numbers: Tensor, together: int) -> Tensor:
    """Return numbers [n, k] as [n / 32, k / together, 32, together]."""
    n, k = numbers.shape
    return numbers.view(n // GROUP, GROUP, k // together, together).transpose(1, 2).contiguous()


def address(tensor: Tensor | None) -> int | None:
    """Return where a tensor's numbers begin."""
    return None if tensor is None else tensor.data_ptr()


def pointer(owner: Any) -> Any:
    """Return a pointer to the owner's struct."""
    return None if owner is None else ctypes.pointer(owner.struct)
