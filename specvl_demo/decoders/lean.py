"""A lean forward over the weights of a Llama-type decoder of any size, on a CPU and on CUDA.

Given a Hugging Face decoder and its head, computes the same hidden states and logits with few
operations: queries, keys and values are one product, gate and up projection are one, sums are made
in place (a test holds it against its twin, `huggingface`). Keeps nothing of a request: positions,
masks and the cache are arguments. `packed_decoder` is the same for small models on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specvl_demo.decoders import flash_rows, grouped_attention
from specvl_demo.decoders.attention import attend, probabilities, rotary_axes
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.batch_invariance import ordered_attention
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.kv_cache import Layout
from specvl_demo.decoders.layer_stack import LayerWeights
from specvl_demo.decoders.output_head import OutputHead, linear_logits
from specvl_demo.decoders.packed_linear import Bits, PackedLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

ONE_AXIS = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
THREE_AXES = ("Qwen2VLTextModel", "Qwen2_5_VLTextModel", "Qwen3VLTextModel")
_ROPES = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose frequencies do not depend on a prompt's length."""


def runs_lean(decoder: PreTrainedModel) -> bool:
    """Whether this decoder can run lean: a known class as it is published, on one device, without
    a sliding window, other activations, quantised weights or biases of its output projections.
    """
    name = type(decoder).__name__
    config = decoder.config
    if name not in (*ONE_AXIS, *THREE_AXES):
        return False
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    slides = name == "MistralModel" and config.sliding_window is not None
    linear = [module for module in decoder.layers.modules() if "Linear" in type(module).__name__]
    first = decoder.layers[0]
    return (
        kinds == {"full_attention"}
        and not slides
        and config.rope_parameters.get("rope_type", "default") in _ROPES
        and config.hidden_act == "silu"
        and all(type(module) is nn.Linear for module in linear)
        and len({weight.device for weight in decoder.parameters()}) == 1
        and first.self_attn.o_proj.bias is None
        and first.mlp.down_proj.bias is None
    )


@torch.inference_mode(False)
@torch.no_grad()
def joined(parts: Sequence[nn.Parameter]) -> Tensor:
    """Return these parameters [n_i, ...] below each other in one tensor, of which they become
    views, so that none is stored twice. Modules that share a parameter keep sharing it.
    """
    whole = torch.cat([part.detach() for part in parts])
    for part, view in zip(parts, whole.split([len(part) for part in parts])):
        part.data = view
    return whole


class LeanDecoder(LanguageBackend):
    """A backend over the library's weights.

    Its matrices are joined on first use: on a ZeroGPU Space weights move after loading.
    """

    def __init__(self, decoder: PreTrainedModel, head: nn.Linear, bits: Bits | None = None) -> None:
        """bits: As for `PackedLinear`, to pack a small decoder for a CPU."""
        if not runs_lean(decoder):
            raise ValueError("this decoder cannot run lean")
        super().__init__(decoder, decoder.embed_tokens, head)
        self._bits = bits
        config = decoder.config
        packed = None if bits is None else PackedLinear(head.weight.detach(), bits)
        self.output = OutputHead(
            packed or (lambda hidden: linear_logits(head, hidden)), len(head.weight)
        )
        self.axes = 3 if type(decoder).__name__ in THREE_AXES else 1
        self._eps: float = config.rms_norm_eps
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._head_width: int = getattr(config, "head_dim", None) or self.width // self._heads
        self._scale = self._head_width**-0.5
        self.n_cached = 2 * self.n_layers * self._kv_heads * self._head_width
        self._fastest_attention = grouped_attention.FastestAttention()
        self._flash_keeps_rows: bool | None = None

    @property
    def embeddings(self) -> Tensor:
        """The embeddings [V, D]."""
        return self._decoder.embed_tokens.weight.detach()

    def layouts(self) -> list[Layout]:
        return [Layout(self.device, self._kv_heads, self._head_width)] * self.n_layers

    def decode(self, call: ForwardInput) -> Tensor:
        batch, size, width = call.x.shape
        if call.mask is None and size > 1 and call.cache.length:
            raise ValueError("several rows behind cached ones need a mask")
        aux = call.aux
        request = aux.request
        rows = call.x.reshape(-1, width)
        # In memory of its own: layers add to it.
        x = rows.to(self.dtype, copy=True, memory_format=torch.contiguous_format)
        queries, fresh, project = self._projector(x, call)
        slots, keys, attend_layer = self._layer_attention(queries, call)
        deepstack = call.deepstack
        seen = None
        if deepstack is not None:
            assert call.visual is not None  # as `ForwardInput` says
            seen = call.visual.flatten().nonzero()[:, 0]
        for i, layer in enumerate(self._layers):
            if i in request.layers:
                aux.layers[i] = x.view(batch, size, width).clone()
            project(layer, self._rms_norm(x, layer.norm))
            slots[i].copy_(fresh)
            if i in request.attention and call.columns is None:
                aux.attention[i] = probabilities(
                    queries, keys[i], call.mask, request.rows, self._scale
                )
            layer.out.add_product(x, attend_layer(i))
            gate, up = layer.gate_up(self._rms_norm(x, layer.after_norm)).chunk(2, -1)
            layer.down.add_product(x, F.silu(gate).mul_(up))
            if seen is not None and deepstack is not None and i < len(deepstack):
                x.index_add_(0, seen, deepstack[i].to(x.dtype))
        return self._rms_norm(x, self._decoder.norm.weight).view(batch, size, width)

    @cached_property
    def _layers(self) -> Sequence[LayerWeights]:
        layers = []
        for layer in self._decoder.layers:
            layers.append(self._make_layer(layer))
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # of what was joined
        return layers

    def _make_layer(self, layer: LlamaDecoderLayer) -> LayerWeights:
        attn = layer.self_attn
        mlp = layer.mlp
        parts = attn.q_proj, attn.k_proj, attn.v_proj
        biases = [projection.bias for projection in parts if projection.bias is not None]
        head_norm = None
        if hasattr(attn, "q_norm"):
            heads = ((attn.q_norm, self._heads), (attn.k_norm, self._kv_heads))
            head_norm = torch.cat([norm.weight.detach().expand(n, -1) for norm, n in heads])
        return LayerWeights(
            norm=layer.input_layernorm.weight.detach(),
            qkv=PackedLinear(joined([projection.weight for projection in parts]), self._bits),
            bias=joined(biases) if biases else None,
            out=PackedLinear(attn.o_proj.weight.detach(), self._bits),
            after_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=PackedLinear(joined([mlp.gate_proj.weight, mlp.up_proj.weight]), self._bits),
            down=PackedLinear(mlp.down_proj.weight.detach(), self._bits),
            head_norm=head_norm,
        )

    @cached_property
    def _rotary_axis(self) -> Tensor:
        """The position axis that every rotary pair follows, [width / 2], if there are three."""
        interleaved = type(self._decoder).__name__ == "Qwen3VLTextModel"
        sections = self._decoder.config.rope_parameters["mrope_section"]
        return rotary_axes(sections, interleaved, self.device)

    def _rms_norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return F.rms_norm(x, (self.width,), weight, self._eps)

    def _projector(
        self, x: Tensor, call: ForwardInput
    ) -> tuple[Tensor, Tensor, Callable[[LayerWeights, Tensor], None]]:
        """Return queries [B, heads, T, width] and what the cache gets, keys and values [2, B,
        kv_heads, T, width], as views made once a forward, and what fills them for a layer and its
        normed rows.

        Rotary pairs are the halves of a head here, as published. Rotated rows lie head by head, so
        that the heads that share keys are rows of one matrix.
        """
        batch, size, _ = call.x.shape
        heads = self._heads
        n_rotated = self._heads + self._kv_heads
        width = self._head_width
        rows = x.new_empty(batch * size, (n_rotated + self._kv_heads) * width)
        source = rows.view(batch, size, -1, width)
        rotated = x.new_empty(batch, source.shape[2], size, width)
        by_head = source.transpose(1, 2)
        to_rotate = source[:, :, :n_rotated]
        cos, sin = self._cosines_and_sines(call.positions, x.dtype)
        # Values are not rotated.
        still = torch.ones_like(cos).expand(-1, self._kv_heads, -1, -1)
        cos = torch.cat((cos.expand(-1, n_rotated, -1, -1), still), 1)
        low, high = rotated[:, :n_rotated].chunk(2, -1)
        from_low, from_high = by_head[:, :n_rotated].chunk(2, -1)

        def project(layer: LayerWeights, normed: Tensor) -> None:
            layer.qkv.write_product(rows, normed, layer.bias)
            if layer.head_norm is not None:
                unit = F.rms_norm(to_rotate, (width,), None, self._eps)
                torch.mul(unit, layer.head_norm, out=to_rotate)
            torch.mul(by_head, cos, out=rotated)
            low.addcmul_(from_high, sin, value=-1)
            high.addcmul_(from_low, sin)

        fresh = rotated[:, heads:].unflatten(1, (2, -1)).transpose(0, 1)
        return rotated[:, :heads], fresh, project

    def _cosines_and_sines(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines [B or 1, 1, T, width] and sines [B or 1, 1, T, width / 2]."""
        if positions.ndim == 3:
            at = positions.index_select(0, self._rotary_axis).movedim(0, -1)
        else:
            at = positions[..., None]
        rotary = self._decoder.rotary_emb
        angles = (at.float() * rotary.inv_freq.float())[:, None]
        cos, sin = (part.mul_(rotary.attention_scaling) for part in (angles.cos(), angles.sin()))
        return torch.cat((cos, cos), -1).to(dtype), sin.to(dtype)

    def _layer_attention(
        self, queries: Tensor, call: ForwardInput
    ) -> tuple[Sequence[Tensor], Sequence[Tensor], Callable[[int], Tensor]]:
        """Return each layer's slot in the cache, keys, and attention [B * T, heads * width].

        queries: [B, heads, T, width], written before each layer's attention.
        """
        size = queries.shape[2]
        columns = call.columns
        mask = call.mask
        slots, keys, values = call.cache.kv_slots(size)
        if mask is None:
            return slots, keys, lambda i: attend(queries, keys[i], values[i], None, size > 1)
        if columns is None:
            steady = call.cache.at is not None
            return slots, keys, self._fastest_attention.prepare(queries, keys, values, mask, steady)
        order = mask if mask.ndim == 2 else mask[0, 0]
        buffer = call.cache.layer_buffer
        in_order = order, columns, self._scale
        if self._flash_keeps_rows is None:  # in the first call, which is not captured
            self._flash_keeps_rows = flash_rows.keeps_rows(queries, buffer(0), *in_order)
        if self._flash_keeps_rows:
            attend_rows = flash_rows.row_attention(queries, *in_order)
            return slots, keys, lambda i: attend_rows(buffer(i))

        def attend_in_order(i: int) -> Tensor:
            keys, values = buffer(i)
            return ordered_attention(queries, keys, values, *in_order)

        return slots, keys, attend_in_order
