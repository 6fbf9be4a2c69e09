"""A stack of a Llama-type decoder's layers as one call of our own kernels, a level of a drafted
tree likewise, and what mixtures of several sequences would have drafted.

Made where a compiler built the kernels and the layers have sizes that they take; elsewhere torch's
operations take over. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from specvl_demo.core.types import LevelRequest
from specvl_demo.decoders import kernels
from specvl_demo.decoders.kernels import GROUP, VECTOR, PackedMatrix, StepStruct, address, pointer
from specvl_demo.decoders.kv_cache import KVCache
from specvl_demo.decoders.packed_linear import PackedLinear

_HEAD_WIDTHS = (16, 32, 64, 128)
_NO_ROTATION = 2
"""What `run_layers` returns if a position has no rotation."""
_NO_EMBEDDING = -2
"""What `draft_levels` returns if a token has no embedding."""
Reads = Literal["embedding", "product", "both", "attended"]
"""What a drafted row is made of (`DraftWeights`)."""


class LayerWeights(NamedTuple):
    """What a layer computes with; `bias` [qkv.n] and the norms' weights [D] may be None.

    A layer that attends to features has `kv`, which makes keys and values of them, only queries in
    `qkv`, and `head_norm` [head_width], by which normed queries are multiplied. In others it is
    [query and key heads, head_width], of the norms of queries and keys, if there are any, and there
    is no `bias`.

    `gate_up` has the outputs of the gate first. In a stack, norms are x / hypot(|x|, root) times
    their weight, and rotary pairs lie side by side in the outputs of `qkv`.
    """

    qkv: PackedLinear
    out: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear
    bias: Tensor | None = None
    norm: Tensor | None = None
    after_norm: Tensor | None = None
    kv: PackedLinear | None = None
    head_norm: Tensor | None = None

    @property
    def fits_kernels(self) -> bool:
        """Whether our own kernels have all its matrices, in sizes that they take."""
        matrices = [part.matrix for part in self if isinstance(part, PackedLinear)]
        return all(m is not None and not m.k % VECTOR and not m.n % GROUP for m in matrices)


class LayerStack:
    """Layers of one size, which the kernels take (`takes_layers`).

    Args:
        enter: Maps embeddings to what the layers add to; None if these are the same.
        leave: Maps that back once it is normed, likewise.
        norm: [D], the last norm's weight where there is no `leave`; None if it has none.
    """

    def __init__(
        self,
        parts: Sequence[LayerWeights],
        heads: int,
        kv_heads: int,
        head_width: int,
        root: float,
        enter: PackedMatrix | None = None,
        leave: PackedMatrix | None = None,
        norm: Tensor | None = None,
    ) -> None:
        self._memory = tuple(parts), enter, leave, norm
        self.n_layers = len(parts)
        structs = (kernels.LayerStruct * len(parts))()
        for struct, part in zip(structs, parts):
            for name, value in part._asdict().items():
                if not isinstance(value, PackedLinear):
                    setattr(struct, name, address(value))
                elif name == "kv":
                    struct.kv = pointer(value.matrix)
                else:
                    assert value.matrix is not None  # as `fits_kernels` says
                    setattr(struct, name, value.matrix.struct)
        self.width: int = structs[0].down.n
        self.struct = kernels.StackStruct(
            layers=structs,
            enter=pointer(enter),
            leave=pointer(leave),
            norm=address(norm),
            width=self.width,
            heads=heads,
            kv_heads=kv_heads,
            head_width=head_width,
            root=root,
            scale=head_width**-0.5,
        )

    def decode(
        self,
        x: Tensor,
        rotation: Tensor,
        cache: KVCache,
        mask: Tensor | None,
        read: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """Return what all layers make of rows x [T, D] of one sequence, [1, T, D].

        rotation: Of every rotary pair, complex [T, 1, head_width / 2]. Others: As for `run_layers`.
        """
        summed = x.clone()
        hidden = torch.empty_like(x)
        cos_sin = torch.view_as_real(rotation).flatten(1)
        keys, values = cache.blocks[0].unbind(1)
        self.run_layers(
            summed,
            cos_sin,
            keys,
            values,
            cache.length,
            mask,
            (0, self.n_layers),
            read,
            hidden=hidden,
            features=features,
            holes=cache.holes,
        )
        return hidden[None]

    def run_layers(
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
            cos_sin: Of every rotary pair, [B * T, head_width]; with `positions`, [P, head_width].
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
        sequences = keys.shape[1]
        rows = x.shape[0] // sequences
        # Rows of an expanded tensor are all the same memory.
        cos_sin = cos_sin.contiguous()
        read = None if read is None else read.contiguous()
        features = None if features is None else features.contiguous()
        step = StepStruct(
            sequences=sequences,
            rows=rows,
            at=at,
            holes=holes,
            cos_sin=address(cos_sin),
            n_positions=len(cos_sin),
            x=address(x),
            embedded=address(embedded),
            hidden=address(hidden),
            input=address(read),
            features=address(features),
        )
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
            step.mask_sequence = mask.stride(0)
            step.mask_row = mask.stride(2)
        done = kernels.library().run_layers(self.struct, step, *span, kernels.n_threads())
        _raise_if_failed(done == _NO_ROTATION, done, cos_sin)


def takes_sizes(head_width: int, inputs: Sequence[int], outputs: Sequence[int]) -> bool:
    """Whether the kernels take layers whose heads and matrices have these sizes."""
    fit = not any(k % VECTOR for k in inputs) and not any(n % GROUP for n in outputs)
    return head_width in _HEAD_WIDTHS and fit


def takes_layers(parts: Sequence[LayerWeights], head_width: int) -> bool:
    """Whether the kernels take these layers; torch takes over elsewhere."""
    return head_width in _HEAD_WIDTHS and all(part.fits_kernels for part in parts)


class DraftWeights(NamedTuple):
    """What drafts tokens, besides the output head.

    reads: What a row is made of. "embedding": of its token. "product": `join` times the embedding
        beside the feature before it, plus the `bias` [steps, D] of its level, the last one from
        there on. "both": these two, normed, for the attention, and the feature as what layers add
        to. "attended": the embedding, for layers of which one attends to features.
    """

    layers: LayerStack | None
    reads: Reads = "embedding"
    join: PackedMatrix | None = None
    bias: Tensor | None = None

    @property
    def fits_kernels(self) -> bool:
        """Whether all that it needs is packed."""
        return self.layers is not None and (self.reads != "product" or self.join is not None)


class LevelWeights:
    """What drafts levels of trees, each by one call. Shared by lanes, never changed.

    Args:
        parts: With layers.
        head: Logits of what the layers make.
        table: [V, D] embeddings, contiguous float32.
        cos_sin: [P, head_width] cosine and sine of every rotary pair, contiguous float32.
        n: Outputs of the head that count.
        ids: [n] the id of each; None if they are the ids.
        banned: Outputs that are never drafted.
    """

    def __init__(
        self,
        parts: DraftWeights,
        head: PackedMatrix,
        table: Tensor,
        cos_sin: Tensor,
        n: int,
        ids: Tensor | None,
        banned: Tensor,
    ) -> None:
        layers = parts.layers
        bias = None if parts.bias is None else parts.bias.contiguous()
        assert layers is not None
        self._memory = parts, head, table, cos_sin, ids, banned, bias
        self.n = n
        self.cos_sin = cos_sin
        self.width = table.shape[1]
        self.outputs = head.struct.n
        # What the library reads without a look.
        floats = [tensor for tensor in (table, cos_sin, bias) if tensor is not None]
        assert all(each.dtype == torch.float32 and each.is_contiguous() for each in floats)
        assert banned.dtype == torch.int64 and (ids is None or ids.dtype == torch.int64)
        assert n <= head.n and self.width == layers.width
        assert parts.fits_kernels and (parts.reads != "product" or bias is not None)
        self.struct = kernels.DraftingStruct(
            stack=kernels.pointer(layers),
            join=pointer(parts.join),
            head=pointer(head),
            table=address(table),
            bias=address(bias),
            ids=address(ids),
            never=address(banned),
            n=n,
            n_never=len(banned),
            n_embeddings=len(table),
            steps=0 if bias is None else len(bias),
            layers=layers.n_layers,
            reads=get_args(Reads).index(parts.reads),
        )


class LevelDrafter:
    """Drafts the levels of one lane's trees, and chains of them, by one call each.

    Attributes:
        log_probs: [nodes, m, n] after every node of this round, by sequence.
    """

    def __init__(self, weights: LevelWeights, cache: KVCache, padding: Tensor, nodes: int) -> None:
        """Take a lane's cache of m sequences, which begin with `padding` [m] rows to skip, and the
        most nodes of a round.
        """
        self._weights = weights
        self._cache = cache
        m = cache.batch
        memory = torch.empty(nodes, m, weights.outputs)
        made = torch.empty(nodes, weights.width)
        self.log_probs = memory[..., : weights.n]
        self._parents = torch.empty(nodes, dtype=torch.int64)
        self._memory = made, padding.contiguous()
        cos_sin = weights.cos_sin
        self._step = StepStruct(
            sequences=m, holes=cache.holes, cos_sin=address(cos_sin), n_positions=len(cos_sin)
        )
        _set_cache(self._step, *cache.blocks[0].unbind(1))
        self._level = kernels.LevelStruct(
            parents=address(self._parents),
            padding=address(self._memory[1]),
            made=address(made),
            log_probs=address(memory),
        )

    def draft(
        self,
        tokens: Tensor,
        request: LevelRequest,
        parents: Sequence[int],
        base: int,
        position: Tensor,
        weights: Tensor | None = None,
        features: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Feed nodes, and return the k likeliest tokens after each: ids and log-probabilities
        [drafted, k], best first.

        Tokens fed before the root, in the same call, have none. Rows are written after the cache's
        length, which stays.

        Args:
            tokens: [r] of the new nodes, with known ones before a root.
            request: What is asked: k, levels, floor.
            parents: Of all nodes of this round, the new ones last.
            base: Row of the cache that the root lies in.
            position: [m] of the root.
            weights: [m] of the sequences' distributions in their mixture; None for one sequence.
            features: [r, D] those before tokens up to the root, for a drafter that reads features.

        Raises:
            IndexError: If a token has no embedding, or a position no rotation.
        """
        level = self._level
        rows = len(tokens)
        nodes = len(parents)
        tokens = tokens.contiguous()
        k = min(request.k, self._weights.n)
        levels = request.levels
        size = min(rows, nodes) + levels - 1
        assert nodes + levels - 1 <= len(self._parents) and (
            weights is not None or len(position) == 1
        )
        if features is not None:
            features = features.float().contiguous()
        ids = torch.empty(size, k, dtype=torch.int64)
        logp = torch.empty(size, k)
        self._parents[:nodes] = torch.tensor(parents)
        level.base = base
        level.rows = rows
        level.k = k
        level.fed = tokens.data_ptr()
        level.position = position.data_ptr()
        level.weights = address(weights)
        level.features = address(features)
        level.tokens = ids.data_ptr()
        level.logp = logp.data_ptr()
        self._step.at = self._cache.length
        done = kernels.library().draft_levels(
            self._weights.struct, self._step, level, levels, request.floor, kernels.n_threads()
        )
        if done == _NO_EMBEDDING:
            raise IndexError(
                f"tokens must be below {self._weights.struct.n_embeddings}, as many as there are"
                " embeddings"
            )
        _raise_if_failed(done < 0, done, self._weights.cos_sin)
        return ids[:done], logp[:done]


def weigh_mixtures(
    sums: Tensor, grid: Tensor, log_probs: Tensor, logits: Tensor, likely: int, rivals: int
) -> Tensor | None:
    """Add positions to the sums [2, G] of the vectors [G, m] of a grid, and return the best [m];
    None where torch takes over.

    log_probs, logits: [m, p, V] and [p, V] float32. likely, rivals: See `History` of kernels.c.
    """
    if logits.device.type != "cpu" or not kernels.available():
        return None
    *apart, each = log_probs.stride()
    assert each == logits.stride(1) == 1
    read = map(address, (log_probs, logits, grid, sums))
    least = (min(size, log_probs.shape[2]) for size in (likely, rivals))
    sizes = *apart, logits.stride(0), *log_probs.shape, len(grid), *least
    best = kernels.library().weigh_mixtures(kernels.HistoryStruct(*read, *sizes))
    if best < 0:
        raise MemoryError("there is no memory for the mixtures of a drafter's views")
    return grid[best]


def _set_cache(step: StepStruct, keys: Tensor, values: Tensor) -> None:
    """Write where a cache is, its strides, and how far values are from keys."""
    step.cache = keys.data_ptr()
    step.layer, step.sequence, step.head, step.row, _ = keys.stride()
    step.to_values = (values.data_ptr() - keys.data_ptr()) // keys.element_size()


def _raise_if_failed(outside: bool, done: int, cos_sin: Tensor) -> None:
    """Raise IndexError if a position has no rotation, MemoryError if nothing was done."""
    if outside:
        raise IndexError(f"positions must be below {len(cos_sin)}, as many as there are rotations")
    if not done:
        raise MemoryError("there is no memory for the rows of a decoder's layers")
