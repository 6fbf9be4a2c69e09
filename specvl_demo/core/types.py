"""Types shared by all parts, and the protocols that the parts implement.

Shape letters, used throughout the package: `n` prompt length · `P` prefilled positions (n - 1) ·
`T` tree nodes with the root · `k` nodes fed at once · `V` vocabulary · `D` width · `m` views in a
batch · `c` length of a view. Positions of a decoder are [n], or [3, n] for models with three-axis
rotary positions. This module knows tensors; it knows neither pictures, beyond "these positions are
visual", nor JSON. One file, since its types name one another. Views and mixtures are described in
`methods.small_vlm`.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from specvl_demo.core.sampling import Level, Sampler, Sampling, top_k
from specvl_demo.core.tree import DraftTree
from specvl_demo.records import Span


@dataclass(frozen=True)
class Prompt:
    """One request's input, ready for a model.

    The last token is text. It is not prefilled but becomes the root of the first round, so that
    `target KV length == n + emitted - 1` holds from the start: each token is decided in a round.

    Attributes:
        ids: [n] int64, with the placeholders of visual tokens expanded.
        visual: [n] bool, True at visual tokens.
        text: The user's question after the chat template.
        inputs: What the processor returned (ids, pixels, grids), passed to the model unread.
        prefix: Ids at the end of the prompt that begin the answer; the model goes on from them.
        source: What the prompt was made from, for models that prepare pictures differently; opaque.
    """

    ids: Tensor
    visual: Tensor
    inputs: Mapping[str, Any]
    spans: tuple[Span, ...] = ()
    text: str = ""
    source: Any = None
    prefix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self) < 2 or bool(self.visual[-1]):
            raise ValueError(
                "a prompt needs at least two tokens and must end with text, not with a picture"
            )

    def __len__(self) -> int:
        return self.ids.shape[0]


@dataclass(frozen=True)
class Encoded:
    """A prompt as the input of one model's decoder: visual tokens are already merged in.

    Attributes:
        features: [n_visual, C] vision features before the projector, in the order of the visual
            positions; None if the family has no separate projector.
        blocks: [n] int64. Positions of the same block >= 0 attend to each other in both directions
            (Gemma 3's pictures); None means causal attention.
        deepstack: [levels, n_visual, D] rows added at visual positions in first layers (Qwen3-VL).
        seconds: Time the encoding took, charged in full to every lane that uses it.
        index: [n] the target's prompt position of every position, -1 if there is none. Set if a
            drafter prepares pictures differently and so has another prompt; else None.
    """

    ids: Tensor  # [n], as in the prompt
    visual: Tensor  # [n] bool, as in the prompt
    embeds: Tensor  # [n, D]
    positions: Tensor  # [n] or [3, n]
    prompt: Prompt
    features: Tensor | None = None
    blocks: Tensor | None = None
    deepstack: Tensor | None = None
    seconds: float = 0.0
    index: Tensor | None = None

    def to_prompt_positions(self, positions: Tensor) -> Tensor:
        """Map positions to the target's prompt positions; -1 stays -1."""
        if self.index is None:
            return positions
        return torch.where(positions >= 0, self.index[positions.clamp_min(0)], -1)

    def context(self, name: str, keep: Tensor | None = None, compact: bool = False) -> Context:
        """Return the context with only the prompt positions `keep`, without the last token.

        Args:
            name: Name of the view.
            keep: [c] int64, ascending; None keeps all positions.
            compact: Renumber positions 0..c-1 without gaps; for decoders with one position axis.
        """
        last = self.ids.shape[0] - 1
        index = torch.arange(last, device=self.ids.device) if keep is None else keep[keep < last]
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
            index=self.to_prompt_positions(index),
            blocks=None if self.blocks is None else self.blocks[index],
            deepstack=None if self.deepstack is None else self.deepstack[:, rows],
        )


@dataclass(frozen=True)
class AuxRequest:
    """What a prefill keeps in addition to the last hidden states.

    Attributes:
        layers: i is the input of decoder layer i (0: embeddings), the library's `hidden_states[i]`.
        attention: Layers whose attention probabilities are kept, averaged over heads.
        rows: Positions whose queries are kept, negative ones from the prefill's end; None: all.
    """

    layers: tuple[int, ...] = ()
    attention: tuple[int, ...] = ()
    rows: tuple[int, ...] | None = None


NO_AUX = AuxRequest()
"""The request for none."""


@dataclass(frozen=True)
class Prefill:
    """The target's pass over the prompt without its last token.

    Attributes:
        hidden: [P, D] last hidden states after the final norm, the input of the LM head.
        sequence: The target's `CachedSequence`, opaque here; lanes fork it and never write into it.
        layers: {i: [P, D]} as requested.
        attention: {layer: [rows, P]} as requested.
        seconds: Time without the encoding, charged in full to every lane.
    """

    encoded: Encoded
    hidden: Tensor
    sequence: Any
    layers: Mapping[int, Tensor] = field(default_factory=dict)
    attention: Mapping[int, Tensor] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Scores:
    """The target's output at every node; row i reads node i's token after its ancestors.

    Attributes:
        logits: [T, V] of the next token.
        hidden: [T, D] after the final norm.
        layers: {i: [T, D]} as requested of `Target.open`.
        recompute: Given a path of nodes from the root, returns the logits [V] after it, computed
            from the whole text anew. They depend on the text only, not on the lane's trees. None if
            rows are batch-invariant or if rounding is too coarse for this to be worth its time.
    """

    logits: Tensor
    hidden: Tensor
    layers: Mapping[int, Tensor] = field(default_factory=dict)
    recompute: Callable[[Sequence[int]], Tensor] | None = None


@dataclass(frozen=True)
class Verdict:
    """The tokens that a round emits.

    Attributes:
        path: Accepted nodes from the root, so path[0] == 0.
        tokens: Ids to emit: the accepted tokens, then the target's own; len(tokens) == len(path).
        relaxed: For each of path[1:], whether strict verification would have rejected it.
        notes: Values to record.
    """

    path: list[int]
    tokens: list[int]
    relaxed: list[bool]
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_accepted(self) -> int:
        """Number of accepted draft tokens, without the target's own."""
        return len(self.path) - 1


@dataclass(frozen=True)
class Vocabulary:
    """What may be drafted.

    Attributes:
        size: Ids below it exist in target and drafter.
        banned: Never drafted (placeholders of pictures and clips).
        eos: End of sequence.
        special: Never relaxed (eos included).
    """

    size: int
    banned: tuple[int, ...] = ()
    eos: frozenset[int] = frozenset()
    special: frozenset[int] = frozenset()


class Decoder(Protocol):
    """A language model inside a VLM, on its device. Implemented in `decoders`.

    Positions and masks are arguments; a decoder keeps no state of a request.
    """

    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...


class VisionEncoder(Protocol):
    """A vision-language model as seen by the engine: it turns a prompt into decoder inputs."""

    @property
    def decoder(self) -> Decoder: ...

    def encode(self, prompt: Prompt) -> Encoded:
        """Run vision tower and projector, and merge the visual tokens into the embeddings."""


@dataclass(frozen=True)
class Context:
    """The part of a prompt that one view shows the drafter, never with the prompt's last token.

    Most views are `encoded.context(name, keep)`. `blocks` and `deepstack` are those of Encoded,
    cut to these positions.

    Attributes:
        name: Name of the view.
        next_position: Position of the root (the prompt's last token), the same on all axes.
        index: [c] prompt position of every context position, -1 if it is not in the prompt.
    """

    name: str
    ids: Tensor  # [c]
    visual: Tensor  # [c] bool
    embeds: Tensor  # [c, D]
    positions: Tensor  # [c] or [3, c]
    next_position: int
    index: Tensor
    blocks: Tensor | None = None  # [c]
    deepstack: Tensor | None = None  # [levels, visual positions, D]

    def text_only(self) -> Context:
        """Return the context without visual positions, renumbered from 0 on a single axis."""
        index = (~self.visual).nonzero()[:, 0]
        return Context(
            name=self.name,
            ids=self.ids[index],
            visual=self.visual[index],
            embeds=self.embeds[index],
            positions=torch.arange(len(index), device=index.device),
            next_position=len(index),
            index=self.index[index],
        )


class Growth(NamedTuple):
    """How trees grow by themselves: k tokens are found after each fed node, and numbered as they
    come; of those found after a level these are fed next, or so many of the likeliest paths. Of all
    paths the likeliest are the tree, which has so many nodes with its root; 0 leaves it open.
    """

    k: int
    fed: tuple[int | tuple[int, ...], ...]
    nodes: int = 0


@dataclass(frozen=True)
class LaneStart:
    """Everything a part may read when a lane begins.

    Attributes:
        prompt: The request's prompt.
        encoded: The prompt as encoded by the target.
        prefill: The target's prefill.
        encode: Returns the prompt as encoded by another model, computed once per request and
            charged to every lane that calls it.
        max_nodes: The most nodes that the policy feeds to the drafter or has scored in a round.
        session: The lane's session on the target, positioned before the root; read-only.
        growth: The policy's, unless drafts are drawn or adjusted on their way.
    """

    prompt: Prompt
    encoded: Encoded
    prefill: Prefill
    encode: Callable[[VisionEncoder], Encoded]
    vocabulary: Vocabulary
    sampling: Sampling
    max_new_tokens: int
    max_nodes: int
    session: Session
    growth: Growth | None = None


class Target(VisionEncoder, Protocol):
    """The model whose answer counts.

    It is shared by lanes; the state of one lane is in its Session.
    """

    name: str

    @property
    def vocabulary(self) -> Vocabulary: ...

    def prefill(self, encoded: Encoded, aux_request: AuxRequest = ...) -> Prefill:
        """Run over positions 0..n-2."""

    def open(
        self, prefill: Prefill, max_new_tokens: int, max_nodes: int, aux_request: AuxRequest = ...
    ) -> Session:
        """Open a session with its own copy of the prefill's cache.

        Args:
            prefill: The prefill to copy.
            max_new_tokens: Length of the answer that the cache has room for.
            max_nodes: Size of the largest tree that the cache has room for.
            aux_request: Its layers are also kept for every scored tree.
        """

    def exactness(self, max_nodes: int) -> str:
        """Return "exact" if a lossless lane with trees of so many nodes equals plain decoding, else
        a few words on what may differ.
        """

    def stopwatch(self) -> Stopwatch:
        """Return a stopwatch that fits the device."""

    def peak_bytes(self) -> int | None:
        """Return the peak memory in bytes, or None if it is not measured."""


class Session(Protocol):
    """One lane's state on the target."""

    @property
    def length(self) -> int:
        """Number of tokens in the cache: prompt + emitted - 1."""

    def kv_of(self, layer: int) -> Tensor:
        """Return a layer's committed keys and values, read-only [2, 1, heads, length, width]."""

    def score(self, tree: DraftTree) -> Scores:
        """Run one forward over all nodes of the tree."""

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes of the scored tree (root first) and drop the others."""


@dataclass(frozen=True)
class LevelRequest:
    """What a policy asks of a drafter for one level of its tree.

    Attributes:
        tokens: [n] int64, the nodes to feed.
        parents: As for `Drafter.extend`.
        k: How many tokens are wanted after each node.
        depth: Of these nodes below the root.
        draws: As for `Policy.propose`.
        levels: A drafter may feed the best token after the last node by itself, so many levels in
            all, and return the tokens after those nodes too; the policy asks for what it did not
            draft.
        floor: It stops once the log-probability of the tokens after the last node and those that
            it fed is below.
    """

    tokens: Tensor
    parents: Sequence[int]
    k: int
    depth: int = 0
    draws: Sampler | None = None
    levels: int = 1
    floor: float = -math.inf


Seen = Mapping[str, tuple[Tensor, Sequence[int]]]
"""What each view saw of the prompt, by its name: Context.index, and the ids that it inserted (a
caption, a newline).
"""


class Drafter:
    """Guesses what the target will say; this base class proposes nothing. One object a lane.

    In a round, the first `extend` feeds the root (and any accepted tokens not fed yet); every fed
    node gets a row number, in order, from 0. Later calls feed nodes whose parents are earlier rows.
    """

    name: str | None = None
    """Of its model, as shown to the user."""
    aux_request: AuxRequest = NO_AUX
    """What it needs of the target's prefill and scores."""
    grows = False
    """Whether it feeds all that `LaneStart.growth` says by itself, after the root."""

    def begin(self, start: LaneStart) -> None:
        """Prefill the drafter. Called once."""

    def prepare(self, start: LaneStart) -> None:
        """Make ready, after `begin`, what its rounds run on this device; on no clock."""

    def extend(self, tokens: Tensor, parents: Sequence[int]) -> Tensor | None:
        """Feed k nodes and return log-probabilities of the token after each.

        Args:
            tokens: [k] int64.
            parents: [k] rows of the nodes' parents; (-1,) for the root, which is fed with k = 1.

        Returns:
            [k, V] over Vocabulary.size ids, banned ones at -inf; None: nothing to propose.
        """
        return None

    def draft_level(self, request: LevelRequest) -> Level | None:
        """Feed a level's nodes as `extend` does; return the k best tokens after each, or fewer if
        it knows fewer; None: nothing to propose.
        """
        log_probs = self.extend(request.tokens, request.parents)
        if log_probs is None:
            return None
        return top_k(log_probs, request.k, request.draws, request.depth)

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Keep the accepted nodes' rows, learn from the scores, and make the last token pending."""

    def view_log_probs(self, rows: Sequence[int]) -> Mapping[str, Tensor]:
        """Return log-probabilities [len(rows), V] by view at rows fed in this round, if any.

        Called only for the record, before the commit of the same round.
        """
        return {}

    def attention_to_prompt(self, rows: Sequence[int], tokens: Tensor) -> Tensor | None:
        """Return how much rows fed in this round, a path of tokens from row 0, attend to each
        position of the prompt, and of the answer if it has more columns, [len(rows), positions]
        >= 0; None from a drafter without such an attention.

        Called only for the record, before the commit of the same round.
        """
        return None

    def seen_by_view(self) -> Seen:
        """Return what each view saw of the prompt."""
        return {}

    def round_notes(self) -> Mapping[str, Any]:
        """Return numbers to record about this round (such as weights) as plain Python values.

        Called before the commit of the same round. A chart draws a list as points, so note a count.
        """
        return {}


class Policy(ABC):
    """Decides the shape of the tree; one object a lane."""

    max_nodes: int
    """Of its trees, with the root."""
    max_fed = 0
    """The most nodes that it feeds in a round, if these are more than `max_nodes`."""
    worth: Any = None
    """What decides how many nodes are worth it in a round (`methods.tree_size.Worth`), if that is
    left to it."""

    def growth(self) -> Growth | None:
        """Return how its trees grow; None where the host decides on the way what is fed."""
        return None

    @abstractmethod
    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft a tree below the root.

        Args:
            drafter: The lane's drafter.
            root: [1] the last decided token.
            room: Greatest depth in tokens; with 0 the tree is the root only.
            draws: Draws the drafter's tokens with the target's noise; None if the likeliest tokens
                are drafted, as in greedy decoding.
        """

    def update(self, tree: DraftTree, verdict: Verdict) -> None:
        """Adapt to the verdict on the tree."""
        if self.worth is not None:
            self.worth.learn(tree.likely, verdict.path)


class Verifier(ABC):
    """Decides which drafted tokens stay. A verifier object serves one lane."""

    def begin(self, start: LaneStart) -> None:
        """Read the prompt's prefill; raise ValueError for a request that cannot be served."""
        return None

    @abstractmethod
    def verify(self, tree: DraftTree, scores: Scores, sampler: Sampler) -> Verdict:
        """Accept a path of the tree, with one device computation and one host read."""


class Stopwatch:
    """Splits a round's time into phases, by the host's clock: for synchronous devices."""

    def start(self) -> None:
        self._laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str | None) -> None:
        """Attribute the time since the last lap (or the start) to this phase, or to none."""
        now = time.perf_counter()
        if phase is not None:
            self._laps[phase] = self._laps.get(phase, 0.0) + now - self._last
        self._last = now

    def read(self) -> dict[str, float]:
        """Return seconds by phase since the start."""
        return self._laps
