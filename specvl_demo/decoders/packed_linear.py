"""Matrices packed once for products with one to a few rows.

On a CPU they are packed in half precision, if the numbers allow it, or in integers: a decoder's
step reads every weight once and is limited by that reading. Knows nothing of models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from specvl_demo.decoders import kernels

_LEAST = 90_000
"""Numbers of a matrix below which it stays in a CPU's caches and the call costs more."""
_CHECKED = 4096
"""Rows that are tried in half precision at once."""
_LARGE, _FEW = 300_000, 2
"""FBGEMM is no faster than the library's product for a smaller matrix and this few rows."""


Bits = Literal[8, 16, 32]
"""To how many bits numbers may be rounded."""


def _fbgemm_operators() -> tuple[Callable[..., Any], Callable[..., Tensor]] | None:
    """Return FBGEMM's operators that pack a matrix in half precision and multiply rows by it.

    They sum in float32. They are not public in torch: None if this build lacks them.
    """
    try:
        pack = torch.ops.quantized.linear_prepack_fp16
        # The operator itself, since its overload inspects the arguments of every call in Python.
        product = torch.ops.quantized.linear_dynamic_fp16.default._op
        x = torch.arange(1.0, 1.0 + 3 * 64).view(3, 64)
        same = torch.equal(product(x, pack(torch.eye(64), None)), x)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return (pack, product) if same else None


PACKING = _fbgemm_operators()


def _multiply_fbgemm(packed: Any, factor: float, x: Tensor) -> Tensor:
    assert PACKING is not None
    product = PACKING[1](x, packed)
    return product if factor == 1 else product.mul_(factor)


def has_kernels() -> bool:
    """Return whether our own kernels compute here, which are built first if need be."""
    return kernels.available()


def log_softmax(logits: Tensor, banned: Tensor) -> Tensor:
    """Return log-probabilities of logits [..., R], which may be overwritten; banned are -inf."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32 and kernels.available():
        return kernels.log_softmax(logits.contiguous(), banned)
    if len(banned):
        logits = logits.index_fill_(-1, banned, -torch.inf)
    return logits.log_softmax(-1)


def mm_in_float32(x: Tensor, table: Tensor) -> Tensor:
    """Multiply [rows, in] by [in, out], on a GPU with a result in float32: rounded to half
    precision, a row's highest logits are often equal.
    """
    if x.device.type == "cpu" or x.dtype == torch.float32:
        return torch.mm(x, table)
    return torch.mm(x, table, out_dtype=torch.float32)


def to_half(weight: Tensor) -> tuple[Tensor, float] | None:
    """Return (numbers that half precision holds, factor): their product is exactly `weight`.

    The factor is a power of two. With a factor of 1 the numbers are the weight's own, not a copy.
    None if half precision cannot hold the numbers; it holds all that were stored in float16 and
    nearly always bfloat16's.
    """
    largest = max(abs(bound.item()) for bound in weight.aminmax())
    if not 0 < largest < math.inf:
        return None
    for factor in (1.0, 2.0 ** (math.frexp(largest)[1] - 15)):
        # Some rows at a time: an output head in float32 is half a gigabyte, and so is each copy.
        if all(_half_holds(rows, factor) for rows in weight.split(_CHECKED)):
            return (weight.float() if factor == 1 else weight.float() / factor), factor
    return None


def _half_holds(rows: Tensor, factor: float) -> bool:
    exact = rows.float()
    return torch.equal((exact / factor).half().float() * factor, exact)


class PackedLinear:
    """y = x Wᵀ for rows x [rows, in], with W [out, in].

    On a CPU packed for our own kernels, in half precision if it holds the numbers and they are
    many; else by FBGEMM in half precision: such a product reads half the bytes, needs no copy into
    blocks, sums in float32, and gives a row the same bits whatever rows are multiplied with it.
    Otherwise, and beside FBGEMM for one or two rows if caches hold the matrix, the library's
    product is used. All return the weight's own precision.

    Attributes:
        matrix: Our own kernels' matrix; None where others take over.
    """

    def __init__(
        self,
        weight: Tensor,
        bits: Bits | None = 32,
        row_bits: Bits = 16,
        largest: float | None = None,
    ) -> None:
        """Pack the weight [out, in].

        Args:
            bits: With fewer than 32, our own kernels sum integers; others take half precision. 8
                are for models whose weights may be rounded. None leaves the weight to the library.
            row_bits: Of those integers in rows, 16 or, where `bits` is 8, 8.
            largest: Where rows of 8 bits are clipped; None for each row's own largest.
        """
        self.dtype = weight.dtype
        self._product: Callable[[Tensor], Tensor] | None = None
        # A new empty tensor: a view would hold the weights, not needed once they are packed.
        self._table = weight.new_empty(0)
        self.matrix: kernels.PackedMatrix | None = None
        self._plain_few = weight.numel() < _LARGE
        if weight.device.type == "cpu" and bits is not None:
            self._pack(weight, bits, row_bits, largest)
        if self.matrix is None and (self._product is None or self._plain_few):
            # [in, out]; a GPU's products read either order, so its memory is not spent on a copy.
            as_it_is = weight.is_cuda or bits is None
            self._table = weight.t() if as_it_is else weight.t().contiguous()

    def _pack(self, weight: Tensor, bits: Bits, row_bits: Bits, largest: float | None) -> None:
        many = weight.numel() >= _LEAST
        if row_bits == 8:
            self.matrix = kernels.pack_8_bits(weight, largest)
        elif bits < 32:
            # 16 bits are as fast out of a cache, and no draft is lost.
            self.matrix = kernels.pack_integers(weight, bits if many else 16)
        if self.matrix is not None:
            return
        half = weight.half() if bits < 32 and weight.dtype == torch.float32 else weight
        numbers, factor = (to_half(half) if many else None) or (weight, None)
        self.matrix = kernels.pack_floats(numbers, factor)
        if self.matrix is None and factor is not None and PACKING is not None:
            self._product = partial(_multiply_fbgemm, PACKING[0](numbers, None), factor)

    def multiply_packed(self, x: Tensor) -> Tensor | None:
        """Multiply [rows, in] -> [rows, out] as packed; None if the library is as fast."""
        multiply = self.matrix or self._product
        if multiply is None or (self.matrix is None and self._plain_few and x.shape[0] <= _FEW):
            return None
        product = multiply(x if x.dtype == torch.float32 else x.float())
        return product if self.dtype == torch.float32 else product.to(self.dtype)

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Return x Wᵀ + plus, [rows, out], for x [rows, in] and plus [rows or 1, out] or None."""
        product = self.multiply_packed(x)
        if product is not None:
            return product if plus is None else product.add_(plus)
        x = x.to(self.dtype)
        return torch.mm(x, self._table) if plus is None else torch.addmm(plus, x, self._table)

    def logits(self, x: Tensor) -> Tensor:
        """Return x Wᵀ, on a GPU in float32."""
        product = self.multiply_packed(x)
        return mm_in_float32(x.to(self.dtype), self._table) if product is None else product

    def add_product(self, out: Tensor, x: Tensor) -> None:
        """Add the product to `out` [rows, out], which has the weight's precision."""
        product = self.multiply_packed(x)
        out.addmm_(x, self._table) if product is None else out.add_(product)

    def write_product(self, out: Tensor, x: Tensor, plus: Tensor | None) -> None:
        """Write x Wᵀ + plus into `out` [rows, out], which has the weight's precision."""
        product = self.multiply_packed(x)
        if product is not None:
            out.copy_(product) if plus is None else torch.add(product, plus, out=out)
        elif plus is None:
            torch.mm(x, self._table, out=out)
        else:
            torch.addmm(plus, x, self._table, out=out)
