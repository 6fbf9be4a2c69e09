"""One decoder's sequence, grown by trees: cache, positions and masks.

Given embeddings of tree nodes and their parents, returns hidden states, and keeps the chosen path.
Serves m aligned sequences at once (the views of a drafter), left-padded so that new rows share
their columns. Knows nothing of tokens, pictures or acceptance.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo.core.transfer import to_device
from specvl_demo.core.tree import TreeShape, chain, shape_of
from specvl_demo.core.types import NO_AUX, AuxRequest, Context, LevelRequest
from specvl_demo.decoders import batch_invariance
from specvl_demo.decoders.backend import Backend
from specvl_demo.decoders.forward import AuxStates, ForwardInput
from specvl_demo.decoders.graphs import StepShape, bucket
from specvl_demo.decoders.kv_cache import KVCache
from specvl_demo.decoders.layer_stack import LevelDrafter

ONE_LINE = (
    "this model has linear-attention layers, whose state follows one line of tokens; choose a"
    " policy that drafts a chain, for instance policy=chain"
)


class CachedSequence:
    """m sequences on one decoder.

    length: Committed rows, the same for all sequences. Nodes fed after them are numbered 0, 1, ...
    until `commit_nodes` decides which of them stay. fed: How many there are in this round. shifts:
    [2, m] rows of padding that each begins with, and how far its positions are from rows.
    """

    def __init__(
        self, backend: Backend, cache: KVCache, next_position: Tensor, pad: Tensor | None = None
    ) -> None:
        """Wrap a cache.

        Args:
            next_position: [m] position of the next committed row.
            pad: [m, cache.length] bool, True at rows of padding.
        """
        self.backend = backend
        self.cache = cache
        self.length = cache.length
        self.fed = 0
        self._parents: list[int] = []
        self._low = torch.finfo(backend.dtype).min
        self._pad: Tensor | None = None
        self._padded = pad
        padding = torch.zeros_like(next_position) if pad is None else pad.sum(1)
        self.shifts = torch.stack((padding, next_position - self.length))
        if pad is not None:
            self._pad = torch.zeros(
                pad.shape[0], 1, 1, cache.room, dtype=backend.dtype, device=pad.device
            )
            self._pad[:, 0, 0, : pad.shape[1]].masked_fill_(pad, self._low)
        weakref.finalize(self, cache.release).atexit = False

    @property
    def next_position(self) -> Tensor:
        """[m] of the next committed row, or of this round's root."""
        return self.shifts[1] + self.length

    def depth_below(self, parents: Sequence[int]) -> Tensor:
        """Return how far below the root nodes are that are fed next with these parents [k]."""
        shape = shape_of((*self._parents, *parents))
        return shape.depth_on(self.backend.device)[-len(parents) :]

    def fork(self, room: int, shapes: Sequence[StepShape] = ()) -> CachedSequence:
        """Copy the committed rows into a new cache with `room` rows in all.

        shapes: Shapes that the cache will be prepared for (`KVCache.prepare`).
        """
        copy = self.cache.copy(room, shapes)
        return CachedSequence(self.backend, copy, self.next_position, self._padded)

    def score(
        self,
        x: Tensor,
        shape: TreeShape,
        aux: AuxStates | None = None,
        min_rows: int | None = None,
    ) -> Tensor:
        """Run all nodes of a tree in one forward: x [m, T, D] -> hidden [m, T, D].

        Batch-invariant steps need one sequence without padding and a cleared cache.

        Args:
            aux: Receives what it requests.
            min_rows: Rows from which a step is batch-invariant (`min_invariant_rows`); not needed
                where the backend is so by itself. If the tree allows, the step is padded and
                ordered; hidden [1, rows, D] and aux states then have padding after the nodes, so
                that the head is batch-invariant too.
        """
        small = len(shape) <= batch_invariance.MAX_NODES
        if min_rows is not None and small and not self.backend.batch_invariant:
            return self._score_batch_invariant(x, shape, aux, min_rows)
        if not self.cache.branches and not shape.is_chain:
            raise ValueError(ONE_LINE)
        mask = None if len(shape) == 1 else shape.mask(self.length, x.dtype, x.device)
        self.fed = 0
        return self._run_nodes(x, shape.depth_on(x.device), mask, aux)

    def run_root(self, x: Tensor) -> Tensor:
        """Run the first forward of a round: x [m, k, D] -> hidden [m, k, D].

        The last row is the round's root, node 0; before it are committed tokens not fed yet.
        """
        late = x.shape[1] - 1
        hidden = self.score(x, chain(late))
        self.length += late
        self.fed = 1
        self._parents = [-1]
        return hidden

    def extend(self, x: Tensor, parents: Sequence[int]) -> Tensor:
        """Feed k more nodes below nodes fed in this round: x [m, k, D] -> hidden [m, k, D]."""
        first = self.fed
        shape = shape_of((*self._parents, *parents))
        if not (self.cache.branches or shape.is_chain):
            raise ValueError(ONE_LINE)
        self._parents = [*shape.parent]
        mask = None
        if not shape.is_chain or len(parents) > 1:
            mask = shape.mask(self.length, x.dtype, x.device)[first:]
        return self._run_nodes(x, shape.depth_on(x.device), mask)

    def draft_levels(
        self, drafter: LevelDrafter, tokens: Tensor, request: LevelRequest, **inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Feed tokens as `run_root` (parents (-1,)) and `extend` do, and draft after them, by one
        call; see `LevelDrafter.draft`.
        """
        late = len(tokens) - len(request.parents)
        if request.parents[0] < 0:
            self.fed = 0
            self._parents = []
        self.cache.truncate(self.length + self.fed)
        self.cache.require_room(len(tokens) + request.levels - 1)
        base = self.length + late
        self.length = base
        parents = [*self._parents, *request.parents]
        ids, logp = drafter.draft(tokens, request, parents, base, self.next_position, **inputs)
        self.fed += len(ids)
        self._parents = [*parents, *range(len(parents) - 1, self.fed - 1)]
        self.cache.advance(late + len(ids))
        return ids, logp

    def draft_tree(
        self, shape: StepShape, tokens: Tensor, inputs: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Feed nodes as `run_root` does, then draft a tree and feed its nodes, by one step; return
        what it makes (`DraftStep.made`).
        """
        cache: Any = self.cache
        cache.truncate(self.length)
        late = len(tokens) - 1
        numbers = to_device([self.length, late, cache.holes], tokens.device)
        given = {"numbers": numbers, "shifts": self.shifts, "tokens": tokens, **inputs}
        shape = shape._replace(rows=bucket(len(tokens)))
        made: list[Tensor] = self.backend.runner.run(self.backend, cache, shape, given)
        self.length += late
        self.fed = len(made[0])
        cache.advance(late + self.fed)
        return made

    def commit_nodes(self, nodes: Sequence[int]) -> None:
        """Commit these fed nodes, a path from node 0, and drop the others."""
        self.cache.keep_rows(self.length, nodes)
        self.length += len(nodes)
        self.fed = 0
        self._parents = []

    def _score_batch_invariant(
        self, x: Tensor, shape: TreeShape, aux: AuxStates | None, min_rows: int
    ) -> Tensor:
        size = len(shape)
        rows = batch_invariance.padded_rows(len(shape), min_rows)
        self.cache.truncate(self.length)
        if rows > size:
            x = F.pad(x, (0, 0, 0, rows - size))
        depth = F.pad(shape.depth_on(x.device), (0, rows - size))
        mask, window_mask, columns = batch_invariance.attention_order(
            shape, rows, self.length, self.cache.buffer_rows, self.backend.window, x.device
        )
        hidden = self._forward(x, depth, aux, mask=mask, second_mask=window_mask, columns=columns)
        self.cache.truncate(self.length + size)
        self.fed = size
        return hidden

    def _run_nodes(
        self, x: Tensor, depth: Tensor, mask: Tensor | None, aux: AuxStates | None = None
    ) -> Tensor:
        """Run new nodes; depth: of all nodes of this round, the new ones last.

        mask: [k, length + nodes], or None if each new node sees all before it.
        """
        size = x.shape[1]
        self.cache.truncate(self.length + self.fed)
        if not self.fed:
            self.cache.mark_committed()
        mask, window_mask = self._masks(mask, depth, size)
        hidden = self._forward(x, depth[-size:], aux, mask=mask, second_mask=window_mask)
        self.fed += size
        return hidden

    def _forward(
        self, x: Tensor, depth: Tensor, aux: AuxStates | None, **masks: Tensor | None
    ) -> Tensor:
        """depth: Of x's rows below the root. masks: As in `ForwardInput`, with the columns."""
        positions = self.next_position[:, None] + depth
        if self.backend.axes > 1:
            positions = positions.expand(self.backend.axes, *positions.shape)
        call = ForwardInput(x, positions, self.cache, **masks, aux=aux or AuxStates())
        return self.backend.forward(call)

    def _masks(
        self, mask: Tensor | None, depth: Tensor, size: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the mask with padding, and the same for layers with a sliding window."""
        end = self.length + depth.shape[0]
        window = self.backend.window
        window_mask = mask
        if window is not None and end > window:
            if mask is None:
                mask = torch.zeros(size, end, dtype=self.backend.dtype, device=depth.device)
            # Rows count along the sequence: two siblings are equally far from what lies before
            # them.
            place = torch.cat((torch.arange(self.length, device=depth.device), self.length + depth))
            window_mask = mask.masked_fill(place[-size:, None] - place >= window, self._low)
        if self._pad is not None:
            padding = self._pad[..., :end]
            window_mask = padding if window_mask is None else window_mask + padding
            mask = padding if mask is None else mask + padding
        return mask, window_mask


class PrefilledSequence(NamedTuple):
    """m contexts after one forward.

    Attributes:
        hidden: [m, N, D], N the length of the longest context; shorter ones are padded on the left,
            so that their hidden states are the last c of a row.
    """

    sequence: CachedSequence
    hidden: Tensor
    aux: AuxStates


def prefill(
    backend: Backend,
    contexts: Sequence[Context],
    room: int,
    aux_request: AuxRequest = NO_AUX,
    shapes: Sequence[StepShape] = (),
) -> PrefilledSequence:
    """Run m contexts in one forward.

    Args:
        room: Rows of the cache, at least N.
        aux_request: What to keep besides.
        shapes: As for `CachedSequence.fork`.
    """
    lengths = [context.ids.shape[0] for context in contexts]
    size = max(lengths)
    padded = min(lengths) < max(lengths)
    aux = AuxStates(aux_request)

    def aligned(rows: Sequence[Tensor]) -> Tensor:
        """Pad [..., c] each on the left -> [..., m, N]."""
        return torch.stack([F.pad(row, (size - row.shape[-1], 0)) for row in rows], -2)

    positions = aligned([context.positions for context in contexts])
    pad = (torch.arange(size) < size - torch.tensor(lengths)[:, None]).to(positions.device)
    mask = window_mask = None
    if padded or any(context.blocks is not None for context in contexts):
        mask, window_mask = _prompt_masks(backend, contexts, pad)
    deep = [context.deepstack for context in contexts if context.deepstack is not None]
    cache = backend.new_cache(len(contexts), max(room, size), shapes)
    call = ForwardInput(
        torch.stack(
            [F.pad(context.embeds, (0, 0, size - len(context.embeds), 0)) for context in contexts]
        ),
        positions,
        cache,
        mask=mask,
        second_mask=window_mask,
        visual=aligned([context.visual for context in contexts]) if deep else None,
        deepstack=torch.cat(deep, dim=1) if deep else None,
        aux=aux,
    )
    hidden = backend.forward(call)
    following = torch.tensor([context.next_position for context in contexts], device=pad.device)
    sequence = CachedSequence(backend, cache, following, pad if padded else None)
    return PrefilledSequence(sequence, hidden, aux)


def _prompt_masks(
    backend: Backend, contexts: Sequence[Context], pad: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return additive masks [m, 1, N, N]: causal, bidirectional inside a block, without padding."""
    size = pad.shape[1]
    device = pad.device
    at = torch.arange(size, device=device)
    ahead = at > at[:, None]
    far = at[:, None] - at >= (backend.window or size)
    allowed = (~ahead & ~pad[:, None, :])[:, None]
    near = allowed & ~far
    for row, context in enumerate(contexts):
        if context.blocks is not None:
            start = size - context.blocks.shape[0]
            blocks = context.blocks
            same = (blocks[:, None] == blocks) & (blocks >= 0)
            if not backend.near_blocks:
                allowed[row, 0, start:, start:] |= same
            near[row, 0, start:, start:] |= (
                same & ~far[start:, start:] if backend.near_blocks else same
            )
    # Rows of padding see themselves, since a softmax over nothing is undefined.
    itself = torch.eye(size, dtype=torch.bool, device=device)
    low = torch.finfo(backend.dtype).min

    def additive(seen: Tensor) -> Tensor:
        return torch.zeros(seen.shape, dtype=backend.dtype, device=device).masked_fill_(
            ~(seen | itself), low
        )

    return additive(allowed), additive(near) if backend.window is not None else None
