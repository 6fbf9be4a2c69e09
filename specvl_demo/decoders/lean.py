"""Lean forwards over the weights of Llama-type decoders, on a CPU and on CUDA.

Given a Hugging Face decoder and its head, compute the same hidden states and logits with few
operations: queries, keys and values are one product, gate and up projection are one, sums are made
in place (a test holds them against their twin, `huggingface`). `LeanDecoder` runs any size on any
device in the weights' own precision; `PackedDecoder` copies the weights of small models into a
layout that suits one to a few rows on a CPU. Both keep nothing of a request: positions, masks and
the cache are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specvl_demo.decoders import grouped_attention, kernels, packed_linear
from specvl_demo.decoders.attention import attend, in_pairs, probabilities, rotations
from specvl_demo.decoders.backend import ForwardInput, ForwardOutput
from specvl_demo.decoders.exact import ordered_attention
from specvl_demo.decoders.kv_cache import KVCache, Layout
from specvl_demo.decoders.packed_linear import Bits, PackedLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer

    from specvl_demo.decoders.draft_vocabulary import LogProbabilities

_ONE_AXIS = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
_THREE_AXES = ("Qwen2VLTextModel", "Qwen2_5_VLTextModel", "Qwen3VLTextModel")
_ROPES = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose frequencies do not depend on a prompt's length."""
_WIDEST_PACKED = 1024
_LONGEST = 32768
_PACKED_DTYPES = (torch.float32, torch.bfloat16)


def why_not(decoder: PreTrainedModel) -> str | None:
    """Return why this decoder cannot run lean, as the end of a sentence; None if it can."""
    name, config = type(decoder).__name__, decoder.config
    if name not in (*_ONE_AXIS, *_THREE_AXES):
        return f"{name} is not one of {', '.join((*_ONE_AXIS, *_THREE_AXES))}"
    types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if types != {"full_attention"} or (
        name == "MistralModel" and config.sliding_window is not None
    ):
        return "it attends through a sliding window"
    rope = config.rope_parameters.get("rope_type", "default")
    if rope not in _ROPES:
        return f"its rotary positions are of type {rope}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    parts = [one for one in decoder.layers.modules() if "Linear" in type(one).__name__]
    if any(type(one) is not nn.Linear for one in parts):
        return "its weights are quantised"
    if len({weight.device for weight in decoder.parameters()}) > 1:
        return "it is spread over several devices"
    first = decoder.layers[0]
    if first.self_attn.o_proj.bias is not None or first.mlp.down_proj.bias is not None:
        return "its output projections have biases"
    return None


def why_not_packed(decoder: PreTrainedModel) -> str | None:
    """Return why this decoder's weights are not packed for a CPU, as the end of a sentence; None if
    they are.
    """
    if reason := why_not(decoder):
        return reason
    config, weight = decoder.config, next(decoder.parameters())
    if type(decoder).__name__ not in _ONE_AXIS or hasattr(decoder.layers[0].self_attn, "q_norm"):
        return "it has three position axes, or norms of its queries"
    # On the meta device a model is only looked at, before it is loaded to a CPU.
    if weight.device.type not in ("cpu", "meta") or weight.dtype not in _PACKED_DTYPES:
        return (
            f"it runs on {weight.device.type} in {weight.dtype}; packing is for float32 and"
            " bfloat16 on a CPU"
        )
    if weight.dtype == torch.bfloat16 and packed_linear.PACKING is None:
        return "this torch has no products of float32 rows with a matrix in half precision"
    if config.hidden_size > _WIDEST_PACKED:
        return (
            f"it is {config.hidden_size} wide; above {_WIDEST_PACKED} the library's own kernels are"
            " as fast"
        )
    if config.rope_parameters.get("rope_type", "default") != "default":
        return "its rotary positions are stretched"
    return None


class PlainMatrix:
    """A matrix [out, in] as the library multiplies with it, with the face of a `PackedLinear`."""

    own = None

    def __init__(self, weight: Tensor) -> None:
        self._table, self.numel, self.n_bytes = weight.t(), weight.numel(), weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self._table)

    def into(self, out: Tensor, x: Tensor, plus: Tensor | None) -> None:
        if plus is None:
            torch.mm(x, self._table, out=out)
        else:
            torch.addmm(plus, x, self._table, out=out)

    def onto(self, out: Tensor, x: Tensor) -> None:
        out.addmm_(x, self._table)


Matrix: TypeAlias = PackedLinear | PlainMatrix


@torch.inference_mode(False)
@torch.no_grad()
def joined(parts: Sequence[nn.Parameter]) -> Tensor:
    """Return these parameters [n_i, ...] below each other in one tensor, of which they become
    views, so that none is stored twice.

    Modules that share a parameter keep sharing it. Nothing is copied if they lie so already.
    """
    first = parts[0]
    rows = [len(part) for part in parts]
    sizes, ends = (sum(rows), *first.shape[1:]), [0]
    for part in parts:
        ends.append(ends[-1] + part.numel())
    adjacent = all(
        part.is_contiguous()
        and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() != 0
        and part.storage_offset() == first.storage_offset() + end
        for part, end in zip(parts, ends, strict=False)
    )
    if adjacent:
        strides = (first.numel() // len(first), 1)[-first.ndim :]
        return first.detach().as_strided(sizes, strides)
    whole = torch.cat([part.detach() for part in parts])
    for part, own in zip(parts, whole.split(rows), strict=True):
        part.data = own
    return whole


class Layer(NamedTuple):
    """One layer's weights.

    Attributes:
        norm, after_norm: [D], None if they are part of the matrices that follow.
        bias: Of `qkv`.
        head_norm: [query and key heads, width] the norms of queries and keys, None if there are
            none.
    """

    norm: Tensor | None
    qkv: Matrix
    bias: Tensor | None
    out: Matrix
    after_norm: Tensor | None
    gate_up: Matrix
    down: Matrix
    head_norm: Tensor | None = None


_READ = ("qkv", "out", "gate_up", "down")
"""The matrices of a layer."""


class Joint(NamedTuple):
    """The projection to queries, keys and values of one layer, as views made once a forward.

    Attributes:
        rows: [B * T, all heads * width] what a layer's product writes.
        queries: [B, heads, T, width] rotated.
        fresh: Keys, rotated, and values as the cache has them, [2, B, kv_heads, T, width].
        rotate: Makes the latter two of the first, for a layer.
    """

    rows: Tensor
    queries: Tensor
    fresh: Tensor
    rotate: Callable[[Layer], object]


class LeanDecoder:
    """A `backend.Backend` over the library's weights, and a `fixed_shapes.Host`.

    Its matrices are joined on first use, not before: on a ZeroGPU Space weights move after they
    were loaded.
    """

    window: int | None = None
    near_blocks = False
    rows_apart = False
    is_split = False

    def __init__(self, decoder: PreTrainedModel, head: nn.Linear) -> None:
        if reason := why_not(decoder):
            raise ValueError(f"this decoder cannot run lean: {reason}")
        config = decoder.config
        self._decoder, self._output = decoder, head
        self.width: int = config.hidden_size
        self.input_width = self.width
        self.n_layers: int = config.num_hidden_layers
        self.vocab: int = head.weight.shape[0]
        self.axes = 3 if type(decoder).__name__ in _THREE_AXES else 1
        self._eps: float = config.rms_norm_eps
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._head_width: int = getattr(config, "head_dim", None) or self.width // self._heads
        read = [*decoder.layers.parameters(), head.weight]
        self.n_weights = sum(weight.numel() for weight in read)
        self.n_bytes = sum(weight.nbytes for weight in read)
        self.n_cached = 2 * self.n_layers * self._kv_heads * self._head_width
        self._mixes = grouped_attention.Fastest()

    @property
    def device(self) -> torch.device:
        """Where everything is."""
        return self._output.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, hidden states and logits."""
        return self._output.weight.dtype

    @property
    def table(self) -> Tensor:
        """The embeddings [V, D]."""
        return self._decoder.embed_tokens.weight.detach()

    def layouts(self) -> list[Layout]:
        """How every layer stores its rows."""
        return [Layout(self.device, self._kv_heads, self._head_width)] * self.n_layers

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self._output.weight)

    def part(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        weight = self._output.weight[rows.to(self.device)]
        return lambda hidden: F.linear(hidden, weight)

    def in_a_row(self, log_probs: LogProbabilities) -> kernels.InARow | None:
        """Return None: torch runs one step at a time."""
        return None

    def new_cache(self, batch: int, room: int) -> KVCache:
        return KVCache(self.layouts(), batch, room, self.dtype)

    def watch(self, kept: ForwardOutput, stack: ExitStack) -> None:
        """Nothing to do: `decode` captures by itself."""

    def forward(self, call: ForwardInput) -> Tensor:
        size = call.x.shape[1]
        if call.mask is None and size > 1 and call.cache.length:
            raise ValueError("several rows behind cached ones need a mask")
        hidden = self.decode(call)
        call.cache.advance(size)
        if self.n_layers in call.kept.capture.layers:
            call.kept.layers[self.n_layers] = hidden
        return hidden

    def decode(self, call: ForwardInput) -> Tensor:
        """Return hidden states [B, T, D]; the cache is written but not yet longer."""
        batch, size, width = call.x.shape
        kept, capture = call.kept, call.kept.capture
        x = self._entered(call.x.reshape(-1, width))
        joint = self._joint(x, call)
        slots, keys, mixed = self._attention(joint.queries, call)
        deepstack, seen = call.deepstack, None
        if deepstack is not None:
            assert call.visual is not None  # as `ForwardInput` says
            seen = call.visual.flatten().nonzero()[:, 0]
        for i, layer in enumerate(self._layers):
            if i in capture.layers:
                states = self._left(x).view(batch, size, width)
                kept.layers[i] = states.to(self.dtype, copy=True)
            layer.qkv.into(joint.rows, self._normed(x, layer.norm), layer.bias)
            joint.rotate(layer)
            slots[i].copy_(joint.fresh)
            if i in capture.attention and call.columns is None:
                scale = self._head_width**-0.5
                kept.attention[i] = probabilities(
                    joint.queries, keys[i], call.mask, capture.rows, scale
                )
            layer.out.onto(x, mixed(i))
            gate, up = layer.gate_up(self._normed(x, layer.after_norm)).chunk(2, -1)
            layer.down.onto(x, F.silu(gate).mul_(up))
            if seen is not None and deepstack is not None and i < len(deepstack):
                x.index_add_(0, seen, deepstack[i].to(x.dtype))
        return self._finished(x).view(batch, size, width)

    @cached_property
    def _layers(self) -> Sequence[Layer]:
        layers = []
        for layer in self._decoder.layers:
            layers.append(self._fold(layer))
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # of what was joined
        return layers

    def _fold(self, layer: LlamaDecoderLayer) -> Layer:
        attn, mlp = layer.self_attn, layer.mlp
        parts = attn.q_proj, attn.k_proj, attn.v_proj
        biases = [one.bias for one in parts if one.bias is not None]
        head_norm = None
        if hasattr(attn, "q_norm"):
            heads = ((attn.q_norm, self._heads), (attn.k_norm, self._kv_heads))
            head_norm = torch.cat([norm.weight.detach().expand(n, -1) for norm, n in heads])
        return Layer(
            norm=layer.input_layernorm.weight.detach(),
            qkv=PlainMatrix(joined([one.weight for one in parts])),
            bias=joined(biases) if biases else None,
            out=PlainMatrix(attn.o_proj.weight.detach()),
            after_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=PlainMatrix(joined([mlp.gate_proj.weight, mlp.up_proj.weight])),
            down=PlainMatrix(mlp.down_proj.weight.detach()),
            head_norm=head_norm,
        )

    @cached_property
    def _axis(self) -> Tensor:
        """The position axis that every rotary pair follows, [width / 2], if there are three."""
        time, height, width = self._decoder.config.rope_parameters["mrope_section"]
        at = torch.arange(self._head_width // 2, device=self.device)
        if type(self._decoder).__name__ != "Qwen3VLTextModel":
            return (at >= time).long() + (at >= time + height)
        # Interleaved, until the pairs of an axis are used up.
        return ((at % 3 == 1) & (at < 3 * height)) + 2 * ((at % 3 == 2) & (at < 3 * width)).long()

    def _entered(self, x: Tensor) -> Tensor:
        """Map embeddings [rows, D] to what the layers add to, in memory of their own."""
        return x.to(self.dtype, copy=True, memory_format=torch.contiguous_format)

    def _left(self, x: Tensor) -> Tensor:
        """Map what the layers add to, [rows, D], back to the space of the embeddings."""
        return x

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return F.rms_norm(x, (self.width,), weight, self._eps)

    def _finished(self, x: Tensor) -> Tensor:
        return self._normed(x, self._decoder.norm.weight)

    def _joint(self, x: Tensor, call: ForwardInput) -> Joint:
        """Rotary pairs are the halves of a head here, as published.

        Rotated rows lie head by head, so that the heads that share keys are rows of one matrix.
        """
        batch, size, _ = call.x.shape
        heads, turned, width = self._heads, self._heads + self._kv_heads, self._head_width
        rows = x.new_empty(batch * size, (turned + self._kv_heads) * width)
        source = rows.view(batch, size, -1, width)
        rotated = x.new_empty(batch, source.shape[2], size, width)
        by_head, turning = source.transpose(1, 2), source[:, :, :turned]
        cos, sin = self._cosines(call.positions, x.dtype)
        # Values are not rotated.
        still = torch.ones_like(cos).expand(-1, self._kv_heads, -1, -1)
        cos = torch.cat((cos.expand(-1, turned, -1, -1), still), 1)
        low, high = rotated[:, :turned].chunk(2, -1)
        from_low, from_high = by_head[:, :turned].chunk(2, -1)

        def rotate(layer: Layer) -> None:
            if layer.head_norm is not None:
                normed = F.rms_norm(turning, (width,), None, self._eps)
                torch.mul(normed, layer.head_norm, out=turning)
            torch.mul(by_head, cos, out=rotated)
            low.addcmul_(from_high, sin, value=-1)
            high.addcmul_(from_low, sin)

        fresh = rotated[:, heads:].unflatten(1, (2, -1)).transpose(0, 1)
        return Joint(rows, rotated[:, :heads], fresh, rotate)

    def _cosines(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines [B or 1, 1, T, width] and sines [B or 1, 1, T, width / 2]."""
        if positions.ndim == 3:
            at = positions.index_select(0, self._axis).movedim(0, -1)
        else:
            at = positions[..., None]
        rotary = self._decoder.rotary_emb
        angles = (at.float() * rotary.inv_freq.float())[:, None]
        cos, sin = (one.mul_(rotary.attention_scaling) for one in (angles.cos(), angles.sin()))
        return torch.cat((cos, cos), -1).to(dtype), sin.to(dtype)

    def _attention(
        self, queries: Tensor, call: ForwardInput
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Callable[[int], Tensor]]:
        """Return every layer's slot of the cache, its keys, and its attention [B * T, heads *
        width].

        queries: [B, heads, T, width], written before each layer's attention.
        """
        size, columns, mask = queries.shape[2], call.columns, call.mask
        slots, keys, values = call.cache.spans(size)
        if columns is not None:
            return slots, keys, self._ordered(queries, call)
        if mask is None:
            return slots, keys, lambda i: attend(queries, keys[i], values[i], None, size > 1)
        steady = getattr(call.cache, "at", None) is not None
        return slots, keys, self._mixes.of(queries, keys, values, mask, steady)

    def _ordered(self, queries: Tensor, call: ForwardInput) -> Callable[[int], Tensor]:
        """Return the attention of exact steps."""
        mask, columns = call.mask, call.columns
        assert mask is not None and columns is not None  # the order's
        mask = mask if mask.ndim == 2 else mask[0, 0]

        def ordered(i: int) -> Tensor:
            keys, values = call.cache.layer(i)
            mixed = ordered_attention(queries, keys, values, mask, columns, self._head_width**-0.5)
            return mixed.transpose(1, 2).reshape(queries.shape[2], -1)

        return ordered


def side_by_side(*calls: Callable[[], Any]) -> list[Any]:
    """Return what these calls return. As many as torch has threads run at a time, each on one.

    Packing is thousands of small products. If each were split among threads, it would wait for the
    one that shares its core with another program: loading then took twenty times as long.
    """
    n = torch.get_num_threads()

    def run(call: Callable[[], Any]) -> Any:
        torch.set_num_threads(1)
        with torch.inference_mode():
            return call()

    try:
        with ThreadPoolExecutor(n) as pool:
            return list(pool.map(run, calls))
    finally:
        torch.set_num_threads(n)  # some libraries have one number for all threads


class PackedDecoder(LeanDecoder):
    """A `LeanDecoder` of matrices laid out for one to a few rows on a CPU (`PackedLinear`).

    RMSNorm is x / hypot(|x|, sqrt(D eps)) times a weight that holds sqrt(D). Rotary pairs lie side
    by side (rows of q and k are permuted alike, which their product cannot see), so a rotation is
    one complex product. All layers are one call of our own kernels where there are any. In bfloat16
    only the weights are stored so; everything computed, and the cache, is float32.
    """

    def __init__(self, decoder: PreTrainedModel, head: nn.Linear, rounded: bool = False) -> None:
        """rounded: Whether weights may be rounded to 8 bits, as is allowed for a drafter."""
        self._bits: Bits = 8 if rounded else 32
        if reason := why_not_packed(decoder):
            raise ValueError(f"this decoder cannot run lean: {reason}")
        super().__init__(decoder, head)
        config = decoder.config
        with torch.inference_mode():
            self._root = torch.tensor((self.width * self._eps) ** 0.5)
            self._norm = decoder.norm.weight.float() * self.width**0.5
            # The head first: it takes as long as several layers.
            self._head, *packed = side_by_side(
                partial(self._folded_head, head.weight.detach().float()),
                *(partial(self._fold, layer) for layer in decoder.layers),
            )
            self._layers = packed
            self._own = self._stacked()
            # The head is our own then too: `kernels.floats` packs any matrix.
            self.rows_apart = self._own is not None
            layers = (layer[name] for layer in map(Layer._asdict, self._layers) for name in _READ)
            read = [self._head, *layers]
            self.n_weights = sum(part.numel for part in read)
            self.n_bytes = sum(part.n_bytes for part in read)
            n_positions = min(config.max_position_embeddings, _LONGEST)
            # [positions, 1, width / 2], for all heads.
            self._turns = rotations(decoder.rotary_emb.inv_freq.float(), n_positions)[:, None]
            self._turn_rows = torch.view_as_real(self._turns).flatten(1)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden.reshape(-1, self.width)).view(*hidden.shape[:-1], self.vocab)

    def part(self, rows: Tensor) -> PackedLinear:
        # Only drafters have such heads.
        return PackedLinear(self._output.weight.detach()[rows].float(), bits=8)

    @property
    def head(self) -> PackedLinear | None:
        """The output head, if hidden states are what it multiplies."""
        return self._head

    def in_a_row(self, log_probs: LogProbabilities) -> kernels.InARow | None:
        """Return what drafts a chain by one call; None where torch takes over."""
        return log_probs.in_a_row(kernels.ChainParts(self._own), self.table, self._turn_rows)

    def new_cache(self, batch: int, room: int) -> KVCache:
        return KVCache(self.layouts(), batch, room, torch.float32)

    def decode(self, call: ForwardInput) -> Tensor:
        if call.deepstack is not None:
            raise ValueError("a packed decoder takes no DeepStack rows")
        mask = None if call.mask is None else call.mask.float()
        if self._own is None:
            hidden = super().decode(replace(call, mask=mask))
        else:
            x = call.x.reshape(-1, self.width).float()
            hidden = self._by_kernels(self._own, x, replace(call, mask=mask)).view(call.x.shape)
        return hidden.to(self.dtype)

    def _by_kernels(self, own: kernels.Layers, embedded: Tensor, call: ForwardInput) -> Tensor:
        """Map [B * T, D] to hidden states by all layers, with as few calls as captures allow.

        What is captured changes no bit of the cache, so lanes that capture more continue alike.
        """
        size = call.x.shape[1]
        cache, kept, capture = call.cache, call.kept, call.kept.capture
        cache.require(size)
        embedded = embedded.contiguous()
        x, hidden = torch.empty_like(embedded), torch.empty_like(embedded)
        mask = call.mask
        keys, values = cache.blocks[0].unbind(1)
        stops = sorted(
            {0, *(i for i in (*capture.layers, *capture.attention) if i < self.n_layers)}
        )
        for first, end in zip(stops, (*stops[1:], self.n_layers), strict=True):
            if first == 0 and (0 in capture.layers or 0 in capture.attention):
                x.copy_(self._entered(embedded))
            if first in capture.layers:
                kept.layers[first] = self._left(x).view(call.x.shape).to(self.dtype, copy=True)
            queries = self._queries(first, x, call) if first in capture.attention else None
            own.run(
                x,
                self._turn_rows,
                keys,
                values,
                cache.length,
                mask,
                (first, end),
                positions=call.positions,
                embedded=None if first else embedded,
                hidden=hidden if end == self.n_layers else None,
            )
            if queries is not None:
                seen = keys[first, :, :, : cache.length + size, : self._head_width]
                scale = self._head_width**-0.5
                attention = probabilities(queries, seen, mask, capture.rows, scale)
                kept.attention[first] = attention
        return hidden

    def _queries(self, index: int, x: Tensor, call: ForwardInput) -> Tensor:
        """Return a layer's queries [B, heads, T, width] for its input x [B * T, D]."""
        layer, joint = self._layers[index], self._joint(x, call)
        layer.qkv.into(joint.rows, self._normed(x, layer.norm), layer.bias)
        joint.rotate(layer)
        return joint.queries

    def _joint(self, x: Tensor, call: ForwardInput) -> Joint:
        """Rotary pairs are adjacent here, and all is rotated where it lies, by one product."""
        batch, size, _ = call.x.shape
        heads, kv_heads, head = self._heads, self._kv_heads, self._head_width
        all_heads, row = heads + 2 * kv_heads, (heads + 2 * kv_heads) * head
        rows = x.new_empty(batch * size, row)
        rotated = torch.view_as_complex(rows.view(batch, size, all_heads, head // 2, 2))
        turns = self._turns[call.positions]
        turned = turns.expand(-1, -1, heads + kv_heads, -1)
        # Values are not rotated.
        turns = torch.cat((turned, torch.ones_like(turns).expand(-1, -1, kv_heads, -1)), dim=2)
        fresh = rows.as_strided(
            (2, batch, kv_heads, size, head),
            (kv_heads * head, size * row, head, row, 1),
            heads * head,
        )
        queries = rows.as_strided((batch, heads, size, head), (size * row, head, row, 1))
        return Joint(rows, queries, fresh, lambda _: rotated.mul_(turns))

    def _attention(
        self, queries: Tensor, call: ForwardInput
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Callable[[int], Tensor]]:
        slots, keys, values = call.cache.spans(queries.shape[2])
        if call.columns is not None:
            return slots, keys, self._ordered(queries, call)
        mask, causal = call.mask, call.mask is None and queries.shape[2] > 1
        return slots, keys, lambda i: attend(queries, keys[i], values[i], mask, causal)

    def _unit(self, x: Tensor) -> Tensor:
        """Return x / hypot(|x|, sqrt(D eps)): a norm's rows before its weight."""
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self._root)

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        unit = self._unit(x)
        return unit if weight is None else unit.mul_(weight)

    def _finished(self, x: Tensor) -> Tensor:
        return self._left(self._unit(x)).mul_(self._norm)

    def _entered(self, x: Tensor) -> Tensor:
        return x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)

    def _fold(self, layer: LlamaDecoderLayer) -> Layer:
        attn, mlp, scale = layer.self_attn, layer.mlp, self.width**0.5
        qkv, bias = self._projection(attn)
        return Layer(
            norm=layer.input_layernorm.weight.float() * scale,
            qkv=PackedLinear(qkv, self._bits),
            bias=bias,
            out=PackedLinear(attn.o_proj.weight.float(), self._bits),
            after_norm=layer.post_attention_layernorm.weight.float() * scale,
            gate_up=PackedLinear(
                torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).float(), self._bits
            ),
            down=PackedLinear(mlp.down_proj.weight.float(), self._bits),
        )

    def _stacked(self) -> kernels.Layers | None:
        parts = [
            kernels.LayerParts(
                layer.qkv.own,
                layer.out.own,
                layer.gate_up.own,
                layer.down.own,
                layer.bias,
                layer.norm,
                layer.after_norm,
            )
            for layer in self._layers
        ]
        root = float(self._root)
        sizes = self._heads, self._kv_heads, self._head_width
        return kernels.layers(parts, *sizes, root, self._ends())

    def _ends(self) -> kernels.Ends:
        return kernels.Ends(norm=self._norm)

    def _folded_head(self, weight: Tensor) -> PackedLinear:
        return PackedLinear(weight, self._bits)

    def _projection(self, attn: LlamaAttention) -> tuple[Tensor, Tensor | None]:
        """Return the projection to queries, keys and values [all heads * width, D] and its bias,
        with rotary pairs side by side.
        """

        def joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.cat((*(in_pairs(one, self._head_width) for one in (q, k)), v)).float()

        q, k, v = attn.q_proj, attn.k_proj, attn.v_proj
        bias = None if q.bias is None else joined(q.bias, k.bias, v.bias)
        return joined(q.weight, k.weight, v.weight), bias
