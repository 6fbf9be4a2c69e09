"""A lean forward over the weights of a small Llama-type decoder on a CPU.

Given a Hugging Face decoder and its head, copies their weights into a layout that suits one to a few rows at
a time and computes the same hidden states and logits (a test holds it against its twin, `targets.hf`). Keeps
nothing of a request: positions, masks and the cache are arguments.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specvl_demo.core.cache import KVCache
from specvl_demo.targets.decoder import Call, attention_of

_PLAIN = ("LlamaModel", "MistralModel", "Qwen2Model")
_WIDEST = 1024
_LONGEST = 32768
_PACKED_NUMBERS = 90_000
_PACKED_ROWS = range(3, 33)


def why_not(decoder: nn.Module) -> str | None:
    """Why this decoder cannot run lean here, as the end of a sentence; None when it can."""
    name, config = type(decoder).__name__, decoder.config
    weight = next(decoder.parameters())
    types = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope = config.rope_parameters.get("rope_type", "default") if name in _PLAIN else None
    if name not in _PLAIN:
        return f"{name} is not one of the plain decoders {', '.join(_PLAIN)}"
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return f"it runs on {weight.device.type} in {weight.dtype}; lean is for float32 on a CPU"
    if config.hidden_size > _WIDEST:
        return f"it is {config.hidden_size} wide; above {_WIDEST} the library's own kernels are as fast"
    if types != {"full_attention"} or (name == "MistralModel" and config.sliding_window is not None):
        return "it attends through a sliding window"
    if rope != "default":
        return f"its rotary positions are of type {rope}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    first = decoder.layers[0]
    if first.self_attn.o_proj.bias is not None or first.mlp.down_proj.bias is not None:
        return "its output projections have biases"
    return None


class _Matrix:
    """A matrix to multiply rows with, kept in two layouts where it is large.

    [in, out] is the fastest to read for one row. With more rows the library copies such a matrix into
    blocks for every product, in strides of a whole memory page if it has 1024 columns; blocks that are made
    once halve the cost. Above a tree's rows the copying is lost in the product, and packing would be chosen
    anew for every length of a prompt.
    """

    def __init__(self, weight: Tensor) -> None:
        """weight: [out, in]"""
        self.plain = weight.t().contiguous()
        large = weight.numel() >= _PACKED_NUMBERS and torch.backends.mkldnn.is_available()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if large else None

    def packed(self, x: Tensor) -> Tensor | None:
        """[rows, in] -> [rows, out] by the blocks; None where the plain layout is faster."""
        if self._packed is None or x.shape[0] not in _PACKED_ROWS:
            return None
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]"""
        product = self.packed(x)
        return torch.mm(x, self.plain) if product is None else product

    def into(self, out: Tensor, x: Tensor, bias: Tensor | None) -> None:
        """Write the product, with a bias [out] where there is one, into `out` [rows, out]."""
        product = self.packed(x)
        if product is not None:
            out.copy_(product) if bias is None else torch.add(product, bias, out=out)
        elif bias is None:
            torch.mm(x, self.plain, out=out)
        else:
            torch.addmm(bias, x, self.plain, out=out)

    def onto(self, out: Tensor, x: Tensor) -> None:
        """Add the product to `out` [rows, out]."""
        product = self.packed(x)
        out.addmm_(x, self.plain) if product is None else out.add_(product)


class _Layer(NamedTuple):
    """One layer's weights as [in, out], norm weights folded into the matrix behind the norm."""

    qkv: _Matrix
    bias: Tensor | None
    out: _Matrix
    gate_up: _Matrix
    down: _Matrix


class LeanDecoder:
    """A `targets.decoder.Backend` with weights as [in, out]: up to this width a plain product is faster than
    every prepacked form, but for large matrices (`_Matrix`).

    RMSNorm is x / hypot(|x|, sqrt(D eps)), with sqrt(D) and its weight folded away; sqrt(D eps) is carried as
    one more number of x, so that a length is the root by itself. Rotary pairs lie side by side (rows of q and
    k are permuted alike, which their product cannot see), so a rotation is one complex product. What layers
    write and read in turn lies in one buffer a forward, seen through views made once.
    """

    window: int | None = None
    axes = 1

    def __init__(self, decoder: nn.Module, head: nn.Module) -> None:
        reason = why_not(decoder)
        if reason:
            raise ValueError(f"this decoder cannot run lean: {reason}")
        config = decoder.config
        self.width: int = config.hidden_size
        self.n_layers: int = config.num_hidden_layers
        self.vocab: int = head.weight.shape[0]
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._head_width: int = getattr(config, "head_dim", None) or self.width // self._heads
        with torch.inference_mode():
            self._root: float = (self.width * config.rms_norm_eps) ** 0.5
            self._layers = [self._fold(layer) for layer in decoder.layers]
            self._table = decoder.embed_tokens.weight.detach()
            self._head = head.weight.t().contiguous()
            parts = [part for layer in self._layers for part in layer if part is not None]
            read = [part.plain if isinstance(part, _Matrix) else part for part in parts]
            self.n_weights = sum(t.numel() for t in (*read, self._head))
            self.n_cached = 2 * self.n_layers * self._kv_heads * self._head_width
            self._norm = decoder.norm.weight * self.width**0.5
            positions = torch.arange(min(config.max_position_embeddings, _LONGEST)).float()
            angles = positions[:, None] * decoder.rotary_emb.inv_freq.float()
            # [positions, 1, width / 2]: the turn of every rotary pair at every position, for all heads.
            self._turns = torch.polar(torch.ones_like(angles), angles)[:, None]

    def embed(self, ids: Tensor) -> Tensor:
        """ids [...] -> embeddings [..., D]."""
        return F.embedding(ids, self._table)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., D] after the final norm -> logits [..., V]."""
        return hidden @ self._head

    def new_cache(self, batch: int, room: int) -> KVCache:
        """An empty cache that `forward` writes into."""
        shape = (self.n_layers, batch, self._kv_heads, self._head_width, room)
        return KVCache(*shape, dtype=self.dtype, device=self.device)

    def forward(self, call: Call) -> Tensor:
        """Hidden states after the final norm [B, T, D]; the cache is T rows longer afterwards."""
        if call.deepstack is not None:
            raise ValueError("a lean decoder takes no DeepStack rows; use the Hugging Face backend")
        batch, size, width = call.x.shape
        causal = call.mask is None and size > 1
        if causal and call.cache.length:
            raise ValueError("several rows behind cached ones need a mask")
        heads, kv_heads, head = self._heads, self._kv_heads, self._head_width
        all_heads, row = heads + 2 * kv_heads, (heads + 2 * kv_heads) * head
        # Views into the joint projection [B, T, all heads, width]: queries [B, heads, T, width], and keys and
        # values as the cache has them, [2, B, kv_heads, T, width].
        as_queries = (batch, heads, size, head), (size * row, head, row, 1)
        as_cached = (
            (2, batch, kv_heads, size, head),
            (kv_heads * head, size * row, head, row, 1),
            heads * head,
        )
        turns, kept = self._turned(call.positions), call.kept
        slots, keys, values = call.cache.spans(size)
        grown = F.pad(call.x.reshape(-1, width), (0, 1), value=self._root)
        x, unit = grown[:, :width], grown.new_empty(batch * size, width)
        h = grown.new_empty(batch * size, row)
        rotated = torch.view_as_complex(h.view(batch, size, all_heads, head // 2, 2))
        q, fresh = h.as_strided(*as_queries), h.as_strided(*as_cached)
        for i, (qkv, bias, out, gate_up, down) in enumerate(self._layers):
            if kept is not None and i in kept.capture.layers:
                kept.layers[i] = x.reshape(batch, size, width).clone()
            torch.div(x, torch.linalg.vector_norm(grown, dim=-1, keepdim=True), out=unit)
            qkv.into(h, unit, bias)
            rotated.mul_(turns)
            slots[i].copy_(fresh)
            a = F.scaled_dot_product_attention(
                q, keys[i], values[i], attn_mask=call.mask, is_causal=causal, enable_gqa=heads != kv_heads
            )
            if kept is not None and i in kept.capture.attention:
                rows, scale = kept.capture.rows, head**-0.5
                kept.attention[i] = attention_of(q, keys[i], call.mask, rows, scale)
            out.onto(x, a.transpose(1, 2).reshape(-1, heads * head))
            torch.div(x, torch.linalg.vector_norm(grown, dim=-1, keepdim=True), out=unit)
            gate, up = gate_up(unit).chunk(2, -1)
            down.onto(x, F.silu(gate).mul_(up))
        call.cache.advance(size)
        torch.div(x, torch.linalg.vector_norm(grown, dim=-1, keepdim=True), out=unit)
        hidden = unit.mul_(self._norm).view(batch, size, width)
        if kept is not None and self.n_layers in kept.capture.layers:
            kept.layers[self.n_layers] = hidden
        return hidden

    def _turned(self, positions: Tensor) -> Tensor:
        """[B or 1, T, all heads, width / 2] complex: turns queries and keys, leaves values as they are."""
        turns = self._turns[positions]
        heads = turns.expand(-1, -1, self._heads + self._kv_heads, -1)
        return torch.cat((heads, torch.ones_like(turns).expand(-1, -1, self._kv_heads, -1)), dim=2)

    def _fold(self, layer: nn.Module) -> _Layer:
        attn, mlp, scale = layer.self_attn, layer.mlp, self.width**0.5
        order = torch.arange(self._head_width).view(2, -1).t().reshape(-1)

        def pairs(weight: Tensor, heads: int) -> Tensor:
            return weight.unflatten(0, (heads, self._head_width))[:, order].flatten(0, 1)

        shapes = ((attn.q_proj, self._heads), (attn.k_proj, self._kv_heads))
        qkv = torch.cat([*(pairs(p.weight, heads) for p, heads in shapes), attn.v_proj.weight])
        bias = None
        if attn.q_proj.bias is not None:
            bias = torch.cat([*(pairs(p.bias, heads) for p, heads in shapes), attn.v_proj.bias])
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        return _Layer(
            qkv=_Matrix(qkv * layer.input_layernorm.weight * scale),
            bias=bias,
            out=_Matrix(attn.o_proj.weight),
            gate_up=_Matrix(gate_up * layer.post_attention_layernorm.weight * scale),
            down=_Matrix(mlp.down_proj.weight),
        )
