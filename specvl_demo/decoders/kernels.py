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
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo import places
from specvl_demo.native.build_kernels import SOURCE, build, is_off

_GROUP = 32
"""Outputs whose weights lie side by side."""
_VECTOR = 16
"""Inputs that are rounded at once."""
_ROOT = 0
_OPENMP = "libgomp.so.1"
_WIDTHS = (16, 32, 64, 128)
"""Of a head."""
_LAYERS, _8_BIT = 1, 2
"""Bits of what the library supports here."""
_SINGLE, _HALF, _EIGHT, _SIXTEEN, _EIGHT_BY_SIXTEEN = range(5)
"""Kinds of a matrix in kernels.c."""
_OUTSIDE = 2
"""What `run_layers` returns if a position has no rotation."""
_UNKNOWN = -2
"""What `draft_in_a_row` returns if a token has no embedding."""
_MOST_SUM = 0.99 * 2**31
"""Of integers of 32 bits, with room for rounding."""


Reads = Literal["embedding", "product", "both", "attended"]


class _MatrixStruct(ctypes.Structure):
    """`Matrix` of kernels.c."""

    _fields_ = (
        ("packed", ctypes.c_void_p),
        ("start", ctypes.c_void_p),
        ("step", ctypes.c_void_p),
        ("k", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("unit", ctypes.c_float),
        ("kind", ctypes.c_int32),
    )


class _LayerStruct(ctypes.Structure):
    """`Layer` of kernels.c."""

    _fields_ = (
        *((name, _MatrixStruct) for name in ("qkv", "out", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("bias", "norm", "after_norm")),
        ("kv", ctypes.POINTER(_MatrixStruct)),
        ("head_norm", ctypes.c_void_p),
    )


class _StackStruct(ctypes.Structure):
    """`Stack` of kernels.c."""

    _fields_ = (
        ("layers", ctypes.POINTER(_LayerStruct)),
        *((name, ctypes.POINTER(_MatrixStruct)) for name in ("enter", "leave")),
        ("norm", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("width", "heads", "kv_heads", "head_width")),
        ("root", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


_POINTERS = ("embedded", "x", "input", "hidden", "turns", "cache", "positions", "features")
_STRIDES = ("turned", "position_sequence", "layer", "sequence", "head", "row", "to_values")
_SIZES = ("mask_sequence", "mask_row", "sequences", "rows", "at", "holes")


class _StepStruct(ctypes.Structure):
    """`Step` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _STRIDES),
        ("mask", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in _SIZES),
    )


class _DraftingStruct(ctypes.Structure):
    """`Drafting` of kernels.c."""

    _fields_ = (
        ("stack", ctypes.POINTER(_StackStruct)),
        *((name, ctypes.POINTER(_MatrixStruct)) for name in ("join", "head")),
        *((name, ctypes.c_void_p) for name in ("table", "bias", "ids", "never")),
        *((name, ctypes.c_int64) for name in ("n", "n_never", "known", "steps", "layers", "reads")),
    )


@cache
def _loaded() -> tuple[ctypes.CDLL | None, int]:
    """Return the library and what it supports here; (None, 0) where it cannot be had."""
    if is_off():
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
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        library.multiply.argtypes = (
            *(ctypes.POINTER(_MatrixStruct), pointer, integer, pointer, integer),
            ctypes.c_int,
        )
        library.run_layers.argtypes = (
            *(ctypes.POINTER(_StackStruct), ctypes.POINTER(_StepStruct), integer, integer),
            ctypes.c_int,
        )
        library.draft_in_a_row.argtypes = (
            *(ctypes.POINTER(_DraftingStruct), ctypes.POINTER(_StepStruct), pointer, integer),
            *(pointer, integer, ctypes.c_double, pointer, pointer, pointer, pointer, ctypes.c_int),
        )
        library.log_softmax.argtypes = pointer, integer, integer, pointer, integer
        library.widen.argtypes = pointer, integer, integer, pointer, pointer, integer
        library.log_softmax.restype = library.widen.restype = None
        return library, int(library.supported())
    except (OSError, AttributeError) as fault:
        log.warning("%s was built wrongly, so small models run slower: %s", SOURCE.name, fault)
        with suppress(OSError):
            path.unlink()
        return None, 0


def available() -> bool:
    """Return whether our own kernels run here, if not in 8 bits."""
    return bool(_loaded()[1] & _LAYERS)


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
        self._kept = packed, start, step
        self.struct = _MatrixStruct(*map(_address, self._kept), self.k, self._whole, unit, kind)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x Wᵀ, [rows, n]."""
        library, _ = _loaded()
        assert library is not None
        x, out = x.contiguous(), torch.empty(x.shape[0], self._whole)
        if not library.multiply(
            ctypes.byref(self.struct),
            x.data_ptr(),
            x.shape[0],
            out.data_ptr(),
            self._whole,
            torch.get_num_threads(),
        ):
            raise MemoryError("there is no memory for a copy of the rows of a product")
        return out if self._whole == self.n else out[:, : self.n]


def log_softmax(logits: Tensor, never: Tensor) -> Tensor:
    """Return log-probabilities of logits [..., R], which may be overwritten; those at `never` are
    -inf.
    """
    if not _takes(logits):
        if len(never):
            logits = logits.index_fill_(-1, never, -torch.inf)
        return logits.log_softmax(-1)
    library, _ = _loaded()
    assert library is not None
    logits, n = logits.contiguous(), logits.shape[-1]
    library.log_softmax(logits.data_ptr(), logits.numel() // n, n, never.data_ptr(), len(never))
    return logits


def widened(rows: Tensor, ids: Tensor, size: int) -> Tensor:
    """Return [..., size] with rows [..., R] at `ids` [R] int64, all below `size`, and -inf
    elsewhere.
    """
    if not _takes(rows):
        wide = rows.new_full((*rows.shape[:-1], size), -torch.inf)
        return wide.index_copy_(-1, ids, rows)
    library, _ = _loaded()
    assert library is not None
    rows, n = rows.contiguous(), rows.shape[-1]
    wide = torch.empty(*rows.shape[:-1], size)
    library.widen(rows.data_ptr(), rows.numel() // n, n, ids.data_ptr(), wide.data_ptr(), size)
    return wide


def _takes(rows: Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and available()


def floats(weight: Tensor, factor: float | None) -> Matrix | None:
    """Pack numbers [n, k]; None where torch takes over.

    factor: If half precision holds the numbers, what they are multiplied by; None to keep them in
        float32.
    """
    library, supported = _loaded()
    n, k = weight.shape
    if library is None or not supported & _LAYERS:
        return None
    numbers = weight.float() if factor is None else weight.half()
    groups = F.pad(numbers, (0, 0, 0, -n % _GROUP)).view(-1, _GROUP, k)
    kind = _SINGLE if factor is None else _HALF
    return Matrix(kind, (n, k), groups.transpose(1, 2).contiguous(), unit=factor or 1.0)


def has_8_bits() -> bool:
    """Return whether `eight_bits` and `integers` pack here."""
    return bool(_loaded()[1] & _8_BIT)


def eight_bits(weight: Tensor, most: float | None) -> Matrix | None:
    """Round [n, k] to 8 bits, for rows that are rounded to 8; None where torch takes over.

    most: The number that 127 stands for in every row; None for each row's largest one.
    """
    n, k = weight.shape
    if not has_8_bits() or n % _GROUP or k % _VECTOR:
        return None
    exact = weight.float()
    step = exact.abs().amax(1).clamp_min(1e-12) / 127
    numbers = (exact / step[:, None]).round_().to(torch.int8)
    groups = numbers.view(n // _GROUP, _GROUP, k // 4, 4).transpose(1, 2).contiguous()
    start = -128 * numbers.sum(1, dtype=torch.int32)
    unit = None if most is None else most / 127
    # Both steps are multiplied in float32.
    step = step * torch.tensor(1 / 127 if unit is None else unit)
    return Matrix(_EIGHT, (n, k), groups, start, step, unit or 0.0)


def integers(weight: Tensor, bits: int) -> Matrix | None:
    """Round [n, k] to 16 or 8 bits, for rows that are rounded to 16; None as for `eight_bits`."""
    n, k = weight.shape
    if not has_8_bits() or n % _GROUP or k % _VECTOR:
        return None
    exact, most = weight.float(), 2 ** (bits - 1) - 1
    # Half of a sum's bits for a row of the matrix, if it has as many.
    length = min(_MOST_SUM**0.5, most * k**0.5)
    step = torch.maximum(exact.norm(dim=1) / length, exact.abs().amax(1) / most).clamp_min_(1e-20)
    numbers = (exact / step[:, None]).round_().to(torch.int16 if bits == 16 else torch.int8)
    groups = numbers.view(n // _GROUP, _GROUP, k // 2, 2).transpose(1, 2).contiguous()
    start = torch.zeros(n, dtype=torch.int32)
    kind = _SIXTEEN if bits == 16 else _EIGHT_BY_SIXTEEN
    return Matrix(kind, (n, k), groups, start, step, length / _MOST_SUM)


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
        self._kept = tuple(parts), ends
        self.n_layers = len(parts)
        structs = (_LayerStruct * len(parts))()
        for struct, part in zip(structs, parts, strict=True):
            for name, one in part._asdict().items():
                if name == "kv":
                    struct.kv = None if one is None else ctypes.pointer(one.struct)
                elif isinstance(one, Matrix):
                    setattr(struct, name, one.struct)
                elif one is not None:
                    setattr(struct, name, one.data_ptr())
        self.width: int = structs[0].down.n
        sizes = self.width, heads, kv_heads, head_width
        matrices = (None if one is None else ctypes.pointer(one.struct) for one in ends[:2])
        self.struct = _StackStruct(
            structs, *matrices, _address(ends.norm), *sizes, root, head_width**-0.5
        )

    def run(
        self,
        x: Tensor,
        turns: Tensor,
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
            turns: Cosine and sine of every rotary pair, [B * T, head_width]; with `positions`, [P,
                head_width].
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
        library, _ = _loaded()
        assert library is not None and x.is_contiguous()
        # Rows of an expanded tensor are all the same memory.
        turns = turns.contiguous()
        read, features = (None if one is None else one.contiguous() for one in (read, features))
        per_sequence = 0
        if positions is not None:
            positions = positions.contiguous()
            per_sequence = positions.shape[1] if len(positions) > 1 else 0
        sequences, rows = keys.shape[1], x.shape[0] // keys.shape[1]
        of_mask: tuple[int | None, int, int] = None, 0, 0
        if mask is not None:
            mask = mask.expand(sequences, 1, rows, at + rows)
            if mask.stride(3) != 1:
                mask = mask.contiguous()
            of_mask = mask.data_ptr(), mask.stride(0), mask.stride(2)
        address, of_sequence, of_row = of_mask
        step = _StepStruct(
            *map(_address, (embedded, x, read, hidden, turns, keys, positions, features)),
            *(len(turns), per_sequence, *_strides(keys, values)),
            *(address, of_sequence, of_row, sequences, rows, at, holes),
        )
        done = library.run_layers(
            ctypes.byref(self.struct), ctypes.byref(step), *span, torch.get_num_threads()
        )
        _check(done == _OUTSIDE, done, turns)


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


class InARowOutput(NamedTuple):
    """m drafted tokens.

    tokens, logp: [m] the ids and their log-probabilities. log_probs: [m, n] of all outputs.
    features: [m, D] what the layers made of the row before each.
    """

    tokens: Tensor
    logp: Tensor
    log_probs: Tensor
    features: Tensor


class InARow:
    """Drafts tokens in a row by one call, each the likeliest after the one before it.

    Args:
        parts: With layers.
        head: Logits of what the layers make.
        table: [V, D] embeddings, contiguous float32.
        turns: [P, head_width] cosine and sine of every rotary pair, contiguous float32.
        n: Outputs of the head that count.
        ids: [n] the id of each; None if they are the ids.
        never: Outputs that are never drafted.
    """

    def __init__(
        self,
        parts: ChainParts,
        head: Matrix,
        table: Tensor,
        turns: Tensor,
        n: int,
        ids: Tensor | None,
        never: Tensor,
    ) -> None:
        layers, bias = parts.layers, None if parts.bias is None else parts.bias.contiguous()
        assert layers is not None
        self._kept = parts, head, table, turns, ids, never, bias
        self._n, self._turns, (self._known, self._width) = n, turns, table.shape
        floats = (table, turns, *(() if bias is None else (bias,)))
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
            ctypes.pointer(layers.struct),
            None if parts.join is None else ctypes.pointer(parts.join.struct),
            ctypes.pointer(head.struct),
            *map(_address, (table, bias, ids, never)),
            *(n, len(never), len(table), 0 if bias is None else len(bias), layers.n_layers),
            get_args(Reads).index(parts.reads),
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
    ) -> InARowOutput:
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
        library, _ = _loaded()
        assert library is not None
        k, tokens = len(tokens), tokens.long().contiguous()
        if features is not None:
            features = features.float().contiguous()
            if len(features) != k:
                raise ValueError(f"{k} tokens need as many features, not {len(features)}")
        positions = torch.arange(position, position + k + most - 1)
        drafted, logp = torch.empty(most, dtype=torch.int64), torch.empty(most)
        log_probs, made_features = torch.empty(most, self._n), torch.empty(most, self._width)
        step = _StepStruct(
            *map(_address, (None, None, None, None, self._turns, keys, positions, None)),
            *(len(self._turns), 0, *_strides(keys, values)),
            *(None, 0, 0, 1, k, at, holes),
        )
        made = library.draft_in_a_row(
            *(ctypes.byref(self._struct), ctypes.byref(step), tokens.data_ptr(), k),
            *(_address(features), most, floor, drafted.data_ptr(), logp.data_ptr()),
            *(log_probs.data_ptr(), made_features.data_ptr(), torch.get_num_threads()),
        )
        if made == _UNKNOWN:
            raise IndexError(f"tokens must be below {self._known}, as many as there are embeddings")
        _check(made < 0, made, self._turns)
        return InARowOutput(*(one[:made] for one in (drafted, logp, log_probs, made_features)))


def _strides(keys: Tensor, values: Tensor) -> tuple[int, int, int, int, int]:
    """Return a cache's strides of layer, sequence, head and row, and from keys to values."""
    layer, sequence, head, row, _ = keys.stride()
    to_values = (values.data_ptr() - keys.data_ptr()) // keys.element_size()
    return layer, sequence, head, row, to_values


def _check(outside: bool, done: int, turns: Tensor) -> None:
    """Raise IndexError if a position has no rotation, MemoryError if nothing was done."""
    if outside:
        raise IndexError(f"positions must be below {len(turns)}, as many as there are rotations")
    if not done:
        raise MemoryError("there is no memory for the rows of a decoder's layers")


def _address(one: Tensor | None) -> int | None:
    return None if one is None else one.data_ptr()


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
