"""A target, a drafter and a clock without weights: tables small enough to enumerate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch import Tensor

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import (
    NO_AUX,
    AuxRequest,
    Drafter,
    Encoded,
    Prefill,
    Prompt,
    Scores,
    Vocabulary,
)


class FakeClock:
    """Every lap takes the given time; `costs` by phase, in seconds."""

    def __init__(self, costs: Mapping[str, float]) -> None:
        self.costs = costs

    def start(self) -> None:
        self.laps: dict[str, float] = {}

    def lap(self, phase: str | None) -> None:
        if phase is not None:
            self.laps[phase] = self.costs.get(phase, 0.0)

    def read(self) -> dict[str, float]:
        return self.laps


@dataclass
class TableTarget:
    """A target whose logits depend on the last token: table [V, V]. Checks every tree it gets."""

    table: Tensor
    eos: frozenset[int] = frozenset()
    costs: Mapping[str, float] = field(default_factory=lambda: {"verify_s": 1.0})
    name: str = "table"

    def __post_init__(self) -> None:
        self.vocabulary = Vocabulary(self.table.shape[0], eos=self.eos)
        self.decoder = SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32)
        self.sessions: list[TableSession] = []

    def encode(self, prompt: Prompt) -> Encoded:
        n = len(prompt)
        return Encoded(
            prompt.ids, prompt.visual, torch.zeros(n, 1), torch.arange(n), prompt, seconds=0.25
        )

    def prefill(self, encoded: Encoded, aux_request: AuxRequest = NO_AUX) -> Prefill:
        return Prefill(encoded, encoded.embeds[:-1], encoded.ids.tolist(), seconds=0.5)

    def open(
        self,
        prefill: Prefill,
        max_new_tokens: int,
        max_nodes: int,
        aux_request: AuxRequest = NO_AUX,
    ) -> TableSession:
        self.sessions.append(TableSession(self, prefill.sequence))
        return self.sessions[-1]

    def exactness(self, max_nodes: int) -> str:
        return "exact"

    def stopwatch(self) -> FakeClock:
        return FakeClock(self.costs)

    def peak_bytes(self) -> int | None:
        return None


class TableSession:
    """Keeps the decided tokens; the root of a tree must be the last token emitted."""

    def __init__(self, target: TableTarget, prompt: Sequence[int]) -> None:
        self.target = target
        self.decided = list(prompt[:-1])

    @property
    def length(self) -> int:
        return len(self.decided)

    def score(self, tree: DraftTree) -> Scores:
        self.tree = tree
        return Scores(self.target.table[tree.tokens], torch.zeros(len(tree), 1))

    def commit(self, path: Sequence[int]) -> None:
        self.decided += self.tree.tokens[list(path)].tolist()


class TableDrafter(Drafter):
    """Returns a table's [V, V] log-probabilities after the last token; feeds rows as a real one."""

    name = "table drafter"

    def __init__(self, table: Tensor) -> None:
        self.table = table.log_softmax(-1)
        self.fed: list[int] = []

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor:
        parents = [int(p) for p in parents]
        if parents[0] < 0:
            assert parents == [-1]
            self.fed = []
        else:
            assert all(0 <= p < len(self.fed) for p in parents)
        self.fed += tokens.tolist()
        return self.table[tokens]


TABLE_PROMPT = Prompt(torch.tensor([0, 0]), torch.zeros(2, dtype=torch.bool), {}, text="?")
