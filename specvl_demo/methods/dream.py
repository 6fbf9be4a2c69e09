"""DREAM (Hu et al., arXiv 2505.19201): block, gated cross-attention to the target's features, block, norm.

Given the target's last hidden states, which come out of forwards that are made anyway, and its attention over
the prompt, drafts from token embeddings; what the target knows enters by cross-attention alone. Query i is
token i: it sees features of tokens before i and predicts feature i, hence token i + 1; a drafted row sees its
ancestors' predictions in their place.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo.core.prefix_cache import new_columns
from specvl_demo.core.tree import chain
from specvl_demo.core.types import NOTHING, Capture, Decoder, Start
from specvl_demo.decoders.backend import Backend, ForwardInput
from specvl_demo.decoders.draft_vocabulary import narrowed
from specvl_demo.decoders.kv_cache import KVCache, Layout
from specvl_demo.decoders.sequence import CachedSequence, Prefix, grown
from specvl_demo.methods.ar import STRICT
from specvl_demo.methods.base import TREE, Method, Models, Part, register
from specvl_demo.methods.chain import CHAIN
from specvl_demo.methods.declare import Learn, ModelSettings, setting
from specvl_demo.methods.eagle2 import BEST_FIRST
from specvl_demo.methods.heads.blocks import POSITIONS, Block, CrossBlock, Rotary, direction, root_of
from specvl_demo.methods.heads.checkpoints import BLOCK, FIRST, Format, Head, add_format
from specvl_demo.methods.heads.features import (
    IMPORTANCE_ROWS,
    HeadDrafter,
    log_probabilities,
    prompt_embeds,
    speaker,
    trained,
)
from specvl_demo.methods.tree import STATIC_TREE

PAPER_KEEP = 0.75
"""Share of the visual tokens that are kept (DREAM §3.3)."""


@dataclass(frozen=True)
class DreamSettings(ModelSettings):
    """What the head looks at."""

    keep: float = setting(
        0.0,
        "share of the visual tokens it looks at, those the target attends to most; 1: all, "
        "0: as the head was trained, or the paper's 0.75 where it does not say",
        0.0,
        1.0,
    )
    ancestry: bool = setting(True, "branches of a tree are apart in cross-attention; false: as published")


class DreamHead:
    """The weights of a DREAM head. Shared by lanes, never changed."""

    def __init__(self, head: Head, decoder: Decoder) -> None:
        g, t = head.geometry, head.tensors
        self.name, self.decoder, self.geometry = head.source, decoder, g
        self.speaks, self.remarks = speaker(t, decoder), head.remarks
        self.width, self.dtype = g.width, decoder.dtype
        self.rotary = Rotary(g, decoder.device)
        self.first, self.last = Block(t, "layers.0", g), Block(t, "layers.2", g)
        self.cross = CrossBlock(t, "layers.1", g)
        self._norm, self._eps = t["norm.weight"] * g.width**0.5, root_of(g, t["norm.weight"])
        # choice: ours say what they were trained with; of published ones the paper does, though their code
        # leaves compression out (the preset `published-code`).
        self.keep: float = head.own.get("keep", PAPER_KEEP)
        self.visual_scale: float = head.own.get("visual_scale", 1.0)

    @property
    def device(self) -> torch.device:
        """Where its weights are now: a ZeroGPU Space moves them after loading."""
        return self.decoder.device

    def narrow(self, size: int, commonest: Sequence[int]) -> None:
        """Say `size` ids from now on: the first of its draft vocabulary, or of the commonest."""
        self.speaks = narrowed(self.speaks, size, commonest)

    def new_cache(self, n_layers: int, room: int) -> KVCache:
        """An empty cache for one sequence."""
        g = self.geometry
        return KVCache([Layout(self.device, g.kv_heads, g.head_width)] * n_layers, 1, room, self.dtype)

    def normed(self, x: Tensor) -> Tensor:
        """The final norm [k, D] -> [k, D]."""
        return direction(x, self._eps).mul_(self._norm)


class _Lane:
    """One lane's head: a backend of `targets.stream` that also keeps the keys and values of features.

    Features of decided tokens come first, then for every drafted row its parent's prediction, so that rows of
    the cross cache behind `known` and drafted rows of the stream correspond one to one.
    """

    window: int | None = None

    def __init__(self, head: DreamHead, features: KVCache, ancestry: bool) -> None:
        self.head, self.ancestry = head, ancestry
        self.width, self.n_layers, self.vocab = head.width, 2, head.decoder.vocab
        self.dtype, self.device = head.dtype, head.device
        self.features = features
        self.known = features.length

    def copy(self, room: int, known: int) -> _Lane:
        """The first decided tokens' features in a cache of their own."""
        return _Lane(self.head, self.features.copy(room, known), self.ancestry)

    def update(self, features: Tensor) -> None:
        """Add features of decided tokens [r, D]; drafted ones are forgotten."""
        self.features.truncate(self.known)
        self._write(features)
        self.known = self.features.length

    def guess(self, features: Tensor) -> None:
        """Add the parents' predictions [k, D] for k rows that are about to be drafted."""
        self._write(features)

    def forward(self, call: ForwardInput, cross_mask: Tensor | None = None) -> Tensor:
        """Predicted features [1, T, D]. Drafted rows carry the ancestor mask of the stream, the others get
        theirs from the caller."""
        head, x, size = self.head, call.x[0], call.x.shape[1]
        n_drafted = self.features.length - self.known
        if n_drafted:
            cross_mask = self._drafted_mask(call, n_drafted)
        elif cross_mask is None and size > 1:
            cross_mask = chain(size - 1).additive(self.known - size, self.dtype, self.device)
        turns = head.rotary(call.positions[..., 0, :])
        causal = call.mask is None and size > 1
        slots, keys, values = call.cache.spans(size)
        _, features_k, features_v = self.features.spans(0)
        x = head.first(x, x, turns, slots[0], keys[0], values[0], call.mask, causal)
        x = head.cross(x, features_k[0], features_v[0], cross_mask)
        x = head.last(head.last.normed(x), x, turns, slots[1], keys[1], values[1], call.mask, causal)
        call.cache.advance(size)
        return head.normed(x)[None]

    def _drafted_mask(self, call: ForwardInput, n_drafted: int) -> Tensor | None:
        """[k, features]: all known ones, and of the drafted ones those along the row's own path.

        The published code has no tree mask here: a row sees all earlier levels and the rows of its own level
        up to itself. Drafts stay lossless either way.
        """
        size = call.x.shape[1]
        if not self.ancestry:
            if size == 1:
                return None
            return chain(size - 1).additive(self.features.length - size, self.dtype, self.device)
        # The stream's columns end with the root and the drafted rows; all see the root.
        return None if call.mask is None else F.pad(call.mask[:, -n_drafted:], (self.known, 0))

    def _write(self, features: Tensor) -> None:
        slots, _, _ = self.features.spans(features.shape[0])
        self.head.cross.write(features, slots[0])
        self.features.advance(features.shape[0])


class DreamDrafter(HeadDrafter):
    """A `core.types.Drafter` over a DREAM head."""

    def __init__(self, head: DreamHead, settings: DreamSettings | None = None) -> None:
        settings = settings or DreamSettings()
        self.name = head.name
        self._head, self._ancestry = head, settings.ancestry
        self._keep = settings.keep or head.keep
        self.capture: Capture = NOTHING
        if self._keep < 1.0:
            # choice: the paper sums over all queries; the last rows bound the cost for long prompts.
            rows = tuple(range(-IMPORTANCE_ROWS, 0))
            self.capture = Capture(attention=(head.decoder.n_layers - 1,), rows=rows)

    def begin(self, start: Start) -> None:
        """Prefill: queries are the kept tokens' embeddings, keys and values come from all features; of both
        only what is new to it."""
        head = self._head
        room = start.prefill.hidden.shape[0] + start.max_new_tokens + start.max_nodes
        if room >= POSITIONS:
            raise ValueError(f"{self.name} counts to {POSITIONS} positions, this request needs {room}")
        self._lane, stream, seen = self._again(start, room) or self._afresh(start, room)
        self._open(start, head, stream, seen)

    def _afresh(self, start: Start, room: int) -> tuple[_Lane, CachedSequence, Tensor]:
        head, encoded, hidden = self._head, start.encoded, start.prefill.hidden
        importance = None
        if self._keep < 1.0:
            importance = start.prefill.attention[head.decoder.n_layers - 1].sum(0)
        seen = compressed(encoded.visual[:-1], importance, self._keep)
        lane = _Lane(head, head.new_cache(1, room), self._ancestry)
        lane.update(hidden)
        # choice: positions are compact, as the published code counts what it fed.
        cache = head.new_cache(2, room)
        positions = torch.arange(len(seen), device=head.device)
        later = torch.arange(hidden.shape[0], device=head.device) >= seen[:, None]
        low = torch.finfo(head.dtype).min
        # The first query sees nothing; equal scores make it see everything alike, as in training.
        cross_mask = torch.zeros(later.shape, dtype=head.dtype, device=head.device).masked_fill_(later, low)
        x = prompt_embeds(encoded, head.visual_scale)[seen]
        lane.forward(ForwardInput(x[None], positions[None], cache), cross_mask)
        return lane, CachedSequence(cast("Backend", lane), cache, positions[-1:] + 1), seen

    def _again(self, start: Start, room: int) -> tuple[_Lane, CachedSequence, Tensor] | None:
        """The same behind the rows that were kept; None where there are none that hold.

        # choice: the visual tokens that the first question chose stay; choosing anew would cost all rows.
        """
        encoded, hidden = start.encoded, start.prefill.hidden
        cached = None if start.prompt.cache is None else start.prompt.cache.get(self._key)
        if cached is None:
            return None
        prefix, chosen, lane = cached
        chosen = chosen[chosen < hidden.shape[0]]
        text = torch.arange(int(chosen[-1]) + 1, hidden.shape[0], device=chosen.device)
        seen = torch.cat((chosen, text))
        new = new_columns(prefix.keys, [encoded.context(self.name, seen)])
        if new is None:
            return None
        lane = lane.copy(room, hidden.shape[0] - new)
        # Every query sees the features of tokens before it: the last one comes after the last query.
        lane.update(hidden[-new:-1])
        x = encoded.embeds[None, -new - 1 : -1]
        stream, _ = grown(prefix.stream, room, len(seen) - new, x, backend=lane)
        lane.update(hidden[-1:])
        return lane, stream, seen

    @property
    def _key(self) -> Hashable:
        return self._head, self._keep, self._ancestry

    def _kept(self, prefix: Prefix) -> Any:
        """The known rows, which prompt positions they stand for, and the features that they see."""
        return prefix, self._seen, self._lane.copy(self._lane.known, self._lane.known)

    def seen(self) -> Mapping[str, Tensor]:
        """The prompt positions among its queries."""
        return {"full" if self._keep == 1.0 else "compressed": self._seen}

    def _known_rows(self, embeds: Tensor) -> Tensor:
        return embeds

    def _drafted_rows(self, embeds: Tensor, parents: Tensor | slice) -> Tensor:
        self._lane.guess(self._own[parents])
        return embeds

    def _learn(self, known: Tensor, drafted: bool) -> None:
        self._lane.update(known)

    def _say(self, hidden: Tensor) -> Tensor:
        return log_probabilities(self._head.speaks, hidden, self._size, self._banned)


def compressed(visual: Tensor, importance: Tensor | None, keep: float) -> Tensor:
    """Positions left [c] int64, ascending: all text and the share `keep` of the visual ones that matter most.

    visual [P] bool; importance [P]: attention a position was given (DREAM §3.3).
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


def _drafter(models: Models, views: Any, mixer: Any, settings: DreamSettings) -> DreamDrafter:
    return DreamDrafter(trained(models, "dream", settings.draft_vocab), settings)


_CROSS = (
    {f"cross_attn.{name}_proj.weight" for name in "qkvo"}
    | {f"cross_attn.{name}_norm.weight" for name in "qk"}
    | {"input_layernorm.weight", "cross_attn_attn_gate", "cross_attn_mlp_gate"}
    | {name for name in BLOCK if not name.startswith("self_attn")}
)

add_format(
    Format(
        "dream",
        "a DREAM head",
        "dream",
        DreamHead,
        lambda tensors: "layers.1.cross_attn.q_proj.weight" in tensors,
        FIRST
        | {f"layers.1.{name}" for name in _CROSS}
        | {f"layers.2.{name}" for name in (*BLOCK, "input_layernorm.weight")}
        | {"norm.weight"},
        optional=frozenset(),
    )
)

DREAM = Part("drafter", "dream", "DREAM head", _drafter, DreamSettings, gives=TREE, role="dream")

register(
    Method(
        "dream",
        "DREAM",
        "Three blocks; the middle one looks up the target's features of everything said and seen.",
        drafter=DREAM,
        policy=BEST_FIRST,
        verifier=STRICT,
        reference="Hu et al., arXiv 2505.19201",
        # choice: the paper's depth 6 counts the first level, as EAGLE-2's does; its code runs as many loops.
        defaults={"nodes": 32, "width": 4, "loops": 5},
        options=(CHAIN, STATIC_TREE, "entropy-tree"),
        presets={
            "paper": {},
            "published-code": {"nodes": 60, "width": 4, "loops": 8, "keep": 1.0, "ancestry": False},
            "photo": {"policy": "chain", "gamma": 3},
            "pocket": {"policy": "chain", "gamma": 10},
            "pocket-tree": {"nodes": 10, "width": 2, "loops": 5},
        },
        order=100,
        learn=Learn(
            does="A head of three blocks; the middle one looks across at the target’s features of "
            "everything said and seen, over the visual tokens the target found worth attending to.",
            shines="Long answers about one picture: it can look again at any time.",
            struggles="Its three blocks cost more than one; short answers do not pay them back.",
            look="Which patches stay after compression, and how acceptance falls when the cross-attention "
            "is taken away.",
            formula=(
                [
                    [
                        "L",
                        "=",
                        "0.2",
                        ["sub", "L", "out"],
                        "+",
                        "0.2",
                        ["sub", "L", "mid"],
                        "+",
                        "KL",
                        "(",
                        "p",
                        "‖",
                        "q",
                        ")",
                    ]
                ],
                "trained on output features, intermediate features and the divergence of the distributions",
            ),
            url="https://arxiv.org/abs/2505.19201",
            published=("3.06×", "mean at temperature 0; LLaVA-1.6 7B, trained drafter"),
        ),
    )
)
