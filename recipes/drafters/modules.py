"""Blocks of heads as trainable modules; parameter names are those of the published files.

Given embeddings and the target's features of whole conversations, a head returns its output at
every row after 0, 1, 2, ... steps of feeding itself, exactly as when it drafts a chain (HASS, arXiv
2408.15766): at step s a row attends to its last s - 1 predecessors as drafted ones and to
everything before them as known. `methods.heads.blocks` computes the same from the same tensors, one
row at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.methods.heads.files import canonical_tensor_name


class Drafter(nn.Module):
    """A drafter in training; its parameters have the names of the published files."""

    def factors(self) -> dict[str, Tensor]:
        """Return published tensors, by name, as multiples of the parameters; 1 if not named.

        Embeddings and features may differ in size by orders of magnitude, which slows training:
        where a module reads them scaled, the published matrices include the scales.
        """
        return {}

    def published(self) -> dict[str, Tensor]:
        factors = self.factors()
        state = {name: p.detach().clone() for name, p in self.state_dict().items()}
        return {name: p * factors[name] if name in factors else p for name, p in state.items()}

    @torch.no_grad()
    def begin_with(self, tensors: Mapping[str, Tensor]) -> None:
        """Load published tensors; ValueError if they are of a drafter of another shape."""
        factors = self.factors()
        for name, p in self.state_dict().items():
            given = tensors.get(canonical_tensor_name(name))
            if given is None or given.shape != p.shape:
                there = "nothing" if given is None else f"{tuple(given.shape)}"
                raise ValueError(
                    f"cannot continue from this drafter: {name} is {tuple(p.shape)} here, but"
                    f" {there} there"
                )
            p.copy_(given.to(p.device) / factors.get(name, torch.ones((), device=p.device)))


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x))"""

    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, ffn, bias=False)
        self.up_proj = nn.Linear(width, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., D] -> [..., D], without the residual."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Queries, keys, values and output. cross: q/k norm per head and no rotary positions."""

    def __init__(self, g: Geometry, cross: bool = False, inputs: int = 1) -> None:
        """Make the projections. inputs: how many rows of width D are concatenated."""
        super().__init__()
        self.geometry = g
        inner, kv = g.heads * g.head_width, g.kv_heads * g.head_width
        self.q_proj = nn.Linear(inputs * g.width, inner, bias=False)
        self.k_proj = nn.Linear(inputs * g.width, kv, bias=False)
        self.v_proj = nn.Linear(inputs * g.width, kv, bias=False)
        self.o_proj = nn.Linear(inner, g.width, bias=False)
        self.q_norm = nn.RMSNorm(g.head_width, g.eps) if cross else None
        self.k_norm = nn.RMSNorm(g.head_width, g.eps) if cross else None

    def queries(self, x: Tensor, turns: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Project [B, N, D] -> [B, heads, N, width]."""
        return self._heads(self.q_proj(x), self.q_norm, turns)

    def keys_values(
        self, x: Tensor, turns: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Project [B, N, D] -> keys and values [B, kv_heads, N, width]."""
        keys = self._heads(self.k_proj(x), self.k_norm, turns)
        return keys, self._heads(self.v_proj(x), None, None)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Apply attention and output projection -> [B, N, D]; mask None is causal."""
        gqa = self.geometry.heads != self.geometry.kv_heads
        a = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=gqa
        )
        return self.o_proj(a.transpose(1, 2).flatten(2))

    def _heads(
        self, x: Tensor, norm: nn.RMSNorm | None, turns: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        x = x.unflatten(-1, (-1, self.geometry.head_width))
        x = (x if norm is None else norm(x)).transpose(1, 2)
        if turns is None:
            return x
        cos, sin = turns
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin


class Block(nn.Module):
    """A Llama-type block, with an input norm or without one as EAGLE's."""

    def __init__(self, g: Geometry, ffn: int, input_norm: bool, inputs: int = 1) -> None:
        super().__init__()
        self.self_attn = Attention(g, inputs=inputs)
        self.mlp = MLP(g.width, ffn)
        self.post_attention_layernorm = nn.RMSNorm(g.width, g.eps)
        if input_norm:
            self.input_layernorm = nn.RMSNorm(g.width, g.eps)

    def normed(self, x: Tensor) -> Tensor:
        """Return what attention reads of x: x itself in a block without input norm."""
        return self.input_layernorm(x) if hasattr(self, "input_layernorm") else x

    def close(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the residual, then the MLP."""
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Steps:
    """Self-attention of one block over steps of self-feeding: keys and values of every step so far.

    At step s row i attends to step 1 up to row i - s + 1, then to step 2 at row i - s + 2, ...,
    step s at row i. From step 2 on only rows from `first` on are computed; nothing before them is
    drafted.
    """

    def __init__(self, attention: Attention, turns: tuple[Tensor, Tensor], first: int) -> None:
        self._attention, self._turns, self._first = attention, turns, first
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def attend(self, x: Tensor) -> Tensor:
        """Map the next step's attention input [B, N or N - first, D] to its output."""
        cos, sin = (t[self._first if self._keys else 0 :] for t in self._turns)
        queries = self._attention.queries(x, (cos, sin))
        keys, values = self._attention.keys_values(x, (cos, sin))
        self._keys.append(keys)
        self._values.append(values)
        if len(self._keys) == 1:
            return self._attention.mix(queries, keys, values, None)
        mask = step_mask(self._keys[0].shape[2], self._first, len(self._keys), x.device)
        return self._attention.mix(
            queries, torch.cat(self._keys, 2), torch.cat(self._values, 2), mask
        )


def step_mask(n: int, first: int, step: int, device: torch.device) -> Tensor:
    """Return [n - first, n + (step - 1)(n - first)] bool: what rows from `first` on attend to."""
    row = torch.arange(first, n, device=device)[:, None]
    seen = [torch.arange(n, device=device) <= row - (step - 1)]
    seen += [row.t() == row - (step - u) for u in range(2, step + 1)]
    return torch.cat(seen, 1)


def turns_of(g: Geometry, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cos and sin [n, head_width] of positions 0..n - 1."""
    half = g.head_width // 2
    frequency = g.theta ** -(torch.arange(half, device=device).float() / half)
    angles = torch.arange(n, device=device).float()[:, None] * frequency
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def start_small(module: nn.Module) -> None:
    """Initialise small random matrices; the output of every branch starts at zero."""
    for name, p in module.named_parameters():
        if p.ndim == 2 and name != "residual":
            nn.init.normal_(p, std=0.5 * p.shape[1] ** -0.5)
        elif name.endswith("bias"):
            nn.init.zeros_(p)
    for m in module.modules():
        if isinstance(m, MLP):
            nn.init.zeros_(m.down_proj.weight)
        elif isinstance(m, Attention):
            nn.init.zeros_(m.o_proj.weight)
