"""Prompt lookup: drafts what followed the same words earlier (Saxena 2023). Chains only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Drafter, LaneStart, Scores, Verdict, Vocabulary
from specvl_demo.methods import base
from specvl_demo.methods.base import Method, Part, register
from specvl_demo.methods.policies import CHAIN

LONGEST, SHORTEST = 3, 1
"""The longest and the shortest run of last tokens that is looked up, as in Saxena's code."""


class NgramIndex:
    """Tokens in order, and where the latest occurrence of every short run among them ended.

    # choice: the latest occurrence, since recent text is likelier to continue as before; Hugging
    Face's `prompt_lookup_num_tokens` takes the earliest.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._size = vocabulary.size
        self._banned = set(vocabulary.banned)
        self._tokens: list[int] = []
        # Runs with a placeholder are not kept: all visual tokens look the same, so they would match
        # and propose another placeholder.
        self._ends: dict[tuple[int, ...], int] = {}

    def add(self, tokens: Iterable[int]) -> None:
        """Append tokens. A run is kept once its successor is known, so it never matches itself."""
        for token in tokens:
            for length in range(SHORTEST, LONGEST + 1):
                run = tuple(self._tokens[-length:])
                if len(run) == length and self._banned.isdisjoint(run):
                    self._ends[run] = len(self._tokens)
            self._tokens.append(token)

    def continuation(self) -> list[int]:
        """Return what followed the longest known ending of the text, if any."""
        ending = tuple(self._tokens[-LONGEST:])
        for length in range(LONGEST, SHORTEST - 1, -1):
            end = self._ends.get(ending[-length:])
            after = self._tokens[end:] if end is not None else []
            stop = next(
                (i for i, t in enumerate(after) if t in self._banned or t >= self._size), len(after)
            )
            if stop:
                return after[:stop]
        return []


class NgramDrafter(Drafter):
    """Proposes what followed the text's longest ending when it last occurred."""

    name = "prompt lookup"

    def begin(self, start: LaneStart) -> None:
        """Index the prompt."""
        self._size = start.vocabulary.size
        self._text = NgramIndex(start.vocabulary)
        self._text.add(start.prompt.ids.tolist())
        self._draft: list[int] = []

    def extend(self, tokens: Tensor, parents: Sequence[int]) -> Tensor | None:
        """Return [1, V] with all mass on the proposed token, on the host; None without a match."""
        if parents[0] < 0:
            self._draft = self._text.continuation()
        if not self._draft:
            return None
        log_probs = torch.full((1, self._size), -torch.inf)
        log_probs[0, self._draft.pop(0)] = 0.0
        return log_probs

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        self._text.add(verdict.tokens)


LOOKUP = Part(
    "drafter",
    "ngram",
    "prompt lookup",
    lambda models, views, mixer, settings: NgramDrafter(),
    gives=base.CHAIN,
)


register(
    Method(
        "ngram",
        "Prompt lookup",
        "No model: drafts what followed the same words earlier.",
        drafter=LOOKUP,
        policy=CHAIN,
        reference="Saxena 2023, prompt lookup decoding",
        order=110,
        offered=10,
        url="https://github.com/apoorvumang/prompt-lookup-decoding",
    )
)
