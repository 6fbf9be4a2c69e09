"""One forward of a decoder: its input, what it can capture, and the interface of both backends.

Embeddings, positions, masks and the cache are arguments, so that models are shared and never
changed. Knows nothing of trees, prompts or vision towers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from specvl_demo.core.types import NOTHING, Capture, Decoder
from specvl_demo.decoders.kv_cache import KVCache

if TYPE_CHECKING:
    from specvl_demo.decoders import kernels
    from specvl_demo.decoders.draft_vocabulary import LogProbabilities


@dataclass
class ForwardOutput:
    """What a forward captures on request.

    Attributes:
        layers: {i: [B, T, D]} input of layer i.
        attention: {layer: [B, rows, S]} probabilities over all S keys, averaged over heads, for the
            query rows of the capture (counted within this forward).
    """

    capture: Capture = NOTHING
    layers: dict[int, Tensor] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class ForwardInput:
    """Arguments of one forward over T new rows of B sequences after `cache.length` cached ones.

    Attributes:
        x: [B, T, D] embeddings.
        positions: [B or 1, T] int64, or [3, B or 1, T].
        mask: Additive [T, S] or [B or 1, 1, T, S] with S = cache.length + T; None for causal.
        window_mask: The same for layers with a sliding window; required if there are any and a mask
            is given.
        columns: Of a `batch_invariance.RowOrder`, for batch-invariant steps; masks are [T, R + W]
            then.
        visual: [B, T] bool, given together with deepstack.
        deepstack: [levels, visual rows, D].
    """

    x: Tensor
    positions: Tensor
    cache: KVCache
    mask: Tensor | None = None
    window_mask: Tensor | None = None
    columns: Tensor | None = None
    visual: Tensor | None = None
    deepstack: Tensor | None = None
    kept: ForwardOutput = field(default_factory=ForwardOutput)


class Backend(Decoder, Protocol):
    """A decoder that runs on this machine.

    Attributes:
        window: Width of the sliding window, None if no layer has one.
        near_blocks: Whether a block's positions attend to each other in both directions only in
            layers with a sliding window, and only inside the window.
        axes: 3 if positions have three axes.
        n_weights: Numbers that every step reads, of the layers and the head.
        n_bytes: The same in bytes.
        n_cached: Numbers cached per row.
        batch_invariant: Whether every row of any step has the bits of a plain step, without padding
            or ordering.
    """

    window: int | None
    near_blocks: bool
    axes: int
    n_weights: int
    n_bytes: int
    n_cached: int
    batch_invariant: bool

    def part(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """Return `logits` restricted to rows [R] of the head: hidden [k, D] -> [k, R]."""

    def chain_drafter(self, log_probs: LogProbabilities) -> kernels.ChainDrafter | None:
        """Return what drafts a chain of likeliest tokens by one call; None if nothing does."""

    def new_cache(self, batch: int, room: int) -> KVCache:
        """Return an empty cache that `forward` writes into."""

    def forward(self, call: ForwardInput) -> Tensor:
        """Return hidden states after the final norm [B, T, D]; the cache grows by T rows."""
