"""A family's own drafter: Gemma 4's assistant, which reads its target's keys and values.

Given the target's hidden states and, from the lane's own session, the keys and values of its last
layer of each kind, drafts without a cache: every drafted row has the root's position and attends to
all committed rows; what was drafted before it is in the state that it is fed with. It runs as in
transformers (`SinglePositionMultiTokenCandidateGenerator`), but supports trees as well as chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from specvl_demo.core.transfer import as_index, to_device
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Drafter, LaneStart, Scores, Verdict
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.packed_linear import log_softmax
from specvl_demo.methods.base import TREE, Method, Opening, Part, register
from specvl_demo.methods.policies import BEST_FIRST, CHAIN, STATIC_TREE


class AssistantModel:
    """An assistant's model and what it reads of its target. Shared by lanes, never changed.

    layers: By kind of attention, the target's layer whose keys and values are read. Raises
    ValueError with a sentence if it was made for another target.
    """

    def __init__(self, model: nn.Module, target: nn.Module, name: str) -> None:
        made_for = cast("Any", model.config)
        config = cast("Any", target.config).get_text_config()
        if made_for.backbone_hidden_size != config.hidden_size:
            raise ValueError(
                f"{name} was made for a target {made_for.backbone_hidden_size} wide; this one is "
                f"{config.hidden_size} wide."
            )
        kinds = config.layer_types[: config.num_hidden_layers - (config.num_kv_shared_layers or 0)]
        self.layers = {kind: number for number, kind in enumerate(kinds)}
        missing = set(made_for.get_text_config().layer_types) - self.layers.keys()
        if missing:
            raise ValueError(f"{name} reads layers its target lacks: {', '.join(sorted(missing))}.")
        self.model = model
        self.name = name

    def step(self, rows: Tensor, shared: dict[str, Tensor], position: int) -> tuple[Tensor, Tensor]:
        """Return logits [k, V] of the next token and the state it is fed with [k, D].

        Args:
            rows: Embeddings and states [k, 2D].
            shared: Keys and values [2, 1, heads, n, width] of committed rows, by kind of attention.
        """
        k = len(rows)
        made = self.model(
            inputs_embeds=rows[:, None],
            position_ids=torch.full((k, 1), position, device=rows.device),
            shared_kv_states={
                kind: tuple(part.expand(k, -1, -1, -1) for part in both)
                for kind, both in shared.items()
            },
            use_cache=False,
        )
        return made.logits[:, 0], made.last_hidden_state[:, 0]


def _open_assistant(opening: Opening) -> AssistantModel:
    from specvl_demo.vlm import loading  # noqa: PLC0415 - the page's process loads no model

    checkpoint = opening.checkpoint
    model = loading.load_model(opening.fetch(False), opening.plan, checkpoint.id, sees=False)
    return AssistantModel(model, opening.target.vlm.model, checkpoint.title)


class AssistantDrafter(Drafter):
    """A `core.types.Drafter` over an assistant, with the decoder of its target."""

    def __init__(self, assistant: AssistantModel, decoder: LanguageBackend) -> None:
        self.name = assistant.name
        self._assistant = assistant
        self._decoder = decoder

    def begin(self, start: LaneStart) -> None:
        """Take the state before the root; there is nothing to prefill."""
        self._session = start.session
        self._size = start.vocabulary.size
        banned = [i for i in start.vocabulary.banned if i < self._size]
        self._banned = to_device(banned, self._decoder.device)
        self._root_state = start.prefill.hidden[-1:]
        self._draft_states: list[Tensor] = []

    def extend(self, tokens: Tensor, parents: Sequence[int]) -> Tensor:
        if parents[0] < 0:
            states = self._root_state
            self._draft_states = []
            layers = self._assistant.layers.items()
            self._shared = {kind: self._session.kv_of(layer) for kind, layer in layers}
        else:
            made = torch.cat(self._draft_states)
            states = made[as_index(parents, made.device)]
        rows = torch.cat((self._decoder.embed(tokens.to(states.device)), states), -1)
        logits, state = self._assistant.step(rows, self._shared, self._session.length)
        self._draft_states.append(state)
        return log_softmax(logits[:, : self._size].float(), self._banned)

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Keep the target's state that predicted the next root."""
        self._root_state = scores.hidden[verdict.path[-1]][None]


ASSISTANT = Part(
    "drafter",
    "assistant",
    "the family's own assistant",
    lambda models, views, mixer, settings: AssistantDrafter(
        models.drafter("assistant"), models.target.decoder
    ),
    gives=TREE,
    role="assistant",
    open=_open_assistant,
)

register(
    Method(
        "native",
        "Native assistant",
        "The drafter released with the model family: it reads the target’s keys and values and"
        " keeps none itself.",
        drafter=ASSISTANT,
        policy=CHAIN,
        reference="Gemma 4 assistants, as transformers runs them",
        options=(STATIC_TREE, BEST_FIRST, "entropy-tree"),
        order=105,
        offered=8,
    )
)
