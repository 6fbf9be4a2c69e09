"""The target of speculation: a VLM that encodes and prefills a prompt once and serves a session a lane.

Given prompts and drafted trees, gives scores. Shared by lanes; nothing of a lane is kept on it. Knows nothing
of drafters, acceptance or text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from specvl_demo.core.memory import common
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import (
    NOTHING,
    Capture,
    Encoded,
    Past,
    Prefill,
    Prompt,
    Scores,
    Stopwatch,
    Vocabulary,
)
from specvl_demo.targets import followup
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
        """The model's decoder."""
        return self.vlm.decoder

    @property
    def vocabulary(self) -> Vocabulary:
        """Its ids, and which of them mean something beyond text."""
        return self.vlm.vocabulary

    def encode(self, prompt: Prompt, before: Encoded | None = None) -> Encoded:
        """Run the vision tower once; positions and merged embeddings as the decoder gets them."""
        return self.vlm.encode(prompt, before)

    @torch.inference_mode()
    def prefill(self, encoded: Encoded, capture: Capture = NOTHING, before: Past | None = None) -> Prefill:
        """One pass over positions 0..n-2; the last token is the first round's root.

        before: rows of the conversation so far; the pass is then over what is new.
        # choice: attention is that of the new rows alone, where more were asked for.
        """
        started = time.perf_counter()
        context, kept = encoded.context("target"), Kept(capture)
        known = 0
        if before is not None and before.scene is encoded.scene:
            known = min(common(before.ids, context.ids), len(context.ids) - 1)
        if known and not bool(context.visual[known:].any()):
            new = context.embeds[None, known:]
            stream, hidden = followup.grown(before.cache, len(context.ids), known, new, kept)
            rows = torch.cat((before.hidden[:known], hidden[0]))
            layers = {
                i: torch.cat((before.layers[i][:known], states[0])) for i, states in kept.layers.items()
            }
        else:
            wants = capture if capture != NOTHING else None
            stream, hidden, kept = prefill(self.decoder, [context], 0, wants)
            rows, layers = hidden[0], {i: states[0] for i, states in kept.layers.items()}
        settle(self.decoder.device)
        return Prefill(
            encoded=encoded,
            hidden=rows,
            cache=stream,
            layers=layers,
            attention={i: rows[0] for i, rows in kept.attention.items()},
            seconds=time.perf_counter() - started,
        )

    @torch.inference_mode()
    def open(
        self,
        prefill: Prefill,
        max_new_tokens: int,
        max_nodes: int,
        capture: Capture = NOTHING,
        remember: bool = False,
    ) -> VLMSession:
        """A lane's own copy of the prefill's cache. capture.layers are kept for every scored tree too.

        remember: also what `past` gives of every row, which costs a row of numbers a token.
        """
        stream: Stream = prefill.cache
        room = stream.length + max_new_tokens + max_nodes
        return VLMSession(stream.fork(room), Capture(layers=capture.layers), prefill if remember else None)

    def stopwatch(self) -> Stopwatch:
        """A stopwatch that fits the device."""
        return clock_for(self.decoder.device)

    def peak_bytes(self) -> int:
        """Most memory taken so far, in bytes: on the device, or by the process where that is the CPU."""
        return peak_bytes(self.decoder.device)


class VLMSession:
    """A `core.types.Session`: one lane's sequence on the target."""

    def __init__(self, stream: Stream, capture: Capture, begun: Prefill | None = None) -> None:
        """begun: the prefill to go on from, where all rows' states are to be kept."""
        self._stream = stream
        self._capture = capture
        self._begun = begun
        self._decided: list[Scores] = []

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
        self._scores = Scores(decoder.logits(hidden), hidden, layers)
        return self._scores

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes of the scored tree (root first), forget the others."""
        self._stream.keep(path)
        if self._begun is not None:
            chosen, at = self._scores, list(path)
            layers = {i: states[at] for i, states in chosen.layers.items()}
            self._decided.append(Scores(chosen.logits[:0], chosen.hidden[at], layers))

    @torch.inference_mode()
    def past(self, request: str, ids: Tensor) -> Past:
        """All rows, in a cache without room to spare."""
        if self._begun is None:
            raise ValueError("this session was not opened to be remembered")
        begun, rows = self._begun, self._decided
        return Past(
            request=request,
            ids=ids[: self.length].to(begun.hidden.device),
            scene=begun.encoded.scene,
            cache=self._stream.fork(self.length),
            hidden=torch.cat((begun.hidden, *(one.hidden for one in rows))),
            layers={
                i: torch.cat((states, *(one.layers[i] for one in rows))) for i, states in begun.layers.items()
            },
        )
