"""Captions by Florence-2, for TABED's caption view on pairs whose drafter cannot describe a picture itself.

Given the model with its processor and the target's words for text, gives token ids for every run of visual
tokens, as `core.views.Captioner` wants. Pictures come from what the prompt was made of.
Source: TABED (arXiv 2601.20357): task <CAPTION>, three beams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import nn

from specvl_demo.core.types import Encoded, Eyes
from specvl_demo.core.views import visual_runs

ID = "florence-community/Florence-2-large-ft"
TASK = "<CAPTION>"
BEAMS = 3


@dataclass(frozen=True)
class FlorenceCaptions:
    """A captioner. words: text as the drafter's token ids; length: longest caption, in its own tokens."""

    model: nn.Module
    processor: Any
    words: Callable[[str], list[int]]
    length: int = 64

    def __call__(self, encoded: Encoded, eyes: Eyes) -> list[list[int]]:
        """One caption a picture, at its first run of visual tokens; its other runs say nothing.

        # choice: a clip is captioned by its middle frame.
        """
        runs = visual_runs(encoded.visual)
        if not runs:
            return []
        if encoded.source is None or not encoded.spans:
            raise ValueError(
                "Captions need to know which picture stands where; leave the caption view out here."
            )
        said: dict[int, list[int]] = {}
        captions: list[list[int]] = []
        for start, stop in runs:
            media = next(s.media for s in encoded.spans if s.start < stop and start < s.stop)
            captions.append([] if media in said else said.setdefault(media, self._caption(encoded, media)))
        return captions

    @torch.inference_mode()
    def _caption(self, encoded: Encoded, media: int) -> list[int]:
        turns, _ = encoded.source
        shown = [item for turn in turns for item in turn.shown][media]
        picture = shown if isinstance(shown, Image.Image) else shown.frames[len(shown.frames) // 2]
        inputs = self.processor(text=TASK, images=picture.convert("RGB"), return_tensors="pt")
        weight = next(self.model.parameters())
        moved = {
            name: value.to(weight.device, weight.dtype if value.is_floating_point() else value.dtype)
            for name, value in inputs.items()
        }
        ids = self.model.generate(**moved, max_new_tokens=self.length, num_beams=BEAMS, do_sample=False)
        return self.words(self.processor.batch_decode(ids, skip_special_tokens=True)[0].strip())
