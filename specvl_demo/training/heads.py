"""EAGLE-2, HiViS and DREAM heads as modules that learn; parameter names are those of the published files.

Given embeddings and the target's features of whole conversations, gives what the head would say at every row
after 0, 1, 2, ... steps of feeding itself, exactly as when it drafts a chain (HASS, arXiv 2408.15766, as in
HiViS stage 2): at step s a row sees its last s - 1 predecessors as drafted ones and everything before them as
known. `drafters.blocks` computes the same from the same tensors, one row at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specvl_demo.drafters.blocks import Geometry


class Norm(nn.Module):
    """RMSNorm with a weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] at the size its weight gives."""
        return F.rms_norm(x, self.weight.shape, self.weight, self._eps)


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x))"""

    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, ffn, bias=False)
        self.up_proj = nn.Linear(width, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] -> [..., D]; the residual is the caller's."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Queries, keys, values and output; cross: q/k norm per head and no rotary positions."""

    def __init__(self, g: Geometry, bias: bool = False, cross: bool = False) -> None:
        super().__init__()
        self.geometry = g
        inner, kv = g.heads * g.head_width, g.kv_heads * g.head_width
        self.q_proj = nn.Linear(g.width, inner, bias=bias)
        self.k_proj = nn.Linear(g.width, kv, bias=bias)
        self.v_proj = nn.Linear(g.width, kv, bias=bias)
        self.o_proj = nn.Linear(inner, g.width, bias=False)
        self.q_norm = Norm(g.head_width, g.eps) if cross else None
        self.k_norm = Norm(g.head_width, g.eps) if cross else None

    def queries(self, x: Tensor, turns: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[B, N, D] -> [B, heads, N, width]"""
        return self._heads(self.q_proj(x), self.q_norm, turns)

    def keys_values(self, x: Tensor, turns: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """[B, N, D] -> twice [B, kv_heads, N, width]"""
        return self._heads(self.k_proj(x), self.k_norm, turns), self._heads(self.v_proj(x), None, None)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention and output projection [B, N, D]; mask None is causal."""
        gqa = self.geometry.heads != self.geometry.kv_heads
        a = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=gqa
        )
        return self.o_proj(a.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor, norm: Norm | None, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x.unflatten(-1, (-1, self.geometry.head_width))
        x = (x if norm is None else norm(x)).transpose(1, 2)
        if turns is None:
            return x
        cos, sin = turns
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin


class Block(nn.Module):
    """A Llama-type block; without input norm as EAGLE's, or with it."""

    def __init__(self, g: Geometry, ffn: int, input_norm: bool, bias: bool = False) -> None:
        super().__init__()
        self.self_attn = Attention(g, bias)
        self.mlp = MLP(g.width, ffn)
        self.post_attention_layernorm = Norm(g.width, g.eps)
        if input_norm:
            self.input_layernorm = Norm(g.width, g.eps)

    def normed(self, x: Tensor) -> Tensor:
        """What attention reads of x: x itself in a block without input norm."""
        return self.input_layernorm(x) if hasattr(self, "input_layernorm") else x

    def close(self, x: Tensor, attended: Tensor) -> Tensor:
        """Residual, then the MLP."""
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class CrossBlock(nn.Module):
    """DREAM's gated cross-attention block."""

    def __init__(self, g: Geometry, ffn: int) -> None:
        super().__init__()
        self.cross_attn = Attention(g, cross=True)
        self.mlp = MLP(g.width, ffn)
        self.input_layernorm = Norm(g.width, g.eps)
        self.post_attention_layernorm = Norm(g.width, g.eps)
        self.cross_attn_attn_gate = nn.Parameter(torch.zeros(1))
        self.cross_attn_mlp_gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """x with what its queries find among the features, and the MLP; each as far as its gate is open."""
        queries = self.cross_attn.queries(self.input_layernorm(x))
        x = x + self.cross_attn_attn_gate.tanh() * self.cross_attn.mix(queries, keys, values, mask)
        return x + self.cross_attn_mlp_gate.tanh() * self.mlp(self.post_attention_layernorm(x))


class Steps:
    """Self-attention of one block over steps of self-feeding: keys and values of every step so far.

    At step s row i sees step 1 up to row i - s + 1, then step 2 at row i - s + 2, ..., step s at row i. From
    step 2 on only rows from `first` on are computed; nothing before them is drafted.
    """

    def __init__(self, attention: Attention, turns: tuple[Tensor, Tensor], first: int) -> None:
        self._attention, self._turns, self._first = attention, turns, first
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def attend(self, x: Tensor) -> Tensor:
        """The next step's attention input [B, N or N - first, D] -> its output, the same shape."""
        cos, sin = (t[self._first if self._keys else 0 :] for t in self._turns)
        queries = self._attention.queries(x, (cos, sin))
        keys, values = self._attention.keys_values(x, (cos, sin))
        self._keys.append(keys)
        self._values.append(values)
        if len(self._keys) == 1:
            return self._attention.mix(queries, keys, values, None)
        mask = step_mask(self._keys[0].shape[2], self._first, len(self._keys), x.device)
        return self._attention.mix(queries, torch.cat(self._keys, 2), torch.cat(self._values, 2), mask)


def step_mask(n: int, first: int, step: int, device: torch.device) -> Tensor:
    """[n - first, n + (step - 1)(n - first)] bool: what rows from `first` on see at a step (see `Steps`)."""
    row = torch.arange(first, n, device=device)[:, None]
    seen = [torch.arange(n, device=device) <= row - (step - 1)]
    seen += [row.t() == row - (step - u) for u in range(2, step + 1)]
    return torch.cat(seen, 1)


def drafted_mask(n: int, step: int, device: torch.device) -> Tensor:
    """[n, (step - 1) n] additive: of the predictions of earlier steps, a row sees those of its predecessors,
    one of each step, the latest at the row before it."""
    row = torch.arange(n, device=device)[:, None]
    seen = torch.cat([row.t() == row - (step - u) for u in range(1, step)], 1)
    return torch.zeros(seen.shape, device=device).masked_fill_(~seen, -torch.inf)


def turns_of(g: Geometry, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [n, head_width] of positions 0..n - 1."""
    half = g.head_width // 2
    frequency = g.theta ** -(torch.arange(half, device=device).float() / half)
    angles = torch.arange(n, device=device).float()[:, None] * frequency
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


class FeatureHead(nn.Module):
    """EAGLE-2, or HiViS with n_steps >= 1 step embeddings."""

    def __init__(
        self, g: Geometry, ffn: int, n_steps: int = 0, scales: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        """scales: see `published`."""
        super().__init__()
        self.geometry, self.scales = g, scales
        self.fc = nn.Linear((3 if n_steps else 2) * g.width, g.width)
        self.layers = nn.ModuleList([Block(g, ffn, input_norm=False)])
        if n_steps:
            self.residual = nn.Parameter(torch.zeros(n_steps, g.width))
        _start(self)

    def published(self) -> dict[str, Tensor]:
        """The tensors of the published format.

        Embeddings and features may differ in size by orders, which slows learning down; the module sees both
        times its `scales`, and the projection takes them over here.
        """
        tensors = {name: p.detach().clone() for name, p in self.state_dict().items()}
        for part, scale in zip(tensors["fc.weight"].split(self.geometry.width, 1), self.scales, strict=False):
            part.mul_(scale)
        return tensors

    def forward(self, embeds: Tensor, features: Tensor, n: int, first: int = 0) -> list[tuple[Tensor, None]]:
        """All steps at once; see `steps`. Second in each pair is what a first block says, which there is
        not."""
        return [(said, None) for said in self.steps(embeds, features, n, first)]

    def steps(self, embeds: Tensor, features: Tensor, n: int, first: int = 0) -> Iterator[Tensor]:
        """Predicted features [B, N, D], from step 2 on of rows `first`.. only, for steps 1..n.

        embeds [B, N, D] of row i's token, features [B, N, D] of the token before it.
        """
        block, turns = self.layers[0], turns_of(self.geometry, embeds.shape[1], embeds.device)
        attention = Steps(block.self_attn, turns, first)
        said = features
        for step in range(n):
            parts = [embeds, features]
            if step:
                # A row is fed what its predecessor said at the step before.
                before = F.pad(said, (0, 0, 1, 0))[:, :-1]
                parts = [embeds[:, first:], before[:, first:] if step == 1 else before]
            parts = [part * scale for part, scale in zip(parts, self.scales, strict=True)]
            if hasattr(self, "residual"):
                row = self.residual[min(step, self.residual.shape[0] - 1)]
                parts.append(row.expand_as(parts[0]))
            x = self.fc(torch.cat(parts, -1))
            said = block.close(x, attention.attend(x))
            yield said


class DreamHead(nn.Module):
    """DREAM: block, gated cross-attention to features, block, norm."""

    def __init__(self, g: Geometry, ffn: int, gate: float = 0.0, scale: float = 1.0) -> None:
        """gate: where both gates start (published: 0). scale: see `published`."""
        super().__init__()
        self.geometry, self.scale = g, scale
        self.layers = nn.ModuleList([Block(g, ffn, False), CrossBlock(g, ffn), Block(g, ffn, True)])
        self.norm = Norm(g.width, g.eps)
        _start(self)
        with torch.no_grad():
            self.layers[1].cross_attn_attn_gate.fill_(gate)
            self.layers[1].cross_attn_mlp_gate.fill_(gate)

    def published(self) -> dict[str, Tensor]:
        """The tensors of the published format. The first block has no norm and embeddings are small, so its
        attention sees them times `scale`, which its weights take over here."""
        tensors = {name: p.detach().clone() for name, p in self.state_dict().items()}
        for name in "qkv":
            tensors[f"layers.0.self_attn.{name}_proj.weight"].mul_(self.scale)
        return tensors

    def forward(
        self, embeds: Tensor, at: Tensor, features: Tensor, n_prompt: Tensor, n: int, first: int = 0
    ) -> list[tuple[Tensor, Tensor]]:
        """All steps at once; see `steps`."""
        return list(self.steps(embeds, at, features, n_prompt, n, first))

    def steps(
        self, embeds: Tensor, at: Tensor, features: Tensor, n_prompt: Tensor, n: int, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Predicted features, and the first block's output, as `FeatureHead.steps` does.

        embeds [B, N, D]: queries; at [B, N]: which position of the conversation each is; features [B, S, D]
        of all positions; n_prompt [B]: features there are when drafting begins.
        """
        low, cross, last = self.layers
        device = embeds.device
        turns = turns_of(self.geometry, embeds.shape[1], device)
        early = low.close(embeds, Steps(low.self_attn, turns, first).attend(embeds * self.scale))
        keys, values = cross.cross_attn.keys_values(features)
        attention = Steps(last.self_attn, turns, first)
        for step in range(1, n + 1):
            rows, places = (early, at) if step == 1 else (early[:, first:], at[:, first:])
            mask = self._mask(places, features.shape[1], n_prompt, step)
            if step > 1:
                blocked = drafted_mask(rows.shape[1], step, device)
                mask = torch.cat((mask, blocked.expand(mask.shape[0], 1, -1, -1)), -1)
            x = cross(rows, keys, values, mask)
            said = self.norm(last.close(x, attention.attend(last.normed(x))))
            yield said, early
            more = cross.cross_attn.keys_values(said[:, first:] if step == 1 else said)
            keys, values = torch.cat((keys, more[0]), 2), torch.cat((values, more[1]), 2)

    def _mask(self, at: Tensor, n_features: int, n_prompt: Tensor, step: int) -> Tensor:
        """Additive [B, 1, N, S]: features up to `step` before the row. A row that has none sees the prompt's
        alike, as the published code does to the first one (methods D1)."""
        j = torch.arange(n_features, device=at.device)
        mask = torch.full((at.shape[0], 1, at.shape[1], n_features), -torch.inf, device=at.device)
        mask.masked_fill_((j < n_prompt[:, None])[:, None, None], torch.finfo(mask.dtype).min)
        return mask.masked_fill_((j <= at[:, :, None] - step)[:, None], 0.0)


def _start(module: nn.Module) -> None:
    """Small random matrices; what a branch adds starts at zero."""
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
