"""The lean forward of a small decoder on a CPU, over weights packed for one to a few rows.

Copies the weights into a layout that suits such products (`packed_linear`); all layers are one call
of our own kernels where there are any.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specvl_demo.decoders import lean, packed_linear
from specvl_demo.decoders.attention import attend, in_pairs, probabilities, rotations
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.kv_cache import KVCache
from specvl_demo.decoders.layer_stack import (
    ChainDrafter,
    ChainParts,
    Ends,
    LayerParts,
    LayerStack,
    stacked,
)
from specvl_demo.decoders.lean import Joint, Layer, LeanDecoder
from specvl_demo.decoders.output_head import LogProbabilities, OutputHead
from specvl_demo.decoders.packed_linear import Bits, PackedLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer

_WIDEST = 1024
_LONGEST = 32768
_DTYPES = (torch.float32, torch.bfloat16)
_READ = ("qkv", "out", "gate_up", "down")
"""The matrices of a layer."""


def why_not(decoder: PreTrainedModel) -> str | None:
    """Return why this decoder's weights are not packed for a CPU, as the end of a sentence; None if
    they are.
    """
    if reason := lean.why_not(decoder):
        return reason
    config, weight = decoder.config, next(decoder.parameters())
    normed = hasattr(decoder.layers[0].self_attn, "q_norm")
    if normed or type(decoder).__name__ not in lean.ONE_AXIS:
        return "it has three position axes, or norms of its queries"
    # On the meta device a model is only looked at, before it is loaded to a CPU.
    if weight.device.type not in ("cpu", "meta") or weight.dtype not in _DTYPES:
        return (
            f"it runs on {weight.device.type} in {weight.dtype}; packing is for float32 and"
            " bfloat16 on a CPU"
        )
    if weight.dtype == torch.bfloat16 and packed_linear.PACKING is None:
        return "this torch has no products of float32 rows with a matrix in half precision"
    if config.hidden_size > _WIDEST:
        return (
            f"it is {config.hidden_size} wide; above {_WIDEST} the library's own kernels are"
            " as fast"
        )
    if config.rope_parameters.get("rope_type", "default") != "default":
        return "its rotary positions are stretched"
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
        if reason := why_not(decoder):
            raise ValueError(f"this decoder cannot run lean: {reason}")
        super().__init__(decoder, head)
        config = decoder.config
        with torch.inference_mode():
            self._root = torch.tensor((self.width * self._eps) ** 0.5)
            self._norm = decoder.norm.weight.float() * self.width**0.5
            # The head first: it takes as long as several layers.
            packed_head, *self._layers = side_by_side(
                partial(self._packed_head, head.weight.detach().float()),
                *(partial(self._make_layer, layer) for layer in decoder.layers),
            )
            self.output = self._output(packed_head, len(head.weight))
            self._stack = self._stacked()
            # The head is our own then too: floats are packed in any size.
            self.batch_invariant = self._stack is not None
            layers = (layer[name] for layer in map(Layer._asdict, self._layers) for name in _READ)
            read = [packed_head, *layers]
            self.n_weights = sum(part.numel for part in read)
            self.n_bytes = sum(part.n_bytes for part in read)
            n_positions = min(config.max_position_embeddings, _LONGEST)
            # [positions, 1, width / 2], for all heads.
            self._rotations = rotations(decoder.rotary_emb.inv_freq.float(), n_positions)[:, None]
            self._cos_sin = torch.view_as_real(self._rotations).flatten(1)

    def output_rows(self, rows: Tensor) -> PackedLinear:
        # Only drafters have such heads.
        return PackedLinear(self._head.weight.detach()[rows].float(), bits=8)

    def chain_drafter(self, log_probs: LogProbabilities) -> ChainDrafter | None:
        return log_probs.chain_drafter(ChainParts(self._stack), self.table, self._cos_sin)

    def plain_cache(self, batch: int, room: int) -> KVCache:
        return KVCache(self.layouts(), batch, room, torch.float32)

    def decode(self, call: ForwardInput) -> Tensor:
        if call.deepstack is not None:
            raise ValueError("a packed decoder takes no DeepStack rows")
        mask = None if call.mask is None else call.mask.float()
        if self._stack is None:
            hidden = super().decode(replace(call, mask=mask))
        else:
            x = call.x.reshape(-1, self.width).float()
            hidden = self._by_kernels(self._stack, x, replace(call, mask=mask)).view(call.x.shape)
        return hidden.to(self.dtype)

    def _by_kernels(self, stack: LayerStack, embedded: Tensor, call: ForwardInput) -> Tensor:
        """Map [B * T, D] to hidden states by all layers, with as few calls as captures allow.

        What is captured changes no bit of the cache, so lanes that capture more continue alike.
        """
        size = call.x.shape[1]
        cache, captured, capture = call.cache, call.captured, call.captured.capture
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
                captured.layers[first] = self._left(x).view(call.x.shape).to(self.dtype, copy=True)
            queries = self._queries(first, x, call) if first in capture.attention else None
            stack.run(
                x,
                self._cos_sin,
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
                captured.attention[first] = attention
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
        rotation = self._rotations[call.positions]
        rotated_heads = rotation.expand(-1, -1, heads + kv_heads, -1)
        # Values are not rotated.
        rotation = torch.cat(
            (rotated_heads, torch.ones_like(rotation).expand(-1, -1, kv_heads, -1)), dim=2
        )
        fresh = rows.as_strided(
            (2, batch, kv_heads, size, head),
            (kv_heads * head, size * row, head, row, 1),
            heads * head,
        )
        queries = rows.as_strided((batch, heads, size, head), (size * row, head, row, 1))
        return Joint(rows, queries, fresh, lambda _: rotated.mul_(rotation))

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

    def _make_layer(self, layer: LlamaDecoderLayer) -> Layer:
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

    def _stacked(self) -> LayerStack | None:
        parts = [
            LayerParts(
                layer.qkv.matrix,
                layer.out.matrix,
                layer.gate_up.matrix,
                layer.down.matrix,
                layer.bias,
                layer.norm,
                layer.after_norm,
            )
            for layer in self._layers
        ]
        root = float(self._root)
        sizes = self._heads, self._kv_heads, self._head_width
        return stacked(parts, *sizes, root, self._ends())

    def _ends(self) -> Ends:
        return Ends(norm=self._norm)

    def _output(self, packed: PackedLinear, vocab: int) -> OutputHead:
        return OutputHead(packed, vocab)

    def _packed_head(self, weight: Tensor) -> PackedLinear:
        return PackedLinear(weight, self._bits)

    def _projection(self, attn: LlamaAttention) -> tuple[Tensor, Tensor | None]:
        """Return the projection to queries, keys and values [all heads * width, D] and its bias,
        with rotary pairs side by side.
        """

        def joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.cat(
                (*(in_pairs(weight, self._head_width) for weight in (q, k)), v)
            ).float()

        q, k, v = attn.q_proj, attn.k_proj, attn.v_proj
        bias = None if q.bias is None else joined(q.bias, k.bias, v.bias)
        return joined(q.weight, k.weight, v.weight), bias
