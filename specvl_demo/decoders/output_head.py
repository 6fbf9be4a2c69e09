"""An output head over all ids, or over a draft vocabulary: its target's most frequent ids only.

A head over a whole vocabulary can cost as much as the drafter's layers. Ids without a row are never
drafted but can still be emitted, since the target's own tokens come from its own head. Sources:
FR-Spec (arXiv 2502.14856), EAGLE-3 (arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from specvl_demo.core.types import Vocabulary
from specvl_demo.decoders.layer_stack import DraftWeights, LevelWeights
from specvl_demo.decoders.packed_linear import PackedLinear, log_softmax, mm_in_float32


def map_rows(product: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """Return what a product of rows [k, D] makes of hidden states [..., D]."""
    rows = product(hidden.reshape(-1, hidden.shape[-1]))
    return rows.view(*hidden.shape[:-1], -1)


def linear_logits(head: Any, hidden: Tensor) -> Tensor:
    """Return the logits of a model's own head, in float32 on the GPU that has it."""
    weight = head.weight
    plain = type(head) is nn.Linear and head.bias is None and weight.device == hidden.device
    if not plain or hidden.device.type == "cpu":
        return head(hidden)
    return map_rows(lambda rows: mm_in_float32(rows, weight.t()), hidden)


def checked_ids(ids: Tensor, vocab: int, source: str) -> Tensor:
    """Return the ids [R] of a draft vocabulary; ValueError unless they are of its target's V."""
    lowest, highest = map(int, ids.aminmax())
    if lowest < 0 or highest >= vocab:
        raise ValueError(
            f"{source} drafts ids from {lowest} to {highest}; its target's vocabulary ends at"
            f" {vocab - 1}"
        )
    return ids.long()


class OutputHead:
    """Logits of V ids, of which R have a row; the others are at -inf.

    Attributes:
        vocab: V.
        ids: [R] the id of each row, most frequent first; None if row i is id i.
    """

    def __init__(
        self,
        multiply: Callable[[Tensor], Tensor] | PackedLinear,
        vocab: int,
        ids: Tensor | None = None,
    ) -> None:
        """multiply: The product with the rows, [..., D] -> [..., R]; a packed one takes [k, D]."""
        self.vocab = vocab
        self.ids = ids
        self._multiply = multiply
        self.packed = multiply if isinstance(multiply, PackedLinear) else None

    def mapped_to_vocab(self, ids: Tensor, vocab: int) -> OutputHead:
        """Return the head whose row i is that of `ids[i]` [R], among V ids."""
        if self.vocab != len(ids):
            raise ValueError(
                f"the draft vocabulary has {len(ids)} ids, but the output head {self.vocab} rows"
            )
        return OutputHead(self._multiply, vocab, ids)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., D] to logits [..., V]."""
        return self.to_vocab(self.row_logits(hidden))

    def row_logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., D] to logits of the R ids that have a row [..., R]."""
        return (
            self._multiply(hidden) if self.packed is None else map_rows(self.packed.logits, hidden)
        )

    def to_vocab(self, logits: Tensor) -> Tensor:
        """Return logits [..., R] at their ids among V."""
        if self.ids is None:
            return logits
        wide = logits.new_full((*logits.shape[:-1], self.vocab), -torch.inf)
        return wide.index_copy_(-1, self.ids, logits)


class LogProbabilities:
    """A drafter's log-probabilities of a vocabulary's ids, those of the banned ones at -inf.

    A draft vocabulary is normalized over its own R ids only, a twelfth of the work, since all
    others are -inf; without one, R is the ids that it and the output head know.

    enter: What hidden states go through first.
    """

    def __init__(
        self,
        output: OutputHead,
        vocabulary: Vocabulary,
        device: torch.device,
        enter: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._output = output
        self._enter = enter
        self._size = size = min(vocabulary.size, output.vocab)
        ids = output.ids
        rows = [i for i in vocabulary.banned if i < size]
        self._banned = banned = torch.tensor(rows, dtype=torch.int64, device=device)
        if ids is not None:
            self._banned = (torch.isin(ids, banned) | (ids >= size)).nonzero()[:, 0]

    def row_log_probs(self, hidden: Tensor) -> Tensor:
        """Return those of the draft vocabulary, in float32: hidden [..., D] -> [..., R]."""
        logits = self._output.row_logits(self._enter(hidden) if self._enter else hidden)
        if self._output.ids is None:
            logits = logits[..., : self._size]
        return log_softmax(logits.float(), self._banned)

    def mixed(self, log_probs: Tensor, weights: Tensor | None) -> Tensor:
        """Mix m distributions [m, k, R] → [k, size]: their mean by weights [m]."""
        if len(log_probs) == 1 or weights is None:
            return self.to_vocab(log_probs[0])
        return self.to_vocab(torch.tensordot(weights, log_probs.exp(), dims=1).log())

    def to_vocab(self, log_probs: Tensor) -> Tensor:
        """Return [..., R] at their ids among `size`, all others at -inf."""
        if self._output.ids is None:
            return log_probs
        return self._output.to_vocab(log_probs)[..., : self._size]

    def level_weights(
        self, parts: DraftWeights, table: Tensor, cos_sin: Tensor
    ) -> LevelWeights | None:
        """Return what drafts with these parts (`LevelDrafter`); None where torch takes over."""
        head = None if self._output.packed is None else self._output.packed.matrix
        if not parts.fits_kernels or head is None or table.dtype != torch.float32:
            return None
        ids = self._output.ids
        n = self._size if ids is None else len(ids)
        return LevelWeights(parts, head, table.contiguous(), cos_sin, n, ids, self._banned)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., D] to [..., size]."""
        return self.to_vocab(self.row_log_probs(hidden))
