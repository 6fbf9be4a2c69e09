"""One forward of a decoder: what it is given, what it can keep, and the interface both backends
serve.

Given embeddings, positions, masks and a cache as arguments, so that models are shared and never
changed. Knows nothing of trees, prompts or vision towers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from specvl_demo.core.types import NOTHING, Capture, Decoder
from specvl_demo.decoders.exact import Blocks
from specvl_demo.decoders.kv_cache import KVCache


@dataclass
class ForwardOutput:
    """What a forward puts aside on request.

    layers: {i: [B, T, D]} input of layer i. attention: {layer: [B, rows, S]} probabilities over all
    S keys, mean over heads, for the query rows of the capture (counted within this forward).
    """

    capture: Capture = NOTHING
    layers: dict[int, Tensor] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class ForwardInput:
    """Arguments of one forward over T new rows of B sequences behind `cache.length` cached ones.

    x: [B, T, D] embeddings. positions: [B or 1, T] int64, or [3, B or 1, T]. mask: additive [T, S]
    or [B or 1, 1, T, S] with S = cache.length + T; None: every row sees all before it
        and itself. window_mask: the same for layers with a sliding window; required where the
        decoder has some and a mask is given.
    columns: for exact steps, of an `exact.RowOrder`; masks are then its own, [T, R + W].
    blocks: for exact steps of a backend with `groups`; it holds the mask.
    visual [B, T] bool and deepstack [levels, visual rows, D] go together.
    """

    x: Tensor
    positions: Tensor
    cache: KVCache
    mask: Tensor | None = None
    window_mask: Tensor | None = None
    columns: Tensor | None = None
    blocks: Blocks | None = None
    visual: Tensor | None = None
    deepstack: Tensor | None = None
    kept: ForwardOutput = field(default_factory=ForwardOutput)


class Backend(Decoder, Protocol):
    """A decoder that runs here.

    window: width of its sliding window, None where no layer has one. near_blocks: whether a block's
    positions see each other both ways in those layers alone, and inside the window. axes: 3 where
    positions have three. n_weights: numbers that every step reads, of the layers and the head;
    n_bytes: in as many bytes. n_cached: numbers cached for a row. groups: query heads that share a
    key's head, where exact steps are `exact.blocked_attention`; None where they are
    `exact.ordered_attention`.
    """

    window: int | None
    near_blocks: bool
    axes: int
    n_weights: int
    n_bytes: int
    n_cached: int
    groups: int | None

    def part(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """`logits` by these rows [R] of the head alone: hidden [..., D] -> [..., R]."""

    def new_cache(self, batch: int, room: int) -> KVCache:
        """An empty cache that `forward` writes into."""

    def forward(self, call: ForwardInput) -> Tensor:
        """Hidden states after the final norm [B, T, D]; the cache is T rows longer afterwards."""


def attention_of(
    queries: Tensor, keys: Tensor, mask: Tensor | None, rows: tuple[int, ...] | None, scale: float
) -> Tensor:
    """Attention probabilities [B, rows, S], mean over heads, computed beside a fused kernel that
    keeps none.

    queries [B, heads, T, width], keys [B, kv_heads, S, width]; mask additive or bool (True: seen),
    [T, S] or [B or 1, 1, T, S], or None for causal. rows: which of the T queries, from the end if
    negative; None: all.
    """
    batch, heads, size, width = queries.shape
    n_keys = keys.shape[2]
    at = torch.arange(size, device=queries.device)
    if rows is not None:
        at = at[[row for row in rows if -size <= row < size]]
    groups = heads // keys.shape[1]
    asked = queries[:, :, at].reshape(batch, keys.shape[1], groups * len(at), width)
    scores = (asked @ keys.transpose(2, 3)).view(batch, heads, len(at), n_keys).float() * scale
    if mask is None:
        ahead = torch.arange(n_keys, device=queries.device) > (at + n_keys - size)[:, None]
        scores = scores.masked_fill(ahead, -torch.inf)
    elif mask.dtype == torch.bool:
        # What the library makes by itself for a sliding window says who is seen, instead of adding
        # anything.
        scores = scores.masked_fill(~mask[..., at, :], -torch.inf)
    else:
        scores = scores + mask[..., at, :]
    return scores.softmax(-1).mean(1)
