"""The lean forward with weights in 8 bits, rotated so that rounding changes little.

A few numbers of a residual row are tens of times larger than the others, and 8 bits that hold them
leave little for the rest. The layers therefore work on rotated rows, whose numbers are about
normally distributed; the rotation and the norms' weights are multiplied into the matrices once, as
in QuaRot (arXiv 2404.00456). Normed rows then share one fixed scale. Values are rotated within
their head. Without rounding, the model would be the same.

Rows have 8 bits too, but 16 before the down projection, whose inputs are products of two numbers:
this halves what rounding adds to the loss on plain chat. The matrices that make queries, keys and
values have 16 bits as well: they are a sixth of a layer, and with 8 the divergence would be half as
large again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from specvl_demo.decoders.layer_stack import Ends
from specvl_demo.decoders.lean import Layer
from specvl_demo.decoders.output_head import OutputHead
from specvl_demo.decoders.packed_decoder import PackedDecoder
from specvl_demo.decoders.packed_linear import PackedLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

_LARGEST = 4.0
"""Where numbers of a normed row are clipped, in standard deviations. 3.5 and 4 change the
photo pair's distributions less than 4.5 and 5.
"""


class Rotation(NamedTuple):
    """An orthogonal [n, n] that spreads a large number over many: a Hadamard matrix of the largest
    power of two in n, times a cosine transform of the rest, with random signs of the rows.

    signs: [n]. cosine: [rest, rest]. hadamard: [power, power].
    """

    signs: Tensor
    cosine: Tensor
    hadamard: Tensor

    @classmethod
    def of(cls, n: int) -> Rotation:
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

    def within(self, rows: Tensor) -> Tensor:
        """Rotate every n numbers of rows [..., heads * n] by themselves."""
        return self(rows.unflatten(-1, (-1, len(self.signs)))).flatten(-2)


class RotatedDecoder(PackedDecoder):
    """A `PackedDecoder` whose output, MLP and head matrices are rounded to 8 bits, where our own
    kernels run.
    """

    def __init__(self, decoder: PreTrainedModel, head: nn.Linear) -> None:
        self._rotation = Rotation.of(decoder.config.hidden_size)
        rotation = self._rotation(torch.eye(decoder.config.hidden_size))
        self._in = PackedLinear(rotation.t().contiguous(), bits=16)
        self._out = PackedLinear(rotation, bits=16)
        super().__init__(decoder, head)

    def _output(self, packed: PackedLinear, vocab: int) -> OutputHead:
        """The head multiplies rotated rows."""
        rotate, width = self._in, self.width

        def multiply(hidden: Tensor) -> Tensor:
            rows = rotate(hidden.reshape(-1, width).float())
            return packed(rows).view(*hidden.shape[:-1], vocab)

        return OutputHead(multiply, vocab)

    def _entered(self, x: Tensor) -> Tensor:
        return self._in(x)

    def _left(self, x: Tensor) -> Tensor:
        return self._out(x)

    def _ends(self) -> Ends:
        rotation = self._rotation(torch.eye(self.width))
        leave = PackedLinear(rotation * self._norm[:, None], bits=16)
        return Ends(self._in.matrix, leave.matrix)

    def _packed_head(self, weight: Tensor) -> PackedLinear:
        return PackedLinear(self._rotation(weight), bits=8, row_bits=8)

    def _make_layer(self, layer: LlamaDecoderLayer) -> Layer:
        attn, mlp, scale = layer.self_attn, layer.mlp, self.width**0.5
        (qkv, bias), head_rotation = self._projection(attn), Rotation.of(self._head_width)
        values = slice((self._heads + self._kv_heads) * self._head_width, None)
        qkv[values] = head_rotation.within(qkv[values].t()).t()
        if bias is not None:
            bias[values] = head_rotation.within(bias[values])
        out = head_rotation.within(attn.o_proj.weight.float())
        norm, after = (
            layernorm.weight.float() * scale
            for layernorm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).float()
        down = self._rotation(mlp.down_proj.weight.float().t()).t()
        return Layer(
            norm=None,
            qkv=PackedLinear(self._rotation(qkv * norm), bits=16),
            bias=bias,
            out=PackedLinear(self._rotation(out.t()).t(), bits=8, row_bits=8),
            after_norm=None,
            gate_up=PackedLinear(
                self._rotation(gate_up * after), bits=8, row_bits=8, largest=_LARGEST / scale
            ),
            down=PackedLinear(down.contiguous(), bits=8),
        )
