"""Our own products of few rows with a matrix, and exact attention of a few rows (`kernels.c`),
where a compiler built them and the processor runs them.

Products read a matrix once for all rows, as fast as memory gives it, and have the bits of FBGEMM's
(`packed_linear`), which take over elsewhere; `exact.blocked_attention` does for attention. Knows
nothing of models.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

from specvl_demo import places
from specvl_demo.decoders.build_kernels import SOURCE, build

VARIABLE = "SPECVL_KERNELS"
"""`off` takes the library's products and attention, for comparison."""
_GROUP = 32
"""Outputs whose weights lie side by side."""
_VECTOR = 16
"""Inputs that are rounded at once."""
_ROOT = 0
_OPENMP = "libgomp.so.1"
_WIDTHS = (16, 32, 64, 128)
"""Of a head."""
_HALF, _8_BIT = 1, 2
"""Bits of what the library supports here."""


class _MatrixStruct(ctypes.Structure):
    """`Matrix` of kernels.c."""

    _fields_ = (
        ("packed", ctypes.c_void_p),
        ("start", ctypes.c_void_p),
        ("step", ctypes.c_void_p),
        ("k", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("unit", ctypes.c_float),
    )


class _AttentionStruct(ctypes.Structure):
    """`Attention` of kernels.c."""

    _fields_ = (
        ("cache", ctypes.c_void_p),
        ("layer", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("row", ctypes.c_int64),
        ("to_values", ctypes.c_int64),
        ("queries", ctypes.c_void_p),
        ("query_row", ctypes.c_int64),
        ("mask", ctypes.c_void_p),
        ("mask_row", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("heads", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("seen", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


_PRODUCT = (
    ctypes.POINTER(_MatrixStruct),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int,
    ctypes.c_int,
)


@cache
def _loaded() -> tuple[ctypes.CDLL | None, int]:
    """Return the library and what it supports here; (None, 0) where it cannot be had."""
    if os.environ.get(VARIABLE, "").upper() in ("OFF", "0", "NO", "FALSE"):
        return None, 0
    log = logging.getLogger(__name__)
    try:
        path = build(places.cache())
        if path.stat().st_uid not in (_ROOT, os.getuid()):
            raise OSError(f"{path} belongs to another user")
        # Its threads must be torch's own: others would compete with them for the cores.
        ctypes.CDLL(_OPENMP, mode=os.RTLD_NOLOAD)
    except (OSError, subprocess.SubprocessError) as fault:
        log.info("%s is not used: %s", SOURCE.name, fault)
        return None, 0
    try:
        library = ctypes.CDLL(str(path))
        for function in (library.multiply_half, library.multiply_8bit):
            function.argtypes = _PRODUCT
        library.attend.argtypes = ctypes.POINTER(_AttentionStruct), ctypes.c_int64, ctypes.c_int
        return library, int(library.supported())
    except (OSError, AttributeError) as fault:
        log.warning("%s was built wrongly, so small models run slower: %s", SOURCE.name, fault)
        with suppress(OSError):
            path.unlink()
        return None, 0


def available() -> bool:
    """Return whether anything is computed here, at least in half precision."""
    return bool(_loaded()[1] & _HALF)


class Matrix:
    """A packed matrix [n, k] on a CPU, for rows [rows, k] in float32."""

    def __init__(
        self,
        product: Callable[..., int],
        packed: Tensor,
        size: tuple[int, int],
        start: Tensor | None = None,
        step: Tensor | None = None,
        unit: float = 0.0,
    ) -> None:
        self.n, k = size
        self._product = product
        self._kept = packed, start, step
        addresses = (None if one is None else one.data_ptr() for one in self._kept)
        self._struct = ctypes.byref(_MatrixStruct(*addresses, k, self.n, unit))

    def __call__(self, x: Tensor) -> Tensor:
        """Return x Wᵀ, [rows, n]."""
        out = torch.empty(x.shape[0], self.n)
        self.into(out, x, add=False)
        return out

    def into(self, out: Tensor, x: Tensor, add: bool) -> None:
        """Write x Wᵀ into `out` [rows, n], whose rows may lie apart, or add it."""
        x = x.contiguous()
        if not self._product(
            self._struct,
            x.data_ptr(),
            x.shape[0],
            out.data_ptr(),
            out.stride(0),
            add,
            torch.get_num_threads(),
        ):
            raise MemoryError("there is no memory for a copy of the rows of a product")


def half(weight: Tensor) -> Matrix | None:
    """Pack numbers [n, k] that half precision holds; None where FBGEMM takes over."""
    library, supported = _loaded()
    n, k = weight.shape
    if library is None or not supported & _HALF or n % _GROUP:
        return None
    groups = weight.half().view(n // _GROUP, _GROUP, k).transpose(1, 2)
    return Matrix(library.multiply_half, groups.contiguous(), (n, k))


def eight_bits(weight: Tensor, steps: Tensor, unit: float | None) -> Matrix | None:
    """Pack int8 numbers [n, k] with a step for each row [n]; None as for `half`.

    unit: The number that one stands for in every input row; None for 1 / 127 of each row's largest
        number.
    """
    library, supported = _loaded()
    n, k = weight.shape
    if library is None or not supported & _8_BIT or n % _GROUP or k % _VECTOR:
        return None
    groups = weight.view(n // _GROUP, _GROUP, k // 4, 4).transpose(1, 2).contiguous()
    start = -128 * weight.sum(1, dtype=torch.int32)
    # FBGEMM multiplies both steps in float32.
    step = steps * torch.tensor(1 / 127 if unit is None else unit)
    return Matrix(library.multiply_8bit, groups, (n, k), start, step, unit or 0.0)


def attention(
    queries: Tensor, cache: Tensor, seen: int, mask: Tensor | None
) -> Callable[[int], Tensor] | None:
    """Return the attention of a layer, [T, heads * width], the same memory for each; None where
    others take over.

    Each row has the bits of a plain step, however many rows there are and in whatever tree.

    Args:
        queries: [T, heads, width] float32, to be written before each layer; rows may lie apart.
        cache: Keys and values of all layers, [layers, 2, 1, kv_heads, room, at least width]
            float32; a layer's rows are written before its attention.
        seen: Rows of the cache that are attended to, the first ones.
        mask: Additive, [at least T, seen] float32; None if every row sees all of them.
    """
    library, supported = _loaded()
    size, heads, width = queries.shape
    if library is None or not supported & _HALF or width not in _WIDTHS:
        return None
    out = torch.empty(size, heads * width)
    layer, to_values, _, head, row, _ = cache.stride()
    struct = _AttentionStruct(
        cache.data_ptr(),
        layer,
        head,
        row,
        to_values,
        queries.data_ptr(),
        queries.stride(0),
        None if mask is None else mask.data_ptr(),
        0 if mask is None else mask.stride(0),
        out.data_ptr(),
        heads,
        heads // cache.shape[3],
        width,
        size,
        seen,
        width**-0.5,
    )
    own, threads = ctypes.byref(struct), torch.get_num_threads()

    # The library reads the memory of the tensors that `kept` keeps alive.
    def attend(index: int, kept: object = (queries, cache, mask)) -> Tensor:
        if not library.attend(own, index, threads):
            raise MemoryError("there is no memory for the weights of an attention")
        return out

    return attend
