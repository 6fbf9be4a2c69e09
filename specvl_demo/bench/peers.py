"""Hugging Face's own `generate` on the same weights: the baseline nobody can call home-made.

Given a loaded model and a prompt, gives the ids and the seconds between the first and the last emission.
Assisted generation shows its drafter no picture (the library drops the pixels): its row is a blind drafter's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation.streamers import BaseStreamer

from specvl_demo.core.types import Prompt


@dataclass(frozen=True)
class PeerRun:
    """One answer. The first emission holds the prefill, so rates are taken from what follows it.

    n_decoded: tokens after the first emission; decode_s: seconds from the first to the last emission.
    """

    token_ids: list[int]
    prefill_s: float
    decode_s: float
    n_decoded: int


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
    assistant: nn.Module | None = None,
    n_drafted: int = 5,
) -> PeerRun:
    """Greedy `model.generate`, with `assistant` drafting `n_drafted` tokens a round where one is given."""
    more: dict[str, Any] = {}
    if assistant is not None:
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
