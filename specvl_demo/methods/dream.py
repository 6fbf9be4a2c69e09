"""DREAM (Hu et al., arXiv 2505.19201): block, cross-attention to the target's features, block.

Given the target's last hidden states, which the forwards compute anyway, and its attention over the
prompt, drafts from token embeddings; the target's features enter only by cross-attention. Query i
is token i: it attends to features of tokens before i and predicts feature i, hence token i + 1; a
drafted row attends to its ancestors' predictions instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo.core.transfer import to_device
from specvl_demo.core.tree import chain
from specvl_demo.core.types import NO_AUX, AuxRequest, Drafter, LaneStart
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.graphs import draft_shapes
from specvl_demo.decoders.kv_cache import KVSlots
from specvl_demo.decoders.layer_stack import DraftWeights
from specvl_demo.decoders.sequence import CachedSequence
from specvl_demo.methods.base import Method, register
from specvl_demo.methods.declare import Lesson, Settings, setting
from specvl_demo.methods.heads import checkpoints
from specvl_demo.methods.heads.blocks import (
    CrossAttention,
    DecoderBlock,
    Geometry,
    Tensors,
    norm_root,
    stack_layers,
    unit_rows,
)
from specvl_demo.methods.heads.features import (
    IMPORTANCE_ROWS,
    FeatureDrafter,
    FeatureHead,
    HeadPrompt,
    head_part,
)
from specvl_demo.methods.policies import BEST_FIRST, CHAIN, STATIC_TREE

PAPER_KEEP = 0.75
"""Share of the visual tokens that is kept (DREAM §3.3)."""


@dataclass(frozen=True)
class DreamSettings(Settings):
    """What the head attends to."""

    keep: float = setting(
        0.0,
        "share of the visual tokens the head reads, those the target attends to most; 1: all, 0:"
        " as trained, or the paper's 0.75 if the head does not specify it",
        0.0,
        1.0,
        title="visual tokens kept",
    )


class DreamHead(FeatureHead):
    """The weights of a DREAM head. A row is a token's embedding and the feature before it [k, 2D].

    A row of its cache holds a query's keys and values in the two blocks and, in the second layer,
    those of the feature before the query, so that features are visible wherever queries are. Visual
    tokens whose queries are left out have only features: as many holes precede the first query. No
    feature precedes the prompt's first token, so row 0 has none. With n prompt tokens before the
    root, and their features f:

        row                  0    1 ... holes-1    holes ... n-1       n          n+1 ...
        first, third block   .    .                queries that stay   the root   drafted nodes
        second block         .    f[0] ...         ... f[n-2]          f[n-1]     their parents' f
    """

    n_layers = 3
    projects = False
    has_holes = True

    def __init__(self, head: checkpoints.Head, decoder: LanguageBackend) -> None:
        super().__init__(head, decoder)
        self.input_width = 2 * self.width
        # choice: our heads store the share they were trained with. For published heads it is the
        # paper's, although their code leaves compression out (the preset `published-code`).
        self._set_keep(head.specvl.get("keep", PAPER_KEEP))

    def _make_layers(self, t: Tensors, g: Geometry) -> None:
        self._first = DecoderBlock(t, "layers.0", g)
        self._last = DecoderBlock(t, "layers.2", g)
        self._cross = CrossAttention(t, "layers.1", g)
        self._norm = t["norm.weight"] * g.width**0.5
        self._eps = norm_root(g, t["norm.weight"])
        parts = [block.parts for block in (self._first, self._cross, self._last)]
        self._stack = stack_layers(parts, g, self._norm)

    def _set_keep(self, keep: float) -> None:
        """Set the share of visual tokens to keep.

        # choice: branches of a tree are separated in cross-attention too. The published code has no
        tree mask there; drafts stay lossless either way.
        """
        self._keep = keep
        self.aux_request = NO_AUX
        self.view = "full" if keep == 1.0 else "compressed"
        if keep < 1.0:
            # choice: the paper sums over all queries; only the last rows are used, to bound the
            # cost of long prompts.
            rows = tuple(range(-IMPORTANCE_ROWS, 0))
            self.aux_request = AuxRequest(attention=(self.decoder.n_layers - 1,), rows=rows)

    def _draft_weights(self) -> DraftWeights:
        return DraftWeights(self._stack, "attended")

    def with_settings(self, settings: Any) -> DreamHead:
        configured = copy(self)
        configured._set_keep(settings.keep or self._keep)
        return configured

    def new_drafter(self) -> Drafter:
        return DreamDrafter(self)

    def cross_attention_weights(
        self, sequence: CachedSequence, rows: Sequence[int], ids: Tensor
    ) -> Tensor:
        """Return the cross-attention [k, features before the root] of rows of this round.

        Args:
            rows: A path of fed rows from the root, row 0.
            ids: [k] their tokens.
        """
        cache = sequence.cache
        start = sequence.length
        size = len(rows)
        data = cache.blocks[0]  # [layers, 2, 1, kv_heads, room, width]
        rotation = self._rotary(sequence.next_position + torch.arange(size, device=self.device))
        x = self.embed(ids)
        before = data[0, :, :, :, cache.holes : start]
        keys, values = padded = F.pad(before, (0, 0, 0, size))
        slot = padded[..., before.shape[-2] :, :]
        after = chain(size - 1)
        mask = after.mask(before.shape[-2], self.dtype, self.device)
        x = self._first(x, x, rotation, slot, keys, values, mask)
        path = to_device([start + row for row in rows], self.device)
        features = torch.cat((data[1, 0, :, :, 1:start], data[1, 0].index_select(2, path)), -2)
        mask = after.mask(start - 1, torch.float32, self.device)
        return self._cross.attention_weights(x, features, mask)[:, : start - 1]

    def read_prompt(self, start: LaneStart) -> HeadPrompt:
        """Return a row for every token that is left after compression.

        # choice: positions are compact, as the published code counts the tokens it fed.
        """
        features = start.prefill.hidden
        attention = start.prefill.attention
        importance = attention[self.decoder.n_layers - 1].sum(0) if self._keep < 1.0 else None
        seen = kept_positions(start.encoded.visual[:-1], importance, self._keep)
        x = self.join(self.prompt_embeds(start.encoded)[seen], features[seen - 1])
        positions = torch.arange(len(seen) + 1, device=self.device)
        holes = len(features) - len(seen)
        return HeadPrompt(x, positions[:-1], features[-1:], positions[-1:], seen, holes)

    def prefill(self, start: LaneStart, head_prompt: HeadPrompt, room: int) -> CachedSequence:
        """Prefill with the kept tokens' embeddings as queries, all features as keys and values."""
        cache = self.new_cache(1, room, draft_shapes(self, start))
        features = start.prefill.hidden
        n = features.shape[0]
        cache.holes = head_prompt.holes
        spans = cache.kv_slots(n + 1)
        self._cross.write_keys_values(features, spans.slots[1][..., 1:, :])
        # The first query has no keys; equal scores make it attend to all equally, as in training.
        later = torch.arange(n, device=self.device) >= head_prompt.seen[:, None]
        low = torch.finfo(self.dtype).min
        mask = torch.zeros_like(later, dtype=self.dtype).masked_fill_(later, low)
        rows = slice(cache.holes, n)
        spans = spans._replace(slots=[slot[..., rows, :] for slot in spans.slots])
        x = head_prompt.x[:, : self.width]
        self._run_blocks(x, head_prompt.positions, spans, rows, (None, mask))
        cache.advance(n)
        return CachedSequence(self, cache, head_prompt.position)

    def decode(self, call: ForwardInput) -> Tensor:
        """Return predicted features [1, T, D]; the cache is written but its length unchanged."""
        x, features = call.x[0].chunk(2, -1)
        size = x.shape[0]
        query_mask = call.second_mask
        mask = call.mask
        if self._stack is not None and not self.fixed and query_mask is mask:
            rotation = self._rotary(call.positions[..., 0, :])
            x = x.contiguous()
            return self._stack.decode(x, rotation, call.cache, mask, read=x, features=features)
        # 1. Without a mask several rows are a chain.
        if mask is None and size > 1:
            query_mask = mask = chain(size - 1).mask(call.cache.length, self.dtype, self.device)
        # 2. Features first: the nodes' own are among those that they attend to.
        spans = call.cache.kv_slots(size)
        self._cross.write_keys_values(features, spans.slots[1])
        # 3. Queries begin after the holes, which a step of fixed shape has in its mask; features at
        # row 1.
        holes = call.cache.holes if call.cache.at is None else 0
        masks = (
            None if query_mask is None else query_mask[..., holes:],
            None if mask is None else mask[..., 1:],
        )
        queries = slice(holes, None)
        return self._run_blocks(x, call.positions[..., 0, :], spans, queries, masks)[None]

    def _run_blocks(
        self,
        x: Tensor,
        positions: Tensor,
        spans: KVSlots,
        queries: slice,
        masks: tuple[Tensor | None, Tensor | None],
    ) -> Tensor:
        """Apply the blocks to x [k, D] -> [k, D].

        Args:
            queries: Rows of queries in the cache.
            masks: Over queries, None if there are many and causal; over features.
        """
        slots = spans.slots
        places = queries, slice(1, None), queries
        keys, values = (
            [rows[..., place, :] for rows, place in zip(part, places)] for part in spans[1:]
        )
        query_mask, mask = masks
        rotation = self._rotary(positions)
        causal = query_mask is None and x.shape[0] > 1
        x = self._first(x, x, rotation, slots[0], keys[0], values[0], query_mask, causal)
        x = self._cross(x, keys[1], values[1], mask)
        x = self._last(
            self._last.normed(x), x, rotation, slots[2], keys[2], values[2], query_mask, causal
        )
        return unit_rows(x, self._eps).mul_(self._norm)


class DreamDrafter(FeatureDrafter):
    """A drafter that can tell where its head looks."""

    _head: DreamHead

    def attention_to_prompt(self, rows: Sequence[int], tokens: Tensor) -> Tensor:
        return self._head.cross_attention_weights(self._sequence, rows, tokens)


def kept_positions(visual: Tensor, importance: Tensor | None, keep: float) -> Tensor:
    """Return the remaining positions [c] int64, ascending: all text and the share `keep` of the
    most important visual ones.

    Args:
        visual: [P] bool.
        importance: [P] attention that each position received (DREAM §3.3).
    """
    every = torch.arange(visual.shape[0], device=visual.device)
    n_visual = int(visual.sum())
    if importance is None or keep >= 1.0 or n_visual == 0:
        return every
    stays = max(1, int(n_visual * keep + 1e-6))
    best = importance.masked_fill(~visual, -torch.inf).topk(stays).indices
    left = ~visual
    left[best] = True
    return every[left]


_CROSS = {
    **checkpoints.attention_shapes("cross_attn"),
    "cross_attn.q_norm.weight": "H",
    "cross_attn.k_norm.weight": "H",
    "cross_attn_attn_gate": "1",
    "cross_attn_mlp_gate": "1",
    "input_layernorm.weight": "D",
    **checkpoints.MLP,
}

DREAM = head_part(
    checkpoints.HeadFormat(
        "dream",
        "a DREAM head",
        DreamHead,
        lambda tensors: "layers.1.cross_attn.q_proj.weight" in tensors,
        {
            **checkpoints.FIRST,
            **checkpoints.in_layer(1, _CROSS),
            **checkpoints.in_layer(2, {**checkpoints.BLOCK, "input_layernorm.weight": "D"}),
            "norm.weight": "D",
        },
        optional={},
    ),
    DreamSettings,
)

register(
    Method(
        "dream",
        "DREAM",
        "Three blocks; the middle one attends to the target’s features of text and pictures.",
        drafter=DREAM,
        policy=BEST_FIRST,
        reference="Hu et al., arXiv 2505.19201",
        # choice: the paper's depth 6 counts the first level, as EAGLE-2's does; its code runs as
        # many loops.
        defaults={"nodes": 32, "width": 4, "loops": 5},
        options=(CHAIN, STATIC_TREE, "entropy-tree"),
        presets={
            "paper": {},
            "published-code": {"nodes": 60, "width": 4, "loops": 8, "keep": 1.0},
            "photo": {"policy": "chain", "gamma": 10, "floor": 0.1},
            "pocket": {"policy": "chain", "gamma": 7, "floor": 0.3},
            "pocket-tree": {"nodes": 10, "width": 2, "loops": 5},
        },
        order=100,
        listed="paper",
        offered=4,
        url="https://arxiv.org/abs/2505.19201",
        learn=Lesson(
            does="""A head of three blocks. The middle one attends to the target’s features of all
            text so far and of the visual tokens that the target attended to most.""",
            look="""Where it looked: the patches that its cross-attention took as it guessed a
            token. What it saw: those that compression left it. EAGLE-2 has no cross-attention:
            race the two.""",
            formula=r"L = 0.2 L_out + 0.2 L_mid + KL ( p ‖ q )",
            aloud="""What training makes small, L: how far the head’s last and middle features are
            from the target’s, and the divergence KL of its probabilities q from the target’s p.""",
        ),
    )
)
