"""Views: what a drafter sees of a prompt, from everything down to no picture at all.

Given the prompt as the drafter encodes it, its eyes, and the target's prefill, gives a Context with a map to
prompt positions. Knows which positions are visual and in which grid; no pixels, no tokenizer, no method.
Sources: TABED (arXiv 2601.20357) sections 4 and 6.1, SpecVLM (arXiv 2508.16201).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from specvl_demo.core.types import NOTHING, Capture, Context, Encoded, Eyes, Prefill, Prompt

# How many of the prompt's last tokens tell, by their attention, which patches the question is about.
_ASKING = 32

POSITIONS = ("auto", "original", "compact")

Captioner = Callable[[Encoded, Eyes], Sequence[Sequence[int]]]
"""Token ids of a caption for every run of visual positions, from the drafter's encoding and eyes."""


@dataclass(frozen=True)
class FullView:
    """The prompt as it is: TABED's multimodal drafting (M)."""

    name: str = "multimodal"
    capture: Capture = NOTHING

    def see(self, encoded: Encoded, eyes: Eyes, prefill: Prefill) -> Context:
        """All positions."""
        return encoded.context(self.name)


@dataclass(frozen=True)
class TextView:
    """No picture: every run of visual positions becomes the `stand_in` tokens, one newline (TABED's T).

    # choice: the reference puts one newline in place of a picture's single placeholder; an expanded prompt
    # holds a run of them instead, and pictures side by side make one run.
    """

    stand_in: tuple[int, ...]
    name: str = "text-only"
    capture: Capture = NOTHING

    def see(self, encoded: Encoded, eyes: Eyes, prefill: Prefill) -> Context:
        """Text positions, renumbered without gaps, the stand-in where pictures were."""
        runs = visual_runs(encoded.visual)
        return spliced(self.name, encoded, eyes, [(run, self.stand_in) for run in runs])


@dataclass(frozen=True)
class CaptionView:
    """Words instead of a picture: every run of visual positions becomes `prefix` and a caption (TABED's C).

    ahead: begins the captions from the prompt alone, while the target prefills; None where the captioner
    wants the drafter's encoding first.

    # choice: an empty caption leaves the prefix ("image: ") alone.
    """

    captioner: Captioner
    prefix: tuple[int, ...]
    name: str = "caption"
    capture: Capture = NOTHING
    ahead: Callable[[Prompt], None] | None = None

    def see(self, encoded: Encoded, eyes: Eyes, prefill: Prefill) -> Context:
        """Text positions and captions, renumbered without gaps."""
        runs = visual_runs(encoded.visual)
        captions = self.captioner(encoded, eyes) if runs else []
        if len(captions) != len(runs):
            raise ValueError(
                f"the captioner gave {len(captions)} captions for {len(runs)} runs of visual tokens"
            )
        inserts = [(run, (*self.prefix, *caption)) for run, caption in zip(runs, captions, strict=True)]
        return spliced(self.name, encoded, eyes, inserts)


@dataclass(frozen=True)
class PooledView:
    """A coarser picture: features of `factor` x `factor` patches averaged before the projector (TABED's P).

    # choice: adaptive averaging to ceil(rows/factor) x ceil(cols/factor), for each grid by itself; on the
    # paper's 24 x 24 patches that is its 2 x 2 mean. Visual positions that form no grid stay as they are.
    """

    factor: int = 2
    name: str = "pooled"
    capture: Capture = NOTHING

    def see(self, encoded: Encoded, eyes: Eyes, prefill: Prefill) -> Context:
        """All text, fewer visual positions, no gaps; each stands for the first patch of its block."""
        grids = [span for span in encoded.spans if span.rows and span.cols]
        if not grids:
            return encoded.context(self.name)
        if encoded.features is None:
            raise ValueError(
                "the pooled view averages vision features before the projector, and this drafter has none "
                "that lie one to one under its visual tokens; leave this view out"
            )
        order = encoded.visual.cumsum(0) - 1
        pieces: list[_Piece] = []
        done = 0
        for span in grids:
            pieces.append(_kept(encoded, done, span.start))
            cells = span.rows * span.cols
            features = encoded.features[order[span.start : span.start + cells]]
            small = self._pool(features, span.rows, span.cols)
            first = self._first_patches(span.rows, span.cols).to(encoded.ids.device) + span.start
            pieces.append(_Piece(encoded.ids[first], encoded.visual[first], eyes.project(small), first))
            done = span.start + cells
        return _joined(self.name, encoded, [*pieces, _kept(encoded, done, len(encoded.ids) - 1)])

    def _pool(self, features: Tensor, rows: int, cols: int) -> Tensor:
        """[rows·cols, C] → [ceil(rows/factor)·ceil(cols/factor), C]."""
        size = (-(-rows // self.factor), -(-cols // self.factor))
        image = features.T.reshape(1, -1, rows, cols).float()
        return adaptive_avg_pool2d(image, size)[0].flatten(1).T.to(features.dtype)

    def _first_patches(self, rows: int, cols: int) -> Tensor:
        """The patch in the corner of every block that `_pool` averages, row by row."""
        high, wide = -(-rows // self.factor), -(-cols // self.factor)
        top = torch.arange(high) * rows // high
        left = torch.arange(wide) * cols // wide
        return (top[:, None] * cols + left[None]).flatten()


@dataclass(frozen=True)
class PrunedView:
    """Part of the picture: evenly spaced visual positions, or first those that the target attends to.

    image, video: the share of visual positions to drop, by what they show (SAGE: 0.8 and 0.9).
    layers: the target's layers whose attention guides the choice (SpecVLM: all); none: evenly spaced alone.
    share: the best-attended positions are taken until they hold this share of all attention (SpecVLM: 0.4).
    positions: "compact" renumbers without gaps, "original" keeps the gaps, "auto" is compact for decoders
        with one position axis, as published for LLaVA-like drafters, and original for those with three, which
        understand gaps.
    """

    image: float = 0.8
    video: float = 0.9
    layers: tuple[int, ...] = ()
    share: float = 0.4
    positions: str = "auto"
    name: str = "pruned"

    def __post_init__(self) -> None:
        if self.positions not in POSITIONS:
            raise ValueError(f"positions is one of {', '.join(POSITIONS)}, got {self.positions!r}")

    @property
    def capture(self) -> Capture:
        """The guiding layers' attention from the last rows of the prefill, which belong to the question.

        # choice: at most the last 32 text tokens ask; SpecVLM lets all text behind the picture ask, which is
        # the same for a short question and would need an attention map of the whole prompt for a long one.
        """
        return Capture(attention=self.layers, rows=tuple(range(-_ASKING, 0))) if self.layers else NOTHING

    def see(self, encoded: Encoded, eyes: Eyes, prefill: Prefill) -> Context:
        """Text and the visual positions that stay; with nothing to drop, FullView's context bit for bit."""
        visual = encoded.visual.nonzero()[:, 0]
        scores = self._attention(encoded, prefill) if self.layers and len(visual) else None
        stay = torch.cat(
            [self._stay(positions, rate, scores) for positions, rate in self._kinds(encoded, visual)]
        )
        if len(stay) == len(visual):
            return encoded.context(self.name)
        text = (~encoded.visual).nonzero()[:, 0]
        compact = encoded.positions.ndim == 1 if self.positions == "auto" else self.positions == "compact"
        return encoded.context(self.name, torch.cat([text, stay]).sort().values, compact)

    def _kinds(self, encoded: Encoded, visual: Tensor) -> list[tuple[Tensor, float]]:
        """Visual positions of pictures and of clips, each with the share to drop."""
        clip = torch.zeros_like(encoded.visual)
        for span in encoded.spans:
            if span.kind == "video":
                clip[span.start : span.stop] = True
        return [(visual[~clip[visual]], self.image), (visual[clip[visual]], self.video)]

    def _stay(self, positions: Tensor, rate: float, scores: Tensor | None) -> Tensor:
        if len(positions) == 0:
            return positions
        keep = kept_count(len(positions), rate)
        if scores is None:
            return positions[evenly_spaced(len(positions), keep).to(positions.device)]
        return positions[guided(scores[positions], keep, self.share)]

    def _attention(self, encoded: Encoded, prefill: Prefill) -> Tensor:
        """[n - 1] mean attention to every position over the guiding layers and the question's last tokens."""
        if encoded.index is not None:
            raise ValueError(
                "the target and this drafter cut pictures into other tokens, so the target's attention "
                "cannot choose among the drafter's; prune evenly instead (guided=false)"
            )
        missing = [layer for layer in self.layers if layer not in prefill.attention]
        if missing:
            raise ValueError(
                f"pruning guided by the target needs its attention in layers {missing}, which this target "
                "did not give; prune evenly instead (guided=false)"
            )
        question = len(encoded.ids) - 2 - int(encoded.visual.nonzero()[-1])
        rows = min(max(question, 1), _ASKING)
        asked = [prefill.attention[layer][-rows:].float().mean(0) for layer in self.layers]
        return torch.stack(asked).mean(0)


def kept_count(total: int, rate: float) -> int:
    """How many of `total` visual positions stay when the share `rate` is dropped; at least one.

    # choice: rounded down with a hair of tolerance; int(1000 * (1 - 0.9)) would be 99.
    """
    return max(1, int(total * (1 - rate) + 1e-6))


def evenly_spaced(total: int, keep: int) -> Tensor:
    """`keep` of the indices 0..total-1: floor(linspace(0, total - 1, keep)), exact; one alone is 0."""
    if keep == 1:
        return torch.zeros(1, dtype=torch.long)
    return torch.arange(keep) * (total - 1) // (keep - 1)


def guided(scores: Tensor, keep: int, share: float) -> Tensor:
    """SpecVLM's choice of `keep` from scores [r]: best-attended first, then evenly spaced; ascending indices.

    The smallest number of best-attended positions that hold `share` of the sum of scores, at most `keep`;
    what is left of `keep` comes evenly from the others, in their order.
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


def visual_runs(visual: Tensor) -> list[tuple[int, int]]:
    """[start, stop) of every run of visual positions."""
    edges = torch.diff(
        visual.int(),
        prepend=visual.new_zeros(1, dtype=torch.int),
        append=visual.new_zeros(1, dtype=torch.int),
    )
    starts, stops = (edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist()
    return list(zip(starts, stops, strict=True))


def spliced(
    name: str, encoded: Encoded, eyes: Eyes, inserts: Sequence[tuple[tuple[int, int], Sequence[int]]]
) -> Context:
    """The prompt with every given [start, stop) replaced by token ids; positions run on without gaps."""
    pieces: list[_Piece] = []
    done = 0
    for (start, stop), ids in inserts:
        pieces.append(_kept(encoded, done, start))
        new = torch.tensor(list(ids), dtype=torch.long, device=encoded.ids.device)
        nowhere = torch.full_like(new, -1)
        pieces.append(_Piece(new, torch.zeros_like(new, dtype=torch.bool), eyes.decoder.embed(new), nowhere))
        done = stop
    return _joined(name, encoded, [*pieces, _kept(encoded, done, len(encoded.ids) - 1)])


@dataclass(frozen=True)
class _Piece:
    """A part of a context: ids, visual and index [c], embeds [c, D]."""

    ids: Tensor
    visual: Tensor
    embeds: Tensor
    index: Tensor


def _kept(encoded: Encoded, start: int, stop: int) -> _Piece:
    index = torch.arange(start, stop, device=encoded.ids.device)
    return _Piece(encoded.ids[start:stop], encoded.visual[start:stop], encoded.embeds[start:stop], index)


def _joined(name: str, encoded: Encoded, pieces: Sequence[_Piece]) -> Context:
    """One context of all pieces, at positions 0..c-1 on every axis (TABED: views share no positions)."""
    index = torch.cat([piece.index for piece in pieces])
    positions = torch.arange(len(index), device=index.device)
    blocks = None
    if encoded.blocks is not None:
        blocks = torch.where(index >= 0, encoded.blocks[index.clamp_min(0)], -1)
    return Context(
        name=name,
        ids=torch.cat([piece.ids for piece in pieces]),
        visual=torch.cat([piece.visual for piece in pieces]),
        embeds=torch.cat([piece.embeds for piece in pieces]),
        positions=positions if encoded.positions.ndim == 1 else positions.expand(3, -1),
        next_position=len(index),
        index=encoded.in_prompt(index),
        blocks=blocks,
    )
