"""The target of speculation: a VLM that encodes and prefills a prompt once and serves a session a lane.

Given prompts and drafted trees, gives scores. Shared by lanes; nothing of a lane is kept on it. Knows nothing
of drafters, acceptance or text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import NOTHING, Capture, Encoded, Prefill, Prompt, Scores, Stopwatch, Vocabulary
from specvl_demo.targets.clock import clock_for, peak_bytes, settle
from specvl_demo.targets.decoder import Backend, Kept
from specvl_demo.targets.stream import Stream, prefill
from specvl_demo.targets.vlm import VLM


class VLMTarget:
    """A `core.types.Target` over a `VLM`, which may serve as a drafter's eyes at the same time."""

    def __init__(self, vlm: VLM) -> None:
        self.vlm = vlm
        self.name = vlm.name

    @property
    def decoder(self) -> Backend:
        return self.vlm.decoder

    @property
    def vocabulary(self) -> Vocabulary:
        return self.vlm.vocabulary

    def encode(self, prompt: Prompt) -> Encoded:
        """Run the vision tower once; positions and merged embeddings as the decoder gets them."""
        return self.vlm.encode(prompt)

    @torch.inference_mode()
    def prefill(self, encoded: Encoded, capture: Capture = NOTHING) -> Prefill:
        """One pass over positions 0..n-2; the last token is the first round's root."""
        started = time.perf_counter()
        wants = capture if capture != NOTHING else None
        stream, hidden, kept = prefill(self.decoder, [encoded.context("target")], 0, wants)
        settle(self.decoder.device)
        return Prefill(
            encoded=encoded,
            hidden=hidden[0],
            cache=stream,
            layers={i: states[0] for i, states in kept.layers.items()},
            attention={i: rows[0] for i, rows in kept.attention.items()},
            seconds=time.perf_counter() - started,
        )

    @torch.inference_mode()
    def open(
        self, prefill: Prefill, max_new_tokens: int, max_nodes: int, capture: Capture = NOTHING
    ) -> VLMSession:
        """A lane's own copy of the prefill's cache. capture.layers are kept for every scored tree too."""
        stream: Stream = prefill.cache
        room = stream.length + max_new_tokens + max_nodes
        return VLMSession(stream.fork(room), Capture(layers=capture.layers))

    def stopwatch(self) -> Stopwatch:
        """A stopwatch that fits the device."""
        return clock_for(self.decoder.device)

    def peak_bytes(self) -> int:
        """Most memory taken so far, in bytes: on the device, or by the process where that is the CPU."""
        return peak_bytes(self.decoder.device)


class VLMSession:
    """A `core.types.Session`: one lane's sequence on the target."""

    def __init__(self, stream: Stream, capture: Capture) -> None:
        self._stream = stream
        self._capture = capture

    @property
    def length(self) -> int:
        """Tokens in the cache: prompt + emitted - 1."""
        return self._stream.length

    @torch.inference_mode()
    def score(self, tree: DraftTree) -> Scores:
        """One forward over all nodes of the tree."""
        decoder = self._stream.backend
        kept = Kept(self._capture) if self._capture.layers else None
        x = decoder.embed(tree.tokens.to(decoder.device))[None]
        hidden = self._stream.score(x, tree.shape, kept)[0]
        layers = {i: states[0] for i, states in kept.layers.items()} if kept else {}
        return Scores(decoder.logits(hidden), hidden, layers)

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes of the scored tree (root first), forget the others."""
        self._stream.keep(path)
