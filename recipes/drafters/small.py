"""Small drafters: a few of the target's own decoder layers, distilled, sharing everything else."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.drafters.base import Batch, Learner, Recipe
from recipes.drafters.modules import Drafter
from recipes.features import FeatureSpec
from specvl_demo.vlm.shared_drafter import even_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


PLAIN = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
"""What a layer consists of that adds its attention, then its MLP, to its rows."""


@dataclass(frozen=True)
class SmallRecipe(Recipe):
    """Only the KL divergence. layers: of the drafter."""

    layers: int = 2


class SmallDecoder(Drafter):
    """A few layers of a decoder and its final norm, with their own weights; positions from 0."""

    def __init__(self, decoder: PreTrainedModel, n_layers: int) -> None:
        super().__init__()
        chosen = even_layers(len(decoder.layers), n_layers)
        self.layers = nn.ModuleList(copy.deepcopy(decoder.layers[i]) for i in chosen).float()
        self.norm = copy.deepcopy(decoder.norm).float()
        self.requires_grad_(True)
        self._rotary = [decoder.rotary_emb]  # in a list, so that it is not trained

    def forward(self, embeds: Tensor, n: int, first: int = 0) -> list[tuple[Tensor, None]]:
        """Map embeds [B, N, D] -> last hidden states [B, N, D], in the form of a head's steps.

        Rows before `first` are only attended to; if the last layer is a plain one, they stay zero.
        """
        positions = torch.arange(embeds.shape[1], device=embeds.device)[None]
        rotary, x = self._rotary[0](embeds, positions), embeds
        inputs: dict[str, Any] = {"attention_mask": None, "position_embeddings": rotary}
        last: Any = self.layers[-1]
        plain = {name for name, _ in last.named_children()} == PLAIN
        for layer in self.layers[:-1] if plain else self.layers:
            x = layer(x, position_ids=positions, **inputs)
        if plain:
            x = (x + last.self_attn(last.input_layernorm(x), **inputs)[0])[:, first:]
            x = F.pad(x + last.mlp(last.post_attention_layernorm(x)), (0, 0, first, 0))
        return [(self.norm(x), None)]


class SmallLearner(Learner):
    """A small drafter. Row r is token r; only the target's distribution is learned."""

    name, title = "drafter", "Small"
    recipe = SmallRecipe(self_feeding=1, stage1=0.0, reg=0.0, cls=1.0, lr=1.5e-3, muon_lr=3e-3)
    needs = FeatureSpec(visual=True)
    shift = 0
    reads = None
    scaled = False

    def make(self) -> nn.Module:
        return SmallDecoder(self.shared.decoder, self.recipe.layers)

    def settings(self) -> dict[str, Any]:
        return {"layers": self.recipe.layers}

    def config(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Everything else is the target's."""
        return {"architectures": ["Small drafter"]}

    @torch.no_grad()
    def right(self, batch: Batch, length: int) -> tuple[list[Tensor], Tensor]:
        """Return the same for every step: if its predictions are right, it reads the target's."""
        hit = (
            self.token_of(self.guess(self.module(*batch.inputs, 1)[0][0]).argmax(-1)) == batch.token
        )
        return [hit] * length, batch.scored
