"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437), as Qwen3.5 has it: one more layer of the
target's own kind, trained with it and stored among its weights as `mtp.*`.

It reads what an EAGLE-2 head reads, the next token's embedding beside the target's last hidden
state, and feeds itself its own output. The layer is computed by the library's class, so that it may
be dense or a mixture of experts. Runs published weights; not trained here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from specvl_demo.decoders import graphs
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.huggingface import HFDecoder, as_hf_cache
from specvl_demo.methods.base import Method, register
from specvl_demo.methods.heads.blocks import Geometry, Tensors
from specvl_demo.methods.heads.checkpoints import Head, HeadFormat
from specvl_demo.methods.heads.features import FeatureHead, head_part
from specvl_demo.methods.policies import BEST_FIRST, CHAIN, STATIC_TREE
from specvl_demo.records import JsonObject

LAYER = "layers.0."
NORMS = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
OUTSIDE = frozenset(["fc.weight", *(f"{name}.weight" for name in NORMS)])


class MTPHead(FeatureHead):
    """The layer with its projection and norms."""

    def __init__(self, head: Head, decoder: LanguageBackend) -> None:
        if not isinstance(decoder, HFDecoder):
            raise ValueError(
                f"the MTP layer of {head.source} needs a target that runs on the library's decoder"
            )
        strange = sorted(n for n in head.tensors if n not in OUTSIDE and not n.startswith(LAYER))
        if strange:
            raise ValueError(
                f"{head.source} has one MTP layer, and also {', '.join(strange)}, whose use is"
                " unknown"
            )
        self._layer, self._rotary_embedding = decoder.new_layer()
        of_layer = {n.removeprefix(LAYER): t for n, t in head.tensors.items() if n not in OUTSIDE}
        try:
            self._layer.load_state_dict(of_layer, assign=True)
        except RuntimeError as reason:
            raise ValueError(
                f"the MTP layer of {head.source} is not like its target's layers:"
                f" {str(reason).splitlines()[1].strip()}"
            ) from None
        # Their norms differ by family: in Qwen3.5 weights count from 1.
        norm: Any = type(self._layer.input_layernorm)
        self._norms = {name: norm(head.geometry.width, eps=head.geometry.eps) for name in NORMS}
        for name, module in self._norms.items():
            module.weight = nn.Parameter(head.tensors[f"{name}.weight"], requires_grad=False)
        super().__init__(head, decoder)
        # Its target's steps have no fixed shapes: their states are not rows of a cache.
        self.fixed = graphs.has_graphs(self.device)

    def _make_layers(self, t: Tensors, g: Geometry) -> None:
        self._fc = t["fc.weight"]

    def join(self, embeds: Tensor, features: Tensor, step: Tensor | int = 0) -> Tensor:
        """Project both, each normed by itself."""
        both = self._norms[NORMS[0]](embeds), self._norms[NORMS[1]](features)
        return nn.functional.linear(torch.cat(both, -1), self._fc)

    def _draft_weights(self) -> None:
        """Nothing does: the library's layer computes."""

    def decode(self, call: ForwardInput) -> Tensor:
        mask = call.mask
        out = self._layer(
            call.x,
            position_embeddings=self._rotary_embedding(call.x, call.positions),
            attention_mask=mask if mask is None or mask.ndim == 4 else mask[None, None],
            past_key_values=as_hf_cache(call.cache),
        )
        return self._norms[NORMS[2]](out)


def _geometry(tensors: Tensors, settings: JsonObject, source: str, width: int) -> Geometry:
    """Return the dimensions that the target's config states."""
    shape = tuple(tensors["fc.weight"].shape)
    if shape != (width, 2 * width):
        raise ValueError(
            f"the MTP layer of {source} projects {shape[1]} numbers to {shape[0]}; this target has"
            f" width {width}"
        )
    heads = settings["num_attention_heads"]
    rope = settings.get("rope_parameters") or {}
    return Geometry(
        width,
        heads,
        settings.get("num_key_value_heads") or heads,
        settings.get("head_dim") or width // heads,
        float(settings.get("rms_norm_eps", 1e-6)),
        sections=tuple(rope.get("mrope_section", ())),
    )


MTP = head_part(
    HeadFormat(
        "mtp",
        "an MTP layer",
        MTPHead,
        lambda tensors: tensors.keys() >= OUTSIDE,
        dict.fromkeys(OUTSIDE, "*"),
        of_target=_geometry,
    )
)

register(
    Method(
        "mtp",
        "MTP",
        "The layer that the target brings along: trained with it to predict one token further.",
        drafter=MTP,
        policy=CHAIN,
        reference="DeepSeek-AI, arXiv 2412.19437",
        options=(STATIC_TREE, BEST_FIRST, "entropy-tree"),
        presets={"paper": {"gamma": 1}},
        order=84,
        offered=9,
        url="https://arxiv.org/abs/2412.19437",
    )
)
