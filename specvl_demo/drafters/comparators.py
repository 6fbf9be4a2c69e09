"""Heads of neighbouring methods, for comparison: ViSpec (arXiv 2509.15235) and EAGLE-3 (arXiv 2503.01840).

Both draft as `features.FeatureDrafter` does and differ in what a row is made of. Given published weights;
neither is trained here. Know no tree policy and no acceptance rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specvl_demo.core.types import Capture, Decoder, Prefill, Scores, Start
from specvl_demo.core.views import visual_runs
from specvl_demo.drafters.blocks import direction, root_of
from specvl_demo.drafters.checkpoints import Head
from specvl_demo.drafters.features import FeatureHead, Opening, log_probabilities


class ViSpecHead(FeatureHead):
    """ViSpec: a learnt adaptor squeezes every picture into a few rows and one vector that goes into all text
    rows behind it (as its code does)."""

    view = "squeezed"

    def __init__(self, head: Head, decoder: Decoder) -> None:
        super().__init__(head, decoder)
        t = head.tensors
        self._image = t["img_fc.weight"].t().contiguous()
        self._image_bias = t.get("img_fc.bias", t["img_fc.weight"].new_zeros(self.width))
        self._queries = t["imadpt.q"]
        self._adaptor = {
            name: (t[f"imadpt.{name}_proj.weight"], t.get(f"imadpt.{name}_proj.bias")) for name in "kvo"
        }

    def open(self, start: Start) -> Opening:
        """Text rows, and of every picture the adaptor's rows at its last positions; gaps stay in positions.

        # choice: several pictures each get rows; a text row gets the vector of the last one before it (the
        published code knows one).
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
        return Opening(x, rows_at - 1, features[-1:], last, seen)

    def scene(self, start: Start) -> Tensor | None:
        """The last picture's vector [1, D], zero without one."""
        runs = visual_runs(start.encoded.visual)
        if not runs:
            return start.prefill.hidden.new_zeros(1, self.width)
        return self._adapt(start.encoded.embeds[slice(*runs[-1])])[-1:]

    def join(
        self, embeds: Tensor, features: Tensor, step: Tensor | int = 0, scene: Tensor | None = None
    ) -> Tensor:
        """fc([e, img_fc([f, scene])])"""
        scene = features.new_zeros(1, self.width) if scene is None else scene
        both = torch.cat((features, scene.expand_as(features)), -1)
        return super().join(embeds, torch.addmm(self._image_bias, both, self._image), step)

    def _adapt(self, embeds: Tensor) -> Tensor:
        """Projected visual tokens [r, D] -> [queries, D], by attention of learnt queries."""
        n, heads, width = self._queries.shape

        def project(name: str, x: Tensor) -> Tensor:
            return torch.nn.functional.linear(x, *self._adaptor[name])

        keys, values = (project(name, embeds).view(-1, heads, width).transpose(0, 1) for name in "kv")
        mixed = torch.nn.functional.scaled_dot_product_attention(
            self._queries.transpose(0, 1)[None], keys[None], values[None]
        )
        return project("o", mixed[0].transpose(0, 1).reshape(n, heads * width))


class Eagle3Head(FeatureHead):
    """EAGLE-3: features fused from three layers of the target, a head of its own over part of the vocabulary.

    It feeds itself what it said before its final norm. Positions follow the target's axes where its
    configuration has rotary sections (see "Published weights" in docs/methods.md).
    """

    def __init__(self, head: Head, decoder: Decoder) -> None:
        g, t = head.geometry, head.tensors
        layers = tuple(sorted({2, decoder.n_layers // 2, decoder.n_layers - 3}))
        if len(layers) < 3 or layers[0] < 0:
            raise ValueError(
                f"{head.source} reads three layers of its target; {decoder.n_layers} layers are too few"
            )
        super().__init__(head, decoder)
        self.capture = Capture(layers=layers)
        self._fuse = t["fc.weight"].t().contiguous()
        self._eps = root_of(g, t["norm.weight"])
        self._norm = t["norm.weight"] * g.width**0.5
        self._head = t["lm_head.weight"].t().contiguous() if "lm_head.weight" in t else None
        # A drafted id i stands for i + d2t[i].
        shift = t.get("d2t")
        self._ids = None if shift is None else torch.arange(len(shift), device=self.device) + shift
        self._mrope = bool(g.sections)

    def open(self, start: Start) -> Opening:
        """As EAGLE-2, with the target's three-axis positions where the head was trained on them."""
        opening = super().open(start)
        positions = start.encoded.positions
        if not self._mrope or positions.ndim == 1:
            return opening
        last = positions.shape[1] - 1
        return opening._replace(
            positions=positions[:, : last - 1], position=positions[:, last - 1 : last].amax(0)
        )

    def features(self, known: Prefill | Scores) -> Tensor:
        """Three layers' states, fused [r, D]."""
        return torch.cat([known.layers[i] for i in self.capture.layers], -1) @ self._fuse

    def join(
        self, embeds: Tensor, features: Tensor, step: Tensor | int = 0, scene: Tensor | None = None
    ) -> Tensor:
        """Both side by side [k, 2D]."""
        return torch.cat((embeds, features), -1)

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Each half is normed for itself; the feature is the residual."""
        embeds, features = x.chunk(2, -1)
        return torch.cat((self._block.normed(embeds), self._block.normed(features)), -1), features

    def log_probabilities(self, hidden: Tensor, size: int, banned: Tensor | None) -> Tensor:
        """Log-probabilities [k, size]; ids outside the draft vocabulary are at -inf."""
        hidden = direction(hidden, self._eps).mul_(self._norm)
        if self._head is None:
            return log_probabilities(self.decoder, hidden, size, banned)
        logits = (hidden @ self._head).float()
        if self._ids is not None:
            wide = logits.new_full((logits.shape[0], self.decoder.vocab), -torch.inf)
            logits = wide.index_copy_(-1, self._ids, logits)
        logits = logits[:, :size]
        if banned is not None:
            logits.index_fill_(-1, banned, -torch.inf)
        return logits.log_softmax(-1)
