"""DREAM's head (arXiv 2505.19201 §3.2.1): features, a middle layer and the KL are distilled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.drafters.base import Batch, Learner, Recipe, padded
from recipes.drafters.modules import MLP, Attention, Block, Drafter, Steps, start_small, turns_of
from recipes.features import FeatureSpec, Rows
from specvl_demo.methods.dream import kept_positions
from specvl_demo.methods.heads.blocks import Geometry


@dataclass(frozen=True)
class DreamRecipe(Recipe):
    """The settings of DREAM.

    middle: Weight of the loss on the intermediate layer. keep: Share of visual tokens among the
    queries. gate: Initial value of the gates. cross: False trains without the cross-attention.
    """

    middle: float = 0.2
    keep: float = 0.75
    gate: float = 0.5
    cross: bool = True


class CrossBlock(nn.Module):
    def __init__(self, g: Geometry, ffn: int) -> None:
        super().__init__()
        self.cross_attn = Attention(g, cross=True)
        self.mlp = MLP(g.width, ffn)
        self.input_layernorm = nn.RMSNorm(g.width, g.eps)
        self.post_attention_layernorm = nn.RMSNorm(g.width, g.eps)
        self.cross_attn_attn_gate = nn.Parameter(torch.zeros(1))
        self.cross_attn_mlp_gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Add the attention to the features and the MLP to x, each as far as its gate is open."""
        queries = self.cross_attn.queries(self.input_layernorm(x))
        x = x + self.cross_attn_attn_gate.tanh() * self.cross_attn.mix(queries, keys, values, mask)
        return x + self.cross_attn_mlp_gate.tanh() * self.mlp(self.post_attention_layernorm(x))


class DreamHead(Drafter):
    """DREAM: block, gated cross-attention to features, block, norm."""

    def __init__(self, g: Geometry, ffn: int, gate: float = 0.0, scale: float = 1.0) -> None:
        """Make a head. gate: initial value of both gates (published: 0). scale: see `factors`."""
        super().__init__()
        self.geometry, self.scale = g, scale
        cross = CrossBlock(g, ffn)
        self.layers = nn.ModuleList([Block(g, ffn, False), cross, Block(g, ffn, True)])
        self.norm = nn.RMSNorm(g.width, g.eps)
        start_small(self)
        with torch.no_grad():
            cross.cross_attn_attn_gate.fill_(gate)
            cross.cross_attn_mlp_gate.fill_(gate)

    def factors(self) -> dict[str, Tensor]:
        """Embeddings are small and the first block has no norm: its attention scales them."""
        scale = torch.tensor(self.scale, device=self.norm.weight.device)
        return {f"layers.0.self_attn.{name}_proj.weight": scale for name in "qkv"}

    def forward(
        self, embeds: Tensor, at: Tensor, features: Tensor, n_prompt: Tensor, n: int, first: int = 0
    ) -> list[tuple[Tensor, Tensor]]:
        """Return predicted features, and the first block's output, in `FeatureHead`'s form.

        embeds [B, N, D]: queries; at [B, N]: the position of each in the conversation; features [B,
        S, D] of all positions; n_prompt [B]: number of features when drafting begins.
        """
        low, cross, last = cast(tuple[Block, CrossBlock, Block], tuple(self.layers))
        device = embeds.device
        turns = turns_of(self.geometry, embeds.shape[1], device)
        early = low.close(embeds, Steps(low.self_attn, turns, first).attend(embeds * self.scale))
        keys, values = cross.cross_attn.keys_values(features)
        attention, steps = Steps(last.self_attn, turns, first), []
        for step in range(1, n + 1):
            rows, places = (early, at) if step == 1 else (early[:, first:], at[:, first:])
            mask = self._mask(places, features.shape[1], n_prompt, step)
            if step > 1:
                blocked = drafted_mask(rows.shape[1], step, device)
                mask = torch.cat((mask, blocked.expand(mask.shape[0], 1, -1, -1)), -1)
            x = cross(rows, keys, values, mask)
            output = self.norm(last.close(x, attention.attend(last.normed(x))))
            steps.append((output, early))
            more = cross.cross_attn.keys_values(output[:, first:] if step == 1 else output)
            keys, values = torch.cat((keys, more[0]), 2), torch.cat((values, more[1]), 2)
        return steps

    def _mask(self, at: Tensor, n_features: int, n_prompt: Tensor, step: int) -> Tensor:
        """Return an additive mask [B, 1, N, S] of features up to `step` before the row.

        A row without any attends to all of the prompt's equally, as the first one does in the
        published code (methods D1).
        """
        j = torch.arange(n_features, device=at.device)
        mask = torch.full((at.shape[0], 1, at.shape[1], n_features), -torch.inf, device=at.device)
        mask.masked_fill_((j < n_prompt[:, None])[:, None, None], torch.finfo(mask.dtype).min)
        return mask.masked_fill_((j <= at[:, :, None] - step)[:, None], 0.0)


def drafted_mask(n: int, step: int, device: torch.device) -> Tensor:
    """Return an additive mask [n, (step - 1) n]: a row attends to those of its predecessors'
    earlier predictions, one of each step, the latest at the row before it.
    """
    row = torch.arange(n, device=device)[:, None]
    seen = torch.cat([row.t() == row - (step - u) for u in range(1, step)], 1)
    return torch.zeros(seen.shape, device=device).masked_fill_(~seen, -torch.inf)


class DreamLearner(Learner):
    """DREAM. Queries are all text and the visual tokens the target attends to most."""

    name, title = "dream", "DREAM"
    # choice: it also feeds itself, as one of the published training scripts does.
    recipe = DreamRecipe(self_feeding=3, reg=0.2, cls=1.0)
    needs = FeatureSpec(visual=True, middle=True)

    def make(self) -> nn.Module:
        """Return a fresh head; without cross-attention its gates stay closed."""
        r = self.recipe
        gate = r.gate if r.cross else 0.0
        module = DreamHead(
            self.shared.geometry, r.ffn or self.shared.ffn, gate, 1 / self.sizes.words
        )
        if not r.cross:
            module.layers[1].requires_grad_(False)
        return module

    def settings(self) -> dict[str, Any]:
        return {"keep": self.recipe.keep, **super().settings()}

    def early_loss(self, early: Tensor, batch: Batch, live: Tensor) -> Tensor:
        """Return smooth L1 between the first block and the target's calmest layer.

        # choice: rows are compared after an RMS norm. An inner layer may be many times as large as
        a fresh block's output; compared as they are, nothing is learnt until the block has grown.
        """
        if batch.middle is None:
            raise ValueError("DREAM trains on the target's calmest layer, which this batch lacks")
        width = early.shape[-1:]
        ours, theirs = (F.rms_norm(x, width) for x in (early, batch.middle[live].float()))
        return self.recipe.middle * F.smooth_l1_loss(ours, theirs)

    def batch(self, rows: Sequence[Rows], noise: torch.Generator | None = None) -> Batch:
        """Features keep all positions, queries only the remaining ones."""
        at = [self._queries(r) for r in rows]
        n, size = max(map(len, at)), max(len(r.ids) for r in rows)

        def queried(some: Sequence[Tensor]) -> Tensor:
            found = [
                padded(x, len(r.ids)).to(self.device)[a]
                for x, r, a in zip(some, rows, at, strict=True)
            ]
            return self.stacked(found, n)

        embeds, truth = queried([self.embeds(r) for r in rows]), queried([r.features for r in rows])
        scored = queried([r.answer[1:] for r in rows])
        token = queried([r.ids[1:].long() for r in rows])
        starts = [int(r.answer.int().argmax()) - 1 for r in rows]
        n_prompt = torch.tensor(starts, device=self.device)
        features = self.stacked([r.features for r in rows], size)
        inputs = embeds, self.stacked(at, n), features, n_prompt
        return Batch(inputs, truth, scored, token, queried([r.middle for r in rows]))

    def _queries(self, rows: Rows) -> Tensor:
        importance = torch.zeros(len(rows.ids))
        importance[rows.visual] = rows.importance
        return kept_positions(rows.visual, importance, self.recipe.keep).to(self.device)
