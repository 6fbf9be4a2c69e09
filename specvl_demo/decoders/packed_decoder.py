"""The lean forward of a small decoder on a CPU, over weights packed for one to a few rows.

Copies the weights into a layout that suits such products (`packed_linear`); all layers are one call
of our own kernels. Weights may be rounded to 8 bits, rotated so that this changes little: a few
numbers of a residual row are tens of times larger than the others, and 8 bits that hold them leave
little for the rest. The layers then work on rotated rows, whose numbers are about normally
distributed; the rotation and the norms' weights are multiplied into the matrices once, as in QuaRot
(arXiv 2404.00456). Without rounding, the model would be the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from specvl_demo.decoders import lean
from specvl_demo.decoders.attention import join_projections, probabilities, rotations
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.kv_cache import KVCache
from specvl_demo.decoders.layer_stack import (
    DraftWeights,
    LayerStack,
    LayerWeights,
    LevelWeights,
    takes_sizes,
)
from specvl_demo.decoders.output_head import LogProbabilities, OutputHead, map_rows
from specvl_demo.decoders.packed_linear import Bits, PackedLinear, has_kernels

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

_LARGEST = 4.0
"""Where numbers of a normed row are clipped, in standard deviations. 3.5 and 4 change the
photo pair's distributions less than 4.5 and 5.
"""
_WIDEST = 1024
"""Above, the library's own kernels are as fast."""
_LONGEST = 32768
_DTYPES = (torch.float32, torch.bfloat16)


def packs_for_cpu(decoder: PreTrainedModel) -> bool:
    """Whether this decoder's weights are packed for a CPU: for our own kernels where they run
    (`PackedDecoder`), else for the lean forward.
    """
    if not lean.runs_lean(decoder) or type(decoder).__name__ not in lean.ONE_AXIS:
        return False
    config = decoder.config
    weight = next(decoder.parameters())
    heads = config.num_attention_heads
    kv_heads = config.num_key_value_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    inputs = heads * head_width, config.intermediate_size
    outputs = (heads + 2 * kv_heads) * head_width, 2 * config.intermediate_size
    return (
        # On the meta device a model is only looked at, before it is loaded to a CPU.
        weight.device.type in ("cpu", "meta")
        and weight.dtype in _DTYPES
        and config.hidden_size <= _WIDEST
        and config.rope_parameters.get("rope_type", "default") == "default"
        and not hasattr(decoder.layers[0].self_attn, "q_norm")
        and takes_sizes(head_width, (config.hidden_size, *inputs), (config.hidden_size, *outputs))
    )


def run_in_parallel(*calls: Callable[[], Any]) -> list[Any]:
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


class PackedDecoder(lean.LeanDecoder):
    """A `LeanDecoder` of matrices laid out for one to a few rows on a CPU (`PackedLinear`), whose
    layers are one call of our own kernels.

    RMSNorm is x / hypot(|x|, sqrt(D eps)) times a weight that holds sqrt(D). Rotary pairs lie side
    by side (rows of q and k are permuted alike, which their product cannot see), so a rotation is
    one complex product. In bfloat16 only the weights are stored so; all else is float32.
    """

    batch_invariant = True
    _in: PackedLinear | None = None
    """Maps embeddings to what the layers add to, if that is not the same."""
    _out: PackedLinear | None = None
    """Maps that back."""

    def __init__(self, decoder: PreTrainedModel, head: nn.Linear, rounded: bool = False) -> None:
        """rounded: Whether weights may be rounded to 8 bits, as is allowed for a drafter."""
        if not (packs_for_cpu(decoder) and has_kernels()):
            raise ValueError("our own kernels do not run here, or do not take this decoder")
        super().__init__(decoder, head)
        self._few_bits: Bits = 8 if rounded else 32
        with torch.inference_mode():
            self._root = torch.tensor((self.width * self._eps) ** 0.5)
            self._norm = decoder.norm.weight.float() * self.width**0.5
            # The head first: it takes as long as several layers.
            packed_head, *self._packed = run_in_parallel(
                partial(self._pack_head, head.weight.detach().float()),
                *(partial(self._pack_layer, layer) for layer in decoder.layers),
            )
            self.output = self._output_head(packed_head, len(head.weight))
            sizes = self._heads, self._kv_heads, self._head_width
            self._stack = LayerStack(
                self._packed, *sizes, float(self._root), **self._before_and_after()
            )
            n_positions = min(decoder.config.max_position_embeddings, _LONGEST)
            # [positions, 1, width / 2], for all heads.
            self._rotations = rotations(decoder.rotary_emb.inv_freq.float(), n_positions)[:, None]
            self._cos_sin = torch.view_as_real(self._rotations).flatten(1)

    def output_head_rows(self, rows: Tensor) -> PackedLinear:
        # Only drafters have such heads.
        return PackedLinear(self._head.weight.detach()[rows].float(), bits=8)

    def level_weights(self, log_probs: LogProbabilities) -> LevelWeights | None:
        return log_probs.level_weights(DraftWeights(self._stack), self.embeddings, self._cos_sin)

    def eager_cache(self, batch: int, room: int) -> KVCache:
        return KVCache(self.layouts(), batch, room, torch.float32)

    def decode(self, call: ForwardInput) -> Tensor:
        """Return hidden states [B, T, D], with as few calls as aux states allow.

        Aux states change no bit of the cache, so lanes that keep more of them continue alike.
        """
        size = call.x.shape[1]
        cache = call.cache
        aux = call.aux
        request = aux.request
        cache.require_room(size)
        embedded = call.x.reshape(-1, self.width).float().contiguous()
        x = torch.empty_like(embedded)
        hidden = torch.empty_like(embedded)
        mask = None if call.mask is None else call.mask.float()
        keys, values = cache.blocks[0].unbind(1)
        stops = sorted(
            {0, *(i for i in (*request.layers, *request.attention) if i < self.n_layers)}
        )
        for first, end in zip(stops, (*stops[1:], self.n_layers)):
            if first == 0 and (0 in request.layers or 0 in request.attention):
                x.copy_(embedded if self._in is None else self._in(embedded))
            if first in request.layers:
                states = x if self._out is None else self._out(x)
                aux.layers[first] = states.view(call.x.shape).to(self.dtype, copy=True)
            queries = self._queries(first, x, call) if first in request.attention else None
            self._stack.run_layers(
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
                aux.attention[first] = probabilities(queries, seen, mask, request.rows, self._scale)
        return hidden.view(call.x.shape).to(self.dtype)

    def _queries(self, index: int, x: Tensor, call: ForwardInput) -> Tensor:
        """Return a layer's queries [B, heads, T, width] for its input x [B * T, D]."""
        layer = self._packed[index]
        n = self._heads * self._head_width
        unit = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self._root)
        rows = layer.qkv(unit if layer.norm is None else unit.mul_(layer.norm), layer.bias)
        pairs = rows[:, :n].reshape(*call.x.shape[:2], self._heads, -1, 2)
        rotated = torch.view_as_complex(pairs) * self._rotations[call.positions]
        return torch.view_as_real(rotated).flatten(-2).transpose(1, 2)

    def _pack_layer(self, layer: LlamaDecoderLayer) -> LayerWeights:
        matrices, others = self._floats(layer)
        packed: Any = [PackedLinear(each, self._few_bits) for each in matrices]
        return LayerWeights(*packed, *others)

    def _floats(self, layer: LlamaDecoderLayer) -> tuple[list[Tensor], list[Any]]:
        """Return the numbers of `LayerWeights`: qkv, out, gate_up, down; bias, norm, after_norm."""
        attn = layer.self_attn
        mlp = layer.mlp
        q, k, v = attn.q_proj, attn.k_proj, attn.v_proj
        width = self._head_width
        qkv = join_projections(q.weight, k.weight, v.weight, width)
        bias = None
        if q.bias is not None:
            bias = join_projections(q.bias, k.bias, v.bias, width).float()
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        matrices = [qkv, attn.o_proj.weight, gate_up, mlp.down_proj.weight]
        norms = layer.input_layernorm, layer.post_attention_layernorm
        scaled = (norm.weight.float() * self.width**0.5 for norm in norms)
        return [each.float() for each in matrices], [bias, *scaled]

    def _before_and_after(self) -> dict[str, Any]:
        """Return what is before and after the layers (`LayerStack`)."""
        return {"norm": self._norm}

    def _output_head(self, packed: PackedLinear, vocab: int) -> OutputHead:
        return OutputHead(packed, vocab)

    def _pack_head(self, weight: Tensor) -> PackedLinear:
        return PackedLinear(weight, self._few_bits)


class Hadamard(NamedTuple):
    """An orthogonal [n, n] that spreads a large number over many: a Hadamard matrix of the largest
    power of two in n, times a cosine transform of the rest, with random signs of the rows.

    signs: [n]. cosine: [rest, rest]. hadamard: [power, power].
    """

    signs: Tensor
    cosine: Tensor
    hadamard: Tensor

    @classmethod
    def of(cls, n: int) -> Hadamard:
        power = n & -n
        hadamard = torch.ones(1, 1)
        while len(hadamard) < power:
            hadamard = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), hadamard)
        rest = n // power
        at = torch.arange(rest).double()
        cosine = torch.cos(math.pi * at[:, None] * (at + 0.5) / rest) * (2 / rest) ** 0.5
        cosine[0] *= 0.5**0.5
        signs = torch.randint(2, (n,), generator=torch.Generator().manual_seed(0)) * 2 - 1
        return cls(signs.float(), cosine.float(), hadamard / power**0.5)

    def __call__(self, rows: Tensor) -> Tensor:
        """Rotate rows [..., n]."""
        parts = (rows * self.signs).unflatten(-1, (len(self.cosine), -1))
        return (self.cosine.t() @ (parts @ self.hadamard)).flatten(-2)

    def rotate_heads(self, rows: Tensor) -> Tensor:
        """Rotate every n numbers of rows [..., heads * n] by themselves."""
        return self(rows.unflatten(-1, (-1, len(self.signs)))).flatten(-2)


class RotatedDecoder(PackedDecoder):
    """A `PackedDecoder` whose output, MLP and head matrices are rounded to 8 bits.

    Normed rows share one fixed scale. Values are rotated within their head. Rows have 8 bits too,
    but 16 before the down projection, whose inputs are products of two numbers: this halves what
    rounding adds to the loss on plain chat. The matrices that make queries, keys and values have 16
    bits as well: a sixth of a layer, and with 8 the divergence would be half as large again.
    """

    _in: PackedLinear

    def __init__(self, decoder: PreTrainedModel, head: nn.Linear) -> None:
        self._rotation = Hadamard.of(decoder.config.hidden_size)
        rotation = self._rotation(torch.eye(decoder.config.hidden_size))
        self._in = PackedLinear(rotation.t().contiguous(), bits=16)
        self._out = PackedLinear(rotation, bits=16)
        super().__init__(decoder, head)

    def _output_head(self, packed: PackedLinear, vocab: int) -> OutputHead:
        """The head multiplies rotated rows."""
        rotate = self._in
        multiply = lambda rows: packed(rotate(rows.float()))  # noqa: E731
        return OutputHead(partial(map_rows, multiply), vocab)

    def _before_and_after(self) -> dict[str, Any]:
        rotation = self._rotation(torch.eye(self.width))
        leave = PackedLinear(rotation * self._norm[:, None], bits=16)
        return {"enter": self._in.matrix, "leave": leave.matrix}

    def _pack_head(self, weight: Tensor) -> PackedLinear:
        return PackedLinear(self._rotation(weight), bits=8, row_bits=8)

    def _pack_layer(self, layer: LlamaDecoderLayer) -> LayerWeights:
        (qkv, out, gate_up, down), (bias, norm, after) = self._floats(layer)
        head_rotation = Hadamard.of(self._head_width)
        values = slice((self._heads + self._kv_heads) * self._head_width, None)
        qkv[values] = head_rotation.rotate_heads(qkv[values].t()).t()
        if bias is not None:
            bias[values] = head_rotation.rotate_heads(bias[values])
        out = self._rotation(head_rotation.rotate_heads(out).t()).t()
        largest = _LARGEST / self.width**0.5
        return LayerWeights(
            qkv=PackedLinear(self._rotation(qkv * norm), bits=16),
            bias=bias,
            out=PackedLinear(out, bits=8, row_bits=8),
            gate_up=PackedLinear(self._rotation(gate_up * after), 8, row_bits=8, largest=largest),
            down=PackedLinear(self._rotation(down.t()).t().contiguous(), bits=8),
        )
