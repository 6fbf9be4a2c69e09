"""Our own layers of a Llama-type decoder and products of rows with a matrix (`kernels.c`), where a
compiler built them and the processor runs them.

A whole stack of layers is one call. Products read a matrix once for all rows, as fast as memory
gives it; those of floats have the bits of FBGEMM's. Elsewhere torch's operations take over. Knows
nothing of models.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo import places
from specvl_demo.native.build_kernels import SOURCE, build

_GROUP = 32
"""Outputs whose weights lie side by side."""
_VECTOR = 16
"""Inputs that are rounded at once."""
_ROOT = 0
_OPENMP = "libgomp.so.1"
_WIDTHS = (16, 32, 64, 128)
"""Of a head."""
_SINGLE, _HALF, _EIGHT, _SIXTEEN, _EIGHT_BY_SIXTEEN = range(5)
"""Kinds of a matrix in kernels.c."""
_OUTSIDE = 2
"""What `run_layers` returns if a position has no rotation."""
_UNKNOWN = -2
"""What `draft_chain` returns if a token has no embedding."""
_MAX_SUM = 0.99 * 2**31
"""Of integers of 32 bits, with room for rounding."""
_BYTES = ("bytes_at_once", "byte_zero")
"""Constants of the library, for matrices and rows in 8 bits."""


Reads = Literal["embedding", "product", "both", "attended"]


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


_ADDRESS, _SIZE, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class _MatrixStruct(ctypes.Structure):
    """`Matrix` of kernels.c."""

    _fields_ = (
        _fields(_ADDRESS, "packed start step")
        + _fields(_SIZE, "k n")
        + [("unit", _FLOAT), ("kind", ctypes.c_int32)]
    )


_MATRIX = ctypes.POINTER(_MatrixStruct)


class _LayerStruct(ctypes.Structure):
    """`Layer` of kernels.c."""

    _fields_ = (
        _fields(_MatrixStruct, "qkv out gate_up down")
        + _fields(_ADDRESS, "bias norm after_norm")
        + [("kv", _MATRIX), ("head_norm", _ADDRESS)]
    )


class _StackStruct(ctypes.Structure):
    """`Stack` of kernels.c."""

    _fields_ = (
        [("layers", ctypes.POINTER(_LayerStruct))]
        + _fields(_MATRIX, "enter leave")
        + [("norm", _ADDRESS)]
        + _fields(_SIZE, "width heads kv_heads head_width")
        + _fields(_FLOAT, "root scale")
    )


class _StepStruct(ctypes.Structure):
    """`Step` of kernels.c."""

    _fields_ = (
        _fields(_ADDRESS, "embedded x input hidden cos_sin cache positions features")
        + _fields(_SIZE, "n_positions position_sequence layer sequence head row to_values")
        + [("mask", _ADDRESS)]
        + _fields(_SIZE, "mask_sequence mask_row sequences rows at holes")
    )


class _DraftingStruct(ctypes.Structure):
    """`Drafting` of kernels.c."""

    _fields_ = (
        [("stack", ctypes.POINTER(_StackStruct))]
        + _fields(_MATRIX, "join head")
        + _fields(_ADDRESS, "table bias ids never")
        + _fields(_SIZE, "n n_never n_embeddings steps layers reads")
    )


_THREADS, _STEP = ctypes.c_int, ctypes.POINTER(_StepStruct)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "multiply": (ctypes.c_int, [_MATRIX, _ADDRESS, _SIZE, _ADDRESS, _SIZE, _THREADS]),
    "run_layers": (ctypes.c_int, [ctypes.POINTER(_StackStruct), _STEP, _SIZE, _SIZE, _THREADS]),
    "draft_chain": (
        ctypes.c_int,
        [ctypes.POINTER(_DraftingStruct), _STEP, _ADDRESS, _SIZE, _ADDRESS, _SIZE]
        + [ctypes.c_double, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _THREADS],
    ),
    "log_softmax": (None, [_ADDRESS, _SIZE, _SIZE, _ADDRESS, _SIZE]),
}
"""What each function of the library returns and takes."""


@cache
def _loaded() -> ctypes.CDLL | None:
    """Return the library; None where it cannot be had."""
    log = logging.getLogger(__name__)
    try:
        path = build(places.cache())
        if path.stat().st_uid not in (_ROOT, os.getuid()):
            raise OSError(f"{path} belongs to another user")
    except (OSError, subprocess.SubprocessError) as fault:
        log.info("%s is not used: %s", SOURCE.name, fault)
        return None
    try:
        library = ctypes.CDLL(str(path))
        for name, (returned, taken) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = returned, taken
        return library
    except (OSError, AttributeError) as fault:
        log.warning("%s was built wrongly, so small models run slower: %s", SOURCE.name, fault)
        with suppress(OSError):
            path.unlink()
        return None


def _library() -> ctypes.CDLL:
    library = _loaded()
    assert library is not None, "only what it packed is computed by it"
    return library


@cache
def _shares_threads() -> bool:
    """Return whether the library's OpenMP is torch's: other threads would compete with its own for
    the cores.
    """
    try:
        ctypes.CDLL(_OPENMP, mode=getattr(os, "RTLD_NOLOAD", 0))
    except OSError:
        return False
    return True


def _threads() -> int:
    return torch.get_num_threads() if _shares_threads() else 1


def available() -> bool:
    """Return whether our own kernels run here."""
    return _loaded() is not None


class Matrix:
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
        self._whole = -(-self.n // _GROUP) * _GROUP
        self._memory = packed, start, step
        self.struct = _MatrixStruct(
            packed=_address(packed),
            start=_address(start),
            step=_address(step),
            k=self.k,
            n=self._whole,
            unit=unit,
            kind=kind,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Return x Wᵀ, [rows, n]."""
        x, out = x.contiguous(), torch.empty(x.shape[0], self._whole)
        rows, result = (x.data_ptr(), x.shape[0]), (out.data_ptr(), self._whole)
        if not _library().multiply(ctypes.byref(self.struct), *rows, *result, _threads()):
            raise MemoryError("there is no memory for a copy of the rows of a product")
        return out if self._whole == self.n else out[:, : self.n]


def log_softmax(logits: Tensor, never: Tensor) -> Tensor:
    """Return log-probabilities of logits [..., R], which may be overwritten; those at `never` are
    -inf.
    """
    if logits.device.type != "cpu" or logits.dtype != torch.float32 or not available():
        if len(never):
            logits = logits.index_fill_(-1, never, -torch.inf)
        return logits.log_softmax(-1)
    logits, n = logits.contiguous(), logits.shape[-1]
    _library().log_softmax(logits.data_ptr(), logits.numel() // n, n, never.data_ptr(), len(never))
    return logits


def floats(weight: Tensor, factor: float | None) -> Matrix | None:
    """Pack numbers [n, k]; None where torch takes over.

    factor: If half precision holds the numbers, what they are multiplied by; None to keep them in
        float32.
    """
    n, k = weight.shape
    if not available():
        return None
    numbers = weight.float() if factor is None else weight.half()
    groups = F.pad(numbers, (0, 0, 0, -n % _GROUP)).view(-1, _GROUP, k)
    kind = _SINGLE if factor is None else _HALF
    return Matrix(kind, (n, k), groups.transpose(1, 2).contiguous(), unit=factor or 1.0)


def eight_bits(weight: Tensor, largest: float | None) -> Matrix | None:
    """Round [n, k] to 8 bits, for rows that are rounded to 8; None where torch takes over.

    largest: The number that 127 stands for in every row; None for each row's largest one.
    """
    n, k = weight.shape
    library = _loaded()
    if library is None or n % _GROUP or k % _VECTOR:
        return None
    exact = weight.float()
    step = exact.abs().amax(1).clamp_min(1e-12) / 127
    numbers = (exact / step[:, None]).round_().to(torch.int8)
    # Inputs that the processor sums at once, and what stands for zero in a row.
    together, zero = (ctypes.c_int.in_dll(library, name).value for name in _BYTES)
    start = -zero * numbers.sum(1, dtype=torch.int32)
    unit = None if largest is None else largest / 127
    # Both steps are multiplied in float32.
    step = step * torch.tensor(1 / 127 if unit is None else unit)
    return Matrix(_EIGHT, (n, k), _grouped(numbers, together), start, step, unit or 0.0)


def integers(weight: Tensor, bits: int) -> Matrix | None:
    """Round [n, k] to 16 or 8 bits, for rows that are rounded to 16; None as for `eight_bits`."""
    n, k = weight.shape
    if not available() or n % _GROUP or k % _VECTOR:
        return None
    exact, largest = weight.float(), 2 ** (bits - 1) - 1
    # Half of a sum's bits for a row of the matrix, if it has as many.
    length = min(_MAX_SUM**0.5, largest * k**0.5)
    step = torch.maximum(exact.norm(dim=1) / length, exact.abs().amax(1) / largest)
    step.clamp_min_(1e-20)
    numbers = (exact / step[:, None]).round_().to(torch.int16 if bits == 16 else torch.int8)
    start = torch.zeros(n, dtype=torch.int32)
    kind = _SIXTEEN if bits == 16 else _EIGHT_BY_SIXTEEN
    return Matrix(kind, (n, k), _grouped(numbers, 2), start, step, length / _MAX_SUM)


def _grouped(numbers: Tensor, together: int) -> Tensor:
    """Return numbers [n, k] as [n / 32, k / together, 32, together]."""
    n, k = numbers.shape
    groups = numbers.view(n // _GROUP, _GROUP, k // together, together)
    return groups.transpose(1, 2).contiguous()


class LayerParts(NamedTuple):
    """What a layer computes with; `bias` [qkv.n] and the norms' weights [D] may be None.

    A layer that attends to features has `kv`, which makes keys and values of them, only queries in
    `qkv`, and `head_norm` [head_width], by which normed queries are multiplied.

    Norms are x / hypot(|x|, root) times their weight; rotary pairs lie side by side in the outputs
    of `qkv`. `gate_up` has the outputs of the gate first.
    """

    qkv: Matrix | None
    out: Matrix | None
    gate_up: Matrix | None
    down: Matrix | None
    bias: Tensor | None = None
    norm: Tensor | None = None
    after_norm: Tensor | None = None
    kv: Matrix | None = None
    head_norm: Tensor | None = None


class Ends(NamedTuple):
    """What is before and after a stack of layers, each None if there is nothing.

    enter: Maps embeddings to what the layers add to. leave: Maps that back once it is normed. norm:
        [D], the last norm's weight where there is no `leave`.
    """

    enter: Matrix | None = None
    leave: Matrix | None = None
    norm: Tensor | None = None


class Layers:
    """A stack of layers of one size; make it by `layers`."""

    def __init__(
        self,
        parts: Sequence[LayerParts],
        heads: int,
        kv_heads: int,
        head_width: int,
        root: float,
        ends: Ends,
    ) -> None:
        self._memory = tuple(parts), ends
        self.n_layers = len(parts)
        structs = (_LayerStruct * len(parts))()
        for struct, part in zip(structs, parts, strict=True):
            for name, value in part._asdict().items():
                if name == "kv":
                    struct.kv = _pointer(value)
                elif isinstance(value, Matrix):
                    setattr(struct, name, value.struct)
                else:
                    setattr(struct, name, _address(value))
        self.width: int = structs[0].down.n
        self.struct = _StackStruct(
            layers=structs,
            enter=_pointer(ends.enter),
            leave=_pointer(ends.leave),
            norm=_address(ends.norm),
            width=self.width,
            heads=heads,
            kv_heads=kv_heads,
            head_width=head_width,
            root=root,
            scale=head_width**-0.5,
        )

    def run(
        self,
        x: Tensor,
        cos_sin: Tensor,
        keys: Tensor,
        values: Tensor,
        at: int,
        mask: Tensor | None = None,
        span: tuple[int, int] = (0, 1),
        read: Tensor | None = None,
        positions: Tensor | None = None,
        embedded: Tensor | None = None,
        hidden: Tensor | None = None,
        features: Tensor | None = None,
        holes: int = 0,
    ) -> None:
        """Run layers first .. end: change x and write the new rows' keys and values.

        Each row's bits are those of a plain step, however many rows there are and in whatever tree.

        Args:
            x: What the layers add to, [B * T, D] contiguous float32.
            cos_sin: Cosine and sine of every rotary pair, [B * T, head_width]; with `positions`,
                [P, head_width].
            keys, values: Of all layers, [layers, B, kv_heads, room, at least width] float32, both
                of the same strides.
            at: Rows in the cache before these.
            mask: Additive, [T, at + T] or [B or 1, 1, T or 1, at + T] float32; None if rows see all
                before them.
            span: first and end.
            read: [B * T, ...] what the first layer's attention reads, without its norm; None for x.
            positions: [B or 1, T] int64, below P.
            embedded: [B * T, D] contiguous float32; x is made of it first, and may be empty before.
            hidden: [B * T, D] contiguous float32, receives what the layers return.
            features: [B * T, D] those before the rows, for layers that attend to features.
            holes: Rows at the cache's start that the other layers skip.
        """
        assert x.is_contiguous()
        if embedded is not None and not self.struct.enter:
            x.copy_(embedded.view_as(x))
            embedded = None
        sequences, rows = keys.shape[1], x.shape[0] // keys.shape[1]
        step = _StepStruct(sequences=sequences, rows=rows, at=at, holes=holes)
        # Rows of an expanded tensor are all the same memory.
        cos_sin = cos_sin.contiguous()
        read, features = (None if one is None else one.contiguous() for one in (read, features))
        step.cos_sin, step.n_positions, step.x = cos_sin.data_ptr(), len(cos_sin), x.data_ptr()
        step.embedded, step.hidden = _address(embedded), _address(hidden)
        step.input, step.features = _address(read), _address(features)
        _set_cache(step, keys, values)
        if positions is not None:
            positions = positions.contiguous()
            step.positions = positions.data_ptr()
            step.position_sequence = positions.shape[1] if len(positions) > 1 else 0
        if mask is not None:
            mask = mask.expand(sequences, 1, rows, at + rows)
            if mask.stride(3) != 1:
                mask = mask.contiguous()
            step.mask = mask.data_ptr()
            step.mask_sequence, step.mask_row = mask.stride(0), mask.stride(2)
        stack, first, end = ctypes.byref(self.struct), *span
        done = _library().run_layers(stack, ctypes.byref(step), first, end, _threads())
        _check(done == _OUTSIDE, done, cos_sin)


class ChainParts(NamedTuple):
    """What drafts tokens in a row, besides the output head.

    reads: What a row is made of. "embedding": of its token. "product": `join` times the embedding
        beside the feature before it, plus the `bias` [steps, D] of its step, the last one from
        there on. "both": these two, normed, for the attention, and the feature as what layers add
        to. "attended": the embedding, for layers of which one attends to features.
    """

    layers: Layers | None
    reads: Reads = "embedding"
    join: Matrix | None = None
    bias: Tensor | None = None


class DraftedChain(NamedTuple):
    """m drafted tokens.

    tokens, logp: [m] the ids and their log-probabilities. log_probs: [m, n] of all outputs.
    features: [m, D] what the layers made of the row before each.
    """

    tokens: Tensor
    logp: Tensor
    log_probs: Tensor
    features: Tensor


class ChainDrafter:
    """Drafts tokens in a row by one call, each the likeliest after the one before it.

    Args:
        parts: With layers.
        head: Logits of what the layers make.
        table: [V, D] embeddings, contiguous float32.
        cos_sin: [P, head_width] cosine and sine of every rotary pair, contiguous float32.
        n: Outputs of the head that count.
        ids: [n] the id of each; None if they are the ids.
        never: Outputs that are never drafted.
    """

    def __init__(
        self,
        parts: ChainParts,
        head: Matrix,
        table: Tensor,
        cos_sin: Tensor,
        n: int,
        ids: Tensor | None,
        never: Tensor,
    ) -> None:
        layers, bias = parts.layers, None if parts.bias is None else parts.bias.contiguous()
        assert layers is not None
        self._memory = parts, head, table, cos_sin, ids, never, bias
        self._n, self._cos_sin, (self._n_embeddings, self._width) = n, cos_sin, table.shape
        floats = (table, cos_sin, *(() if bias is None else (bias,)))
        fits = (
            n <= head.n and self._width == layers.width,
            all(one.dtype == torch.float32 and one.is_contiguous() for one in floats),
            all(one.dtype == torch.int64 for one in (never, *(() if ids is None else (ids,)))),
            parts.reads != "product" or (parts.join is not None and bias is not None),
        )
        if not all(fits):
            raise ValueError(
                "a chain needs float32 tables of the layers' width, int64 ids, no more outputs than"
                f" its head has, and for products a matrix and a bias; fulfilled are {fits}"
            )
        self._struct = _DraftingStruct(
            stack=ctypes.pointer(layers.struct),
            join=_pointer(parts.join),
            head=_pointer(head),
            table=_address(table),
            bias=_address(bias),
            ids=_address(ids),
            never=_address(never),
            n=n,
            n_never=len(never),
            n_embeddings=len(table),
            steps=0 if bias is None else len(bias),
            layers=layers.n_layers,
            reads=get_args(Reads).index(parts.reads),
        )

    def run(
        self,
        tokens: Tensor,
        most: int,
        floor: float,
        keys: Tensor,
        values: Tensor,
        at: int,
        position: int,
        features: Tensor | None = None,
        holes: int = 0,
    ) -> DraftedChain:
        """Feed `tokens` [k] and what is drafted, but for the last.

        Args:
            most: The most to draft.
            floor: Drafting stops once the log-probability of all drafted tokens is below.
            keys, values, at, holes: As for `Layers.run`, of one sequence.
            position: Of the first token.
            features: [k, D] those before `tokens`.

        Raises:
            IndexError: If a token has no embedding, or a position no rotation.
        """
        k, tokens = len(tokens), tokens.long().contiguous()
        if features is not None:
            features = features.float().contiguous()
            if len(features) != k:
                raise ValueError(f"{k} tokens need as many features, not {len(features)}")
        positions = torch.arange(position, position + k + most - 1)
        drafted, logp = torch.empty(most, dtype=torch.int64), torch.empty(most)
        log_probs, made_features = torch.empty(most, self._n), torch.empty(most, self._width)
        step = _StepStruct(sequences=1, rows=k, at=at, holes=holes)
        step.cos_sin, step.n_positions = self._cos_sin.data_ptr(), len(self._cos_sin)
        step.positions = positions.data_ptr()
        _set_cache(step, keys, values)
        made = _library().draft_chain(
            ctypes.byref(self._struct),
            ctypes.byref(step),
            tokens.data_ptr(),
            k,
            _address(features),
            most,
            floor,
            drafted.data_ptr(),
            logp.data_ptr(),
            log_probs.data_ptr(),
            made_features.data_ptr(),
            _threads(),
        )
        if made == _UNKNOWN:
            raise IndexError(
                f"tokens must be below {self._n_embeddings}, as many as there are embeddings"
            )
        _check(made < 0, made, self._cos_sin)
        return DraftedChain(*(one[:made] for one in (drafted, logp, log_probs, made_features)))


def _set_cache(step: _StepStruct, keys: Tensor, values: Tensor) -> None:
    """Write where a cache is, its strides, and how far values are from keys."""
    step.cache = keys.data_ptr()
    step.layer, step.sequence, step.head, step.row, _ = keys.stride()
    step.to_values = (values.data_ptr() - keys.data_ptr()) // keys.element_size()


def _check(outside: bool, done: int, cos_sin: Tensor) -> None:
    """Raise IndexError if a position has no rotation, MemoryError if nothing was done."""
    if outside:
        raise IndexError(f"positions must be below {len(cos_sin)}, as many as there are rotations")
    if not done:
        raise MemoryError("there is no memory for the rows of a decoder's layers")


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _pointer(matrix: Matrix | None) -> Any:
    return None if matrix is None else ctypes.pointer(matrix.struct)


def layers(
    parts: Sequence[LayerParts],
    heads: int,
    kv_heads: int,
    head_width: int,
    root: float,
    ends: Ends = Ends(),  # noqa: B008 (it cannot be changed)
) -> Layers | None:
    """Return a stack of layers; None where torch takes over."""
    matrices = [one for part in parts for one in (part.qkv, part.out, part.gate_up, part.down)]
    matrices += [part.kv for part in parts if part.head_norm is not None]
    if head_width not in _WIDTHS or any(
        one is None or one.k % _VECTOR or one.n % _GROUP for one in matrices
    ):
        return None
    return Layers(parts, heads, kv_heads, head_width, root, ends)
