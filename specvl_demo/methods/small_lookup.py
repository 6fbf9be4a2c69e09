"""A small model that drafts chains faster by prompt lookup (FLy's n-gram acceleration, arXiv 2511.22972).

What followed the same words earlier is fed behind a drafted token in the same forward; as long as the model
says just that, the next tokens of the chain are there already. What is drafted is the same as without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Scores, Start, Verdict
from specvl_demo.methods.base import TREE, Part
from specvl_demo.methods.declare import ModelSettings, setting
from specvl_demo.methods.ngram import NGramSettings, Occurrences
from specvl_demo.methods.small_vlm import SmallVLM, small


@dataclass(frozen=True)
class LookupSettings(ModelSettings):
    """How much is looked up; as in the published code."""

    ahead: int = setting(6, "tokens fed ahead of the small model where the same words occurred before", 1, 32)
    occurred: int = setting(4, "most last tokens that must have occurred before", 1, 10)


class SmallLookup(SmallVLM):
    """A `core.types.Drafter`: a small model whose chains need fewer forwards where the text repeats itself.

    Rows fed ahead become rows of the chain when they are drafted, else they are cut off before the next
    forward. The root is fed alone.
    """

    settings = LookupSettings()

    def begin(self, start: Start) -> None:
        """As the small model, and index the prompt."""
        super().begin(replace(start, max_nodes=start.max_nodes + self.settings.ahead))
        self._text = Occurrences(NGramSettings(self.settings.occurred), start.vocabulary)
        self._text.add(start.prompt.ids.tolist())
        self._drafted: list[int] = []
        self._guessed: list[int] = []
        self._answers: list[Tensor] = []
        self._branches, self._spared = False, 0

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor:
        """Log-probabilities [k, V] of the token after each fed node; guesses go behind those of a chain."""
        if not isinstance(parents, Tensor) and parents[0] < 0:
            self._branches, self._spared = False, 0
            return super().extend(tokens, parents)
        rows = 1 + len(self._drafted)
        if self._branches or isinstance(parents, Tensor) or list(parents) != [rows - 1]:
            self._cut(rows)
            self._branches = True
            return super().extend(tokens, parents)
        token = int(tokens)
        self._drafted.append(token)
        if self._guessed and self._guessed.pop(0) == token:
            self._spared += 1
            return self._answers.pop(0)
        self._cut(rows)
        self._guessed = self._text.following(self._drafted)[: self.settings.ahead]
        fed = torch.tensor([token, *self._guessed], device=tokens.device)
        said = super().extend(fed, range(rows - 1, rows + len(self._guessed)))
        first, *self._answers = said.split(1)
        return first

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """As the small model; the answer has grown."""
        super().commit(tree, verdict, scores)
        self._text.add(verdict.tokens)
        self._drafted, self._guessed, self._answers = [], [], []

    def notes(self) -> Mapping[str, Any]:
        """`spared`: forwards of the small model that a lookup made needless in this round."""
        return {**super().notes(), "spared": self._spared}

    def _cut(self, rows: int) -> None:
        """Forget what was fed ahead and not drafted."""
        if self._answers:
            self._stream.forget(rows)
            self._said = [torch.cat(self._said, dim=1)[:, :rows]]
        self._guessed, self._answers = [], []


def _build(models: Any, views: Any, mixer: Any, settings: LookupSettings) -> SmallLookup:
    drafter = small(SmallLookup, models.drafter("small"), models, views, mixer, settings)
    drafter.settings = settings
    return drafter


SMALL_LOOKUP = Part(
    "drafter",
    "small-lookup",
    "small model, faster by prompt lookup",
    _build,
    LookupSettings,
    gives=TREE | {"views"},
    role="small",
)
