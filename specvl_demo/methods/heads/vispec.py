"""ViSpec's head (arXiv 2509.15235), for comparison: drafts as EAGLE-2's does, from squeezed
pictures.

Runs published weights; not trained here. Knows no tree policy and no acceptance rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specvl_demo.core.types import Decoder, Start
from specvl_demo.decoders.attention import attend
from specvl_demo.decoders.packed_linear import PackedLinear
from specvl_demo.methods.heads.checkpoints import Format, Head, add_format
from specvl_demo.methods.heads.features import FeatureHead, HeadPrompt
from specvl_demo.methods.heads.shapes import BIASES, FIRST
from specvl_demo.vlm.layouts import visual_runs


class ViSpecHead(FeatureHead):
    """ViSpec's head.

    A learned adaptor squeezes every picture into a few rows and one vector that goes into all text
    rows after it (as in its code).
    """

    view = "squeezed"

    def __init__(self, head: Head, decoder: Decoder) -> None:
        super().__init__(head, decoder)
        t = head.tensors
        self._image = PackedLinear(t["img_fc.weight"], bits=8)
        self._image_bias = t.get("img_fc.bias", t["img_fc.weight"].new_zeros(self.width))
        self._queries = t["imadpt.q"]
        self._adaptor = {
            name: (t[f"imadpt.{name}_proj.weight"], t.get(f"imadpt.{name}_proj.bias"))
            for name in "kvo"
        }

    def open(self, start: Start, before: Tensor | None = None) -> HeadPrompt:
        """Return text rows, and the adaptor's rows at every picture's last positions; gaps stay.

        # choice: several pictures each get rows; a text row gets the vector of the last one before
        it (the published code supports one).
        """
        encoded, features = start.encoded, self.features(start.prefill)
        n = features.shape[0]
        keep = ~encoded.visual[:n]
        scenes = features.new_zeros(n, self.width)
        squeezed: dict[int, Tensor] = {}
        for first, stop in visual_runs(encoded.visual):
            rows = self._adapt(encoded.embeds[first:stop])
            scenes[stop:] = rows[-1]
            at = range(max(first, 1, stop - len(rows) + 1), stop)
            squeezed |= dict(zip(at, rows[-1 - len(at) : -1], strict=True))
            keep[list(at)] = True
        seen = keep.nonzero()[:, 0]
        rows_at = seen[seen > 0]
        x = self.join(encoded.embeds[rows_at], features[rows_at - 1], 0, scenes[rows_at])
        for row, at in enumerate(rows_at.tolist()):
            if at in squeezed:
                x[row] = squeezed[at]
        last = torch.full((1,), n - 1, device=self.device)
        return HeadPrompt(x, rows_at - 1, features[-1:], last, seen)

    def scene(self, start: Start) -> Tensor | None:
        """Return the last picture's vector [1, D], zero without one."""
        runs = visual_runs(start.encoded.visual)
        if not runs:
            return start.prefill.hidden.new_zeros(1, self.width)
        return self._adapt(start.encoded.embeds[slice(*runs[-1])])[-1:]

    def join(
        self, embeds: Tensor, features: Tensor, step: Tensor | int = 0, scene: Tensor | None = None
    ) -> Tensor:
        """Return fc([e, img_fc([f, scene])])."""
        scene = features.new_zeros(1, self.width) if scene is None else scene
        both = torch.cat((features, scene.expand_as(features)), -1)
        return super().join(embeds, self._image(both, self._image_bias), step)

    def _adapt(self, embeds: Tensor) -> Tensor:
        """Squeeze visual tokens [r, D] -> [queries, D] by attention of learned queries."""
        _, heads, width = self._queries.shape

        def project(name: str, x: Tensor) -> Tensor:
            return torch.nn.functional.linear(x, *self._adaptor[name])

        keys, values = (
            project(name, embeds).view(-1, heads, width).transpose(0, 1) for name in "kv"
        )
        queries = self._queries.transpose(0, 1)
        return project("o", attend(queries[None], keys[None], values[None]))


add_format(
    Format(
        "vispec",
        "a ViSpec head",
        "eagle2",  # it drafts as EAGLE-2's heads do
        ViSpecHead,
        lambda tensors: "img_fc.weight" in tensors or "imadpt.q" in tensors,
        {
            **FIRST,
            **{"fc.weight": "D 2D", "img_fc.weight": "D 2D", "imadpt.q": "*"},
            **{f"imadpt.{name}_proj.weight": "*" for name in "kvo"},
        },
        optional={
            **BIASES,
            **{"fc.bias": "D", "img_fc.bias": "D"},
            **{"imadpt.k_proj.bias": "*", "imadpt.v_proj.bias": "*"},
        },
    )
)
