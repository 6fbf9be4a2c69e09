"""Views: what a drafter reads of a prompt, from everything down to no picture at all.

From the prompt as the drafter encodes it, its vision encoder and the target's prefill, each view
makes a Context with a map to prompt positions. Sources: arXiv 2601.20357 sections 4 and 6.1
(text-only, caption, pooled), 2508.16201 (pruned).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from specvl_demo.core.types import NOTHING, Capture, Context, Encoded, Prefill, VisionEncoder
from specvl_demo.methods.base import Models, Part
from specvl_demo.methods.declare import Settings, setting
from specvl_demo.vlm.layouts import visual_runs

# How many of the prompt's last tokens select, by their attention, the patches that the question is
# about.
_ASKING = 32


@dataclass(frozen=True)
class FullView:
    """The whole prompt."""

    name: str = "multimodal"
    capture: Capture = NOTHING

    def build_context(self, encoded: Encoded, encoder: VisionEncoder, prefill: Prefill) -> Context:
        """Return all positions."""
        return encoded.context(self.name)


@dataclass(frozen=True)
class TextView:
    """No picture: every run of visual positions becomes the `stand_in` tokens, one newline.

    # choice: the reference puts one newline in place of a picture's single placeholder; an expanded
    prompt has a run of them instead, and adjacent pictures form one run.
    """

    stand_in: tuple[int, ...]
    name: str = "text-only"
    capture: Capture = NOTHING

    def build_context(self, encoded: Encoded, encoder: VisionEncoder, prefill: Prefill) -> Context:
        """Return text positions without gaps, with the stand-in in place of pictures."""
        runs = visual_runs(encoded.visual)
        return spliced(self.name, encoded, encoder, [(run, self.stand_in) for run in runs])


POOL = 2
"""Patches averaged along each side (TABED)."""
ATTENTION_KEPT = 0.4
"""Share of all attention that the most attended tokens hold, if those are kept first (SpecVLM)."""


@dataclass(frozen=True)
class PooledView:
    """A coarser picture: features of 2 x 2 patches averaged before the projector.

    # choice: adaptive averaging to ceil(rows/2) x ceil(cols/2), for each grid separately; on the
    paper's 24 x 24 patches this is its 2 x 2 mean. Positions that form no grid stay.
    """

    name: str = "pooled"
    capture: Capture = NOTHING

    def build_context(self, encoded: Encoded, encoder: VisionEncoder, prefill: Prefill) -> Context:
        """Return text and fewer visual positions; each stands for the first patch of its block."""
        grids = [span for span in encoded.prompt.spans if span.rows and span.cols]
        if not grids:
            return encoded.context(self.name)
        if encoded.features is None:
            raise ValueError(
                "the pooled view averages vision features before the projector, and this drafter"
                " has none that correspond one to one to its visual tokens; leave this view out"
            )
        order, inserts = encoded.visual.cumsum(0) - 1, []
        for span in grids:
            rows, cols = span.rows or 0, span.cols or 0
            stop = span.start + rows * cols
            small, corners = self._pooled(encoded.features[order[span.start : stop]], rows, cols)
            first = corners.to(encoded.ids.device) + span.start
            piece = _ContextPart(
                encoded.ids[first], encoded.visual[first], encoder.project(small), first
            )
            inserts.append(((span.start, stop), piece))
        return _joined(self.name, encoded, inserts)

    def _pooled(self, features: Tensor, rows: int, cols: int) -> tuple[Tensor, Tensor]:
        """Pool [rows·cols, C] → [blocks, C]; also return the patch at every block's corner."""
        high, wide = -(-rows // POOL), -(-cols // POOL)
        image = features.T.reshape(1, -1, rows, cols).float()
        small = adaptive_avg_pool2d(image, (high, wide))[0].flatten(1).T.to(features.dtype)
        top = torch.arange(high) * rows // high
        left = torch.arange(wide) * cols // wide
        return small, (top[:, None] * cols + left[None]).flatten()


@dataclass(frozen=True)
class PrunedSettings(Settings):
    """How much of the picture stays, and which part."""

    drop_image: float = setting(
        0.8, "share of a picture's visual tokens left out", 0.0, 1.0, title="left out of a picture"
    )
    drop_video: float = setting(
        0.9, "share of a clip's visual tokens left out", 0.0, 1.0, title="left out of a clip"
    )
    guided: bool = setting(
        False,
        (
            "keep what the target attends to first, then evenly spaced tokens; if off, only evenly"
            " spaced ones"
        ),
        title="keep what is attended to",
    )


@dataclass(frozen=True)
class PrunedView:
    """Part of the picture: evenly spaced visual positions, or first those that the target attends
    to.

    layers: If guided, the target's layers whose attention guides the choice (SpecVLM: all).
    """

    settings: PrunedSettings = PrunedSettings()
    layers: tuple[int, ...] = ()
    name: str = "pruned"

    @property
    def capture(self) -> Capture:
        """The guiding layers' attention from the last rows of the prefill, which belong to the
        question.

        # choice: at most the last 32 text tokens are used. SpecVLM uses all text after the picture,
        which is the same for a short question and needs the whole attention map for a long one.
        """
        return (
            Capture(attention=self.layers, rows=tuple(range(-_ASKING, 0)))
            if self.layers
            else NOTHING
        )

    def build_context(self, encoded: Encoded, encoder: VisionEncoder, prefill: Prefill) -> Context:
        """Return text and the remaining visual positions; with nothing dropped, FullView's context.

        # choice: renumbered for decoders with one position axis, as published for LLaVA-like
        drafters; those with three support gaps and keep them.
        """
        visual = encoded.visual.nonzero()[:, 0]
        scores = self._attention(encoded, prefill) if self.layers and len(visual) else None
        clip = torch.zeros_like(encoded.visual)
        for span in encoded.prompt.spans:
            if span.kind == "video":
                clip[span.start : span.stop] = True
        kinds = ((~clip, self.settings.drop_image), (clip, self.settings.drop_video))
        stay = torch.cat([self._stay(visual[kind[visual]], rate, scores) for kind, rate in kinds])
        if len(stay) == len(visual):
            return encoded.context(self.name)
        text = (~encoded.visual).nonzero()[:, 0]
        index = torch.cat([text, stay]).sort().values
        return encoded.context(self.name, index, compact=encoded.positions.ndim == 1)

    def _stay(self, positions: Tensor, rate: float, scores: Tensor | None) -> Tensor:
        if len(positions) == 0:
            return positions
        keep = kept_count(len(positions), rate)
        if scores is None:
            return positions[evenly_spaced(len(positions), keep).to(positions.device)]
        return positions[guided(scores[positions], keep, ATTENTION_KEPT)]

    def _attention(self, encoded: Encoded, prefill: Prefill) -> Tensor:
        """Return [n - 1] each position's mean attention from the question in the guiding layers."""
        if encoded.index is not None:
            raise ValueError(
                "the target and this drafter split pictures into different tokens, so the"
                " target's attention cannot select the drafter's; prune evenly instead"
                " (guided=false)"
            )
        missing = [layer for layer in self.layers if layer not in prefill.attention]
        if missing:
            raise ValueError(
                f"pruning guided by the target needs its attention in layers {missing}, which this"
                " target did not return; prune evenly instead (guided=false)"
            )
        question = len(encoded.ids) - 2 - int(encoded.visual.nonzero()[-1])
        rows = min(max(question, 1), _ASKING)
        attention = [prefill.attention[layer][-rows:].float().mean(0) for layer in self.layers]
        return torch.stack(attention).mean(0)


def kept_count(total: int, rate: float) -> int:
    """Return how many of `total` visual positions stay when the share `rate` is dropped; at least
    one.

    # choice: rounded down with a small tolerance; int(1000 * (1 - 0.9)) would be 99.
    """
    return max(1, int(total * (1 - rate) + 1e-6))


def evenly_spaced(total: int, keep: int) -> Tensor:
    """Return `keep` of 0..total-1: floor(linspace(0, total - 1, keep)), in whole numbers."""
    if keep == 1:
        return torch.zeros(1, dtype=torch.long)
    return torch.arange(keep) * (total - 1) // (keep - 1)


def guided(scores: Tensor, keep: int, share: float) -> Tensor:
    """Return SpecVLM's choice of `keep` from scores [r], as ascending indices.

    First the smallest number of most attended positions that hold `share` of the sum of scores, at
    most `keep`; the rest of `keep` is evenly spaced among the others, in their order.
    """
    best = scores.sort(descending=True, stable=True)
    short = best.values.cumsum(0) < share * scores.sum()
    taken = min(keep, int(short.sum()) + 1)
    top = best.indices[:taken]
    if taken == keep:
        return top.sort().values
    rest = torch.ones_like(scores, dtype=torch.bool)
    rest[top] = False
    others = rest.nonzero()[:, 0]
    even = others[evenly_spaced(len(others), keep - taken).to(others.device)]
    return torch.cat([top, even]).sort().values


def spliced(
    name: str,
    encoded: Encoded,
    encoder: VisionEncoder,
    inserts: Sequence[tuple[tuple[int, int], Sequence[int]]],
) -> Context:
    """Return the prompt with every given [start, stop) replaced by token ids, without gaps."""

    def words(ids: Sequence[int]) -> _ContextPart:
        new = torch.tensor(list(ids), dtype=torch.long, device=encoded.ids.device)
        visual, index = torch.zeros_like(new, dtype=torch.bool), torch.full_like(new, -1)
        return _ContextPart(new, visual, encoder.decoder.embed(new), index)

    return _joined(name, encoded, [(run, words(ids)) for run, ids in inserts])


class _ContextPart(NamedTuple):
    """A part of a context.

    ids and visual [c], embeds [c, D], places [c] in the prompt, -1 for text that is not in it.
    """

    ids: Tensor
    visual: Tensor
    embeds: Tensor
    places: Tensor


def _joined(
    name: str, encoded: Encoded, inserts: Sequence[tuple[tuple[int, int], _ContextPart]]
) -> Context:
    """Return the prompt with every given [start, stop) replaced, at positions 0..c-1 on every axis.

    Views share no positions.
    """
    every = torch.arange(len(encoded.ids), device=encoded.ids.device)
    whole = _ContextPart(encoded.ids, encoded.visual, encoded.embeds, every)
    pieces, done = [], 0
    for (start, stop), piece in inserts:
        pieces += [_ContextPart(*(part[done:start] for part in whole)), piece]
        done = stop
    pieces.append(_ContextPart(*(part[done:-1] for part in whole)))
    ids, visual, embeds, index = map(torch.cat, zip(*pieces, strict=True))
    positions = torch.arange(len(index), device=index.device)
    source, of_view = index.clamp_min(0), index < 0
    return Context(
        name=name,
        ids=ids,
        visual=visual,
        embeds=embeds,
        positions=positions if encoded.positions.ndim == 1 else positions.expand(3, -1),
        next_position=len(index),
        index=encoded.in_prompt(index),
        blocks=None if encoded.blocks is None else torch.where(of_view, -1, encoded.blocks[source]),
    )


def _pruned(models: Models, settings: PrunedSettings) -> PrunedView:
    layers = range(models.target.decoder.n_layers) if settings.guided else ()
    return PrunedView(settings, tuple(layers))


MULTIMODAL = Part("views", "multimodal", "the whole prompt", lambda models, settings: FullView())
TEXT_ONLY = Part(
    "views",
    "text-only",
    "no picture, a newline in its place",
    lambda models, settings: TextView(models.word("newline")),
)
POOLED = Part(
    "views",
    "pooled",
    "a coarser picture",
    lambda models, settings: PooledView(),
)
PRUNED = Part("views", "pruned", "part of the picture", _pruned, PrunedSettings)
