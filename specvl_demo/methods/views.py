"""Views: what a drafter reads of a prompt, from everything down to no picture at all.

From the prompt as the drafter encodes it, its vision encoder and the target's prefill, each view
makes a Context with a map to prompt positions. Sources: arXiv 2601.20357 sections 4 and 6.1
(text-only, pooled, caption: there Florence-2's, here the drafter's own), 2508.16201 (pruned).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from specvl_demo.core.types import NO_AUX, AuxRequest, Context, Encoded, Prefill
from specvl_demo.decoders.sequence import prefill as decode_prompts
from specvl_demo.methods.base import Models, Part
from specvl_demo.methods.declare import Settings, setting
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.layouts import visual_runs

# How many of the prompt's last tokens select, by their attention, the patches that the question is
# about.
_ASKING = 32


class View(ABC):
    """Chooses what the drafter reads of a prompt."""

    name: str

    @property
    def aux_request(self) -> AuxRequest:
        """What it needs of the target's prefill."""
        return NO_AUX

    @abstractmethod
    def build_context(self, encoded: Encoded, encoder: VLM, prefill: Prefill) -> Context:
        """Return what the drafter reads of its own encoding and the target's prefill."""


class FullView(View):
    """The whole prompt."""

    name = "multimodal"

    def build_context(self, encoded: Encoded, encoder: VLM, prefill: Prefill) -> Context:
        return encoded.context(self.name)


@dataclass(frozen=True)
class TextView(View):
    """No picture: every run of visual positions becomes the `stand_in` tokens, one newline.

    # choice: the reference puts one newline in place of a picture's single placeholder; an expanded
    prompt has a run of them instead, and adjacent pictures form one run.
    """

    stand_in: tuple[int, ...]
    name = "text-only"

    def build_context(self, encoded: Encoded, encoder: VLM, prefill: Prefill) -> Context:
        runs = visual_runs(encoded.visual)
        return splice_tokens(self.name, encoded, encoder, [(run, self.stand_in) for run in runs])


POOL = 2
"""Patches averaged along each side (TABED)."""
ATTENTION_KEPT = 0.4
"""Share of all attention that the most attended tokens hold, if those are kept first (SpecVLM)."""


class PooledView(View):
    """A coarser picture: features of 2 x 2 patches averaged before the projector.

    # choice: adaptive averaging to ceil(rows/2) x ceil(cols/2), for each grid separately; on the
    paper's 24 x 24 patches this is its 2 x 2 mean. Positions that form no grid stay; the others
    stand for the first patch of their block.
    """

    name = "pooled"

    def build_context(self, encoded: Encoded, encoder: VLM, prefill: Prefill) -> Context:
        grids = [span for span in encoded.prompt.spans if span.rows and span.cols]
        if not grids:
            return encoded.context(self.name)
        if encoded.features is None:
            raise ValueError(
                "the pooled view averages vision features before the projector, and this drafter"
                " has none that correspond one to one to its visual tokens; leave this view out"
            )
        order = encoded.visual.cumsum(0) - 1
        inserts = []
        for span in grids:
            rows = span.rows or 0
            cols = span.cols or 0
            stop = span.start + rows * cols
            small, corners = self._pooled(encoded.features[order[span.start : stop]], rows, cols)
            first = corners.to(encoded.ids.device) + span.start
            piece = encoded.ids[first], encoded.visual[first], encoder.project(small), first
            inserts.append(((span.start, stop), _ContextPart(*piece)))
        return _splice_parts(self.name, encoded, inserts)

    def _pooled(self, features: Tensor, rows: int, cols: int) -> tuple[Tensor, Tensor]:
        """Pool [rows·cols, C] → [blocks, C]; also return the patch at every block's corner."""
        high = -(-rows // POOL)
        wide = -(-cols // POOL)
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
        "keep what the target attends to first, then evenly spaced tokens; if off, only evenly"
        " spaced ones",
        title="keep what is attended to",
    )


@dataclass(frozen=True)
class PrunedView(View):
    """Part of the picture: evenly spaced positions, or first those the target attends to.

    layers: If guided, the target's layers whose attention guides the choice (SpecVLM: all).
    """

    settings: PrunedSettings
    layers: tuple[int, ...] = ()
    name = "pruned"

    @property
    def aux_request(self) -> AuxRequest:
        """The guiding layers' attention from the prefill's last rows, those of the question.

        # choice: at most the last 32 text tokens are used. SpecVLM uses all text after the picture,
        which is the same for a short question and needs the whole attention map for a long one.
        """
        if not self.layers:
            return NO_AUX
        return AuxRequest(attention=self.layers, rows=tuple(range(-_ASKING, 0)))

    def build_context(self, encoded: Encoded, encoder: VLM, prefill: Prefill) -> Context:
        """Return text and the remaining visual positions; with nothing dropped, all.

        # choice: renumbered for decoders with one position axis, as published for LLaVA-like
        drafters; those with three support gaps and keep them.
        """
        visual = encoded.visual.nonzero()[:, 0]
        scores = self._question_attention(encoded, prefill) if self.layers and len(visual) else None
        clip = torch.zeros_like(encoded.visual)
        for span in encoded.prompt.spans:
            if span.kind == "video":
                clip[span.start : span.stop] = True
        kinds = ((~clip, self.settings.drop_image), (clip, self.settings.drop_video))
        parts = ((visual[kind[visual]], rate) for kind, rate in kinds)
        stay = torch.cat([self._kept_positions(*part, scores) for part in parts])
        if len(stay) == len(visual):
            return encoded.context(self.name)
        text = (~encoded.visual).nonzero()[:, 0]
        index = torch.cat([text, stay]).sort().values
        return encoded.context(self.name, index, compact=encoded.positions.ndim == 1)

    def _kept_positions(self, positions: Tensor, rate: float, scores: Tensor | None) -> Tensor:
        if len(positions) == 0:
            return positions
        keep = kept_count(len(positions), rate)
        if scores is None:
            return positions[evenly_spaced(len(positions), keep).to(positions.device)]
        return positions[guided_indices(scores[positions], keep, ATTENTION_KEPT)]

    def _question_attention(self, encoded: Encoded, prefill: Prefill) -> Tensor:
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


CAPTION_TOKENS = 24
"""Maximum length of a caption.

# choice: one short sentence; the paper's captioner writes about ten words.
"""


@dataclass(frozen=True)
class CaptionView(View):
    """Words instead of a picture: every run of visual positions becomes `prefix` and a caption, a
    greedy answer of the drafter itself.

    # choice: an empty caption leaves only the prefix ("image: ").

    Attributes:
        ask: Token ids after a picture that request its description, up to the answer's begin.
        stop: Ids that end it.
        banned: Ids that never occur in text (placeholders).
    """

    prefix: tuple[int, ...]
    ask: Sequence[int]
    stop: Collection[int]
    banned: Sequence[int] = ()
    name = "caption"

    def build_context(self, encoded: Encoded, encoder: VLM, prefill: Prefill) -> Context:
        inserts = [
            ((start, stop), (*self.prefix, *self.write_caption(encoded, encoder, stop)))
            for start, stop in visual_runs(encoded.visual)
        ]
        return splice_tokens(self.name, encoded, encoder, inserts)

    def write_caption(self, encoded: Encoded, encoder: VLM, stop: int) -> list[int]:
        """Return the caption of what is shown before `stop`, cut before its end token.

        # choice: a picture is described in the context of what precedes it, as in training.
        """
        decoder = encoder.decoder
        device = encoded.ids.device
        # The request replaces the prompt's own text after the picture.
        context = replace(
            encoded.context("captioned", torch.arange(stop, device=device)),
            next_position=int(encoded.positions[..., stop].max()),
        )
        room = stop + len(self.ask) + CAPTION_TOKENS
        sequence = decode_prompts(decoder, [context], room).sequence
        feed = torch.tensor([list(self.ask)], device=device)
        caption: list[int] = []
        while len(caption) < CAPTION_TOKENS:
            logits = decoder.logits(sequence.run_root(decoder.embed(feed))[:, -1])
            sequence.commit_nodes([0])
            logits[:, list(self.banned)] = -torch.inf
            feed = logits.argmax(-1, keepdim=True)
            if (token := int(feed)) in self.stop:
                break
            caption.append(token)
        return caption


def kept_count(total: int, rate: float) -> int:
    """Return how many of `total` positions stay without the share `rate`; at least one.

    # choice: rounded down with a small tolerance; int(1000 * (1 - 0.9)) would be 99.
    """
    return max(1, int(total * (1 - rate) + 1e-6))


def evenly_spaced(total: int, keep: int) -> Tensor:
    """Return `keep` of 0..total-1: floor(linspace(0, total - 1, keep)), in whole numbers."""
    return torch.arange(keep) * (total - 1) // max(1, keep - 1)


def guided_indices(scores: Tensor, keep: int, share: float) -> Tensor:
    """Return SpecVLM's choice of `keep` from scores [r], as ascending indices.

    First the smallest number of most attended positions that hold `share` of the sum of scores, at
    most `keep`; the rest of `keep` is evenly spaced among the others, in their order.
    """
    best = scores.sort(descending=True, stable=True)
    short = best.values.cumsum(0) < share * scores.sum()
    taken = min(keep, int(short.sum()) + 1)
    top = best.indices[:taken]
    rest = torch.ones_like(scores, dtype=torch.bool)
    rest[top] = False
    others = rest.nonzero()[:, 0]
    even = others[evenly_spaced(len(others), keep - taken).to(others.device)]
    return torch.cat([top, even]).sort().values


def splice_tokens(
    name: str,
    encoded: Encoded,
    encoder: VLM,
    inserts: Sequence[tuple[tuple[int, int], Sequence[int]]],
) -> Context:
    """Return the prompt with every given [start, stop) replaced by token ids, without gaps."""

    def words(ids: Sequence[int]) -> _ContextPart:
        new = torch.tensor(list(ids), dtype=torch.long, device=encoded.ids.device)
        visual = torch.zeros_like(new, dtype=torch.bool)
        return _ContextPart(new, visual, encoder.decoder.embed(new), torch.full_like(new, -1))

    return _splice_parts(name, encoded, [(run, words(ids)) for run, ids in inserts])


class _ContextPart(NamedTuple):
    """A part of a context. places: In the prompt, -1 for text that is not in it."""

    ids: Tensor  # [c]
    visual: Tensor  # [c]
    embeds: Tensor  # [c, D]
    places: Tensor  # [c]


def _splice_parts(
    name: str, encoded: Encoded, inserts: Sequence[tuple[tuple[int, int], _ContextPart]]
) -> Context:
    """Return the prompt with every given [start, stop) replaced, at positions 0..c-1 on every axis.

    Views share no positions.
    """
    every = torch.arange(len(encoded.ids), device=encoded.ids.device)
    whole = _ContextPart(encoded.ids, encoded.visual, encoded.embeds, every)
    pieces = []
    done = 0
    for (start, stop), piece in inserts:
        pieces += [_ContextPart(*(part[done:start] for part in whole)), piece]
        done = stop
    pieces.append(_ContextPart(*(part[done:-1] for part in whole)))
    ids, visual, embeds, index = map(torch.cat, zip(*pieces))
    positions = torch.arange(len(index), device=index.device)
    source = index.clamp_min(0)
    of_view = index < 0
    return Context(
        name=name,
        ids=ids,
        visual=visual,
        embeds=embeds,
        positions=positions if encoded.positions.ndim == 1 else positions.expand(3, -1),
        next_position=len(index),
        index=encoded.to_prompt_positions(index),
        blocks=None if encoded.blocks is None else torch.where(of_view, -1, encoded.blocks[source]),
    )


def _caption_view(models: Models, settings: Settings) -> CaptionView:
    small = models.drafters.get("small")
    if small is not None and not small.sees:
        raise ValueError(
            f"{small.name} reads only text and cannot describe a picture: leave the view caption"
            " out, or take a drafter that sees."
        )
    vocabulary = models.target.vocabulary
    words = models.words["caption"], models.words["describe"]
    return CaptionView(*words, vocabulary.eos, vocabulary.banned)


def _pruned_view(models: Models, settings: PrunedSettings) -> PrunedView:
    layers = range(models.target.decoder.n_layers) if settings.guided else ()
    return PrunedView(settings, tuple(layers))


MULTIMODAL = Part("views", "multimodal", "the whole prompt", lambda models, settings: FullView())
TEXT_ONLY = Part(
    "views",
    "text-only",
    "no picture, a newline in its place",
    lambda models, settings: TextView(models.words["newline"]),
)
POOLED = Part("views", "pooled", "a coarser picture", lambda models, settings: PooledView())
PRUNED = Part("views", "pruned", "part of the picture", _pruned_view, PrunedSettings)
CAPTION = Part("views", "caption", "the drafter's caption in place of the picture", _caption_view)
