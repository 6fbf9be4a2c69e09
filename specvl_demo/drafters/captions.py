"""Captions in the drafter's own words, for TABED's caption view where no captioner is at hand.

Given the prompt as the drafter encodes it, asks the drafter to describe every run of visual tokens and gives
token ids, one forward of all runs a token. Knows no tokenizer: the question comes as ids.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import torch

from specvl_demo.core.types import Encoded, Eyes
from specvl_demo.core.views import visual_runs
from specvl_demo.targets.stream import prefill


@dataclass(frozen=True)
class OwnCaptions:
    """A `core.views.Captioner`: greedy answers of the drafter itself.

    ask: token ids that follow a picture to have it described, up to where the answer begins. stop: ids that
    end it. banned: ids that never stand in a text (placeholders). length: longest caption, in tokens.
    """

    ask: Sequence[int]
    stop: Collection[int]
    banned: Sequence[int] = ()
    length: int = 24

    def __call__(self, encoded: Encoded, eyes: Eyes) -> list[list[int]]:
        """One caption for every run, cut before its end token.

        # choice: a picture is described in the context of what stands before it, as the drafter has learnt.
        """
        runs, decoder = visual_runs(encoded.visual), eyes.decoder
        if not runs:
            return []
        at = torch.arange(len(encoded.ids), device=encoded.ids.device)
        contexts = [
            # The question takes the place of the prompt's own text behind the picture.
            replace(
                encoded.context("captioned", at[:stop]),
                next_position=int(encoded.positions[..., stop].max()),
            )
            for _, stop in runs
        ]
        room = max(stop for _, stop in runs) + len(self.ask) + self.length
        stream, _, _ = prefill(decoder, contexts, room)
        feed = torch.tensor([list(self.ask)] * len(runs), device=encoded.ids.device)
        said: list[list[int]] = [[] for _ in runs]
        for _ in range(self.length):
            logits = decoder.logits(stream.root(decoder.embed(feed))[:, -1])
            stream.keep([0])
            logits[:, list(self.banned)] = -torch.inf
            feed = logits.argmax(-1, keepdim=True)
            for caption, token in zip(said, feed[:, 0].tolist(), strict=True):
                caption.append(token)
            if all(any(token in self.stop for token in caption) for caption in said):
                break
        return [list(takewhile(lambda token: token not in self.stop, caption)) for caption in said]
