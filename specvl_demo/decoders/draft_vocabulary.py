"""A drafter whose output head has rows only for its target's most frequent ids.

A head over a whole vocabulary can cost as much as the drafter's layers. Ids without a row are never
drafted but can still be emitted, since the target's own tokens come from its own head. Sources:
FR-Spec (arXiv 2502.14856), EAGLE-3 (arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.types import Decoder
from specvl_demo.decoders import kernels
from specvl_demo.decoders.backend import Backend


class DraftVocabulary:
    """Presents a backend whose head has R ids with the target's V; ids without a row are at -inf.

    Attributes:
        ids: [R] the target's id of each row, most frequent first.
        vocab: V.
        rows: [R] each id's row of the inner head; None if that head has only these rows.
    """

    def __init__(self, inner: Backend, ids: Tensor, vocab: int, rows: Tensor | None = None) -> None:
        if rows is None and inner.vocab != len(ids):
            raise ValueError(
                f"the draft vocabulary has {len(ids)} ids, but the output head {inner.vocab} rows"
            )
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
            raise ValueError(f"the ids of a draft vocabulary must be below {vocab}, the target's")
        self.inner, self.ids, self.vocab = inner, ids.long().to(inner.device), vocab
        self.rows = torch.arange(len(ids)) if rows is None else rows.long()
        self._part = None if rows is None else inner.part(self.rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def head(self) -> Any:
        """The output head of the R ids, if it is one product."""
        return getattr(self.inner, "head", None) if self._part is None else self._part

    def logits(self, hidden: Tensor) -> Tensor:
        return self.widened(self.narrow(hidden))

    def narrow(self, hidden: Tensor) -> Tensor:
        """Return logits of the R ids: hidden [..., D] -> [..., R]."""
        if self._part is None:
            return self.inner.logits(hidden)
        return self._part(hidden.flatten(0, -2)).unflatten(0, hidden.shape[:-1])

    def widened(self, logits: Tensor) -> Tensor:
        """Return logits [..., R] at their ids among V."""
        wide = logits.new_full((*logits.shape[:-1], self.vocab), -torch.inf)
        return wide.index_copy_(-1, self.ids, logits)


class LogProbabilities:
    """A drafter's log-probabilities, with `banned` ids at -inf.

    A draft vocabulary is normalized over its own R ids only, a twelfth of the work, since all
    others are -inf; without one, R is `size`.
    """

    def __init__(self, decoder: Decoder, size: int, banned: Sequence[int]) -> None:
        self._decoder, self._size = decoder, size
        self._narrow = decoder if isinstance(decoder, DraftVocabulary) else None
        device = decoder.device
        if self._narrow is None:
            never = [i for i in banned if i < size]
            self._never = torch.tensor(never, dtype=torch.int64, device=device)
        else:
            ids = self._narrow.ids
            unsaid = torch.isin(ids, torch.tensor(list(banned), dtype=ids.dtype, device=device))
            self._never = (unsaid | (ids >= size)).nonzero()[:, 0]

    def narrow(self, hidden: Tensor) -> Tensor:
        """Return those of the draft vocabulary, in float32: hidden [..., D] -> [..., R]."""
        if self._narrow is None:
            logits = self._decoder.logits(hidden)[..., : self._size].float()
        else:
            logits = self._narrow.narrow(hidden).float()
        return kernels.log_softmax(logits, self._never)

    def widened(self, log_probs: Tensor) -> Tensor:
        """Return [..., R] at their ids among `size`, all others at -inf."""
        if self._narrow is None:
            return log_probs
        return self._narrow.widened(log_probs)[..., : self._size]

    def chain_drafter(
        self, parts: kernels.ChainParts, table: Tensor, cos_sin: Tensor
    ) -> kernels.ChainDrafter | None:
        """Return what drafts with these parts (`kernels.ChainDrafter`); None where torch takes
        over.
        """
        head = getattr(getattr(self._decoder, "head", None), "own", None)
        if parts.layers is None or head is None or table.dtype != torch.float32:
            return None
        if parts.reads == "product" and parts.join is None:
            return None
        narrow = self._narrow
        n, ids = (self._size, None) if narrow is None else (len(narrow.ids), narrow.ids)
        return kernels.ChainDrafter(parts, head, table.contiguous(), cos_sin, n, ids, self._never)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., D] to [..., size]."""
        return self.widened(self.narrow(hidden))
