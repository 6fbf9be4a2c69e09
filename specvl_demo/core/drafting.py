"""A drafter with nothing to propose: autoregressive decoding has it, other drafters derive from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import NOTHING, Capture, Scores, Start, Verdict


class NoDrafter:
    """A `core.types.Drafter` that has nothing to propose; others without views derive from it."""

    name = "none"
    capture: Capture = NOTHING

    def begin(self, start: Start) -> None:
        """Needs nothing of the prompt."""

    def close(self, said: Tensor) -> None:
        """Keeps nothing for the next question."""

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor | None:
        """Nothing to propose."""
        return None

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Keeps nothing."""

    def views(self, rows: Sequence[int]) -> Mapping[str, Tensor]:
        """No views."""
        return {}

    def seen(self) -> Mapping[str, Tensor]:
        """Saw nothing."""
        return {}

    def words(self) -> Mapping[str, Sequence[int]]:
        """Put nothing in place of anything."""
        return {}

    def notes(self) -> Mapping[str, Any]:
        """Nothing to say."""
        return {}
