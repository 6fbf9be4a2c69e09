"""Hugging Face's own `generate` on the same weights: the baseline nobody can call home-made.

Given a loaded model and a prompt, gives the ids and the seconds between the first and the last emission.
Assisted generation shows its drafter no picture (the library drops the pixels): its row is a blind drafter's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation.streamers import BaseStreamer

from specvl_demo.core.types import Prompt
from specvl_demo.methods import Choice

HF_GENERATE, HF_ASSISTED, HF_LOOKUP = "hf-generate", "hf-assisted", "hf-prompt-lookup"


@dataclass(frozen=True)
class Rival:
    """One way in which the library decodes. like: our method of the same kind, whose length of a draft it
    gets."""

    like: str | None = None
    assisted: bool = False
    lookup: bool = False
    note: str | None = None


RIVALS: dict[str, Rival] = {
    HF_GENERATE: Rival(),
    HF_ASSISTED: Rival("chain", assisted=True, note="The library's assistant never sees the picture."),
    HF_LOOKUP: Rival("ngram", lookup=True),
}
N_DRAFTED = 5
"""Tokens that a rival drafts a round where our method of its kind does not run."""


def drafted(rival: Rival, choices: Sequence[Choice]) -> int:
    """How many tokens a rival drafts a round: as many as our own method of its kind, tuned or not."""
    alike = (
        one.params["gamma"] for one in choices if one.method.name == rival.like and "gamma" in one.params
    )
    return int(next(alike, N_DRAFTED))


def note(rival: Rival, n_drafted: int) -> str | None:
    """What the rival's row says about it; None for plain decoding."""
    drafts = f"Drafts {n_drafted} tokens a round." if rival.like else None
    return " ".join(filter(None, (drafts, rival.note))) or None


@dataclass(frozen=True)
class PeerRun:
    """One answer. The first emission holds the prefill, so rates are taken from what follows it.

    n_decoded: tokens after the first emission; decode_s: seconds from the first to the last emission.
    """

    token_ids: list[int]
    prefill_s: float
    decode_s: float
    n_decoded: int

    @property
    def total_s(self) -> float:
        """Seconds from the pixels to the last token."""
        return self.prefill_s + self.decode_s


class _Watch(BaseStreamer):
    """Notes when tokens come out, and how many; the first put is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []
        self._prompt_seen = False

    def put(self, value: Tensor) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.times.append(time.perf_counter())
        self.counts.append(value.numel())

    def end(self) -> None:
        """Nothing to flush."""


@torch.inference_mode()
def generate(
    model: nn.Module,
    prompt: Prompt,
    max_new_tokens: int,
    rival: Rival,
    assistant: nn.Module | None = None,
    n_drafted: int = N_DRAFTED,
) -> PeerRun:
    """Greedy `model.generate` in the rival's way; `assistant`, or the prompt, drafts `n_drafted` tokens a
    round."""
    more: dict[str, Any] = {"prompt_lookup_num_tokens": n_drafted} if rival.lookup else {}
    if rival.assisted and assistant is not None:
        assistant.generation_config.num_assistant_tokens = n_drafted
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0
        more["assistant_model"] = assistant
    inputs = {
        name: value.to(model.device, model.dtype if value.is_floating_point() else value.dtype)
        if isinstance(value, Tensor)
        else value
        for name, value in prompt.inputs.items()
    }
    watch, started = _Watch(), time.perf_counter()
    ids = model.generate(
        **inputs, max_new_tokens=max_new_tokens, do_sample=False, num_beams=1, streamer=watch, **more
    )
    answer = ids[0, len(prompt) :].tolist()
    return PeerRun(
        token_ids=answer,
        prefill_s=watch.times[0] - started,
        decode_s=watch.times[-1] - watch.times[0],
        n_decoded=sum(watch.counts[1:]),
    )
