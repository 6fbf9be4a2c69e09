"""Heads that predict the target's next features: EAGLE-2 (arXiv 2406.16858) and its descendants.

Given the target's last hidden states, which the forwards compute anyway, drafts with one block
after a projection of [embedding of a token, feature of the token before it (, step embedding)].
Embeddings and output head are the target's. Row i is token i: it attends to features of tokens
before i and predicts feature i, hence token i + 1. Knows no tree policy and no acceptance rule.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.transfer import take_rows
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import (
    NO_AUX,
    AuxRequest,
    Drafter,
    Encoded,
    LaneStart,
    Prefill,
    Scores,
    Seen,
    Verdict,
    Vocabulary,
)
from specvl_demo.decoders.backend import Backend, LanguageBackend
from specvl_demo.decoders.calibration import TRIED_ROWS, pick_faster
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.graphs import draft_shapes
from specvl_demo.decoders.kv_cache import Layout
from specvl_demo.decoders.layer_stack import DraftWeights, LevelWeights
from specvl_demo.decoders.output_head import LogProbabilities, OutputHead, checked_ids
from specvl_demo.decoders.packed_linear import PackedLinear
from specvl_demo.decoders.sequence import CachedSequence
from specvl_demo.methods.base import TREE, Models, Part
from specvl_demo.methods.declare import Settings
from specvl_demo.methods.heads.blocks import POSITIONS, DecoderBlock, Geometry, Rotary, Tensors
from specvl_demo.methods.heads.checkpoints import FORMATS, Head, HeadFormat, open_pair_head
from specvl_demo.methods.level_calls import LevelCalls
from specvl_demo.vlm.shared_drafter import DRAFT_IDS

_TABLE, _HEAD = "embed_tokens.weight", "lm_head.weight"
IMPORTANCE_ROWS = 64
"""How many of the prompt's last rows determine, by their attention, which visual tokens matter."""


class HeadPrompt(NamedTuple):
    """What a head makes of a prompt.

    holes: Rows of the cache before these, for a head that stores more rows than it queries.
    """

    x: Tensor  # [r, width of the block's input], rows before the root
    positions: Tensor  # [r] or [3, r]
    root_feature: Tensor  # [1, D], which the root is fed with
    position: Tensor  # [1], of the root
    seen: Tensor  # positions of the prompt that the head was given
    holes: int = 0


class TrainedHead(Backend):
    """The weights of a head that reads a target's states. Shared by lanes, never changed."""

    aux_request: AuxRequest = NO_AUX
    view = "full"

    def __init__(self, head: Head, decoder: LanguageBackend) -> None:
        super().__init__()
        self.name = head.source
        self.decoder = decoder
        self.remarks = head.remarks
        self.width = head.geometry.width
        self.vocab = decoder.vocab
        self.input_width = self.width
        self.fixed = decoder.fixed  # until its own steps are calibrated
        self._geometry = head.geometry
        self._rotary = Rotary(head.geometry, decoder.device)
        self.output = _output_head(head, decoder)
        self._table = head.tensors.get(_TABLE)
        ids = self.output.ids
        tables = (self.vocab if ids is None else len(ids)) * self.width
        rest = (part.numel() for name, part in head.tensors.items() if name not in (_TABLE, _HEAD))
        self.n_bytes = self.dtype.itemsize * sum(rest, tables)

    @property
    def device(self) -> torch.device:
        """The device its weights are on now: a ZeroGPU Space moves them after loading."""
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    @abstractmethod
    def new_drafter(self) -> Drafter:
        """Return a drafter for one lane."""

    def require_positions(self, n: int) -> None:
        """Raise ValueError unless it has so many rotary positions, and one more."""
        if n >= POSITIONS:
            raise ValueError(f"{self.name} supports {POSITIONS} positions; this request needs more")

    def with_settings(self, settings: Any) -> TrainedHead:
        """Return the head with these settings: itself, if there is nothing to set."""
        return self

    def calibrate(self, steps: int | None = None) -> str | None:
        """Choose the faster of ordinary and fixed steps; return a sentence if fixed ones lost.

        steps: As for `calibration.pick_faster`.
        """
        if not self.fixed:
            return None
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(TRIED_ROWS, self.input_width, generator=generator)
        rows = rows.to(self.device, self.dtype)
        return pick_faster(self, rows, self.log_probabilities(Vocabulary(self.vocab)), steps)

    def layouts(self) -> list[Layout]:
        g = self._geometry
        return [Layout(self.device, g.kv_heads, g.head_width)] * self.n_layers

    def embed(self, ids: Tensor) -> Tensor:
        """Embed ids [...] by the head's own table if it has one that differs from the target's."""
        return self.decoder.embed(ids) if self._table is None else self._table[ids]

    def _fuse_layers(self, layers: Sequence[int], fuse: Tensor) -> None:
        """Read the inputs of these layers and fuse them; ValueError unless the target has them,
        and `fuse` their columns.
        """
        n_layers = self.decoder.n_layers
        fused = fuse.shape[1] // self.width
        if len(set(layers)) < len(layers) or not all(0 <= i < n_layers for i in layers):
            raise ValueError(
                f"{self.name} reads the inputs of layers {', '.join(map(str, layers))} of its"
                f" target, which has only {n_layers} layers"
            )
        if fused != len(layers):
            raise ValueError(f"{self.name} fuses {fused} layers, but its config has {len(layers)}")
        self._layers_read = layers
        self.aux_request = AuxRequest(layers=tuple(sorted(layers)))
        self._fuse = PackedLinear(fuse, bits=8)

    def layer_states(self, scores: Prefill | Scores) -> Tensor:
        """Return what it reads of every prompt position or node [r, layers read x D]."""
        return torch.cat([scores.layers[i] for i in self._layers_read], -1)


def _output_head(head: Head, decoder: LanguageBackend) -> OutputHead:
    """Return the head's own output head, the target's, or rows of it that it was trained with."""
    tensors = head.tensors
    vocab = decoder.vocab
    if _HEAD not in tensors:
        if "d2t" in tensors:
            raise ValueError(f"{head.source} has d2t, a draft vocabulary, but lacks lm_head.weight")
        if (ids := tensors.get(DRAFT_IDS)) is None:
            return decoder.output
        ids = checked_ids(ids, vocab, head.source).to(decoder.device)
        return OutputHead(decoder.output_head_rows(ids), vocab, ids)
    rows = tensors[_HEAD]
    output = OutputHead(PackedLinear(rows, bits=8), len(rows))
    if "d2t" not in tensors:
        return output
    # Draft id i stands for target id i + d2t[i].
    ids = torch.arange(len(tensors["d2t"]), device=decoder.device) + tensors["d2t"]
    return output.mapped_to_vocab(checked_ids(ids, vocab, head.source), vocab)


class FeatureHead(TrainedHead):
    """The weights of an EAGLE-2 head, which sees text and visual rows alike."""

    n_layers = 1
    projects = True
    """Whether a row's input is one projection of embedding and feature, or both, side by side."""

    def __init__(self, head: Head, decoder: LanguageBackend) -> None:
        super().__init__(head, decoder)
        self._visual_scale: float = head.specvl.get("visual_scale", 1.0)
        self._make_layers(head.tensors, head.geometry)

    def _make_layers(self, t: Tensors, g: Geometry) -> None:
        self._block = DecoderBlock(t, "layers.0", g)
        self._project = PackedLinear(t["fc.weight"][:, : 2 * g.width], bits=8)
        self._bias = t.get("fc.bias", t["fc.weight"].new_zeros(g.width))[None]

    def new_drafter(self) -> Drafter:
        return FeatureDrafter(self)

    def read_prompt(self, start: LaneStart) -> HeadPrompt:
        """Pair every token but the first and the last with the feature of the token before it."""
        encoded = start.encoded
        positions = encoded.positions
        head_prompt = self.read_without(start, torch.zeros_like(encoded.visual))
        if not self._geometry.sections or positions.ndim == 1:
            return head_prompt
        # It was trained on the target's three axes.
        return head_prompt._replace(
            positions=positions[:, :-2], position=positions[:, -2:-1].amax(0)
        )

    def read_without(self, start: LaneStart, hidden: Tensor, with_gaps: bool = False) -> HeadPrompt:
        """Open without the `hidden` rows, [n] bool, dropped before tokens and features are paired.

        with_gaps: Positions count the hidden rows nevertheless.
        """
        seen = (~hidden[:-1]).nonzero()[:, 0]
        if not len(seen):
            raise ValueError(
                f"{self.name} needs text before the prompt's last token, and this prompt has none"
            )
        features = self.features(start.prefill)[seen]
        places = seen if with_gaps else torch.arange(len(seen), device=self.device)
        x = self.join(self.prompt_embeds(start.encoded)[seen[1:]], features[:-1])
        return HeadPrompt(x, places[:-1], features[-1:], places[-1:], seen)

    def prefill(self, start: LaneStart, head_prompt: HeadPrompt, room: int) -> CachedSequence:
        """Prefill the rows before the root, in a cache with room for `room` rows."""
        cache = self.new_cache(1, room, draft_shapes(self, start))
        if len(head_prompt.x):
            self.forward(
                ForwardInput(head_prompt.x[None], head_prompt.positions.unsqueeze(-2), cache)
            )
        return CachedSequence(self, cache, head_prompt.position)

    def prompt_embeds(self, encoded: Encoded) -> Tensor:
        """Return the prompt's embeddings [n, D], with those of visual tokens scaled as in training.

        # choice: projected visual tokens may be a hundred times as large as words, and these heads
        have no norm where they read them. Heads of this project are trained on visual tokens scaled
        to the size of words; published ones read them unscaled.
        """
        if self._visual_scale == 1.0:
            return encoded.embeds
        scale = torch.where(encoded.visual, self._visual_scale, 1.0)[:, None]
        return encoded.embeds * scale.to(encoded.embeds.dtype)

    def features(self, scores: Prefill | Scores) -> Tensor:
        """Return the target's features of every prompt position or every node [r, D]."""
        return scores.hidden

    def join(self, embeds: Tensor, features: Tensor, step: Tensor | int = 0) -> Tensor:
        """Return the block's input [k, D or 2D] for embeddings [k, D] and features [k, D].

        step: Levels below the root, [k] or one for all.
        """
        both = torch.cat((embeds, features), -1)
        return self._project(both, self._bias[step]) if self.projects else both

    def decode(self, call: ForwardInput) -> Tensor:
        """Return predicted features [1, T, D]; the cache is written but its length unchanged."""
        size = call.x.shape[1]
        slots, keys, values = call.cache.kv_slots(size)
        causal = call.mask is None and size > 1
        rotation = self._rotary(call.positions[..., 0, :])
        h, residual = self.split_input(call.x[0])
        kv = slots[0], keys[0], values[0]
        return self._block(h, residual, rotation, *kv, call.mask, causal)[None]

    def split_input(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention's input and the residual for a result of `join`."""
        return x, x

    def _draft_weights(self) -> DraftWeights | None:
        """Return what drafts a level by one call, as `join` and `split_input` make a row; None if
        nothing does.
        """
        return DraftWeights(self._block.stack, "product", self._project.matrix, self._bias)

    def draft_rows(self, tokens: Tensor, features: Tensor, step: Tensor | int) -> Tensor:
        return self.join(self.embed(tokens), features, step)[None]

    def level_weights(self, log_probs: LogProbabilities) -> LevelWeights | None:
        cos_sin = self._rotary.cos_sin
        # A target's embeddings may be more than a table.
        table = getattr(self.decoder, "embeddings", None) if self._table is None else self._table
        weights = self._draft_weights()
        if weights is None or table is None or cos_sin is None:
            return None
        return log_probs.level_weights(weights, table, cos_sin)


class FeatureDrafter(LevelCalls):
    """Drafts with a feature head: drafted rows continue from the head's own features.

    Known rows stay in its cache: the prompt's in one forward, then the accepted tokens with the
    target's features in one forward per round, together with the root. Drafted rows are dropped.
    """

    def __init__(self, head: FeatureHead) -> None:
        self.name = head.name
        self.aux_request = head.aux_request
        self._head = head

    def begin(self, start: LaneStart) -> None:
        """Prefill with the head's rows of the prompt."""
        head = self._head
        head_prompt = head.read_prompt(start)
        rows = head_prompt.holes + head_prompt.x.shape[0]
        ahead = start.max_new_tokens + start.max_nodes
        head.require_positions(max(rows, int(head_prompt.position)) + ahead)
        self._sequence = head.prefill(start, head_prompt, rows + 1 + ahead)
        self._features = head_prompt.root_feature
        self._seen = head_prompt.seen
        self._begin_levels(start)

    def seen_by_view(self) -> Seen:
        return {self._head.view: (self._seen, ())}

    def _inputs(self) -> dict[str, Tensor]:
        return {"features": self._features}

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Drop drafted rows; keep accepted tokens and their features for the next round."""
        features = take_rows(self._head.features(scores), verdict.path)
        if self._sequence.fed:
            self._sequence.commit_nodes([0])
            self._pending = verdict.tokens[:-1]
            self._features = features
        else:
            self._skip_round(tree, verdict)
            self._features = torch.cat((self._features, features))


def head_part(form: HeadFormat, settings: type[Settings] = Settings) -> Part:
    """Register a format, and make the drafter over a pair's head in it, which lanes of equal
    settings share.
    """
    kind = form.kind
    FORMATS[kind] = form

    def build(models: Models, views: Any, mixer: Any, chosen: Settings) -> Drafter:
        head: TrainedHead = models.drafter(kind)
        shared = models.make_once((head, chosen), lambda: head.with_settings(chosen))
        return shared.new_drafter()

    title = form.title.partition(" ")[2]
    opener = partial(open_pair_head, kind)
    return Part("drafter", kind, title, build, settings, gives=TREE, role=kind, open=opener)
