"""Captions by Florence-2, for the caption view of pairs whose drafter cannot describe pictures.

Given the model with its processor and the function `words` from text to the drafter's ids, returns
token ids for every run of visual tokens, as a `methods.captions.Captioner`. Pictures come from the
prompt's source, so captioning can start before any model has read the prompt. Source: arXiv
2601.20357: task <CAPTION>, three beams, hidden behind the target's prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from transformers import BatchFeature, PreTrainedModel

from specvl_demo.core.types import Encoded, Prompt, VisionEncoder
from specvl_demo.vlm.layouts import visual_runs

ID = "florence-community/Florence-2-large-ft"
TASK = "<CAPTION>"
BEAMS = 3


@dataclass
class FlorenceCaptions:
    """A captioner for one lane.

    words: Converts text to the drafter's token ids. length: Longest caption, in Florence's tokens.
    """

    model: PreTrainedModel
    processor: Any
    words: Callable[[str], list[int]]
    length: int = 64
    _begun: list[Future[list[int]]] = field(default_factory=list, init=False)

    def ahead(self, prompt: Prompt) -> None:
        """Start captioning everything the prompt shows, in a thread; a call waits for it."""
        if prompt.source is None:
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="captions")
        self._begun = [pool.submit(self._caption, item) for item in _shown(prompt.source)]
        pool.shutdown(wait=False)

    def __call__(self, encoded: Encoded, encoder: VisionEncoder) -> list[list[int]]:
        """Return one caption per picture, at its first run of visual tokens; its other runs get
        none.

        # choice: a clip is captioned by its middle frame.
        """
        runs = visual_runs(encoded.visual)
        if not runs:
            return []
        prompt = encoded.prompt
        if prompt.source is None or not prompt.spans:
            raise ValueError(
                "Captions need to know where each picture is in the prompt, which is unknown"
                " here; leave the caption view out."
            )
        shown = _shown(prompt.source)
        captioned: set[int] = set()
        captions: list[list[int]] = []
        for start, stop in runs:
            media = next(s.media for s in prompt.spans if s.start < stop and start < s.stop)
            if media in captioned:
                captions.append([])
                continue
            captioned.add(media)
            captions.append(
                self._begun[media].result() if self._begun else self._caption(shown[media])
            )
        return captions

    @torch.inference_mode()
    def _caption(self, item: Any) -> list[int]:
        picture = item if isinstance(item, Image.Image) else item.frames[len(item.frames) // 2]
        inputs = self.processor(text=TASK, images=picture.convert("RGB"), return_tensors="pt")
        weight = next(self.model.parameters())
        # On a separate stream, a GPU computes this beside the prefill; a CPU shares its cores
        # anyway.
        cuda = weight.device.type == "cuda"
        with torch.cuda.stream(torch.cuda.Stream(weight.device)) if cuda else nullcontext():
            moved = BatchFeature(dict(inputs)).to(weight.device, weight.dtype)
            ids = self.model.generate(
                **moved, max_new_tokens=self.length, num_beams=BEAMS, do_sample=False
            ).cpu()
        return self.words(self.processor.batch_decode(ids, skip_special_tokens=True)[0].strip())


def _shown(source: Any) -> Sequence[Any]:
    """Return pictures and clips in the order of the prompt."""
    turns, _ = source
    return [item for turn in turns for item in turn.shown]
