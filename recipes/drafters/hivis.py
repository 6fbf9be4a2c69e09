"""HiViS's head (arXiv 2509.23928 §3.2): no visual rows, step embeddings, two stages; N 4, K 5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recipes.drafters.base import Batch, Recipe
from recipes.drafters.eagle import FeatureHead, FeatureLearner
from recipes.features import FeatureSpec, Rows, text_only
from specvl_demo.methods.heads.blocks import Geometry


@dataclass(frozen=True)
class HivisRecipe(Recipe):
    """Top-K distillation as in HASS. step_rows: step embeddings.

    # choice: the paper keeps answers of more than five words, and few texts about programs in stage
    2; here all answers stay, since short ones are asked for too and none is about programs.
    """

    step_rows: int = 4


class HivisHead(FeatureHead):
    """EAGLE-2's head that also reads an embedding of the current step."""

    inputs = 3

    def __init__(
        self, g: Geometry, ffn: int, scales: tuple[float, float] = (1.0, 1.0), step_rows: int = 1
    ) -> None:
        super().__init__(g, ffn, scales)
        self.residual = nn.Parameter(torch.zeros(step_rows, g.width))

    def step_inputs(self, step: int, like: Tensor) -> list[Tensor]:
        """Return the step's embedding, the last one for all steps beyond."""
        return [self.residual[min(step, self.residual.shape[0] - 1)].expand_as(like)]


class HivisLearner(FeatureLearner):
    """Visual rows are dropped before tokens and features are paired."""

    name, title = "hivis", "HiViS"
    recipe = HivisRecipe(self_feeding=4, reg=1.0, cls=0.1, top=1.0, survive=5)
    needs = FeatureSpec(visual=False)
    scaled = False

    def make(self) -> nn.Module:
        r, scales = self.recipe, (1 / self.sizes.words, 1 / self.sizes.features)
        return HivisHead(self.shared.geometry, r.ffn or self.shared.ffn, scales, r.step_rows)

    def batch(self, rows: Sequence[Rows], noise: torch.Generator | None = None) -> Batch:
        return super().batch([text_only(r) for r in rows], noise)

    @torch.no_grad()
    def before(self, step: int) -> None:
        """Begin stage 2 with every step embedding equal to the existing one."""
        r = self.recipe
        if r.passes(step) > 1 and r.passes(max(0, step - 1)) == 1:
            rows = self.module.residual
            rows[1:] = rows[:1]
