"""A small vision-language model as drafter, reading the prompt through one or several views.

Given a VLM and views, keeps one sequence per view in one batch and drafts with a mixture of their
distributions. Accepted rows stay in its cache: nothing is fed twice. Supports chains and trees.
Knows no tree policy and no acceptance rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.transfer import take_rows
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import NO_AUX, LaneStart, Scores, Seen, Verdict
from specvl_demo.decoders.graphs import draft_shapes
from specvl_demo.decoders.sequence import prefill
from specvl_demo.methods.base import TREE, Opening, Part
from specvl_demo.methods.level_calls import LevelCalls, fed_rows
from specvl_demo.methods.views import View
from specvl_demo.vlm.encoder import VLM, LanguageModel


class Mixer:
    """Mixes the distributions of m views into one, for one lane. Weights `[m]` of the views are
    fixed within a round, and equal unless a subclass learns others.
    """

    def begin(self, start: LaneStart, views: Sequence[str]) -> None:
        """Give these views equal weights."""
        self.views = tuple(views)
        self.weights = torch.full((len(views),), 1 / len(views), device=start.encoded.ids.device)

    def update(self, logp: Tensor, logits: Tensor, tokens: Sequence[int]) -> None:
        """Learn from the first p nodes of a round's accepted path, all that were fed to the
        drafter: every accepted position and the first mismatch, not a full chain's bonus.

        Args:
            logp: The views' log-probabilities [m, p, V].
            logits: The target's raw logits [p, V].
            tokens: The emitted ids.
        """

    def round_notes(self) -> Mapping[str, Any]:
        """Return what the round's record says of it."""
        return {}


class SmallVLM(LevelCalls):
    """A `core.types.Drafter`.

    Args:
        vlm: The drafting model, never changed. It may be the target itself (self-speculation). A
            text-only language model is given no visual positions.
        views: At least one.
        mixer: Required for more than one view.
    """

    def __init__(self, vlm: VLM, views: Sequence[View], mixer: Mixer | None = None) -> None:
        self.name = vlm.name
        self.vlm = vlm
        self._views = tuple(views)
        self._mixer = mixer
        # Only one of the views needs anything of the target's prefill: the pruned one, if guided.
        requests = (view.aux_request for view in views)
        self.aux_request = next((request for request in requests if request != NO_AUX), NO_AUX)

    def begin(self, start: LaneStart) -> None:
        """Read the prompt through every view, in one batched prefill."""
        encoded = start.encode(self.vlm)
        contexts = [view.build_context(encoded, self.vlm, start.prefill) for view in self._views]
        if not self.vlm.sees:
            contexts = [context.text_only() for context in contexts]
        ends = max(int(context.positions.max()) for context in contexts) + 1 + start.max_new_tokens
        if ends > self.vlm.context:
            raise ValueError(
                f"{self.name} takes {self.vlm.context} positions; this prompt and its answer may"
                f" need {ends}. Ask for a shorter answer, or choose another drafter."
            )
        longest = max(context.ids.shape[0] for context in contexts)
        room = longest + start.max_new_tokens + start.max_nodes + 1
        decoder = self.vlm.decoder
        shapes = draft_shapes(decoder, start)
        self._sequence = prefill(decoder, contexts, room, shapes=shapes).sequence
        self._seen = {
            context.name: (
                context.index,
                context.ids[(context.index < 0) & ~context.visual].tolist(),
            )
            for context in contexts
        }
        if start.vocabulary.size > decoder.vocab:
            self._last_id = decoder.vocab - 1
        self._begin_levels(start)
        if self._mixer is not None:
            self._mixer.begin(start, [context.name for context in contexts])

    def _inputs(self) -> dict[str, Tensor]:
        return {} if self._mixer is None else {"weights": self._mixer.weights}

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Keep the accepted rows; accepted tokens not fed yet are fed with the next root."""
        rows = fed_rows(tree, verdict.path)
        if not rows:
            self._skip_round(tree, verdict)
            return
        n = len(rows)
        if self._mixer is not None:
            logits = take_rows(scores.logits, verdict.path[:n])
            self._mixer.update(self._log_probs_at(rows), logits, verdict.tokens[:n])
        self._sequence.commit_nodes(rows)
        self._pending = verdict.tokens[n - 1 : -1]

    def view_log_probs(self, rows: Sequence[int]) -> Mapping[str, Tensor]:
        return dict(zip(self._seen, self._log_probs_at(rows), strict=True))

    def seen_by_view(self) -> Seen:
        return self._seen

    def round_notes(self) -> Mapping[str, Any]:
        return {} if self._mixer is None else self._mixer.round_notes()

    def _log_probs_at(self, rows: Sequence[int]) -> Tensor:
        """Return the views' log-probabilities [m, len(rows), V] at these rows."""
        return self._logp.to_vocab(take_rows(torch.cat(self._log_probs, dim=1), rows, dim=1))


def _open_small_vlm(opening: Opening) -> VLM:
    """Open a smaller model with the target's vocabulary, or a drafter that shares its vision."""
    # Imports what loads models only here: the page's process reads the methods.
    from specvl_demo.vlm import hub, loading, shared_drafter  # noqa: PLC0415
    from specvl_demo.vlm.prompts import PromptBuilder  # noqa: PLC0415

    checkpoint = opening.checkpoint
    target = opening.target
    special = opening.prompter.special_ids
    folder = opening.fetch(False)
    if shared_drafter.is_shared(folder):
        model = shared_drafter.load_drafter(folder, target.vlm.model)
        return VLM(model, checkpoint.title, special, shares=target.vlm, drafts=True)
    sees = hub.is_vlm(folder)
    model = loading.load_model(folder, opening.plan, checkpoint.id, sees)
    if not sees:
        return LanguageModel(model, checkpoint.title, special, drafts=True)
    again = None
    if not hub.split_pictures_alike(target.vlm.model.config, model.config):
        again = PromptBuilder(loading.load_processor(folder, checkpoint.id), model).rebuild
    return VLM(model, checkpoint.title, special, again=again, drafts=True)


SMALL = Part(
    "drafter",
    "small",
    "small model with the same vocabulary",
    lambda models, views, mixer, settings: SmallVLM(models.drafter("small"), views, mixer),
    gives=TREE | {"views"},
    role="small",
    open=_open_small_vlm,
)
# Used with views that omit most of the picture.
SELF = Part(
    "drafter",
    "self",
    "the target itself",
    lambda models, views, mixer, settings: SmallVLM(models.target.vlm, views, mixer),
    gives=TREE | {"views"},
)
