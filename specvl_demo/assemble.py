"""From a choice in the method table and loaded models to the parts of a lane.

Given names and numbers from `methods` and models from the registry, makes new objects: parts serve one lane
each. Knows how every part is built; nothing of rounds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specvl_demo import methods
from specvl_demo.core.engine import Parts
from specvl_demo.core.types import Drafter, Mixer, View
from specvl_demo.core.views import CaptionView, FullView, PooledView, PrunedView, TextView
from specvl_demo.drafters.captions import OwnCaptions
from specvl_demo.drafters.dream import DreamDrafter
from specvl_demo.drafters.features import FeatureDrafter
from specvl_demo.drafters.florence import FlorenceCaptions
from specvl_demo.drafters.ngram import NGram
from specvl_demo.drafters.none import NoDrafter
from specvl_demo.drafters.small_vlm import SmallVLM
from specvl_demo.targets.target import VLMTarget
from specvl_demo.targets.vlm import VLM


@dataclass(frozen=True)
class Models:
    """What a pair has loaded.

    drafters: by role ("small": a VLM; heads by their names). words: token ids that views put in place of
    pictures, by purpose: "newline"; "caption", what stands before one; "describe", what follows a picture to
    have the drafter caption it, up to where its answer begins. captioner: brings up a model that describes
    pictures, called when a caption view is first wanted; None where the drafter does it itself.
    """

    target: VLMTarget
    drafters: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, Sequence[int]] = field(default_factory=dict)
    captioner: Callable[[int], FlorenceCaptions] | None = None

    def drafter(self, role: str) -> Any:
        """The model of a role; ValueError where the pair has none."""
        if role not in self.drafters:
            known = ", ".join(self.drafters) or "none"
            raise ValueError(
                f"This pair has no drafter of kind {role!r} for {self.target.name}; it has: {known}."
            )
        return self.drafters[role]

    def word(self, purpose: str) -> tuple[int, ...]:
        """The token ids for a purpose; ValueError where the pair gives none."""
        if purpose not in self.words:
            raise ValueError(f"The pair of {self.target.name} says no {purpose!r} words for this view.")
        return tuple(self.words[purpose])


def assemble(choice: methods.Choice, models: Models) -> Parts:
    """New parts for one lane."""
    views = [_make(view)(models, **choice.of(view)) for view in choice.views]
    mixer = _make(methods.MIXTURE)(**choice.of(methods.MIXTURE)) if len(views) > 1 else None
    drafter: Drafter = _make(choice.drafter)(models, views, mixer, **choice.of(choice.drafter))
    return Parts(
        method=choice.method.name,
        title=choice.method.title,
        lossless=choice.lossless,
        settings=choice.settings,
        drafter=drafter,
        policy=_make(choice.policy)(**choice.of(choice.policy)),
        verifier=_make(choice.verifier)(**choice.of(choice.verifier)),
        drafter_model=None if drafter.name == "none" else drafter.name,
        ahead=next((view.ahead for view in views if isinstance(view, CaptionView)), None),
    )


def no_drafter(models: Models, views: Sequence[View], mixer: Mixer | None) -> Drafter:
    """The drafter of plain decoding."""
    return NoDrafter()


def small_vlm(models: Models, views: Sequence[View], mixer: Mixer | None) -> Drafter:
    """The pair's small VLM."""
    return SmallVLM(models.drafter("small"), views, mixer)


def target_as_drafter(models: Models, views: Sequence[View], mixer: Mixer | None) -> Drafter:
    """The target drafts for itself, through views that spare it most of the picture."""
    vlm: VLM = models.target.vlm
    return SmallVLM(vlm, views, mixer)


def eagle2_head(models: Models, views: Sequence[View], mixer: Mixer | None) -> Drafter:
    """The pair's EAGLE-2 head, or a published one that drafts like it."""
    return FeatureDrafter(models.drafter("eagle2"))


def hivis_head(models: Models, views: Sequence[View], mixer: Mixer | None, variant: str) -> Drafter:
    """The pair's HiViS head, or the one of its first training stage."""
    return FeatureDrafter(models.drafter("hivis" if variant == "full" else f"hivis-{variant}"))


def dream_head(
    models: Models,
    views: Sequence[View],
    mixer: Mixer | None,
    variant: str,
    keep: float,
    ancestry: bool,
) -> Drafter:
    """The pair's DREAM head, or the one trained without cross-attention. keep 0: as it was trained."""
    head = models.drafter("dream" if variant == "full" else f"dream-{variant}")
    return DreamDrafter(head, keep or None, ancestry)


def prompt_lookup(
    models: Models, views: Sequence[View], mixer: Mixer | None, longest: int, shortest: int
) -> Drafter:
    """Prompt lookup; needs no model."""
    return NGram(longest, shortest)


def full_view(models: Models) -> View:
    """The whole prompt."""
    return FullView()


def text_view(models: Models) -> View:
    """No picture, a newline in its place."""
    return TextView(models.word("newline"))


def caption_view(models: Models, caption_length: int) -> View:
    """A description in place of the picture: a captioner's where the pair has one, else the drafter's own."""
    if models.captioner is not None:
        captions = models.captioner(caption_length)
        return CaptionView(captions, models.word("caption"), ahead=captions.ahead)
    vocabulary = models.target.vocabulary
    own = OwnCaptions(models.word("describe"), vocabulary.eos, vocabulary.banned, caption_length)
    return CaptionView(own, models.word("caption"))


def pooled_view(models: Models, pool: int) -> View:
    """A coarser picture."""
    return PooledView(pool)


def pruned_view(
    models: Models, drop_image: float, drop_video: float, guided: bool, share: float, positions: str
) -> View:
    """Part of the picture, chosen evenly or with the help of the target's attention."""
    layers = tuple(range(models.target.decoder.n_layers)) if guided else ()
    return PrunedView(drop_image, drop_video, layers, share, positions)


def _make(part: methods.Part) -> Callable[..., Any]:
    module, name = part.build.split(":")
    return getattr(importlib.import_module(module), name)
