"""Hugging Face's own `generate` on the same weights: the baseline nobody can call home-made.

Assisted generation shows its drafter no picture (the library drops the pixels): its row is a blind drafter's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BatchFeature
from transformers.generation.streamers import BaseStreamer

from specvl_demo.core.types import Prompt
from specvl_demo.methods.base import Choice

HF_GENERATE, HF_ASSISTED, HF_LOOKUP = "hf-generate", "hf-assisted", "hf-prompt-lookup"
GAMMA = 5
"""Tokens that a peer drafts a round where our method of its kind does not run."""


@dataclass(frozen=True)
class Peer:
    """One way in which the library decodes. like: our method of the same kind, whose draft length it gets."""

    like: str | None = None
    assisted: bool = False
    note: str = ""

    def gamma(self, choices: Sequence[Choice]) -> int:
        """How many tokens it drafts a round: as many as our own method of its kind, tuned or not."""
        alike = (c.params["gamma"] for c in choices if c.method.name == self.like and "gamma" in c.params)
        return int(next(alike, GAMMA))

    def about(self, gamma: int) -> str | None:
        """What its row says about it; None for plain decoding."""
        return f"Drafts {gamma} tokens a round. {self.note}".strip() if self.like else None


PEERS: dict[str, Peer] = {
    HF_GENERATE: Peer(),
    HF_ASSISTED: Peer("chain", assisted=True, note="The library's assistant never sees the picture."),
    HF_LOOKUP: Peer("ngram"),
}


@dataclass(frozen=True)
class Answer:
    """One answer, ours or the library's, in seconds. before_s: from the pixels to the start of decoding.

    first_s: to the first emitted tokens. decode_s: of decoding, in which `n_decoded` tokens came; the
    library's first emission holds the prefill, so its rate is taken from what follows.
    """

    token_ids: list[int]
    before_s: float
    first_s: float
    decode_s: float
    n_decoded: int

    @property
    def total_s(self) -> float:
        return self.before_s + self.decode_s


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
    peer: Peer,
    assistant: nn.Module | None = None,
    gamma: int = GAMMA,
) -> Answer:
    """Greedy `model.generate` in the peer's way; `assistant` or the prompt drafts `gamma` tokens a round."""
    more: dict[str, Any] = {"prompt_lookup_num_tokens": gamma} if peer.like and not peer.assisted else {}
    if peer.assisted and assistant is not None:
        config: Any = assistant.generation_config
        config.num_assistant_tokens = gamma
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0
        more["assistant_model"] = assistant
    runner: Any = model
    inputs = BatchFeature(dict(prompt.inputs)).to(runner.device, runner.dtype)
    watch, started = _Watch(), time.perf_counter()
    ids = runner.generate(
        **inputs, max_new_tokens=max_new_tokens, do_sample=False, num_beams=1, streamer=watch, **more
    )
    first_s = watch.times[0] - started
    return Answer(
        token_ids=ids[0, len(prompt) :].tolist(),
        before_s=first_s,
        first_s=first_s,
        decode_s=watch.times[-1] - watch.times[0],
        n_decoded=sum(watch.counts[1:]),
    )
