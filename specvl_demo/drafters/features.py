"""Heads that guess the target's next features: EAGLE-2 (arXiv 2406.16858) and HiViS (arXiv 2509.23928).

Given the target's last hidden states, which come out of forwards that are made anyway, drafts with one block
behind a projection of [embedding of a token, feature of the token before it (, step embedding)]. Embeddings
and output head are the target's. Row i is token i: it sees features of tokens before i and predicts feature
i, hence token i + 1. Knows no tree policy and no acceptance rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.cache import KVCache
from specvl_demo.core.memory import behind
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import (
    NOTHING,
    Capture,
    Decoder,
    Drafted,
    Encoded,
    Prefill,
    Scores,
    Start,
    Verdict,
)
from specvl_demo.core.views import visual_runs
from specvl_demo.drafters.blocks import POSITIONS, Block, Rotary
from specvl_demo.drafters.checkpoints import Head
from specvl_demo.drafters.none import NoDrafter
from specvl_demo.targets import followup
from specvl_demo.targets.decoder import Call
from specvl_demo.targets.stream import Stream


class Opening(NamedTuple):
    """What a head makes of a prompt.

    x [r, width of the block's input] and positions [r] or [3, r]: rows before the root. known [1, D]: the
    feature the root is fed with; position [1]: the root's. seen: prompt positions the head was given.
    """

    x: Tensor
    positions: Tensor
    known: Tensor
    position: Tensor
    seen: Tensor


class FeatureHead:
    """The weights of an EAGLE-2 head, as a backend of `targets.stream`. Shared by lanes, never changed."""

    window: int | None = None
    capture: Capture = NOTHING
    view = "full"
    n_steps = 1
    """Step embeddings; 1 stands for none."""

    def __init__(self, head: Head, decoder: Decoder) -> None:
        g, t = head.geometry, head.tensors
        self.name, self.decoder = head.source, decoder
        self.width, self.dtype, self.device = g.width, decoder.dtype, decoder.device
        self.n_layers, self.vocab = 1, decoder.vocab
        self._geometry = g
        self._rotary = Rotary(g, decoder.device)
        self._block = Block(t, "layers.0", g)
        self._project = t["fc.weight"][:, : 2 * g.width].t().contiguous()
        self._bias = t.get("fc.bias", t["fc.weight"].new_zeros(g.width))[None]
        self._visual_scale: float = head.own.get("visual_scale", 1.0)

    def new_cache(self, batch: int, room: int) -> KVCache:
        """An empty cache that `forward` writes into."""
        g = self._geometry
        return KVCache(1, batch, g.kv_heads, g.head_width, room, dtype=self.dtype, device=self.device)

    def open(self, start: Start) -> Opening:
        """Every token but the first and the last, each with the feature of the token before it."""
        features = self.features(start.prefill)
        every = torch.arange(features.shape[0], device=self.device)
        x = self.join(prompt_embeds(start.encoded, self._visual_scale)[1:-1], features[:-1])
        return Opening(x, every[:-1], features[-1:], every[-1:], every)

    def features(self, known: Prefill | Scores) -> Tensor:
        """The target's features, of every prompt position or every node [r, D]."""
        return known.hidden

    def join(
        self, embeds: Tensor, features: Tensor, step: Tensor | int = 0, scene: Tensor | None = None
    ) -> Tensor:
        """Embeddings [k, D] and features [k, D] -> the block's input [k, D].

        step: levels below the root, [k] or one for all. scene: what `scene` gave.
        """
        return torch.addmm(self._bias[step], torch.cat((embeds, features), -1), self._project)

    def scene(self, start: Start) -> Tensor | None:
        """What of the pictures goes into every drafted row."""
        return None

    def forward(self, call: Call) -> Tensor:
        """Predicted features [1, T, D]; the cache is T rows longer afterwards."""
        size = call.x.shape[1]
        slots, keys, values = call.cache.spans(size)
        causal = call.mask is None and size > 1
        turns = self._rotary(call.positions[..., 0, :])
        h, residual = self.inputs(call.x[0])
        x = self._block(h, residual, turns, slots[0], keys[0], values[0], call.mask, causal)
        call.cache.advance(size)
        return x[None]

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What `join` gave -> what the block attends with, and its residual."""
        return x, x

    def log_probabilities(self, hidden: Tensor, size: int, banned: Tensor | None) -> Tensor:
        """Predicted features [k, D] -> log-probabilities [k, size] of the next token."""
        return log_probabilities(self.decoder, hidden, size, banned)


class HiViSHead(FeatureHead):
    """A HiViS head: visual rows are hidden, and step embeddings say how far below the root a row is.

    With step embeddings r [R, D], a row drafted d levels below the root is fed r[min(d, R - 1)]; rows of
    known features, the root's among them, r[0] (arXiv 2509.23928, eq. 4).
    """

    view = "text only"

    def __init__(self, head: Head, decoder: Decoder) -> None:
        super().__init__(head, decoder)
        # The step's part of the projection does not depend on the input: one row per step.
        weight = head.tensors["fc.weight"][:, 2 * self.width :]
        self._bias = self._bias + head.tensors["residual"] @ weight.t()
        self.n_steps: int = self._bias.shape[0]
        self._published = not head.own

    def open(self, start: Start) -> Opening:
        """Text only: visual rows are dropped before tokens and features are paired.

        # choice: several pictures or clips are all hidden (the published code knows one). Positions are
        compact. Published heads of models with three-axis positions also drop the tokens that frame a
        picture and one more behind it, and count positions with the gaps.
        """
        encoded = start.encoded
        with_gaps = self._published and encoded.positions.ndim > 1
        hidden = encoded.visual.clone()
        for first, stop in visual_runs(encoded.visual) if with_gaps else ():
            hidden[max(0, first - 1) : stop + 2] = True
        seen = (~hidden[:-1]).nonzero()[:, 0]
        if not len(seen):
            raise ValueError(f"{self.name} drafts from text before the prompt's last token; here is none")
        features = self.features(start.prefill)[seen]
        places = seen if with_gaps else torch.arange(len(seen), device=self.device)
        x = self.join(encoded.embeds[seen[1:]], features[:-1])
        return Opening(x, places[:-1], features[-1:], places[-1:], seen)


class HeadDrafter(NoDrafter, ABC):
    """What drafters with a feature head share: a `core.types.Drafter` without `begin`.

    Known rows stay in its cache: the prompt's in one forward, then the accepted tokens with the target's
    features in one forward a round, together with the root. Drafted rows are forgotten; the others are there
    for the next question.
    """

    def _open(self, start: Start, head: FeatureHead, stream: Stream, seen: Tensor) -> None:
        """stream: ends before the root. seen: the prompt positions the head was given."""
        self._stream, self._decoder = stream, head.decoder
        self._encoded, self._seen, self._begun = start.encoded, seen, stream.length
        self._size = start.vocabulary.size
        banned = [i for i in start.vocabulary.banned if i < self._size]
        self._banned = torch.tensor(banned, device=head.device) if banned else None
        # What the head said at every row of this round.
        self._own = torch.empty(start.max_nodes, head.width, dtype=head.dtype, device=head.device)
        self._fed = 0
        self._late: list[int] = []

    def past(self, said: Tensor) -> Drafted:
        """The known rows, in a cache without room to spare."""
        stream = self._stream.fork(self._stream.length)
        context = self._encoded.context(self.name, self._seen)
        return Drafted([context], said[: stream.length - self._begun], self._encoded.scene, stream)

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor:
        """Log-probabilities [k, V] of the token after each fed node."""
        first = self._fed
        if not isinstance(parents, Tensor) and parents[0] < 0:
            if self._late:
                tokens = torch.cat((torch.tensor(self._late, device=tokens.device), tokens))
            x = self._known_rows(self._decoder.embed(tokens))
            hidden = self._stream.root(x[None])[0, -1:]
            first, self._fed = 0, 1
        else:
            self._fed = first + tokens.shape[0]
            x = self._drafted_rows(self._decoder.embed(tokens), _rows(parents, self._own.device))
            hidden = self._stream.extend(x[None], parents)[0]
        self._own[first : self._fed] = hidden
        return self._say(hidden)

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Forget drafted rows; take the accepted tokens with the target's features for the next round."""
        features, path = self._features(scores), verdict.path
        # A path goes down, so it is a run of rows exactly if it ends where a run would.
        known = features[: len(path)] if path[-1] == len(path) - 1 else features[path]
        if self._fed:
            self._stream.keep([0])
            self._late = verdict.tokens[:-1]
        else:
            # Nothing was drafted in this round, so not even its root was fed.
            self._late += [*tree.tokens[:1].tolist(), *verdict.tokens[:-1]]
        self._learn(known, drafted=self._fed > 0)
        self._fed = 0

    def _features(self, scores: Scores) -> Tensor:
        return scores.hidden

    @abstractmethod
    def _known_rows(self, embeds: Tensor) -> Tensor:
        """The input of decided tokens that were not fed yet and of the root [k, D]."""

    @abstractmethod
    def _drafted_rows(self, embeds: Tensor, parents: Tensor | slice) -> Tensor:
        """The input of drafted tokens [k, D]; they become the rows up to `_fed`."""

    @abstractmethod
    def _learn(self, known: Tensor, drafted: bool) -> None:
        """Features of newly decided tokens [r, D]."""

    @abstractmethod
    def _say(self, hidden: Tensor) -> Tensor:
        """Log-probabilities [k, V] of the token after each row."""


class FeatureDrafter(HeadDrafter):
    """A `core.types.Drafter` over a feature head: drafted rows run on the head's own features."""

    def __init__(self, head: FeatureHead) -> None:
        self.name, self.capture = head.name, head.capture
        self._head = head

    def begin(self, start: Start) -> None:
        """Prefill with what the head makes of the prompt, as far as it is new to it."""
        head, encoded, opening = self._head, start.encoded, self._head.open(start)
        ahead = start.max_new_tokens + start.max_nodes
        if int(opening.position) + ahead >= POSITIONS:
            raise ValueError(f"{self.name} counts to {POSITIONS} positions, this request needs more")
        rows, before, new = opening.x.shape[0], start.before, None
        if before is not None:
            new = behind(before, encoded.scene, [encoded.context(self.name, opening.seen)])
        room = rows + 1 + ahead
        if new is None:
            cache = head.new_cache(1, room)
            if rows:
                head.forward(Call(opening.x[None], opening.positions.unsqueeze(-2), cache))
            stream = Stream(head, cache, opening.position)
        else:
            stream, _ = followup.grown(before.cache, room, rows - new, opening.x[None, -new:])
        self._open(start, head, stream, opening.seen)
        # How far below the root every row of this round is, up to the last step embedding.
        self._step = torch.zeros(start.max_nodes, dtype=torch.int64, device=head.device)
        self._known, self._scene = opening.known, head.scene(start)

    def seen(self) -> Mapping[str, Tensor]:
        """The prompt positions the head was given."""
        return {self._head.view: self._seen}

    def _features(self, scores: Scores) -> Tensor:
        return self._head.features(scores)

    def _known_rows(self, embeds: Tensor) -> Tensor:
        return self._head.join(embeds, self._known, 0, self._scene)

    def _drafted_rows(self, embeds: Tensor, parents: Tensor | slice) -> Tensor:
        step: Tensor | int = 0
        if self._head.n_steps > 1:
            step = (self._step[parents] + 1).clamp_max_(self._head.n_steps - 1)
            self._step[self._fed - embeds.shape[0] : self._fed] = step
        return self._head.join(embeds, self._own[parents], step, self._scene)

    def _learn(self, known: Tensor, drafted: bool) -> None:
        self._known = known if drafted else torch.cat((self._known, known))

    def _say(self, hidden: Tensor) -> Tensor:
        return self._head.log_probabilities(hidden, self._size, self._banned)


def prompt_embeds(encoded: Encoded, visual_scale: float) -> Tensor:
    """The prompt's embeddings [n, D], those of visual tokens times `visual_scale`.

    # choice: projected visual tokens may be a hundred times as large as words, and these heads have no norm
    where they read them. Ours are trained on visual tokens in the size of words; published ones take them as
    they are.
    """
    if visual_scale == 1.0:
        return encoded.embeds
    return encoded.embeds * torch.where(encoded.visual, visual_scale, 1.0)[:, None].to(encoded.embeds.dtype)


def log_probabilities(decoder: Decoder, hidden: Tensor, size: int, banned: Tensor | None) -> Tensor:
    """Features [k, D] -> log-probabilities [k, size] of the next token by the target's own head, never
    `banned` ones."""
    logits = decoder.logits(hidden)[:, :size].float()
    if banned is not None:
        logits.index_fill_(-1, banned, -torch.inf)
    return logits.log_softmax(-1)


def _rows(parents: Sequence[int] | Tensor, device: torch.device) -> Tensor | slice:
    """Parents as an index; a single one as a slice, which copies nothing."""
    if isinstance(parents, Tensor):
        return parents
    if len(parents) == 1:
        return slice(parents[0], parents[0] + 1)
    return torch.tensor(parents, device=device)
