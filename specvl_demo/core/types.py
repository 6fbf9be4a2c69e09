"""The types that all parts share, and the protocols of the parts.

Shape letters, once for the whole package: `n` prompt length · `P` prefilled positions (n - 1) · `T`
tree nodes with the root · `k` nodes fed at once · `V` vocabulary · `D` width · `m` views in a batch
· `c` length of a view. Positions of a decoder are [n], or [3, n] for models with three-axis rotary
positions. Knows tensors; knows nothing of pictures beyond "these positions are visual", nothing of
JSON. Whoever writes a part reads here what the others promise; of views and mixtures, in
`methods.small_vlm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from specvl_demo.core.prefix_cache import PrefixCache
from specvl_demo.core.sampling import Sampler, Sampling
from specvl_demo.core.tree import DraftTree
from specvl_demo.records import Span


@dataclass(frozen=True)
class Prompt:
    """One request's input, ready for a model.

    ids: [n] int64, placeholders of visual tokens expanded. visual: [n] bool. text: what the user
    asked, as templated. inputs: what the processor returned (ids, pixels, grids...), passed on to
    the model and never looked into here. source: what it was made from, for a model that prepares
    pictures in its own way; opaque too. cache: of the conversation it belongs to; None: everything
    is computed afresh, and nothing is kept. The last token is text; it stays out of the prefill and
    is the root of the first round, so that `target KV length == n + emitted - 1` holds from the
    start and every token is decided in a round.
    """

    ids: Tensor
    visual: Tensor
    inputs: Mapping[str, Any]
    spans: tuple[Span, ...] = ()
    text: str = ""
    source: Any = None
    cache: PrefixCache | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or self.visual.shape != self.ids.shape:
            raise ValueError(
                f"ids and visual must both be [n], got {list(self.ids.shape)},"
                f" {list(self.visual.shape)}"
            )
        if len(self) < 2 or bool(self.visual[-1]):
            raise ValueError(
                "a prompt needs at least two tokens and must end with text, not with a picture"
            )

    def __len__(self) -> int:
        return self.ids.shape[0]


@dataclass(frozen=True)
class Encoded:
    """A prompt as one model's decoder gets it: the vision tower has run, its tokens are merged in.

    ids [n], visual [n] (as in the prompt), embeds [n, D], positions [n] or [3, n]. prompt: the one
    that was
        encoded.
    features: [n_visual, C] vision features before the projector, in the order of the visual
    positions; None
        where the family has no separate projector.
    blocks: [n] int64, positions of the same block >= 0 see each other both ways (Gemma 3's
    pictures); None: causal. deepstack: [levels, n_visual, D] rows added to the visual positions
    after the first layers (Qwen3-VL); else None. seconds: what the encoding took; every lane that
    uses it is charged in full. index: [n] the target's prompt position of every position, -1 for
    none, where a drafter prepares pictures
        in its own way and its prompt is another one; None where it is the same prompt.
    keys: [n] int64, equal where two encodings of a conversation have the
        same token, or the same place of the same pictures; None: the ids.
    """

    ids: Tensor
    visual: Tensor
    embeds: Tensor
    positions: Tensor
    prompt: Prompt
    features: Tensor | None = None
    blocks: Tensor | None = None
    deepstack: Tensor | None = None
    seconds: float = 0.0
    index: Tensor | None = None
    keys: Tensor | None = None

    def in_prompt(self, positions: Tensor) -> Tensor:
        """The target's prompt position of these positions; -1 stays -1."""
        if self.index is None:
            return positions
        return torch.where(positions >= 0, self.index[positions.clamp_min(0)], -1)

    def context(self, name: str, keep: Tensor | None = None, compact: bool = False) -> Context:
        """What is left when only the prompt positions `keep` (ascending, [c] int64) stay; None
        keeps all.

        The prompt's last token is never part of a context. compact renumbers positions 0..c-1
        instead of keeping the gaps, which only decoders with one position axis can take.
        """
        last = self.ids.shape[0] - 1
        index = torch.arange(last, device=self.ids.device) if keep is None else keep[keep < last]
        if compact and self.positions.ndim != 1:
            raise ValueError(
                "positions of three axes keep their gaps; use compact=False with this model"
            )
        visual = self.visual[index]
        rows = self.visual.cumsum(0)[index[visual]] - 1
        positions = (
            torch.arange(index.shape[0], device=index.device)
            if compact
            else self.positions[..., index]
        )
        return Context(
            name=name,
            ids=self.ids[index],
            visual=visual,
            embeds=self.embeds[index],
            positions=positions,
            next_position=index.shape[0] if compact else int(self.positions[..., last].max()),
            index=self.in_prompt(index),
            blocks=None if self.blocks is None else self.blocks[index],
            deepstack=None if self.deepstack is None else self.deepstack[:, rows],
            keys=None if self.keys is None else self.keys[index],
        )


@dataclass(frozen=True)
class Capture:
    """What a prefill should keep beside the last hidden states.

    layers: i is the input of decoder layer i (0: embeddings), as in Hugging Face's
    `hidden_states[i]`. attention: layers whose attention probabilities are kept, mean over heads,
    for the query rows `rows`
        (prompt positions, negative ones count from the end of the prefill; None: all).
    """

    layers: tuple[int, ...] = ()
    attention: tuple[int, ...] = ()
    rows: tuple[int, ...] | None = None

    def union(self, other: Capture) -> Capture:
        """Both wishes at once; unlike `rows` become all rows."""
        asked = {wish.rows for wish in (self, other) if wish.attention}
        return Capture(
            tuple(sorted({*self.layers, *other.layers})),
            tuple(sorted({*self.attention, *other.attention})),
            asked.pop() if len(asked) == 1 else None,
        )


NOTHING = Capture()
"""The capture that asks for nothing."""


@dataclass(frozen=True)
class Prefill:
    """The target's pass over the prompt without its last token.

    hidden: [P, D] last hidden states after the final norm, exactly what the head eats.
    cache: the target's keys and values, opaque; lanes copy it and never write into it.
    layers: {i: [P, D]} and attention: {layer: [rows, P]} as asked by a Capture.
    seconds: what it took (without the encoding); every lane is charged in full.
    """

    encoded: Encoded
    hidden: Tensor
    cache: Any
    layers: Mapping[int, Tensor] = field(default_factory=dict)
    attention: Mapping[int, Tensor] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Scores:
    """The target's word on every node: logits [T, V] of the next token, hidden [T, D] after the
    norm.

    Row i was computed at node i, that is with node i's token as input and its ancestors as context.
    layers: {i: [T, D]} where the lane asked for them: in the capture that `Target.open` was given.
    """

    logits: Tensor
    hidden: Tensor
    layers: Mapping[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """Which drafted tokens stay.

    path: accepted nodes, root first: path[0] == 0. relaxed: for path[1:], True where the target
    alone would have said something else. tokens: the ids to emit, the accepted ones and the
    target's own token, so that len(tokens) == len(path).
    """

    path: list[int]
    tokens: list[int]
    relaxed: list[bool]
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_accepted(self) -> int:
        """Drafted tokens that stay, the target's own not counted."""
        return len(self.path) - 1


@dataclass(frozen=True)
class Vocabulary:
    """What may be drafted. size: ids below it exist in target and drafter. banned: never drafted
    (placeholders of pictures and clips). eos: end of sequence. special: never relaxed (eos
    included).
    """

    size: int
    banned: tuple[int, ...] = ()
    eos: frozenset[int] = frozenset()
    special: frozenset[int] = frozenset()


class Decoder(Protocol):
    """A language model inside a VLM, on its device. Implemented in `decoders`.

    Positions and masks are arguments; nothing of a request is kept on it.
    """

    @property
    def width(self) -> int: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...

    def embed(self, ids: Tensor) -> Tensor:
        """ids [...] -> embeddings [..., D]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., D] after the final norm -> logits [..., V]."""


class VisionEncoder(Protocol):
    """A vision-language model as a view sees it: how it turns a prompt into decoder inputs."""

    @property
    def decoder(self) -> Decoder: ...

    def encode(self, prompt: Prompt) -> Encoded:
        """Vision tower, projector, merge."""

    def project(self, features: Tensor) -> Tensor:
        """Vision features before the projector [r, C] -> embeddings [r, D]; ValueError without
        one.
        """


@dataclass(frozen=True)
class Context:
    """What one view shows the drafter; c positions, the prompt's last token not included.

    ids [c], visual [c] bool, embeds [c, D]; positions [c] or [3, c]; next_position: the position of
    the root, that is of the prompt's last token, in this context (a number, the same on all axes).
    index: [c] prompt position of every context position, -1 where it is not one of the prompt's.
    blocks [c], keys [c] and deepstack [levels, visual positions, D]: as in Encoded, cut to these
    positions. Most views are `encoded.context(name, keep)`.
    """

    name: str
    ids: Tensor
    visual: Tensor
    embeds: Tensor
    positions: Tensor
    next_position: int
    index: Tensor
    blocks: Tensor | None = None
    deepstack: Tensor | None = None
    keys: Tensor | None = None

    def text_only(self) -> Context:
        """Without its visual positions, renumbered from 0: for decoders of one position axis."""
        kept = (~self.visual).nonzero()[:, 0]
        return Context(
            name=self.name,
            ids=self.ids[kept],
            visual=self.visual[kept],
            embeds=self.embeds[kept],
            positions=torch.arange(len(kept), device=kept.device),
            next_position=len(kept),
            index=self.index[kept],
            keys=None if self.keys is None else self.keys[kept],
        )


@dataclass(frozen=True)
class Start:
    """All that a part may look at when a lane begins.

    encoded and prefill are the target's. encode(encoder) gives the prompt as another model sees it,
    computed once a request and charged to every lane that asks. target_decoder: the target's
    embeddings and head, to share. max_nodes: the most nodes that the policy feeds the drafter or
    has scored in a round. session: the lane's own on the target, to read; it stands before the
    root.
    """

    prompt: Prompt
    encoded: Encoded
    prefill: Prefill
    encode: Callable[[VisionEncoder], Encoded]
    target_decoder: Decoder
    vocabulary: Vocabulary
    sampling: Sampling
    max_new_tokens: int
    max_nodes: int
    session: Session | None = None


class Target(Protocol):
    """The model whose answer counts. Shared by lanes; all that belongs to one lane is in its
    Session.
    """

    name: str

    @property
    def decoder(self) -> Decoder: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    def encode(self, prompt: Prompt) -> Encoded:
        """Run the vision tower once; positions and merged embeddings as the decoder gets them."""

    def prefill(self, encoded: Encoded, capture: Capture = ...) -> Prefill:
        """One pass over positions 0..n-2, or over those that are not in the conversation's prefix
        cache.
        """

    def open(
        self, prefill: Prefill, max_new_tokens: int, max_nodes: int, capture: Capture = ...
    ) -> Session:
        """A lane's own copy of the prefill's cache, with room for the answer and one tree of
        max_nodes. capture.layers are kept for every scored tree too.
        """

    def exactness(self, max_nodes: int) -> str:
        """What a lossless lane with trees of so many nodes gives: "exact", or a few words on what
        may differ from plain decoding."""

    def stopwatch(self) -> Stopwatch:
        """A stopwatch that fits the device."""

    def peak_bytes(self) -> int | None:
        """Most memory taken so far, in bytes; None where nobody counts."""


class Session(Protocol):
    """One lane's state on the target."""

    @property
    def length(self) -> int:
        """Tokens in the cache: prompt + emitted - 1."""

    def rows(self, layer: int) -> Tensor:
        """Keys and values of all decided rows in a layer [2, 1, heads, length, width]; to be read
        only.
        """

    def score(self, tree: DraftTree) -> Scores:
        """One forward over all nodes of the tree."""

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes of the scored tree (root first), forget the others."""

    def close(self, said: Tensor) -> None:
        """The lane has ended. said: [r] the prompt's last token and the answer, for the prefix
        cache.
        """


class Drafter(Protocol):
    """Guesses what the target will say. A drafter object serves one lane.

    In a round, the first `extend` feeds the root (and whatever accepted tokens it has not seen
    yet); every fed node gets a row number, in order, from 0. `extend` then feeds nodes whose
    parents are earlier rows. What a drafter that derives from it leaves out does and says nothing.
    """

    name: str
    capture: Capture = NOTHING
    """What it needs of the target's prefill and scores."""

    def begin(self, start: Start) -> None:
        """See the prompt (prefill). Called once."""
        return None

    def close(self, said: Tensor) -> None:
        """The lane has ended. said: [r] the prompt's last token and the answer, for the prefix
        cache.
        """
        return None

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor | None:
        """Feed k nodes: tokens [k] int64, their parents' rows (the root has none: parents is (-1,),
        k is 1).

        Gives log-probabilities [k, V] of the token after each, over Vocabulary.size ids, banned
        ones at -inf; None when it has nothing to propose there.
        """

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Keep the accepted nodes' rows, learn from the scores, take the last token as pending."""
        return None

    def views(self, rows: Sequence[int]) -> Mapping[str, Tensor]:
        """Log-probabilities [len(rows), V] of every view at rows fed in this round; empty without
        views.

        Only asked before the commit of the same round, for the record.
        """
        return {}

    def seen(self) -> Mapping[str, Tensor]:
        """Context.index by view name: what each view saw of the prompt; empty where that says
        nothing.
        """
        return {}

    def words(self) -> Mapping[str, Sequence[int]]:
        """Ids that a view put where the prompt has none (a caption, a newline), by view name."""
        return {}

    def notes(self) -> Mapping[str, Any]:
        """Numbers worth recording about this round (weights...); plain Python values."""
        return {}


class NoDrafter(Drafter):
    """Has nothing to propose; others without views derive from it."""

    name = "none"

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor | None:
        return None


class Policy(Protocol):
    """Decides the shape of the tree. A policy object serves one lane. One that derives from this
    need not say what `begin` and `update` do."""

    max_nodes: int
    """The most nodes of its trees, the root included. One that feeds the drafter more in a round
    says in `max_fed` how many."""

    def begin(self, start: Start) -> None:
        """The lane begins; the drafter has seen the prompt."""
        return None

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft at most `room` tokens deep below root [1]; room 0 gives the root alone.

        draws: gives the token that the drafter says with the target's own draw; None when greedy,
        or where the likeliest tokens are drafted.
        """

    def update(self, tree: DraftTree, verdict: Verdict) -> None:
        """See what became of the tree."""
        return None  # a body of its own: without one, type checkers take it for abstract


class Verifier(Protocol):
    """Decides which drafted tokens stay. A verifier object serves one lane."""

    lossless: bool

    def begin(self, start: Start) -> None:
        """See the prompt's prefill; refuse what it cannot serve (ValueError with a sentence)."""
        return None

    def verify(self, tree: DraftTree, scores: Scores, sampler: Sampler) -> Verdict:
        """Accept a path of the tree. One device computation and one host read."""


class Stopwatch(Protocol):
    """Splits a round's time into phases. Implemented by targets, which know how their device keeps
    time.
    """

    def start(self) -> None: ...

    def lap(self, phase: str) -> None:
        """The time since the last lap (or the start) belongs to this phase."""

    def read(self) -> dict[str, float]:
        """Seconds by phase since the start."""
