"""Independent baselines: Hugging Face's own `generate` on the same weights. Its assisted generation
shows the drafter no picture.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import BatchFeature
from transformers.generation.streamers import BaseStreamer

from specvl_demo.compare.report import HF_ASSISTED, HF_GENERATE, Answer
from specvl_demo.core.engine import Request
from specvl_demo.core.faults import cause
from specvl_demo.methods.base import Choice, Models
from specvl_demo.vlm import hub

GAMMA = 5
"""Tokens that the library's assistant drafts per round if this project's chain does not run."""
PEERS = (HF_GENERATE, HF_ASSISTED)
ASSISTED = "Drafts {gamma} tokens a round. The library's assistant never sees the picture."


class _EmissionTimes(BaseStreamer):
    """Records when tokens are emitted, and how many; the first are the prompt's."""

    def __init__(self) -> None:
        self.emissions: list[tuple[float, int]] = []

    def put(self, value: Tensor) -> None:
        self.emissions.append((time.perf_counter(), value.numel()))

    def end(self) -> None:
        """Do nothing."""


class LibraryPeers:
    """The library's ways of decoding that run here. notes: on each, or why it does not run. cache:
    By the library's name; with an assistant it is always dynamic.
    """

    cache = "dynamic"

    def __init__(self, models: Models, names: Sequence[str], choices: Sequence[Choice]) -> None:
        self._models = models
        chains = (choice.params for choice in choices if choice.method.name == "chain")
        self.gamma = int(next(chains, {"gamma": GAMMA})["gamma"])
        self.notes: dict[str, str | None] = dict.fromkeys(names)
        if HF_ASSISTED in names:
            self.notes[HF_ASSISTED] = ASSISTED.format(gamma=self.gamma)
        self.running = list(names)

    def decode_answer(self, name: str, request: Request) -> Answer | None:
        """Return one answer; None if the library fails, whose message is noted once."""
        try:
            return self._generate(name == HF_ASSISTED, request)
        except (ValueError, RuntimeError, TypeError, IndexError, KeyError, AttributeError) as fault:
            self.running.remove(name)
            self.notes[name] = f"Does not run here: {type(fault).__name__}: {cause(fault)[:200]}"
            return None

    @torch.inference_mode()
    def _generate(self, assisted: bool, request: Request) -> Answer:
        """Run greedy `model.generate`, with or without the small drafter."""
        more: dict[str, Any] = {"cache_implementation": self.cache}
        if assisted:
            assistant = self._models.drafter("small").model
            config = assistant.generation_config
            config.num_assistant_tokens = self.gamma
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0.0
            more = {"assistant_model": assistant}
        model: Any = self._models.target.vlm.model
        plain = hub.BY_OPTION | hub.UNAPPLIED
        inputs = BatchFeature(dict(request.prompt.inputs)).to(model.device, model.dtype)
        watch = _EmissionTimes()
        started = time.perf_counter()
        ids = model.generate(
            **inputs,
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
            streamer=watch,
            # The same decoding as the other rows': without penalties, and with their ends.
            **{
                name: plain[name]
                for name in plain
                if getattr(model.generation_config, name, None) is not None
            },
            eos_token_id=sorted(self._models.target.vocabulary.eos) or None,
            **more,
        )
        (first, _), *others = watch.emissions[1:]
        last, _ = watch.emissions[-1]
        return Answer(
            token_ids=ids[0, len(request.prompt) :].tolist(),
            before_s=first - started,
            first_s=first - started,
            decode_s=last - first,
            n_decoded=sum(n for _, n in others),
        )
