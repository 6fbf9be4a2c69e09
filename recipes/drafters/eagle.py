"""EAGLE's heads. Version 2 (arXiv 2406.16858, 2401.15077) learns features and tokens, with noise in
place of self-feeding; version 3 (arXiv 2503.01840) only tokens, with training-time test, over a
draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.drafters.base import Learner, Recipe
from recipes.drafters.modules import Block, Drafter, Steps, start_small, turns_of
from recipes.features import FeatureSpec
from specvl_demo.methods.heads.blocks import Geometry


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
        """Return what the projection reads at a step besides embedding and feature, [B, N, D]."""
        return []

    def factors(self) -> dict[str, Tensor]:
        """Fold the scales of the inputs into the projection."""
        n, more = self.geometry.width, self.inputs - len(self.scales)
        each = torch.tensor([*self.scales, *[1.0] * more]).repeat_interleave(n)
        return {"fc.weight": each.to(self.fc.weight.device)}

    def forward(
        self, embeds: Tensor, features: Tensor, n: int, first: int = 0
    ) -> list[tuple[Tensor, None]]:
        """Return predicted features [B, N, D] for steps 1..n of feeding itself, from step 2 on only
        of rows `first`..; the second of each pair is a first block's output, which this head does
        not have.

        embeds [B, N, D] of row i's token, features [B, N, D] of the token before it.
        """
        turns = turns_of(self.geometry, embeds.shape[1], embeds.device)
        block = cast(Block, self.layers[0])
        attention = Steps(block.self_attn, turns, first)
        steps: list[Tensor] = []
        for step in range(n):
            parts = [embeds, features]
            if step:
                # A row is fed its predecessor's output of the step before.
                before = F.pad(steps[-1], (0, 0, 1, 0))[:, :-1]
                parts = [embeds[:, first:], before[:, first:] if step == 1 else before]
            parts = [part * scale for part, scale in zip(parts, self.scales, strict=True)]
            x = self.fc(torch.cat([*parts, *self.step_inputs(step, parts[0])], -1))
            steps.append(block.close(x, attention.attend(x)))
        return [(outputs, None) for outputs in steps]


class FeatureLearner(Learner):
    """Row r is token r + 1 with the feature of token r."""

    name, title = "eagle2", "EAGLE-2"
    recipe = Recipe(self_feeding=1, reg=1.0, cls=0.1, noise=0.2)
    needs = FeatureSpec(visual=True)

    def make(self) -> nn.Module:
        """Return a fresh head that reads embeddings and features scaled to one size."""
        scales = (1 / self.sizes.words, 1 / self.sizes.features)
        return FeatureHead(self.shared.geometry, self.recipe.ffn or self.shared.ffn, scales)


class WideBlock(Block):
    """EAGLE-3's block: attention reads embedding and feature, both normed; residual: the latter."""

    def __init__(self, g: Geometry, ffn: int) -> None:
        super().__init__(g, ffn, input_norm=True, inputs=2)
        self.hidden_norm = nn.RMSNorm(g.width, g.eps)

    def joined(self, embeds: Tensor, features: Tensor) -> Tensor:
        """Return what attention reads [.., 2D]."""
        return torch.cat((self.normed(embeds), self.hidden_norm(features)), -1)


class Eagle3Head(Drafter):
    """EAGLE-3 as in the authors' files. ids [R]: the target's id of every draft id, ascending."""

    def __init__(
        self, g: Geometry, ffn: int, ids: Tensor, vocab: int, output: Tensor | None = None
    ) -> None:
        """Make a head. vocab: the target's. output [R, D]: initial output head, None for small
        noise.
        """
        super().__init__()
        self.geometry = g
        self.fc = nn.Linear(3 * g.width, g.width, bias=False)
        self.midlayer = WideBlock(g, ffn)
        self.norm = nn.RMSNorm(g.width, g.eps)
        self.lm_head = nn.Linear(g.width, len(ids), bias=False)
        start_small(self)
        if output is not None:
            with torch.no_grad():
                self.lm_head.weight.copy_(output)
        self.register_buffer("d2t", ids - torch.arange(len(ids), device=ids.device))
        known = torch.zeros(vocab, dtype=torch.bool, device=ids.device)
        self.register_buffer("t2d", known.index_fill(0, ids, True))

    def logits(self, out: Tensor) -> Tensor:
        """Map the block's output [..., D] -> logits over the draft vocabulary [..., R]."""
        return self.lm_head(self.norm(out))

    def forward(
        self, embeds: Tensor, levels: Tensor, n: int, first: int = 0
    ) -> list[tuple[Tensor, None]]:
        """Return the block's output [B, N, D] at steps 1..n of feeding itself (training-time test),
        from step 2 on only of rows `first`..

        embeds [B, N, D] of row i's token, levels [B, N, 3D] of the token before it.
        """
        block, turns = self.midlayer, turns_of(self.geometry, embeds.shape[1], embeds.device)
        attention, features = Steps(block.self_attn, turns, first), self.fc(levels)
        outputs: list[Tensor] = []
        for step in range(n):
            if step:
                before = F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1]
                features = before[:, first:] if step == 1 else before
            read = embeds if not step else embeds[:, first:]
            outputs.append(block.close(features, attention.attend(block.joined(read, features))))
        return [(out, None) for out in outputs]


class Eagle3Learner(Learner):
    """EAGLE-3. Row r is token r + 1 with three layers' states of token r; it learns draft ids."""

    name, title = "eagle3", "EAGLE-3"
    # As deep as it will draft: nothing else keeps what it feeds itself close to its training
    # inputs.
    recipe = Recipe(self_feeding=7, stage1=0.0, reg=0.0, cls=1.0)
    needs = FeatureSpec(visual=True, levels=True)
    reads = "levels"
    scaled = False

    def make(self) -> nn.Module:
        """Return a fresh head whose output head is the target's rows of the draft vocabulary."""
        output = self.shared.head.weight.detach()
        every = torch.arange(len(output), device=output.device)
        if "d2t" in self.start:
            self.ids = self.start["d2t"].to(every) + every[: len(self.start["d2t"])]
        self.ids = every if self.ids is None else self.ids.sort().values
        self._say = self.shared.part(self.ids)
        ffn = self.recipe.ffn or self.shared.ffn
        rows = output[self.ids].float()
        return Eagle3Head(self.shared.geometry, ffn, self.ids, output.shape[0], rows)

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors; the published format includes the draft vocabulary."""
        return self.module.published()

    def config(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return it as in SafeAILab's files."""
        return {**super().config(tensors), "draft_vocab_size": len(tensors["d2t"])}

    def guess(self, out: Tensor) -> Tensor:
        return self.module.logits(out)
