"""Lean decoder blocks of feature heads: fused weights, keys and values written in place.

Given a head's published tensors by name, computes on rows [k, D] of one sequence, on any device and
in any float type; norms and rotations run in float32. Norm weights are folded into the matrix after
the norm. Knows no tokens, no trees, no files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo.decoders.attention import (
    attend,
    join_projections,
    pair_rotary,
    probabilities,
    rotary_axes,
    rotations,
)
from specvl_demo.decoders.layer_stack import LayerStack, LayerWeights, takes_layers
from specvl_demo.decoders.packed_linear import PackedLinear

Tensors = Mapping[str, Tensor]
"""A head's weights, by their published names."""
POSITIONS = 32768
"""Rotary positions that a head supports: as many as published heads are run with."""


@dataclass(frozen=True)
class Geometry:
    """The dimensions of a head, including those that its tensors' shapes do not determine.

    Attributes:
        width: D.
        heads, kv_heads, head_width: Of self-attention.
        eps: Of its norms.
        theta: Of its rotary positions.
        sections: Rotary pairs that follow each of three position axes (empty: one axis).
        interleaved: Whether the axes alternate (Qwen3-VL) or follow one another (Qwen2.5-VL).
        stretch: Of Llama 3.1's long contexts: factor, low and high frequency factor, and the
            original length (empty: none).
    """

    width: int
    heads: int
    kv_heads: int
    head_width: int
    eps: float = 1e-6
    theta: float = 10000.0
    sections: tuple[int, ...] = ()
    interleaved: bool = False
    stretch: tuple[float, ...] = ()


class Rotary:
    """The rotation of every rotary pair at every position, as complex numbers."""

    def __init__(self, geometry: Geometry, device: torch.device) -> None:
        half = geometry.head_width // 2
        frequency = geometry.theta ** -(torch.arange(half, device=device).float() / half)
        if geometry.stretch:
            # Slow rotations are slowed by the factor, fast ones stay, those between are blended.
            factor, low, high, before = geometry.stretch
            cycles = before * frequency / (2 * math.pi)
            fast = ((cycles - low) / (high - low)).clamp(0, 1)
            frequency = frequency * (fast + (1 - fast) / factor)
        self._rotations = rotations(frequency, POSITIONS)
        self._axis: Tensor | None = None
        if geometry.sections:
            self._axis = rotary_axes(geometry.sections, geometry.interleaved, device)

    @property
    def cos_sin(self) -> Tensor | None:
        """Cosine and sine of rotary pairs, [positions, head_width]; None with three axes."""
        return None if self._axis is not None else torch.view_as_real(self._rotations).flatten(1)

    def __call__(self, positions: Tensor) -> Tensor:
        """Return rotations [T, 1, head_width / 2] for all heads, at positions [T] or [3, T]."""
        if positions.ndim == 2 and self._axis is not None:
            rotation = self._rotations.gather(0, positions[self._axis].t())
        else:
            rotation = self._rotations[positions if positions.ndim == 1 else positions[0]]
        return rotation.unsqueeze(1)


class DecoderBlock:
    """A Llama- or Qwen3-type decoder block: attention with rotary positions, then a gated MLP.

    The attention's input is separate from the residual, since EAGLE's first block has no norm
    before it and EAGLE-3's reads two inputs at once.
    """

    def __init__(self, tensors: Tensors, prefix: str, geometry: Geometry) -> None:
        g = geometry
        self._geometry = g
        attention = f"{prefix}.self_attn."
        scale = g.width**0.5
        self._eps = norm_root(g, tensors[attention + "q_proj.weight"])
        self._head_eps = norm_root(g, self._eps, g.head_width)

        def fused(kind: str) -> Tensor:
            q, k, v = (tensors[f"{attention}{name}_proj.{kind}"] for name in "qkv")
            return join_projections(q, k, v, g.head_width)

        qkv = fused("weight")
        names = [f"{prefix}.{name}.weight" for name in ("input_layernorm", "hidden_norm")]
        if norms := [tensors[name] for name in names if name in tensors]:
            qkv = qkv * (torch.cat(norms) * scale)
        self._qkv = PackedLinear(qkv, bits=8)
        self._bias = fused("bias") if f"{attention}q_proj.bias" in tensors else None
        self._head_norm: Tensor | None = None
        if f"{attention}q_norm.weight" in tensors:
            each = (tensors[f"{attention}{name}_norm.weight"] for name in "qk")
            q, k = (pair_rotary(norm, g.head_width) * g.head_width**0.5 for norm in each)
            self._head_norm = torch.stack([q] * g.heads + [k] * g.kv_heads)
        self._out = PackedLinear(tensors[attention + "o_proj.weight"], bits=8)
        self._mlp = mlp = MLP(tensors, prefix, self._eps, scale)
        matrices = self._qkv, self._out, mlp.gate_up, mlp.down
        self.parts = LayerWeights(*matrices, self._bias, head_norm=self._head_norm)
        self.stack = stack_layers([self.parts], g)

    def normed(self, x: Tensor) -> Tensor:
        """Return x at unit length: what a norm leaves once its weight is folded away."""
        return unit_rows(x, self._eps)

    def __call__(
        self,
        h: Tensor,
        x: Tensor,
        rotation: Tensor,
        slot: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        causal: bool = False,
    ) -> Tensor:
        """Return [k, D].

        Args:
            h: The attention's input [k, D or 2D].
            x: The residual [k, D].
            slot: [2, 1, kv_heads, k, width], where the new rows' keys and values are written.
            keys, values: Those of all rows, including the slot.
        """
        g = self._geometry
        heads = g.heads
        kv_heads = g.kv_heads
        width = g.head_width
        rotated = heads + kv_heads
        rows = x.shape[0]
        at = keys.shape[2] - rows
        # Steps of fixed shapes write elsewhere.
        if self.stack is not None and isinstance(slot, Tensor):
            x = x.clone(memory_format=torch.contiguous_format)
            cos_sin = torch.view_as_real(rotation).reshape(rows, -1)
            self.stack.run_layers(x, cos_sin, keys[None], values[None], at, mask, read=h)
            return x
        h = self._qkv(h, self._bias)
        row = (rotated + kv_heads) * width
        to_rotate = h.view(rows, rotated + kv_heads, width)[:, :rotated]
        if self._head_norm is not None:
            norm_heads(to_rotate, self._head_norm, self._head_eps)
        rotate(to_rotate, rotation)
        # Strided views: queries [1, heads, k, width], keys and values in the slot's layout.
        step = (kv_heads * width, rows * row, width, row, 1)
        slot.copy_(h.as_strided((2, 1, kv_heads, rows, width), step, heads * width))
        queries = h.as_strided((1, heads, rows, width), (rows * row, width, row, 1))
        x = self._out(attend(queries, keys, values, mask, causal), x)
        return self._mlp(x)


def stack_layers(
    parts: Sequence[LayerWeights], g: Geometry, norm: Tensor | None = None
) -> LayerStack | None:
    """Return layers as one call of our own kernels; None where torch takes over.

    norm: [D] the weight of a norm after them.
    """
    if parts[0].qkv.dtype != torch.float32 or not takes_layers(parts, g.head_width):
        return None
    root = (g.width * g.eps) ** 0.5  # see `norm_root`
    return LayerStack(parts, g.heads, g.kv_heads, g.head_width, root, norm=norm)


class CrossAttention:
    """Cross-attention: queries from the draft, keys and values from the target's features.

    No rotary positions; queries and keys are normed per head; both branches pass a learned gate
    tanh(g) (arXiv 2505.19201, §3.1; the norms and gates as in its code, LlavaCrossAttention).
    """

    def __init__(self, tensors: Tensors, prefix: str, geometry: Geometry) -> None:
        g = geometry
        attention = f"{prefix}.cross_attn."
        self._geometry = g
        q = tensors[attention + "q_proj.weight"]
        self._eps = norm_root(g, q)
        self._head_eps = norm_root(g, q, g.head_width)
        scale = g.width**0.5
        head_scale = g.head_width**0.5
        self._q = PackedLinear(q * (tensors[f"{prefix}.input_layernorm.weight"] * scale), bits=8)
        # The two norms per head meet in one product, so one weight holds both.
        query_norm, key_norm = (tensors[f"{attention}{name}_norm.weight"] for name in "qk")
        self._norm = query_norm * key_norm * head_scale**2
        kv = torch.cat([tensors[f"{attention}{name}_proj.weight"] for name in "kv"])
        self._kv = PackedLinear(kv, bits=8)
        gates = (tensors[f"{prefix}.cross_attn_{name}_gate"] for name in ("attn", "mlp"))
        attention_gate, mlp_gate = (gate.float().tanh().to(q.dtype) for gate in gates)
        self._out = PackedLinear(tensors[attention + "o_proj.weight"] * attention_gate, bits=8)
        self._mlp = MLP(tensors, prefix, self._eps, scale, gate=mlp_gate)
        matrices = self._q, self._out, self._mlp.gate_up, self._mlp.down
        self.parts = LayerWeights(*matrices, kv=self._kv, head_norm=self._norm)

    def write_keys_values(self, features: Tensor, slot: Tensor) -> None:
        """Write keys and values of features [r, D] into slot [2, 1, kv_heads, r, width]."""
        g = self._geometry
        kv = self._kv(features).view(features.shape[0], 2, g.kv_heads, g.head_width)
        kv[:, 0] = unit_rows(kv[:, 0], self._head_eps)
        slot.copy_(kv.permute(1, 2, 0, 3).unsqueeze(1))

    def __call__(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return [k, D] for x [k, D], keys and values [1, kv_heads, S, width], mask [k, S]."""
        x = self._out(attend(self._queries(x), keys, values, mask), x)
        return self._mlp(x)

    def attention_weights(self, x: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Return its attention [k, S], the mean over the heads, with the same arguments."""
        return probabilities(self._queries(x), keys, mask, None, self._geometry.head_width**-0.5)[0]

    def _queries(self, x: Tensor) -> Tensor:
        """Return [1, heads, k, width]."""
        g = self._geometry
        q = self._q(unit_rows(x, self._eps)).view(x.shape[0], g.heads, g.head_width)
        return unit_rows(q, self._head_eps).mul_(self._norm).transpose(0, 1).unsqueeze(0)


class MLP:
    """x + down(silu(gate(h)) · up(h)) with h = norm(x); `gate` scales the branch."""

    def __init__(
        self,
        tensors: Tensors,
        prefix: str,
        eps: Tensor,
        scale: float,
        gate: Tensor | None = None,
    ) -> None:
        both = torch.cat([tensors[f"{prefix}.mlp.{name}_proj.weight"] for name in ("gate", "up")])
        norm = tensors[f"{prefix}.post_attention_layernorm.weight"] * scale
        self.gate_up = PackedLinear(both * norm, bits=8)
        down = tensors[f"{prefix}.mlp.down_proj.weight"]
        self.down = PackedLinear(down if gate is None else down * gate, bits=8)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(unit_rows(x, self._eps)).chunk(2, -1)
        return self.down(F.silu(gate).mul_(up), x)


def norm_root(geometry: Geometry, like: Tensor, width: int | None = None) -> Tensor:
    """Return sqrt(D eps): RMSNorm is x / hypot(|x|, sqrt(D eps)) times sqrt(D) times its weight.

    width: D, if it is not the geometry's.
    """
    root = ((width or geometry.width) * geometry.eps) ** 0.5
    return like.new_tensor(root, dtype=torch.float32)


def unit_rows(x: Tensor, eps: Tensor) -> Tensor:
    """Return x / hypot(|x|, eps), with the length computed in float32."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).hypot_(eps)
    return x.div(length).to(x.dtype)


def norm_heads(h: Tensor, weight: Tensor, eps: Tensor) -> None:
    """Norm rows [k, heads, width] in place, each head by itself; weight [heads, width]."""
    h.copy_(unit_rows(h, eps).mul_(weight))


def rotate(h: Tensor, rotation: Tensor) -> None:
    """Rotate rows [k, heads, width] in place; rotary pairs are adjacent."""
    rotated = torch.view_as_complex(h.float().unflatten(-1, (-1, 2))) * rotation
    h.copy_(torch.view_as_real(rotated).flatten(-2))
