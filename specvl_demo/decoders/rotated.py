"""The lean forward with weights and rows in 8 bits, rotated so that rounding changes little.

A few numbers of a residual row are tens of times larger than the others, and 8 bits that hold them
leave little for the rest. The layers therefore work on rotated rows, whose numbers are about
normally distributed; the rotation and the norms' weights are multiplied into the matrices once, as
in QuaRot (arXiv 2404.00456). Rows after a norm then need no step of their own. Values are rotated
within their head, and the channels before the last projection of an MLP are balanced against its
columns, as in SmoothQuant (arXiv 2211.10438). Without rounding, the model would be the same.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from specvl_demo.decoders.fused_cpu import FusedDecoder, Layer, Matrix
from specvl_demo.decoders.packed_linear import PackedLinear, PackedLinear8Bit

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

_MOST = 4.0
"""The largest number of a normed row that 8 bits hold, in standard deviations. On the photo pair 4
changes fewer of the likeliest tokens than 4.5 or 5.5.
"""
_BALANCE = 0.5
"""How much of a channel's range moves into the column that reads it, as an exponent."""


RANGES = "ranges.npy"


def ranges_in(folder: Path) -> Tensor | None:
    """Return the `ranges` for a `RotatedDecoder` that a target's folder has, None without."""
    file = folder / RANGES
    return torch.from_numpy(np.load(file)).float() if file.is_file() else None


def rotation(n: int) -> Tensor:
    """Return an orthogonal [n, n] that spreads a large number over many: a Hadamard matrix of the
    largest power of two in n, times a cosine transform of the rest, with random signs of the rows.
    """
    power = n & -n
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    while len(hadamard) < power:
        hadamard = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double(), hadamard)
    rest = n // power
    at = torch.arange(rest).double()
    cosine = torch.cos(math.pi * at[:, None] * (at + 0.5) / rest) * (2 / rest) ** 0.5
    cosine[0] *= 0.5**0.5
    signs = torch.randint(2, (n, 1), generator=torch.Generator().manual_seed(0)) * 2 - 1
    return (torch.kron(cosine, hadamard) / power**0.5 * signs).float()


class RotatedDecoder(FusedDecoder):
    """A `FusedDecoder` whose layers and head are rounded to 8 bits, on a processor that multiplies
    them.
    """

    def __init__(
        self, decoder: PreTrainedModel, head: nn.Linear, ranges: Tensor | None = None
    ) -> None:
        """ranges: The largest absolute inputs of every layer's last projection [layers, channels],
        as seen on some text; None leaves these channels as they are.
        """
        config = decoder.config
        if ranges is not None and ranges.shape != (
            shape := (config.num_hidden_layers, config.intermediate_size)
        ):
            raise ValueError(f"ranges must be {list(shape)}, got {list(ranges.shape)}")
        self._ranges = ranges
        self._turn = rotation(config.hidden_size)
        self._in = PackedLinear(self._turn.t().contiguous(), rounded=True)
        self._out = PackedLinear(self._turn, rounded=True)
        super().__init__(decoder, head)

    def logits(self, hidden: Tensor) -> Tensor:
        rows = self._in(hidden.reshape(-1, self.width).float())
        return self._head(rows).view(*hidden.shape[:-1], self.vocab)

    def _entered(self, x: Tensor) -> Tensor:
        return self._in(x)

    def _left(self, x: Tensor) -> Tensor:
        return self._out(x)

    def _folded_head(self, weight: Tensor) -> Matrix:
        return PackedLinear8Bit(weight @ self._turn)

    def _fold(self, index: int, layer: LlamaDecoderLayer) -> Layer:
        attn, mlp, scale = layer.self_attn, layer.mlp, self.width**0.5
        most = _MOST / scale
        (qkv, bias), turn = self._joint(attn), rotation(self._head_width)
        first = (self._heads + self._kv_heads) * self._head_width
        qkv[first:] = self._by_head(turn.t(), qkv[first:])
        if bias is not None:
            bias[first:] = self._by_head(turn.t(), bias[first:, None])[:, 0]
        out = self._by_head(turn.t(), attn.o_proj.weight.float().t()).t()
        up, down = mlp.up_proj.weight.float(), mlp.down_proj.weight.float()
        if self._ranges is not None:
            share = self._ranges[index].float().clamp_min(1e-5) ** _BALANCE
            share /= down.abs().amax(0).clamp_min(1e-5) ** (1 - _BALANCE)
            up, down = up / share[:, None], down * share
        norm, after = (
            one.weight.float() * scale
            for one in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        gate_up = torch.cat([mlp.gate_proj.weight.float(), up])
        return Layer(
            norm=None,
            qkv=PackedLinear8Bit((qkv * norm) @ self._turn, most),
            bias=bias,
            out=PackedLinear8Bit(self._turn.t() @ out),
            after_norm=None,
            gate_up=PackedLinear8Bit((gate_up * after) @ self._turn, most),
            down=PackedLinear8Bit(self._turn.t() @ down),
        )

    def _by_head(self, turn: Tensor, rows: Tensor) -> Tensor:
        """Apply a rotation [width, width] within every head's rows [heads * width, n]."""
        return (turn @ rows.unflatten(0, (-1, self._head_width))).flatten(0, 1)
