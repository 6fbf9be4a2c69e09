"""DFlash's head (arXiv 2602.06036): one forward of a few layers drafts a block of tokens.

A block is a known token followed by masks. Its rows attend to one another in both directions, and
in every layer to the target's states of all tokens before the block, as further keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.drafters.base import Batch, Learner, Recipe
from recipes.drafters.modules import Attention, Block, Drafter, start_small, turns_of
from recipes.features import FeatureSpec, Rows, levels_of
from specvl_demo.methods.heads.blocks import Geometry

CHUNK = 32
"""Blocks of a conversation that are measured at once."""


@dataclass(frozen=True)
class DflashRecipe(Recipe):
    """The settings of DFlash: rows of a block, including the known token; layers of the head;
    anchors, blocks trained on, per conversation and step.

    fade: The loss of the k-th drafted token is weighted exp(-(k - 1) / fade), since it helps only
    if all before it are right. mask: The target's id of an unknown token, by default its padding.
    """

    block: int = 10
    layers: int = 3
    anchors: int = 16
    fade: float = 5.0
    mask: int = 0


class InjectedBlock(Block):
    """A Qwen3-type block: queries and keys are normed per head."""

    def __init__(self, g: Geometry, ffn: int) -> None:
        super().__init__(g, ffn, input_norm=True)
        self.self_attn = Attention(g, cross=True)


class DflashHead(Drafter):
    """The head in the layout of the authors' files."""

    mask: Tensor

    def __init__(
        self, g: Geometry, ffn: int, n_read: int, layers: int, block: int, mask: Tensor
    ) -> None:
        """Make a head. n_read: layers of the target. mask [D]: the embedding of a mask."""
        super().__init__()
        self.geometry, self.block = g, block
        self.fc = nn.Linear(n_read * g.width, g.width, bias=False)
        self.hidden_norm = nn.RMSNorm(g.width, g.eps)
        self.layers: Any = nn.ModuleList([InjectedBlock(g, ffn) for _ in range(layers)])
        self.norm = nn.RMSNorm(g.width, g.eps)
        self.register_buffer("mask", mask, persistent=False)
        start_small(self)

    def forward(self, embeds: Tensor, levels: Tensor, anchors: Tensor) -> Tensor:
        """Return the head's output after each of A known tokens [B, A, block - 1, D], row k of
        token anchor + k + 1.

        embeds [B, N, D], levels [B, N, layers read x D] of all tokens; anchors [B, A].
        """
        (batch, n, width), (_, many) = embeds.shape, anchors.shape
        context = self.hidden_norm(self.fc(levels))
        cos, sin = turns_of(self.geometry, n + self.block, embeds.device)
        places = (anchors[..., None] + torch.arange(self.block, device=embeds.device)).flatten(1)
        turns = cos[places][:, None], sin[places][:, None]
        known = embeds.gather(1, anchors[..., None].expand(-1, -1, width))[:, :, None]
        masks = self.mask.to(embeds).expand(batch, many, self.block - 1, width)
        x = torch.cat((known, masks), 2).flatten(1, 2)
        own = torch.arange(many, device=embeds.device).repeat_interleave(self.block)
        same = (own == own[:, None]).expand(batch, -1, -1)
        before = anchors.repeat_interleave(self.block, 1)[..., None]
        earlier = torch.arange(n, device=embeds.device) < before
        seen = torch.cat((earlier, same), -1)[:, None]
        for layer in self.layers:
            attention, h = layer.self_attn, layer.normed(x)
            theirs = attention.keys_values(context, (cos[:n], sin[:n]))
            mine = attention.keys_values(h, turns)
            keys, values = (torch.cat(pair, 2) for pair in zip(theirs, mine, strict=True))
            x = layer.close(x, attention.mix(attention.queries(h, turns), keys, values, seen))
        return self.norm(x).unflatten(1, (many, self.block))[:, :, 1:]


class DflashLearner(Learner):
    """Row r is token r with its states in three layers. Blocks begin at random tokens of answers.

    # choice: the authors' code reads as many layers as the head has, spread evenly; here the three
    that EAGLE-3 reads, so that both train on one store. It learns the emitted tokens; here the
    target's distributions, whose mean over what may come before is the same.
    """

    name, title = "dflash", "DFlash"
    recipe = DflashRecipe(self_feeding=1, stage1=0.0, reg=0.0, cls=1.0, batch=16)
    needs = FeatureSpec(visual=True, levels=True)
    shift = 0
    reads = "levels"
    scaled = False

    def make(self) -> nn.Module:
        r: Any = self.recipe
        target: Any = self.shared.decoder
        self._n_layers = len(target.layers)
        self._read = levels_of(self._n_layers)
        table: Any = self.shared.embeddings
        mask = self.shared.embed(torch.tensor(r.mask, device=table.weight.device))
        ffn = r.ffn or self.shared.ffn
        return DflashHead(
            self.shared.geometry, ffn, len(self._read), r.layers, r.block, mask.float()
        )

    def batch(self, rows: Sequence[Rows], noise: torch.Generator | None = None) -> Batch:
        """noise: Chooses where blocks begin; without it they are not chosen."""
        batch = super().batch(rows, None)
        r: Any = self.recipe
        if noise is None:
            return batch
        chance = torch.rand(batch.scored.shape, generator=noise).to(self.device)
        many = min(r.anchors, batch.scored.shape[1])
        anchors = torch.where(batch.scored, chance, -1.0).topk(many, dim=1).indices
        return replace(batch, inputs=(*batch.inputs, anchors))

    def loss(
        self, batch: Batch, passes: int, forward: Callable[..., Any]
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the fading mean of KL(target‖draft) over all drafted tokens of the blocks."""
        r: Any = self.recipe
        anchors, (size, n) = batch.inputs[-1], batch.scored.shape
        outputs = forward(*batch.inputs)
        # Row anchor + k has token anchor + k + 1; a block is useful only up to the end of its
        # answer.
        steps = torch.arange(r.block - 1, device=self.device)
        rows = anchors[..., None] + steps
        scored = F.pad(batch.scored, (0, r.block))
        every = torch.arange(size, device=self.device)[:, None, None]
        live = scored[every, rows].cumprod(-1).bool()
        rows = rows.clamp_max(n - 1)
        with torch.no_grad():
            p = self.wanted(batch.truth[every, rows][live])
        q = self.guess(outputs[live]).float().log_softmax(-1)
        weight = torch.exp(-steps / r.fade).expand_as(rows)[live]
        kl = F.kl_div(q, p, reduction="none").sum(-1)
        loss = (weight * kl).sum() / weight.sum()
        right = (q.argmax(-1) == p.argmax(-1)).float()
        depth = steps.expand_as(rows)[live]
        seen = {f"agree{k + 1}": right[depth == k].mean().item() for k in range(0, r.block - 1, 3)}
        return loss, {"loss": loss.item(), **seen}

    @torch.no_grad()
    def right(self, batch: Batch, length: int) -> tuple[list[Tensor], Tensor]:
        n = batch.scored.shape[1]
        steps = torch.zeros(length, *batch.scored.shape, dtype=torch.bool)
        for start in range(max(0, batch.first), n, CHUNK):
            anchors = torch.arange(start, min(n, start + CHUNK), device=self.device)
            outputs = self.module(*batch.inputs, anchors.expand(len(batch.scored), -1))
            guessed = self.token_of(self.guess(outputs).argmax(-1)).cpu()
            for k, step in enumerate(steps[: self.module.block - 1]):
                # Depth k of the block at row r - k guesses the token that follows row r.
                rows = (anchors + k)[anchors + k < n].cpu()
                step[:, rows] = guessed[:, : len(rows), k] == batch.token.cpu()[:, rows]
        return [*steps], batch.scored

    def config(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return it as in z-lab's files; layers are numbered by their outputs."""
        r: Any = self.recipe
        return {
            **super().config(tensors),
            "architectures": ["DFlashDraftModel"],
            "num_hidden_layers": r.layers,
            "num_target_layers": self._n_layers,
            "block_size": r.block,
            "dflash_config": {
                "mask_token_id": r.mask,
                "target_layer_ids": [i - 1 for i in self._read],
            },
        }
