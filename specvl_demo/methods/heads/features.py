"""Heads that guess the target's next features: EAGLE-2 (arXiv 2406.16858) and those that derive from it.

Given the target's last hidden states, which come out of forwards that are made anyway, drafts with one block
behind a projection of [embedding of a token, feature of the token before it (, step embedding)]. Embeddings
and output head are the target's. Row i is token i: it sees features of tokens before i and predicts feature
i, hence token i + 1. Knows no tree policy and no acceptance rule.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from specvl_demo.core.prefix_cache import new_columns, row_keys
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import (
    NOTHING,
    Capture,
    Decoder,
    Encoded,
    NoDrafter,
    Prefill,
    Scores,
    Start,
    Verdict,
)
from specvl_demo.decoders.backend import Backend, ForwardInput, ForwardOutput
from specvl_demo.decoders.draft_vocabulary import DraftVocabulary, log_probabilities, narrowed
from specvl_demo.decoders.fixed_shapes import FixedSteps
from specvl_demo.decoders.kv_cache import KVCache, Layout
from specvl_demo.decoders.matrix import Matrix
from specvl_demo.decoders.sequence import CachedSequence, Prefix, grown
from specvl_demo.decoders.trials import TRIED_ROWS, Switched, tried
from specvl_demo.methods.base import Models
from specvl_demo.methods.heads.blocks import POSITIONS, Block, Geometry, Rotary
from specvl_demo.methods.heads.checkpoints import Head
from specvl_demo.vlm.shared_drafter import DRAFT_IDS

IMPORTANCE_ROWS = 64
"""How many of the prompt's last rows vote on which visual tokens matter."""


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
    """The weights of an EAGLE-2 head, as a `backend.Backend`. Shared by lanes, never changed.

    Where the target's steps have fixed shapes, its own have too.
    """

    window: int | None = None
    axes = n_layers = 1
    capture: Capture = NOTHING
    view = "full"
    n_steps = 1
    """Step embeddings; 1 stands for none."""

    def __init__(self, head: Head, decoder: Decoder) -> None:
        g, t = head.geometry, head.tensors
        self.name, self.decoder = head.source, decoder
        self.width, self.dtype = g.width, decoder.dtype
        self.vocab, self.input_width = decoder.vocab, g.width
        self._steps, self._fixed = FixedSteps(self), True
        ids = t.get(DRAFT_IDS)
        # The target's output head, or the rows of it that the head was trained with.
        self._speaks: Any = decoder
        if ids is not None:
            self._speaks = DraftVocabulary(cast("Backend", decoder), ids, decoder.vocab, ids)
        self.remarks = head.remarks
        self._geometry = g
        self._rotary = Rotary(g, decoder.device)
        self._visual_scale: float = head.own.get("visual_scale", 1.0)
        self._build(t, g)

    def _build(self, t: Mapping[str, Tensor], g: Geometry) -> None:
        self._block = Block(t, "layers.0", g)
        self._project = Matrix(t["fc.weight"][:, : 2 * g.width], rounded=True)
        self._bias = t.get("fc.bias", t["fc.weight"].new_zeros(g.width))[None]

    @property
    def device(self) -> torch.device:
        """Where its weights are now: a ZeroGPU Space moves them after loading."""
        return self.decoder.device

    def narrow(self, size: int, commonest: Sequence[int]) -> None:
        """Say `size` ids from now on: the first of its draft vocabulary, or of the commonest."""
        self._speaks = narrowed(self._speaks, size, commonest)

    def new_cache(self, batch: int, room: int) -> KVCache:
        if self.fixed:
            return self._steps.lent(batch, room)
        return KVCache(self.layouts(), batch, room, self.dtype)

    def layouts(self) -> list[Layout]:
        return [Layout(self.device, self._geometry.kv_heads, self._geometry.head_width)] * self.n_layers

    @property
    def fixed(self) -> bool:
        """Whether steps have fixed shapes: where the target's have, unless they were tried and lost."""
        return self._fixed and getattr(self.decoder, "fixed", False)

    @fixed.setter
    def fixed(self, wanted: bool) -> None:
        self._fixed = wanted

    def calibrate(self) -> str | None:
        """Keep ordinary steps or fixed ones, what is faster here; a sentence where fixed ones lost."""
        if not self.fixed:
            return None
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(TRIED_ROWS, self.input_width, generator=generator).to(self.device, self.dtype)
        return tried(cast("Switched", self), rows, self.log_probabilities(self.vocab, ())).reason

    def open(self, start: Start) -> Opening:
        """Every token but the first and the last, each with the feature of the token before it."""
        features = self.features(start.prefill)
        every = torch.arange(features.shape[0], device=self.device)
        x = self.join(prompt_embeds(start.encoded, self._visual_scale)[1:-1], features[:-1])
        return Opening(x, every[:-1], features[-1:], every[-1:], every)

    def embed(self, ids: Tensor) -> Tensor:
        """ids [k] -> embeddings [k, D], the target's."""
        return self.decoder.embed(ids)

    def features(self, known: Prefill | Scores) -> Tensor:
        """The target's features, of every prompt position or every node [r, D]."""
        return known.hidden

    def join(
        self, embeds: Tensor, features: Tensor, step: Tensor | int = 0, scene: Tensor | None = None
    ) -> Tensor:
        """Embeddings [k, D] and features [k, D] -> the block's input [k, D].

        step: levels below the root, [k] or one for all. scene: what `scene` gave.
        """
        return self._project(torch.cat((embeds, features), -1), self._bias[step])

    def scene(self, start: Start) -> Tensor | None:
        """What of the pictures goes into every drafted row."""
        return None

    def forward(self, call: ForwardInput) -> Tensor:
        """Predicted features [1, T, D]; the cache is T rows longer afterwards."""
        return self._steps.forward(call, self._ordinary) if self.fixed else self._ordinary(call)

    def _ordinary(self, call: ForwardInput) -> Tensor:
        hidden = self.decode(call)
        call.cache.advance(call.x.shape[1])
        return hidden

    def watch(self, kept: ForwardOutput, stack: ExitStack) -> None:
        """Nobody asks for the inputs of a head's layers."""

    def decode(self, call: ForwardInput) -> Tensor:
        """Predicted features [1, T, D]; the cache is written but not yet longer."""
        size = call.x.shape[1]
        slots, keys, values = call.cache.spans(size)
        causal = call.mask is None and size > 1
        turns = self._rotary(call.positions[..., 0, :])
        h, residual = self.inputs(call.x[0])
        return self._block(h, residual, turns, slots[0], keys[0], values[0], call.mask, causal)[None]

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What `join` gave -> what the block attends with, and its residual."""
        return x, x

    def log_probabilities(self, size: int, banned: Sequence[int]) -> Callable[[Tensor], Tensor]:
        """Predicted features [k, D] -> log-probabilities [k, size] of the next token, never a banned one."""
        return log_probabilities(self._speaks, size, banned)


class FeatureDrafter(NoDrafter):
    """A `core.types.Drafter` over a feature head: drafted rows run on the head's own features.

    Known rows stay in its cache: the prompt's in one forward, then the accepted tokens with the target's
    features in one forward a round, together with the root. Drafted rows are forgotten; the others are there
    for the next question.
    """

    def __init__(self, head: FeatureHead) -> None:
        self.name, self.capture = head.name, head.capture
        self._head = head
        # Under which its known rows are kept: the same for lanes whose rows are the same.
        self._key: Hashable = head

    def begin(self, start: Start) -> None:
        """Prefill with what the head makes of the prompt, as far as it is new to it."""
        head, encoded, opening = self._head, start.encoded, self._head.open(start)
        ahead = start.max_new_tokens + start.max_nodes
        if int(opening.position) + ahead >= POSITIONS:
            raise ValueError(f"{self.name} counts to {POSITIONS} positions, this request needs more")
        rows, cache = opening.x.shape[0], start.prompt.cache
        room = rows + 1 + ahead
        cached: tuple[Prefix, Tensor] | None = None if cache is None else cache.get(self._key)
        context = encoded.context(self.name, opening.seen)
        new = None if cached is None else new_columns(cached[0].keys, [context])
        if cached is None or new is None:
            rows_cache = head.new_cache(1, room)
            if rows:
                head.forward(ForwardInput(opening.x[None], opening.positions.unsqueeze(-2), rows_cache))
            stream = CachedSequence(cast("Backend", head), rows_cache, opening.position)
        else:
            stream, _ = grown(cached[0].stream, room, rows - new, opening.x[None, -new:])
        self._open(start, stream, opening.known, opening.seen)

    def _open(self, start: Start, stream: CachedSequence, known: Tensor, seen: Tensor) -> None:
        """stream: ends before the root. known [1, D]: the feature before it. seen: the prompt positions the
        head was given."""
        head = self._head
        stream.cache.prepare()
        self._stream, self._known, self._seen, self._begun = stream, known, seen, stream.length
        self._context, self._cache = start.encoded.context(self.name, seen), start.prompt.cache
        self._logp = head.log_probabilities(start.vocabulary.size, start.vocabulary.banned)
        # What the head said at every row of this round, and how far below the root the row is, up to the
        # last step embedding.
        self._own = torch.empty(start.max_nodes, head.width, dtype=head.dtype, device=head.device)
        self._step = torch.zeros(start.max_nodes, dtype=torch.int64, device=head.device)
        self._scene = head.scene(start)
        self._fed = 0
        self._late: list[int] = []

    def close(self, said: Tensor) -> None:
        """Leave the known rows, and which prompt positions they saw, to the conversation's next question."""
        if self._cache is not None:
            stream = self._stream.fork(self._stream.length)
            keys = row_keys([self._context], said[: stream.length - self._begun])
            self._cache[self._key] = Prefix(keys, stream), self._seen

    def seen(self) -> Mapping[str, Tensor]:
        return {self._head.view: self._seen}

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor:
        head, first = self._head, self._fed
        if not isinstance(parents, Tensor) and parents[0] < 0:
            if self._late:
                tokens = torch.cat((torch.tensor(self._late, device=tokens.device), tokens))
            x = head.join(head.embed(tokens), self._known, 0, self._scene)
            hidden = self._stream.root(x[None])[0, -1:]
            first, self._fed = 0, 1
        else:
            self._fed = first + tokens.shape[0]
            x = self._drafted_rows(head.embed(tokens), _rows(parents, self._own.device))
            hidden = self._stream.extend(x[None], parents)[0]
        self._own[first : self._fed] = hidden
        return self._logp(hidden)

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Forget drafted rows; take the accepted tokens with the target's features for the next round."""
        features, path = self._head.features(scores), verdict.path
        # A path goes down, so it is a run of rows exactly if it ends where a run would.
        known = features[: len(path)] if path[-1] == len(path) - 1 else features[path]
        if self._fed:
            self._stream.keep([0])
            self._late, self._known = verdict.tokens[:-1], known
        else:
            # Nothing was drafted in this round, so not even its root was fed.
            self._late += [*tree.tokens[:1].tolist(), *verdict.tokens[:-1]]
            self._known = torch.cat((self._known, known))
        self._fed = 0

    def _drafted_rows(self, embeds: Tensor, parents: Tensor | slice) -> Tensor:
        """The input of drafted tokens [k, D], the rows up to `_fed`."""
        step: Tensor | int = 0
        if self._head.n_steps > 1:
            step = (self._step[parents] + 1).clamp_max_(self._head.n_steps - 1)
            self._step[self._fed - embeds.shape[0] : self._fed] = step
        return self._head.join(embeds, self._own[parents], step, self._scene)


def trained(models: Models, role: str, draft_vocab: int) -> Any:
    """The pair's head of a role, one object for all lanes. draft_vocab: how many ids it says; 0: all."""
    head = models.drafter(role)

    def make() -> Any:
        twin = copy(head)
        twin.narrow(draft_vocab, models.commonest)
        return twin

    return models.once((head, draft_vocab), make) if draft_vocab else head


def prompt_embeds(encoded: Encoded, visual_scale: float) -> Tensor:
    """The prompt's embeddings [n, D], those of visual tokens times `visual_scale`.

    # choice: projected visual tokens may be a hundred times as large as words, and these heads have no norm
    where they read them. Ours are trained on visual tokens in the size of words; published ones take them as
    they are.
    """
    if visual_scale == 1.0:
        return encoded.embeds
    return encoded.embeds * torch.where(encoded.visual, visual_scale, 1.0)[:, None].to(encoded.embeds.dtype)


def _rows(parents: Sequence[int] | Tensor, device: torch.device) -> Tensor | slice:
    """Parents as an index; a single one as a slice, which copies nothing."""
    if isinstance(parents, Tensor):
        return parents
    if len(parents) == 1:
        return slice(parents[0], parents[0] + 1)
    return torch.tensor(parents, device=device)
