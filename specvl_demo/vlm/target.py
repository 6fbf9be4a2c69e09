"""The target of speculation: a VLM that prefills a prompt once and opens a session per lane.

Given prompts and drafted trees, returns scores. Shared by lanes; keeps nothing of a lane. Knows
nothing of drafters, acceptance or text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from specvl_demo.core.transfer import take_rows
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import NO_AUX, AuxRequest, Encoded, Prefill, Prompt, Scores, Stopwatch
from specvl_demo.decoders.batch_invariance import MAX_NODES
from specvl_demo.decoders.calibration import min_invariant_rows, row_costs
from specvl_demo.decoders.forward import AuxStates
from specvl_demo.decoders.graphs import step_shapes
from specvl_demo.decoders.sequence import CachedSequence, prefill
from specvl_demo.decoders.timing import clock_for, peak_bytes, synchronize
from specvl_demo.vlm.encoder import VLM


class VLMTarget:
    """A `core.types.Target` over a `VLM`, which may also serve as a drafter's vision encoder.

    batch_invariant: Score with steps whose rows do not depend on each other, if it can; None: only
        where all its steps are so anyway.
    """

    def __init__(self, vlm: VLM, batch_invariant: bool | None = False) -> None:
        self.vlm = vlm
        self.name = vlm.name
        self.decoder = vlm.decoder
        anyway = batch_invariant is None and vlm.decoder.batch_invariant
        self.batch_invariant = bool(batch_invariant or anyway)
        self.vocabulary = vlm.vocabulary

    @cached_property
    def min_invariant_rows(self) -> int | None:
        """Rows from which steps are batch-invariant, tested on first use; None: they are not."""
        return min_invariant_rows(self.decoder) if self.batch_invariant else None

    @cached_property
    def row_costs(self) -> dict[int, float]:
        """What a step costs by its rows, in steps of one row, measured on first use."""
        return row_costs(self.decoder, self.min_invariant_rows)

    def decline_batch_invariance(self) -> None:
        """Score with plain steps from now on."""
        self.batch_invariant = False
        self.min_invariant_rows = None

    def encode(self, prompt: Prompt) -> Encoded:
        return self.vlm.encode(prompt)

    @torch.inference_mode()
    def prefill(self, encoded: Encoded, aux_request: AuxRequest = NO_AUX) -> Prefill:
        started = time.perf_counter()
        context = encoded.context("target")
        sequence, hidden, aux = prefill(self.decoder, [context], 0, aux_request)
        synchronize(self.decoder.device)
        return Prefill(
            encoded=encoded,
            hidden=hidden[0],
            sequence=sequence,
            layers={i: states[0] for i, states in aux.layers.items()},
            attention={i: rows[0] for i, rows in aux.attention.items()},
            seconds=time.perf_counter() - started,
        )

    @torch.inference_mode()
    def open(
        self,
        prefill: Prefill,
        max_new_tokens: int,
        max_nodes: int,
        aux_request: AuxRequest = NO_AUX,
    ) -> VLMSession:
        invariant = self.min_invariant_rows is not None
        # Batch-invariant steps read all of a cache, so it has one size in all lanes; of one size,
        # caches with graphs also serve other lanes.
        one_size = invariant or self.decoder.fixed
        spare = max(max_nodes, MAX_NODES) if one_size else max_nodes
        shapes = step_shapes(max_nodes, aux_request.layers, self.min_invariant_rows)
        sequence = prefill.sequence.fork(prefill.sequence.length + max_new_tokens + spare, shapes)
        if invariant:
            sequence.cache.zero_unused()
        sequence.cache.prepare(shapes)
        return VLMSession(self, sequence, prefill, AuxRequest(layers=aux_request.layers))

    @property
    def recomputes(self) -> bool:
        """Whether near ties are computed again: half precision has too many of them."""
        return self.min_invariant_rows is None and self.decoder.dtype == torch.float32

    def exactness(self, max_nodes: int) -> str:
        small = self.decoder.batch_invariant or max_nodes <= MAX_NODES
        if self.min_invariant_rows is not None and small:
            return "exact"
        if self.recomputes:
            return "equal; where rounding could decide, the text is read again"
        return f"equal up to rounding ({str(self.decoder.dtype).removeprefix('torch.')})"

    def stopwatch(self) -> Stopwatch:
        return clock_for(self.decoder.device)

    def peak_bytes(self) -> int:
        return peak_bytes(self.decoder.device)


class VLMSession:
    """A `core.types.Session`: one lane's sequence on the target, whose scores keep what
    `aux_request` names.
    """

    def __init__(
        self,
        target: VLMTarget,
        sequence: CachedSequence,
        prefill: Prefill,
        aux_request: AuxRequest,
    ) -> None:
        self._target = target
        self._sequence = sequence
        self._aux_request = aux_request
        self._encoded = prefill.encoded
        self._answer: list[Tensor] = []

    @property
    def length(self) -> int:
        return self._sequence.length

    def kv_of(self, layer: int) -> Tensor:
        return self._sequence.cache.layer_buffer(layer)[:, :, :, : self.length]

    @torch.inference_mode()
    def score(self, tree: DraftTree) -> Scores:
        decoder = self._target.decoder
        aux = AuxStates(self._aux_request)
        x = decoder.embed(tree.tokens.to(decoder.device))[None]
        hidden = self._sequence.score(x, tree.shape, aux, self._target.min_invariant_rows)[0]
        size = len(tree)
        layers = {i: states[0, :size] for i, states in aux.layers.items()}
        recompute = None
        if self._target.recomputes:
            self._tokens = tree.tokens
            recompute = self._recompute
        return Scores(decoder.logits(hidden)[:size], hidden[:size], layers, recompute)

    def _recompute(self, path: Sequence[int]) -> Tensor:
        """See `Scores.recompute`. Two passes from an empty cache: the prompt, what was said."""
        decoder = self._target.decoder
        answer = torch.cat((*self._answer, self._tokens[list(path)])).to(decoder.device)
        context = self._encoded.context("target")
        sequence = prefill(decoder, [context], len(context.ids) + len(answer)).sequence
        hidden = sequence.score(decoder.embed(answer)[None], chain(len(answer) - 1))
        return decoder.logits(hidden[0, -1:])[0]

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        self._sequence.commit_nodes(path)
        if self._target.recomputes:
            self._answer.append(take_rows(self._tokens, path))
