"""DFlash (arXiv 2602.06036): a block of tokens drafted in one forward.

A few layers read the root and the masks after it, all at once. In every layer, the target's states
of the text before the root serve as further keys and values. The distribution of a drafted token
does not depend on the drafted tokens before it: a chain takes the likeliest token of each; a tree
takes several of each, as in Ringel and Romano (DDTree, arXiv 2604.12989).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.sampling import Level, top_k
from specvl_demo.core.transfer import take_rows
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Drafter, LaneStart, LevelRequest, Scores, Verdict
from specvl_demo.decoders.attention import attend, pair_rotary
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.graphs import step_shapes
from specvl_demo.decoders.kv_cache import KVCache
from specvl_demo.decoders.packed_linear import PackedLinear
from specvl_demo.methods.base import Method, register
from specvl_demo.methods.heads.blocks import MLP, POSITIONS, Geometry, norm_root, rotate, unit_rows
from specvl_demo.methods.heads.checkpoints import BLOCK, Head, HeadFormat
from specvl_demo.methods.heads.features import TrainedHead, as_index, head_part
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

    window: int | None = None
    causal: bool = False

    def mask(self, size: int, n: int, like: Tensor) -> Tensor | None:
        """Return the additive mask [size, n] of the last `size` of n rows; None if all are seen."""
        if not self.causal and (self.window is None or n <= self.window):
            return None
        at = torch.arange(n, device=like.device)
        rows = at[-size:, None]
        hidden = (at > rows) if self.causal else torch.zeros_like(rows > at)
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


class InjectedLayer:
    """A Qwen3-type layer whose rows also attend to rows that have only keys and values."""

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str, g: Geometry) -> None:
        attention = f"{prefix}.self_attn."
        scale = g.width**0.5
        self._geometry, self._eps = g, norm_root(g, tensors[f"{attention}q_proj.weight"])
        self._head_eps = self._eps.new_tensor((g.head_width * g.eps) ** 0.5)

        def paired(name: str) -> Tensor:
            return pair_rotary(tensors[f"{attention}{name}.weight"], g.head_width)

        keys_values = torch.cat((paired("k_proj"), tensors[f"{attention}v_proj.weight"]))
        first = tensors[f"{prefix}.input_layernorm.weight"] * scale
        self._qkv = PackedLinear(torch.cat((paired("q_proj"), keys_values)) * first, bits=8)
        self._kv = PackedLinear(keys_values * (tensors["hidden_norm.weight"] * scale), bits=8)
        q, k = (paired(f"{name}_norm") * g.head_width**0.5 for name in "qk")
        self._norms = torch.stack([q] * g.heads + [k] * g.kv_heads)
        self._out = PackedLinear(tensors[f"{attention}o_proj.weight"], bits=8)
        self._mlp = MLP(tensors, prefix, self._eps, scale)

    def write_keys_values(self, states: Tensor, rotation: Tensor, slot: Tensor) -> None:
        """Write keys and values of known rows into slot [2, 1, kv_heads, r, width].

        states: Normalized to unit length [r, D].
        """
        g = self._geometry
        kv = self._kv(states).view(len(states), 2 * g.kv_heads, g.head_width)
        slot[0].copy_(self._norm_and_rotate(kv[:, : g.kv_heads], self._norms[g.heads :], rotation))
        slot[1].copy_(kv[:, g.kv_heads :].transpose(0, 1))

    def __call__(
        self,
        x: Tensor,
        rotation: Tensor,
        slot: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """Return [k, D] for x [k, D]; rows attend to all keys and values, the slot's too, but for
        what the mask hides.
        """
        g = self._geometry
        rows = x.shape[0]
        h = self._qkv(unit_rows(x, self._eps)).view(rows, -1, g.head_width)
        rotated = self._norm_and_rotate(h[:, : g.heads + g.kv_heads], self._norms, rotation)
        fresh = rotated[g.heads :], h[:, g.heads + g.kv_heads :].transpose(0, 1)
        slot.copy_(torch.stack(fresh)[:, None])
        x = self._out(attend(rotated[None, : g.heads], keys, values, mask), x)
        return self._mlp(x, x)

    def _norm_and_rotate(self, h: Tensor, norms: Tensor, rotation: Tensor) -> Tensor:
        """Norm and rotate rows [k, heads, width] -> [heads, k, width]."""
        h = unit_rows(h, self._head_eps).mul_(norms)
        rotate(h, rotation)
        return h.transpose(0, 1)


class DflashHead(TrainedHead):
    """The weights of a DFlash head.

    # choice: positions are counted along the text, as published, even if the target has three axes.
    """

    def __init__(self, head: Head, decoder: LanguageBackend) -> None:
        super().__init__(head, decoder)
        g = head.geometry
        t = head.tensors
        config = head.settings
        self._set_layers_read(layers_read(config, head.source), t["fc.weight"])
        mask = {**config, **config.get("dflash_config", {})}.get("mask_token_id")
        self.block = int(config.get("block_size") or 0)
        if mask is None or not 0 <= mask < decoder.vocab or self.block < 2:
            raise ValueError(
                f"the config.json of {head.source} must have block_size and a mask_token_id below"
                f" {decoder.vocab}"
            )
        self._mask = self.embed(torch.tensor([mask] * (self.block - 1), device=decoder.device))
        self._fuse = PackedLinear(t["fc.weight"], bits=8)
        n = 1 + max(int(name.split(".")[1]) for name in t if name.startswith("layers."))
        self._layers = [InjectedLayer(t, f"layers.{i}", g) for i in range(n)]
        self._reaches = reaches(config, n, head.source)
        self.n_layers = n
        self.window = max((reach.window or 0 for reach in self._reaches), default=0) or None
        self._eps = norm_root(g, t["norm.weight"])
        self._norm = t["norm.weight"] * g.width**0.5

    def new_drafter(self) -> BlockDrafter:
        return BlockDrafter(self)

    def append_rows(self, cache: KVCache, states: Tensor) -> None:
        """Append committed rows."""
        rows = unit_rows(self._fuse(states), self._eps)
        at = torch.arange(cache.length, cache.length + len(rows), device=self.device)
        rotation, (slots, _, _) = self._rotary(at), cache.kv_slots(len(rows))
        for layer, slot in zip(self._layers, slots, strict=True):
            layer.write_keys_values(rows, rotation, slot)
        cache.advance(len(rows))

    def draft(self, cache: KVCache, root: Tensor) -> Tensor:
        """Return the states after the root [1] and after each unknown token [block - 1, D]."""
        x = torch.cat((self.embed(root), self._mask))
        first = cache.length
        end = first + self.block
        # By kind of layer: without a window, with one.
        by_kind = {reach.window is None: reach for reach in self._reaches}
        mask, window_mask = (
            by_kind[kind].mask(self.block, end, x) if kind in by_kind else None
            for kind in (True, False)
        )
        if mask is None and self.fixed:
            mask = x.new_zeros(self.block, end)
        at = torch.arange(first, end, device=self.device)[None]
        hidden = self.forward(ForwardInput(x[None], at, cache, mask=mask, window_mask=window_mask))
        cache.truncate(first)
        return hidden[0, 1:]

    def decode(self, call: ForwardInput) -> Tensor:
        """Return the states after all rows [1, T, D]; without a mask they see each other."""
        x = call.x[0]
        rotation = self._rotary(call.positions[..., 0, :])
        spans = zip(self._layers, self._reaches, *call.cache.kv_slots(len(x)), strict=True)
        for layer, reach, slot, keys, values in spans:
            mask = call.mask if reach.window is None else call.window_mask
            x = layer(x, rotation, slot, keys, values, mask)
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
        if room >= POSITIONS:
            raise ValueError(f"{self.name} supports {POSITIONS} positions; this request needs more")
        self._steps = step_shapes(head.block)[-1:]  # every block has one size
        self._cache, self._rows = head.new_cache(1, room, self._steps), len(states)
        weakref.finalize(self, self._cache.release).atexit = False
        self._logp = head.log_probabilities(start.vocabulary.size, start.vocabulary.banned)
        self._pending = states
        self._depth = [0]

    def prepare(self, start: LaneStart) -> None:
        self._cache.prepare(self._steps)

    def seen_by_view(self) -> Mapping[str, tuple[Tensor, Sequence[int]]]:
        return {self._head.view: (torch.arange(self._rows), ())}

    def extend(self, tokens: Tensor, parents: Sequence[int]) -> Tensor | None:
        """Return None below the last token of the block."""
        if parents[0] < 0:
            if len(self._pending):
                self._head.append_rows(self._cache, self._pending)
                self._pending = self._pending[:0]
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
        self.extend(request.tokens, request.parents)
        log_probs = self._log_probs[: request.levels]
        self._depth = [*range(len(log_probs))]
        return top_k(log_probs, request.k, None, request.depth)

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Keep the target's states of the root and the accepted tokens for the next round."""
        new = take_rows(self._head.layer_states(scores), verdict.path)
        self._pending = torch.cat((self._pending, new)) if len(self._pending) else new


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
            "pocket": {"gamma": 9},
            "photo": {"gamma": 9, "floor": 0.2},
        },
        url="https://arxiv.org/abs/2602.06036",
    )
)
