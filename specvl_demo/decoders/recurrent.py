"""Decoders with layers that keep one running state, which is restored by a snapshot and a replay.

Attention drops rejected rows by a length, but a linear-attention layer (Qwen3.5) has absorbed them
into its state. Therefore the states at some committed row are kept, with the inputs of the rows
since. A forward after fewer rows than the states have absorbed starts from the snapshot, and the
rows between run again before the new ones, in the same forward. A state follows one line of tokens:
chains without branches, and one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import LinearAttentionLayer

from specvl_demo.core.tree import chain
from specvl_demo.decoders.forward import AuxStates, ForwardInput
from specvl_demo.decoders.graphs import StepShape
from specvl_demo.decoders.huggingface import HFDecoder, as_hf_cache
from specvl_demo.decoders.kv_cache import KVCache, Layout

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_REPLAYED = 32
"""Committed rows that are replayed together with others; if there are more, they run once by
themselves, and the snapshot moves up.
"""
LINEAR = "linear_attention"


def is_recurrent(decoder: nn.Module) -> bool:
    """Whether some of a decoder's layers keep one running state."""
    return LINEAR in (getattr(decoder.config, "layer_types", None) or ())


class RecurrentDecoder(HFDecoder):
    """The library's decoder if some layers keep one running state."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        kinds = self._decoder.config.layer_types
        self._shapes = [
            (0, 0) if kind == LINEAR else shape for kind, shape in zip(kinds, self._shapes)
        ]
        self.n_cached = sum(2 * heads * width for heads, width in self._shapes)

    def eager_cache(self, batch: int, room: int) -> KVCache:
        if batch > 1:
            raise ValueError(
                "a model with linear-attention layers can draft from only one view; choose one,"
                " for instance views=multimodal"
            )
        return RecurrentCache(self.layouts(), batch, room, self.dtype)

    def forward(self, call: ForwardInput) -> Tensor:
        """Return hidden states of the new rows; rows that must be replayed run before them."""
        cache = call.cache
        assert isinstance(cache, RecurrentCache)  # as made by `eager_cache`
        x = call.x
        positions = call.positions
        n = 0
        again = cache.rewind()
        if again is not None:
            old, at, decided = again
            if decided > MAX_REPLAYED:
                alone = replace(call, aux=AuxStates())
                self._run_rows(alone, old[:, :decided], at[..., :decided])
                cache.mark_committed()
                old = old[:, decided:]
                at = at[..., decided:]
            n = old.shape[1]
            x = torch.cat((old, x), 1)
            positions = torch.cat((at, positions), -1)
        hidden = self._run_rows(call, x, positions)
        for i, states in call.aux.layers.items():
            call.aux.layers[i] = states[:, n:]
        return hidden[:, n:]

    def _run_rows(self, call: ForwardInput, x: Tensor, positions: Tensor) -> Tensor:
        """Run a forward of these rows after the cache's."""
        size = x.shape[1]
        cache = call.cache
        assert isinstance(cache, RecurrentCache)  # as made by `eager_cache`
        mask = None
        if size > 1 and cache.length:
            mask = chain(size - 1).mask(cache.length, self.dtype, self.device)
        cache.inputs.append((x, positions))
        hidden = super().forward(replace(call, x=x, positions=positions, mask=mask))
        cache.seen = cache.length
        return hidden

    def _masks(self, call: ForwardInput) -> Any:
        mask = super()._masks(call)
        return mask if mask is None else {"full_attention": mask, LINEAR: None}


class RecurrentCache(KVCache):
    """Rows of the layers that attend; of the others, which have no heads here, their states, now
    and at a snapshot.

    seen: Rows that the states have absorbed.
    inputs: Of the forwards since the snapshot, with their positions.
    """

    branches = False

    def __init__(self, layers: Sequence[Layout], *sizes: Any) -> None:
        super().__init__(layers, *sizes)
        self._states = as_hf_cache(self).layers
        self._linear = [i for i, layout in enumerate(layers) if not layout.heads]
        self._snapshot: list[Any] = [LinearAttentionLayer() for _ in self._linear]
        self.seen = self._snapshot_rows = self._decided = 0
        self.inputs: list[tuple[Tensor, Tensor]] = []
        self._restore_states()

    def mark_committed(self) -> None:
        """Move the snapshot up if the states have absorbed only committed rows."""
        self._decided = self.length
        if self.seen == self.length > self._snapshot_rows:
            self._snapshot = [deepcopy(self._states[i]) for i in self._linear]
            self._snapshot_rows = self.length
            self.inputs = []

    def rewind(self) -> tuple[Tensor, Tensor, int] | None:
        """Return inputs [1, r, D] and positions of rows that must be replayed, and how many of them
        are committed; the cache and its states then end before them.

        None if the states have absorbed exactly what the cache has.
        """
        if self.seen == self.length:
            return None
        start = self._snapshot_rows
        rows = self.length - start
        decided = self._decided - start
        if rows < 0:
            raise ValueError(f"states of {start} rows cannot go back to {self.length}")
        self._restore_states()
        inputs, self.inputs = self.inputs, []
        self.length = self.seen = start
        if not rows:
            return None
        x, positions = zip(*inputs)
        return torch.cat(x, 1)[:, :rows], torch.cat(positions, -1)[..., :rows], min(rows, decided)

    def copy(self, room: int, shapes: Sequence[StepShape] = ()) -> KVCache:
        twin = super().copy(room, shapes)
        assert isinstance(twin, RecurrentCache)  # as made by `empty_like`
        self.mark_committed()
        twin._snapshot = self._snapshot
        twin._snapshot_rows = self._snapshot_rows
        twin.inputs = [*self.inputs]
        twin.seen = -1
        twin._decided = twin.length
        return twin

    def _restore_states(self) -> None:
        for i, state in zip(self._linear, self._snapshot):
            self._states[i] = deepcopy(state)
