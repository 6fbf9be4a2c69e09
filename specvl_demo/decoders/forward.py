"""What one forward of a decoder is given, and what it keeps besides its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from specvl_demo.core.types import NO_AUX, AuxRequest
from specvl_demo.decoders.kv_cache import KVCache


@dataclass
class AuxStates:
    """Aux states: hidden states and attention that a forward keeps on request.

    Attributes:
        layers: {i: [B, T, D]} input of layer i.
        attention: {layer: [B, rows, S]} probabilities over all S keys, averaged over heads, for the
            query rows of the request (counted within this forward).
    """

    request: AuxRequest = NO_AUX
    layers: dict[int, Tensor] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class ForwardInput:
    """Arguments of one forward over T new rows of B sequences after `cache.length` cached ones.

    Attributes:
        x: [B, T, D] embeddings.
        positions: [B or 1, T] int64, or [3, B or 1, T].
        mask: Additive [T, S] or [B or 1, 1, T, S] with S = cache.length + T; None for causal.
        second_mask: The same for layers that see less: with a sliding window (required if there
            is a mask), or with holes in their cache.
        columns: [T, W] as `batch_invariance.attention_order` returns; masks are its too [T, R + W].
        visual: [B, T] bool, given together with deepstack.
        deepstack: [levels, visual rows, D].
    """

    x: Tensor
    positions: Tensor
    cache: KVCache
    mask: Tensor | None = None
    second_mask: Tensor | None = None
    columns: Tensor | None = None
    visual: Tensor | None = None
    deepstack: Tensor | None = None
    aux: AuxStates = field(default_factory=AuxStates)
