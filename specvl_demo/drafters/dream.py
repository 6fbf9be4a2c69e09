"""DREAM's head (arXiv 2505.19201): block, gated cross-attention to the target's features, block, norm.

Given the target's last hidden states, which come out of forwards that are made anyway, and its attention over
the prompt, drafts from token embeddings; what the target knows enters by cross-attention alone. Query i is
token i: it sees features of tokens before i and predicts feature i, hence token i + 1; a drafted row sees its
ancestors' predictions in their place. Knows no tree policy and no acceptance rule.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo.core.cache import KVCache
from specvl_demo.core.memory import behind
from specvl_demo.core.tree import chain
from specvl_demo.core.types import NOTHING, Capture, Decoder, Drafted, Start
from specvl_demo.drafters.blocks import POSITIONS, Block, CrossBlock, Rotary, direction, root_of
from specvl_demo.drafters.checkpoints import Head
from specvl_demo.drafters.features import HeadDrafter, log_probabilities, prompt_embeds
from specvl_demo.targets import followup
from specvl_demo.targets.decoder import Call
from specvl_demo.targets.stream import Stream

PAPER_KEEP = 0.75
"""Share of the visual tokens that are kept (DREAM §3.3)."""
IMPORTANCE_ROWS = 64
"""How many of the prompt's last rows vote on which visual tokens matter."""


class DreamHead:
    """The weights of a DREAM head. Shared by lanes, never changed."""

    def __init__(self, head: Head, decoder: Decoder) -> None:
        g, t = head.geometry, head.tensors
        self.name, self.decoder, self.geometry = head.source, decoder, g
        self.width, self.dtype, self.device = g.width, decoder.dtype, decoder.device
        self.rotary = Rotary(g, decoder.device)
        self.first, self.last = Block(t, "layers.0", g), Block(t, "layers.2", g)
        self.cross = CrossBlock(t, "layers.1", g)
        self._norm, self._eps = t["norm.weight"] * g.width**0.5, root_of(g, t["norm.weight"])
        # choice: ours say what they were trained with; of published ones the paper does, though their code
        # leaves compression out (the preset `published-code`).
        self.keep: float = head.own.get("keep", PAPER_KEEP)
        self.visual_scale: float = head.own.get("visual_scale", 1.0)

    def new_cache(self, n_layers: int, room: int) -> KVCache:
        """An empty cache for one sequence."""
        g = self.geometry
        return KVCache(n_layers, 1, g.kv_heads, g.head_width, room, dtype=self.dtype, device=self.device)

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

    def learn(self, features: Tensor) -> None:
        """Add features of decided tokens [r, D]; drafted ones are forgotten."""
        self.features.truncate(self.known)
        self._write(features)
        self.known = self.features.length

    def guess(self, features: Tensor) -> None:
        """Add the parents' predictions [k, D] for k rows that are about to be drafted."""
        self._write(features)

    def forward(self, call: Call, cross_mask: Tensor | None = None) -> Tensor:
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

    def _drafted_mask(self, call: Call, n_drafted: int) -> Tensor | None:
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
    """A `core.types.Drafter` over a DREAM head.

    keep: share of the visual tokens among its queries, chosen by the target's attention; None takes what the
    head was trained for. ancestry: False is the published leak between branches of a tree.
    """

    def __init__(self, head: DreamHead, keep: float | None = None, ancestry: bool = True) -> None:
        self.name = head.name
        self._head, self._ancestry = head, ancestry
        self._keep = head.keep if keep is None else keep
        if not 0.0 < self._keep <= 1.0:
            raise ValueError(f"the share of visual tokens to keep is above 0 and at most 1, got {self._keep}")
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

    def _afresh(self, start: Start, room: int) -> tuple[_Lane, Stream, Tensor]:
        head, encoded, hidden = self._head, start.encoded, start.prefill.hidden
        importance = None
        if self._keep < 1.0:
            importance = start.prefill.attention[head.decoder.n_layers - 1].sum(0)
        seen = compressed(encoded.visual[:-1], importance, self._keep)
        lane = _Lane(head, head.new_cache(1, room), self._ancestry)
        lane.learn(hidden)
        # choice: positions are compact, as the published code counts what it fed.
        cache = head.new_cache(2, room)
        positions = torch.arange(len(seen), device=head.device)
        later = torch.arange(hidden.shape[0], device=head.device) >= seen[:, None]
        low = torch.finfo(head.dtype).min
        # The first query sees nothing; equal scores make it see everything alike, as in training.
        cross_mask = torch.zeros(later.shape, dtype=head.dtype, device=head.device).masked_fill_(later, low)
        x = prompt_embeds(encoded, head.visual_scale)[seen]
        lane.forward(Call(x[None], positions[None], cache), cross_mask)
        return lane, Stream(lane, cache, positions[-1:] + 1), seen

    def _again(self, start: Start, room: int) -> tuple[_Lane, Stream, Tensor] | None:
        """The same behind the rows that were kept; None where there are none that hold.

        # choice: the visual tokens that the first question chose stay; choosing anew would cost all rows.
        """
        before, encoded, hidden = start.before, start.encoded, start.prefill.hidden
        if before is None:
            return None
        chosen = before.contexts[0].index
        text = torch.arange(int(chosen[-1]) + 1, hidden.shape[0], device=chosen.device)
        seen = torch.cat((chosen, text))
        new = behind(before, encoded.scene, [encoded.context(self.name, seen)])
        if new is None:
            return None
        kept: _Lane = before.cache.backend
        lane = kept.copy(room, hidden.shape[0] - new)
        # Every query sees the features of tokens before it: the last one comes after the last query.
        lane.learn(hidden[-new:-1])
        x = encoded.embeds[None, -new - 1 : -1]
        stream, _ = followup.grown(before.cache, room, len(seen) - new, x, backend=lane)
        lane.learn(hidden[-1:])
        return lane, stream, seen

    def past(self, said: Tensor) -> Drafted:
        """The known rows with the features that they see."""
        drafted = super().past(said)
        drafted.cache.backend = self._lane.copy(self._lane.known, self._lane.known)
        return drafted

    def seen(self) -> Mapping[str, Tensor]:
        """The prompt positions among its queries."""
        return {"full" if self._keep == 1.0 else "compressed": self._seen}

    def _known_rows(self, embeds: Tensor) -> Tensor:
        return embeds

    def _drafted_rows(self, embeds: Tensor, parents: Tensor | slice) -> Tensor:
        self._lane.guess(self._own[parents])
        return embeds

    def _learn(self, known: Tensor, drafted: bool) -> None:
        self._lane.learn(known)

    def _say(self, hidden: Tensor) -> Tensor:
        return log_probabilities(self._head.decoder, hidden, self._size, self._banned)


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
