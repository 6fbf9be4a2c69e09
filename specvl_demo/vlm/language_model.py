"""A text-only language model as drafter of a target that sees: its prompt has no visual positions."""

from __future__ import annotations

import torch

from specvl_demo.core.types import Encoded, Prompt
from specvl_demo.vlm.encoder import VLM


class LanguageModel(VLM):
    """A text-only model as a VLM. Views may put words in place of pictures; visual positions themselves are
    left out (`SmallVLM.begin`)."""

    sees = False

    @torch.inference_mode()
    def encode(self, prompt: Prompt) -> Encoded:
        """The prompt's tokens; what stands at visual positions is never read.

        The target's tokenizer may know marks of pictures that this table lacks; any row will do for them.
        """
        ids = prompt.ids.to(self.decoder.device)
        return Encoded(
            ids=ids,
            visual=prompt.visual.to(ids.device),
            embeds=self.decoder.embed(ids.clamp_max(self.decoder.vocab - 1)),
            positions=torch.arange(len(ids), device=ids.device),
            prompt=prompt,
        )
