"""The caption view: the drafter's own words in place of a picture.

Source: arXiv 2601.20357, which takes Florence-2's. The captions of all pictures take one forward
per token together; the request for a caption is given as token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import cast

import torch

from specvl_demo.core.types import (
    NOTHING,
    Capture,
    Context,
    Encoded,
    Prefill,
    VisionEncoder,
)
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.sequence import prefill
from specvl_demo.methods.base import Models, Part
from specvl_demo.methods.declare import Settings
from specvl_demo.methods.views import spliced
from specvl_demo.vlm.layouts import visual_runs

CAPTION_TOKENS = 24
"""Maximum length of a caption.

# choice: one short sentence; the paper's captioner writes about ten words.
"""
Captioner = Callable[[Encoded, VisionEncoder], Sequence[Sequence[int]]]
"""Returns the token ids of a caption for every run of visual positions, given the drafter's
encoding and its encoder.
"""


@dataclass(frozen=True)
class CaptionView:
    """Words instead of a picture: every run of visual positions becomes `prefix` and a caption.

    # choice: an empty caption leaves only the prefix ("image: ").
    """

    captioner: Captioner
    prefix: tuple[int, ...]
    name: str = "caption"
    capture: Capture = NOTHING

    def build_context(self, encoded: Encoded, encoder: VisionEncoder, prefill: Prefill) -> Context:
        """Return text positions and captions, renumbered without gaps."""
        runs = visual_runs(encoded.visual)
        captions = self.captioner(encoded, encoder) if runs else []
        if len(captions) != len(runs):
            raise ValueError(
                f"the captioner returned {len(captions)} captions for {len(runs)} runs of visual"
                " tokens"
            )
        inserts = [
            (run, (*self.prefix, *caption)) for run, caption in zip(runs, captions, strict=True)
        ]
        return spliced(self.name, encoded, encoder, inserts)


@dataclass(frozen=True)
class OwnCaptions:
    """A `Captioner`: greedy answers of the drafter itself.

    Attributes:
        ask: Token ids after a picture that request its description, up to the answer's begin.
        stop: Ids that end it.
        banned: Ids that never occur in text (placeholders).
        length: Maximum length of a caption, in tokens.
    """

    ask: Sequence[int]
    stop: Collection[int]
    banned: Sequence[int] = ()
    length: int = CAPTION_TOKENS

    def __call__(self, encoded: Encoded, encoder: VisionEncoder) -> list[list[int]]:
        """Return one caption for every run, cut before its end token.

        # choice: a picture is described in the context of what precedes it, as in training.
        """
        runs, decoder = visual_runs(encoded.visual), encoder.decoder
        if not runs:
            return []
        at = torch.arange(len(encoded.ids), device=encoded.ids.device)
        contexts = [
            # The request replaces the prompt's own text after the picture.
            replace(
                encoded.context("captioned", at[:stop]),
                next_position=int(encoded.positions[..., stop].max()),
            )
            for _, stop in runs
        ]
        room = max(stop for _, stop in runs) + len(self.ask) + self.length
        stream, _, _ = prefill(cast("LanguageBackend", decoder), contexts, room)
        feed = torch.tensor([list(self.ask)] * len(runs), device=encoded.ids.device)
        captions: list[list[int]] = [[] for _ in runs]
        for _ in range(self.length):
            logits = decoder.logits(stream.root(decoder.embed(feed))[:, -1])
            stream.keep([0])
            logits[:, list(self.banned)] = -torch.inf
            feed = logits.argmax(-1, keepdim=True)
            for caption, token in zip(captions, feed[:, 0].tolist(), strict=True):
                caption.append(token)
            if all(any(token in self.stop for token in caption) for caption in captions):
                break
        return [
            list(takewhile(lambda token: token not in self.stop, caption)) for caption in captions
        ]


def _caption_view(models: Models, settings: Settings) -> CaptionView:
    small = models.drafters.get("small")
    if small is not None and not small.sees:
        raise ValueError(
            f"{small.name} reads only text and cannot describe a picture: leave the view caption"
            " out, or take a drafter that sees."
        )
    vocabulary = models.target.vocabulary
    captioner = OwnCaptions(models.word("describe"), vocabulary.eos, vocabulary.banned)
    return CaptionView(captioner, models.word("caption"))


CAPTION = Part(
    "views",
    "caption",
    "a caption in place of the picture, by the drafter itself",
    _caption_view,
)
