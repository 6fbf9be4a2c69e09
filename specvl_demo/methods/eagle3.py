"""EAGLE-3 (Li et al., arXiv 2503.01840): features of three layers, a draft vocabulary.

The head feeds itself its own output instead of predicted features. Weights may be in any of the
published formats of version 3.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.types import Encoded, Prefill, Scores, Vocabulary
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.graph_runner import GraphRunner
from specvl_demo.decoders.layer_stack import DraftWeights
from specvl_demo.decoders.output_head import LogProbabilities
from specvl_demo.methods.base import Method, register
from specvl_demo.methods.declare import Settings, setting
from specvl_demo.methods.heads import checkpoints
from specvl_demo.methods.heads.blocks import Rotary, norm_root, stack_layers, unit_rows
from specvl_demo.methods.heads.features import FeatureHead, head_part
from specvl_demo.methods.heads.files import AUX_LAYERS, layer_numbers
from specvl_demo.methods.policies import BEST_FIRST, CHAIN, STATIC_TREE
from specvl_demo.records import JsonObject


def layers_read(config: JsonObject, n_layers: int, source: str) -> tuple[int, ...]:
    """Return the layers whose inputs a head reads.

    Two conventions number the layers. speculators and vLLM write `eagle_aux_hidden_state_layer_ids`
    at the top level and mean the input of layer j; SGLang, SpecForge and AngelSlim write it inside
    `eagle_config` and mean the output of layer j, which is the input of layer j + 1. Without
    either, the authors' code reads the inputs of layers 2, L // 2 and L - 3.
    """
    outputs = (config.get("eagle_config") or {}).get(AUX_LAYERS)
    inputs = config.get(AUX_LAYERS)
    if outputs is not None:
        return tuple(i + 1 for i in layer_numbers(outputs, source))
    if inputs is not None:
        return layer_numbers(inputs, source)
    return default_layers(n_layers)


def default_layers(n_layers: int) -> tuple[int, int, int]:
    """Return the layers whose inputs the authors' code reads; ValueError if there are too few."""
    low = 2
    middle = n_layers // 2
    high = n_layers - 3
    if not low < middle < high:
        raise ValueError(f"EAGLE-3 reads three layers of its target; {n_layers} layers are too few")
    return low, middle, high


class Eagle3Head(FeatureHead):
    """The weights of an EAGLE-3 head. Positions have the target's axes if sections are given."""

    projects = False

    def __init__(self, head: checkpoints.Head, decoder: LanguageBackend) -> None:
        g = head.geometry
        t = head.tensors
        super().__init__(head, decoder)
        layers = layers_read(head.settings, decoder.n_layers, head.source)
        self._fuse_layers(layers, t["fc.weight"])
        self.input_width = 2 * g.width
        # The normed feature is the residual.
        self._norm_before_residual = bool(head.settings.get("norm_before_residual", False))
        self._fuse_bias = t.get("fc.bias")
        self._eps = norm_root(g, t["norm.weight"])
        scale = g.width**0.5
        self._norm = t["norm.weight"] * scale
        self._residual_norm = t["layers.0.hidden_norm.weight"] * scale
        self._stack = stack_layers([self._block.parts], g, self._norm)
        self._sees = True

    def with_settings(self, settings: Any) -> Eagle3Head:
        """Return the same head with these settings, among them what it reads at pictures."""
        configured = copy(self)
        configured._sees = settings.pictures == "embeddings"
        if settings.theta:
            geometry = replace(self._geometry, theta=settings.theta)
            configured._geometry = geometry
            configured._rotary = Rotary(geometry, self.device)
            configured.runner = GraphRunner()  # graphs have the rotations that they were made with
        return configured

    def prompt_embeds(self, encoded: Encoded) -> Tensor:
        """Embed text by the head's own table; pictures have only the target's embeddings."""
        if self._table is None and self._sees:
            return encoded.embeds
        rows = self.decoder.vocab if self._table is None else self._table.shape[0]
        text = self.embed(encoded.ids.clamp_max(rows - 1))
        return torch.where(encoded.visual[:, None] & self._sees, encoded.embeds, text)

    def features(self, scores: Prefill | Scores) -> Tensor:
        """Return the fused states [r, D] of the layers it reads."""
        return self._fuse(self.layer_states(scores), self._fuse_bias)

    def split_input(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Norm each half separately; the feature, normed or not, is the residual."""
        embeds, features = x.chunk(2, -1)
        normed = self._block.normed(features)
        residual = normed * self._residual_norm if self._norm_before_residual else features
        return torch.cat((self._block.normed(embeds), normed), -1), residual

    def _draft_weights(self) -> DraftWeights | None:
        return None if self._norm_before_residual else DraftWeights(self._stack, "both")

    def log_probabilities(self, vocabulary: Vocabulary) -> LogProbabilities:
        # Without the head, whose graphs would wait for the garbage collector.
        eps = self._eps
        norm = self._norm
        return LogProbabilities(
            self.output, vocabulary, self.device, lambda hidden: unit_rows(hidden, eps) * norm
        )


@dataclass(frozen=True)
class Eagle3Settings(Settings):
    """What a checkpoint does not record about its training."""

    pictures: str = setting(
        "embeddings",
        "what the head reads in place of pictures, as in its training: their embeddings or the"
        " placeholder's",
        choices={"embeddings": "embeddings", "placeholders": "placeholders"},
        title="input at pictures",
    )
    theta: float = setting(
        0.0,
        "base of the head's rotary positions where it was trained with another than its config says"
        " (AngelSlim's text heads: 10000); 0: its config's",
        0,
        1e9,
        title="rotary base",
    )


EAGLE3 = head_part(
    checkpoints.HeadFormat(
        "eagle3",
        "an EAGLE-3 head",
        Eagle3Head,
        lambda tensors: "layers.0.hidden_norm.weight" in tensors or "d2t" in tensors,
        {
            **checkpoints.FIRST,
            **checkpoints.in_layer(0, checkpoints.attention_shapes("self_attn", "2D")),
            **checkpoints.in_layer(0, {"input_layernorm.weight": "D", "hidden_norm.weight": "D"}),
            "fc.weight": "D S",
            "norm.weight": "D",
        },
        optional={
            **checkpoints.BIASES,
            "lm_head.weight": "V D",
            "d2t": "N",
            "embed_tokens.weight": "N D",
            "fc.bias": "D",
        },
        unused={"t2d": "*"},
        own_embeddings=True,
    ),
    Eagle3Settings,
)

register(
    Method(
        "eagle3",
        "EAGLE-3",
        "One layer reads three of the target’s layers; published heads have a reduced vocabulary.",
        drafter=EAGLE3,
        policy=BEST_FIRST,
        reference="Li et al., arXiv 2503.01840",
        options=(CHAIN, STATIC_TREE, "entropy-tree"),
        presets={
            "paper": {"nodes": 60, "width": 10, "loops": 7},
            # As AngelSlim's heads were trained: its trainer omits the pictures' embeddings.
            **dict.fromkeys(
                ("qwen3-vl-2b", "qwen3-vl-4b", "qwen3-vl-30b-a3b"),
                {"nodes": 60, "width": 10, "loops": 7, "pictures": "placeholders"},
            ),
            # In training, the pocket pair's head fed itself three times, and it is not accurate
            # beyond. At a temperature, its samples agree less often than its likeliest tokens.
            "pocket": {"policy": "chain", "gamma": 3, "floor": 0.5, "draws": "argmax"},
            "photo": {"policy": "chain", "gamma": 10, "floor": 0.05},
            "pocket-tree": {"nodes": 10, "width": 3, "loops": 2},
        },
        order=85,
        offered=6,
        url="https://arxiv.org/abs/2503.01840",
    )
)
