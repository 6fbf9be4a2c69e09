"""EAGLE-2's head (arXiv 2406.16858, 2401.15077): features and tokens, noise in place of self-feeding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.training.drafters.base import Learner, Recipe
from specvl_demo.training.drafters.modules import Block, Drafter, Steps, start_small, turns_of
from specvl_demo.training.features import Needs


class FeatureHead(Drafter):
    """EAGLE-2's head."""

    inputs = 2
    """Rows of the target's width that the projection reads."""

    def __init__(self, g: Geometry, ffn: int, scales: tuple[float, float] = (1.0, 1.0)) -> None:
        super().__init__()
        self.geometry, self.scales = g, scales
        self.fc = nn.Linear(self.inputs * g.width, g.width)
        self.layers = nn.ModuleList([Block(g, ffn, input_norm=False)])
        start_small(self)

    def step_inputs(self, step: int, like: Tensor) -> list[Tensor]:
        """What the projection reads beside embedding and feature at a step, [B, N, D] each."""
        return []

    def factors(self) -> dict[str, Tensor]:
        """The projection takes over the scales of what it reads."""
        n, more = self.geometry.width, self.inputs - len(self.scales)
        each = torch.tensor([*self.scales, *[1.0] * more]).repeat_interleave(n)
        return {"fc.weight": each.to(self.fc.weight.device)}

    def forward(self, embeds: Tensor, features: Tensor, n: int, first: int = 0) -> list[tuple[Tensor, None]]:
        """Predicted features [B, N, D] for steps 1..n of feeding itself, from step 2 on of rows `first`..
        only. Second in each pair is what a first block says, which there is not.

        embeds [B, N, D] of row i's token, features [B, N, D] of the token before it.
        """
        block, turns = self.layers[0], turns_of(self.geometry, embeds.shape[1], embeds.device)
        attention = Steps(block.self_attn, turns, first)
        steps: list[Tensor] = []
        for step in range(n):
            parts = [embeds, features]
            if step:
                # A row is fed what its predecessor said at the step before.
                before = F.pad(steps[-1], (0, 0, 1, 0))[:, :-1]
                parts = [embeds[:, first:], before[:, first:] if step == 1 else before]
            parts = [part * scale for part, scale in zip(parts, self.scales, strict=True)]
            x = self.fc(torch.cat([*parts, *self.step_inputs(step, parts[0])], -1))
            steps.append(block.close(x, attention.attend(x)))
        return [(said, None) for said in steps]


class FeatureLearner(Learner):
    """Row r is token r + 1 with the feature of token r."""

    name, title = "eagle2", "EAGLE-2"
    recipe = Recipe(self_feeding=1, reg=1.0, cls=0.1, noise=0.2)
    needs = Needs(visual=True)

    def make(self) -> nn.Module:
        """A fresh head that sees embeddings and features in one size."""
        scales = (1 / self.sizes.words, 1 / self.sizes.features)
        return FeatureHead(self.shared.geometry, self.recipe.ffn or self.shared.ffn, scales)
