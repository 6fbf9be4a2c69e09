"""DFlash (arXiv 2602.06036): a block of tokens drafted in one forward.

A few layers read the root and the masks after it, all at once. In every layer, the target's states
of the text before the root serve as further keys and values. The distribution of a drafted token
does not depend on the drafted tokens before it: a chain takes the likeliest token of each; a tree
takes several of each, as in Ringel and Romano (DDTree, arXiv 2604.12989).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.sampling import Level, top_k
from specvl_demo.core.transfer import as_index, take_rows
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Drafter, LaneStart, LevelRequest, Scores, Seen, Verdict
from specvl_demo.decoders.attention import pair_rotary
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.graphs import step_shapes
from specvl_demo.decoders.kv_cache import KVCache
from specvl_demo.decoders.packed_linear import PackedLinear
from specvl_demo.methods.base import Method, register
from specvl_demo.methods.heads.blocks import (
    DecoderBlock,
    norm_heads,
    norm_root,
    rotate,
    stack_layers,
    unit_rows,
)
from specvl_demo.methods.heads.checkpoints import BLOCK, Head, HeadFormat
from specvl_demo.methods.heads.features import TrainedHead, head_part
from specvl_demo.methods.heads.files import layer_numbers
from specvl_demo.methods.policies import BEST_FIRST, CHAIN, STATIC_TREE
from specvl_demo.records import JsonObject

NORMS = {
    "self_attn.q_norm.weight": "H",
    "self_attn.k_norm.weight": "H",
    "input_layernorm.weight": "D",
}


def layers_read(config: JsonObject, source: str) -> tuple[int, ...]:
    """Return the layers whose inputs a head reads; empty if its config names none.

    `dflash_config.target_layer_ids` numbers layers by their outputs, as z-lab's code does;
    speculators' `aux_hidden_state_layer_ids` numbers them by their inputs.
    """
    inputs = config.get("aux_hidden_state_layer_ids")
    if inputs is not None:
        return layer_numbers(inputs, source)
    outputs = config.get("dflash_config", {}).get("target_layer_ids", ())
    return tuple(i + 1 for i in layer_numbers(outputs, source))


class AttentionReach(NamedTuple):
    """Which rows a layer's rows attend to: the last `window` up to themselves (None: all); rows of
    the block after them too, unless it is causal.
    """

    window: int | None
    causal: bool

    def mask(self, size: int, n: int, like: Tensor) -> Tensor:
        """Return the additive mask [size, n] of the last `size` of n rows."""
        at = torch.arange(n, device=like.device)
        rows = at[-size:, None]
        hidden = (at > rows) & self.causal
        if self.window is not None:
            hidden |= at <= rows - self.window
        return like.new_zeros(size, n).masked_fill_(hidden, -torch.inf)


def reaches(config: JsonObject, n_layers: int, source: str) -> list[AttentionReach]:
    """Return what each layer attends to, by the published settings.

    Either `layer_types` names the layers with a `sliding_window`, or `dflash_config.use_swa` gives
    all of them one of `swa_window_size` (Model-Optimizer). Layers with a window are causal unless
    the config says otherwise, the others are not, as in the authors' code for MLX, in speculators
    (`sliding_window_non_causal`) and in SGLang.
    """
    section = config.get("dflash_config") or {}
    kinds = config.get("layer_types") or ["full_attention"] * n_layers
    windowed = [kind == "sliding_attention" or bool(section.get("use_swa")) for kind in kinds]
    window = (
        section.get("swa_window_size") if section.get("use_swa") else config.get("sliding_window")
    )
    if len(kinds) < n_layers or (any(windowed[:n_layers]) and not window):
        raise ValueError(
            f"the config.json of {source} must name a kind for each of its {n_layers} layers in"
            " layer_types, and a sliding_window if one of them has it"
        )
    causal_setting = section.get("causal", config.get("is_causal"))
    bent = not config.get("sliding_window_non_causal", False)
    return [
        AttentionReach(
            int(window or 0) if slides else None,
            bool(causal_setting) if causal_setting is not None else slides and bent,
        )
        for slides in windowed[:n_layers]
    ]


class DflashHead(TrainedHead):
    """The weights of a DFlash head.

    # choice: positions are counted along the text, as published, even if the target has three axes.
    """

    def __init__(self, head: Head, decoder: LanguageBackend) -> None:
        super().__init__(head, decoder)
        g = head.geometry
        t = head.tensors
        config = head.settings
        self._fuse_layers(layers_read(config, head.source), t["fc.weight"])
        mask = {**config, **config.get("dflash_config", {})}.get("mask_token_id")
        self.block = int(config.get("block_size") or 0)
        if mask is None or not 0 <= mask < decoder.vocab or self.block < 2:
            raise ValueError(
                f"the config.json of {head.source} must have block_size and a mask_token_id below"
                f" {decoder.vocab}"
            )
        self._mask = self.embed(torch.tensor([mask] * (self.block - 1), device=decoder.device))
        n = 1 + max(int(name.split(".")[1]) for name in t if name.startswith("layers."))
        self._layers = [DecoderBlock(t, f"layers.{i}", g) for i in range(n)]
        self._reaches = reaches(config, n, head.source)
        self.n_layers = n
        attention = [f"layers.{i}.self_attn." for i in range(n)]
        keys = [pair_rotary(t[f"{each}k_proj.weight"], g.head_width) for each in attention]
        values = [t[f"{each}v_proj.weight"] for each in attention]
        scale = g.width**0.5
        self._keys_values = PackedLinear(
            torch.cat(keys + values) * (t["hidden_norm.weight"] * scale), bits=8
        )
        head_norms = [layer.parts.head_norm for layer in self._layers]
        self._key_norms = torch.cat([norm[g.heads :] for norm in head_norms if norm is not None])
        self.window = max(reach.window or 0 for reach in self._reaches) or None
        self._eps = norm_root(g, t["norm.weight"])
        self._head_eps = norm_root(g, self._eps, g.head_width)
        self._norm = t["norm.weight"] * scale
        self._stack = None
        if len({*self._reaches}) == 1:  # they share one mask
            self._stack = stack_layers([layer.parts for layer in self._layers], g, self._norm)

    def new_drafter(self) -> BlockDrafter:
        return BlockDrafter(self)

    def append_rows(self, cache: KVCache, states: Tensor) -> None:
        """Append committed rows, of which every layer has keys and values."""
        g = self._geometry
        n = len(states)
        rows = unit_rows(self._fuse(states), self._eps)
        made = self._keys_values(rows).view(n, 2, -1, g.head_width)
        keys, values = made.unbind(1)
        norm_heads(keys, self._key_norms, self._head_eps)
        rotate(keys, self._rotary(torch.arange(cache.length, cache.length + n, device=self.device)))
        # Of every layer [2, kv_heads, n, head_width].
        for slot, rows in zip(cache.kv_slots(n).slots, made.split(g.kv_heads, 2)):
            slot[:, 0].copy_(rows.permute(1, 2, 0, 3))
        cache.advance(n)

    def draft(self, cache: KVCache, root: Tensor) -> Tensor:
        """Return the states after the root [1] and after each unknown token [block - 1, D]."""
        x = torch.cat((self.embed(root), self._mask))
        first = cache.length
        end = first + self.block
        # By kind of layer: with a window, without one.
        masks = {r.window is None: r.mask(self.block, end, x) for r in {*self._reaches}}
        at = torch.arange(first, end, device=self.device)[None]
        call = ForwardInput(x[None], at, cache, mask=masks.get(True), second_mask=masks.get(False))
        hidden = self.forward(call)
        cache.truncate(first)
        return hidden[0, 1:]

    def decode(self, call: ForwardInput) -> Tensor:
        """Return the states after all rows [1, T, D]; without a mask they see each other."""
        x = call.x[0]
        rotation = self._rotary(call.positions[..., 0, :])
        if self._stack is not None and not self.fixed:
            mask = call.mask if self.window is None else call.second_mask
            return self._stack.decode(x, rotation, call.cache, mask)
        spans = zip(self._layers, self._reaches, *call.cache.kv_slots(len(x)))
        for layer, reach, slot, keys, values in spans:
            mask = call.mask if reach.window is None else call.second_mask
            x = layer(layer.normed(x), x, rotation, slot, keys, values, mask)
        return (unit_rows(x, self._eps) * self._norm)[None]


class BlockDrafter(Drafter):
    """Drafts with a DFlash head: a round's first `extend` drafts the block, later ones read it."""

    def __init__(self, head: DflashHead) -> None:
        self.name = head.name
        self.aux_request = head.aux_request
        self._head = head

    def begin(self, start: LaneStart) -> None:
        """Read the prompt."""
        head = self._head
        states = head.layer_states(start.prefill)
        room = len(states) + 1 + start.max_new_tokens + start.max_nodes + head.block
        head.require_positions(room)
        self._steps = step_shapes(head.block)[-1:]  # every block has one size
        self._cache = head.new_cache(1, room, self._steps)
        self._rows = len(states)
        weakref.finalize(self, self._cache.release).atexit = False
        self._logp = head.log_probabilities(start.vocabulary)
        head.append_rows(self._cache, states)

    def prepare(self, start: LaneStart) -> None:
        self._cache.prepare(self._steps)

    def seen_by_view(self) -> Seen:
        return {self._head.view: (torch.arange(self._rows), ())}

    def extend(self, tokens: Tensor, parents: Sequence[int]) -> Tensor | None:
        """Return None below the last token of the block."""
        if parents[0] < 0:
            self._log_probs = self._logp(self._head.draft(self._cache, tokens))
            self._depth = [0]
            return self._log_probs[:1]
        depth = [self._depth[row] + 1 for row in parents]
        self._depth += depth
        last = len(self._log_probs) - 1
        if min(depth) > last:
            return None
        at = [min(level, last) for level in depth]
        return self._log_probs[as_index(at, self._log_probs.device)]

    def draft_level(self, request: LevelRequest) -> Level | None:
        """Draft all levels of a chain at once: they are rows of one block."""
        if request.parents[0] >= 0 or request.levels == 1 or request.draws is not None:
            return super().draft_level(request)
        states = self._head.draft(self._cache, request.tokens)[: request.levels]
        self._log_probs = self._logp(states)
        self._depth = [*range(len(states))]
        return top_k(self._log_probs, request.k, None, request.depth)

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Keep the target's states of the root and the accepted tokens for the next round."""
        states = self._head.layer_states(scores)
        self._head.append_rows(self._cache, take_rows(states, verdict.path))


DFLASH = head_part(
    HeadFormat(
        "dflash",
        "a DFlash head",
        DflashHead,
        lambda tensors: {"hidden_norm.weight", "layers.0.self_attn.q_norm.weight"} <= {*tensors},
        {"fc.weight": "D S", "hidden_norm.weight": "D", "norm.weight": "D"},
        optional={"lm_head.weight": "V D", "d2t": "N", "embed_tokens.weight": "N D"},
        every_layer={**BLOCK, **NORMS},
        unused={"t2d": "*"},
        own_embeddings=True,
        windows=True,
    )
)

register(
    Method(
        "dflash",
        "DFlash",
        "A few layers draft a whole block in one forward, all tokens at once.",
        drafter=DFLASH,
        policy=CHAIN,
        reference="Chen et al., arXiv 2602.06036",
        options=(STATIC_TREE, BEST_FIRST),
        order=92,
        presets={
            # As many as a block of sixteen can draft.
            "paper": {"gamma": 15},
            "pocket": {"gamma": 9, "floor": 0.3},
            "photo": {"gamma": 9, "floor": 0.2},
        },
        url="https://arxiv.org/abs/2602.06036",
    )
)
