"""A lean forward over the weights of a small Llama-type decoder on a CPU.

Given a Hugging Face decoder and its head, copies their weights into a layout that suits one to a
few rows at a time and computes the same hidden states and logits (a test holds it against its twin,
`huggingface`). Keeps nothing of a request: positions, masks and the cache are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specvl_demo.decoders import kernels, packed_linear
from specvl_demo.decoders.attention import attend, in_pairs, probabilities, rotations
from specvl_demo.decoders.backend import ForwardInput
from specvl_demo.decoders.exact import ordered_attention
from specvl_demo.decoders.kv_cache import KVCache, Layout
from specvl_demo.decoders.packed_linear import Bits, PackedLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer

    from specvl_demo.decoders.draft_vocabulary import LogProbabilities

_PLAIN = ("LlamaModel", "MistralModel", "Qwen2Model")
_WIDEST = 1024
_LONGEST = 32768
_DTYPES = (torch.float32, torch.bfloat16)


def why_not_packed(decoder: PreTrainedModel) -> str | None:
    """Return why this decoder cannot run lean here, as the end of a sentence; None if it can."""
    name, config = type(decoder).__name__, decoder.config
    weight = next(decoder.parameters())
    if name not in _PLAIN:
        return f"{name} is not one of the plain decoders {', '.join(_PLAIN)}"
    types = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope = config.rope_parameters.get("rope_type", "default")
    # On the meta device a model is only looked at, before it is loaded to a CPU.
    if weight.device.type not in ("cpu", "meta") or weight.dtype not in _DTYPES:
        return (
            f"it runs on {weight.device.type} in {weight.dtype}; lean is for float32 and bfloat16"
            " on a CPU"
        )
    if weight.dtype == torch.bfloat16 and packed_linear.PACKING is None:
        return "this torch has no products of float32 rows with a matrix in half precision"
    if config.hidden_size > _WIDEST:
        return (
            f"it is {config.hidden_size} wide; above {_WIDEST} the library's own kernels are as"
            " fast"
        )
    if types != {"full_attention"} or (
        name == "MistralModel" and config.sliding_window is not None
    ):
        return "it attends through a sliding window"
    if rope != "default":
        return f"its rotary positions are of type {rope}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    first = decoder.layers[0]
    if first.self_attn.o_proj.bias is not None or first.mlp.down_proj.bias is not None:
        return "its output projections have biases"
    return None


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


class Layer(NamedTuple):
    """One layer's weights; the norms' [D] with sqrt(D) in them, None if they are part of the
    matrices that follow.
    """

    norm: Tensor | None
    qkv: PackedLinear
    bias: Tensor | None
    out: PackedLinear
    after_norm: Tensor | None
    gate_up: PackedLinear
    down: PackedLinear


_READ = ("qkv", "out", "gate_up", "down")
"""The matrices of a layer."""


class PackedDecoder:
    """A `backend.Backend` of matrices laid out for one to a few rows (`PackedLinear`).

    RMSNorm is x / hypot(|x|, sqrt(D eps)) times a weight that holds sqrt(D). Rotary pairs lie side
    by side (rows of q and k are permuted alike, which their product cannot see), so a rotation is
    one complex product. All layers are one call of our own kernels where there are any. In bfloat16
    only the weights are stored so; everything computed, and the cache, is float32.
    """

    window: int | None = None
    near_blocks = False
    axes = 1

    def __init__(self, decoder: PreTrainedModel, head: nn.Linear, rounded: bool = False) -> None:
        """rounded: Whether weights may be rounded to 8 bits, as is allowed for a drafter."""
        self._bits: Bits = 8 if rounded else 32
        reason = why_not_packed(decoder)
        if reason:
            raise ValueError(f"this decoder cannot run lean: {reason}")
        config = decoder.config
        self.width: int = config.hidden_size
        self.n_layers: int = config.num_hidden_layers
        self.vocab: int = head.weight.shape[0]
        self.device = torch.device("cpu")
        self.dtype = head.weight.dtype
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._head_width: int = getattr(config, "head_dim", None) or self.width // self._heads
        with torch.inference_mode():
            self._root = torch.tensor((self.width * config.rms_norm_eps) ** 0.5)
            self._norm = decoder.norm.weight.float() * self.width**0.5
            self.table = decoder.embed_tokens.weight.detach()
            self._output = head.weight.detach()
            # The head first: it takes as long as several layers.
            self._head, *self._layers = side_by_side(
                partial(self._folded_head, self._output.float()),
                *(partial(self._fold, layer) for layer in decoder.layers),
            )
            self._own = self._stacked()
            # The head is our own then too: `kernels.floats` packs any matrix.
            self.rows_apart = self._own is not None
            layers = (layer[name] for layer in map(Layer._asdict, self._layers) for name in _READ)
            read = [self._head, *layers]
            self.n_weights = sum(part.numel for part in read)
            self.n_bytes = sum(part.n_bytes for part in read)
            self._layout = Layout(self.device, self._kv_heads, self._head_width)
            self.n_cached = 2 * self.n_layers * self._kv_heads * self._head_width
            n_positions = min(config.max_position_embeddings, _LONGEST)
            # [positions, 1, width / 2], for all heads.
            self._turns = rotations(decoder.rotary_emb.inv_freq.float(), n_positions)[:, None]
            self._turn_rows = torch.view_as_real(self._turns).flatten(1)

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden.reshape(-1, self.width)).view(*hidden.shape[:-1], self.vocab)

    def part(self, rows: Tensor) -> PackedLinear:
        return PackedLinear(self._output[rows].float(), bits=8)  # only drafters have such heads

    @property
    def head(self) -> PackedLinear | None:
        """The output head, if hidden states are what it multiplies."""
        return self._head

    def in_a_row(self, log_probs: LogProbabilities) -> kernels.InARow | None:
        """Return what drafts a chain by one call; None where torch takes over."""
        return log_probs.in_a_row(kernels.ChainParts(self._own), self.table, self._turn_rows)

    def new_cache(self, batch: int, room: int) -> KVCache:
        return KVCache([self._layout] * self.n_layers, batch, room, torch.float32)

    def forward(self, call: ForwardInput) -> Tensor:
        if call.deepstack is not None:
            raise ValueError("a lean decoder takes no DeepStack rows; use the Hugging Face backend")
        batch, size, width = call.x.shape
        if call.mask is None and size > 1 and call.cache.length:
            raise ValueError("several rows behind cached ones need a mask")
        x = call.x.reshape(-1, width).float()
        hidden = (
            self._by_torch(x, call) if self._own is None else self._by_kernels(self._own, x, call)
        )
        call.cache.advance(size)
        hidden = hidden.view(batch, size, width).to(self.dtype)
        if self.n_layers in call.kept.capture.layers:
            call.kept.layers[self.n_layers] = hidden
        return hidden

    def _by_kernels(self, own: kernels.Layers, embedded: Tensor, call: ForwardInput) -> Tensor:
        """Map [B * T, D] to hidden states by all layers, with as few calls as captures allow.

        What is captured changes no bit of the cache, so lanes that capture more continue alike.
        """
        size = call.x.shape[1]
        cache, kept, capture = call.cache, call.kept, call.kept.capture
        cache.require(size)
        embedded = embedded.contiguous()
        x, hidden = torch.empty_like(embedded), torch.empty_like(embedded)
        mask = None if call.mask is None else call.mask.float()
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
        norm, qkv, bias, *_ = self._layers[index]
        unit = self._unit(x)
        h = qkv(unit if norm is None else unit * norm, bias)
        all_heads = self._heads + 2 * self._kv_heads
        h = h.view(*call.x.shape[:2], all_heads, self._head_width)
        rotated = torch.view_as_complex(h.unflatten(-1, (-1, 2))) * self._turned(call.positions)
        return torch.view_as_real(rotated).flatten(-2)[:, :, : self._heads].transpose(1, 2)

    def _by_torch(self, embedded: Tensor, call: ForwardInput) -> Tensor:
        """The same by torch's operations, in one buffer per forward, through views made once."""
        x = self._entered(embedded)
        batch, size, width = call.x.shape
        mask, kept = call.mask, call.kept
        heads, kv_heads, head = self._heads, self._kv_heads, self._head_width
        all_heads, row = heads + 2 * kv_heads, (heads + 2 * kv_heads) * head
        # Views into the joint projection [B, T, all heads, width]: queries [B, heads, T, width],
        # and keys and values as the cache has them, [2, B, kv_heads, T, width].
        as_queries = (batch, heads, size, head), (size * row, head, row, 1)
        as_cached = (
            (2, batch, kv_heads, size, head),
            (kv_heads * head, size * row, head, row, 1),
            heads * head,
        )
        turns = self._turned(call.positions)
        mask = None if mask is None else mask.float()
        h = x.new_empty(batch * size, row)
        rotated = torch.view_as_complex(h.view(batch, size, all_heads, head // 2, 2))
        q, fresh = h.as_strided(*as_queries), h.as_strided(*as_cached)
        slots, keys, attention = self._attention(q, call, mask)
        for i, (norm, qkv, bias, out, after_norm, gate_up, down) in enumerate(self._layers):
            if i in kept.capture.layers:
                kept.layers[i] = self._left(x).view(batch, size, width).to(self.dtype, copy=True)
            unit = self._unit(x)
            qkv.into(h, unit if norm is None else unit.mul_(norm), bias)
            rotated.mul_(turns)
            slots[i].copy_(fresh)
            a = attention(i)
            if call.columns is None and i in kept.capture.attention:
                rows = kept.capture.rows
                kept.attention[i] = probabilities(q, keys[i], mask, rows, head**-0.5)
            out.onto(x, a)
            unit = self._unit(x)
            gate, up = gate_up(unit if after_norm is None else unit.mul_(after_norm)).chunk(2, -1)
            down.onto(x, F.silu(gate).mul_(up))
        return self._left(self._unit(x)).mul_(self._norm)

    def _unit(self, x: Tensor) -> Tensor:
        """Return x / hypot(|x|, sqrt(D eps)): a norm's rows before its weight."""
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self._root)

    def _attention(
        self, queries: Tensor, call: ForwardInput, mask: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Callable[[int], Tensor]]:
        """Return every layer's slot of the cache, its keys, and its attention [T, heads * width].

        queries: [B, heads, T, width], written before each layer's attention.
        """
        size, columns = queries.shape[2], call.columns
        slots, keys, values = call.cache.spans(size)
        if columns is None:
            causal = mask is None and size > 1
            return slots, keys, lambda i: attend(queries, keys[i], values[i], mask, causal)
        assert mask is not None  # the order's
        scale = self._head_width**-0.5

        def ordered(i: int) -> Tensor:
            whole = call.cache.layer(i)
            mixed = ordered_attention(queries, whole[0], whole[1], mask, columns, scale)
            return mixed.transpose(1, 2).reshape(size, -1)

        return slots, keys, ordered

    def _entered(self, x: Tensor) -> Tensor:
        """Map embeddings [rows, D] to what the layers add to, in memory of their own."""
        return x.clone(memory_format=torch.contiguous_format)

    def _left(self, x: Tensor) -> Tensor:
        """Map what the layers add to, [rows, D], back to the space of the embeddings."""
        return x

    def _turned(self, positions: Tensor) -> Tensor:
        """Return [B or 1, T, all heads, width / 2] complex: rotations of queries and keys, 1 for
        values.
        """
        turns = self._turns[positions]
        heads = turns.expand(-1, -1, self._heads + self._kv_heads, -1)
        return torch.cat((heads, torch.ones_like(turns).expand(-1, -1, self._kv_heads, -1)), dim=2)

    def _fold(self, layer: LlamaDecoderLayer) -> Layer:
        attn, mlp, scale = layer.self_attn, layer.mlp, self.width**0.5
        qkv, bias = self._joint(attn)
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

    def _joint(self, attn: LlamaAttention) -> tuple[Tensor, Tensor | None]:
        """Return the projection to queries, keys and values [all heads * width, D] and its bias,
        with rotary pairs side by side.
        """

        def joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.cat((*(in_pairs(one, self._head_width) for one in (q, k)), v)).float()

        q, k, v = attn.q_proj, attn.k_proj, attn.v_proj
        bias = None if q.bias is None else joined(q.bias, k.bias, v.bias)
        return joined(q.weight, k.weight, v.weight), bias
