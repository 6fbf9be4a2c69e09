"""Loads a pair's models: the target, its drafters, and their prompt builders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from specvl_demo.core.detokenizer import TokenTexts
from specvl_demo.decoders import calibration, packed_linear
from specvl_demo.methods.base import Models, opener
from specvl_demo.methods.opening import Opening
from specvl_demo.pairs import ROLES, Checkpoint, PairSpec, Role
from specvl_demo.pairs.machine import Machine, detect, versions
from specvl_demo.serving import threads
from specvl_demo.serving.availability import (
    AS_IT_FITS,
    MOST_EXACT_OVERHEAD,
    PACKED,
    Availability,
    Options,
    available,
    exact_overhead,
)
from specvl_demo.serving.choosing import roles_here
from specvl_demo.vlm import hub, loading, photo_assembly
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.prompts import PromptBuilder
from specvl_demo.vlm.target import VLMTarget

_INEXACT = (
    "Steps are not exact: exact ones would cost AR about {cost:.0%} here; --exact on enables them."
)


@dataclass(frozen=True)
class Loaded:
    """A pair in memory: models for the lanes, a prompt builder, and facts for the records.

    may_decline: Whether batch-invariant steps are given up where they turn out to cost AR much.
    """

    pair: PairSpec
    models: Models
    prompter: PromptBuilder
    token_texts: TokenTexts
    availability: Availability
    versions: dict[str, str]
    may_decline: bool = False
    _tried: list[bool] = field(default_factory=list)

    def try_out(self, tell: Callable[[str], None], steps: int | None = None) -> None:
        """Calibrate, once, how this device runs the models' steps fastest and whether they are
        exact.

        steps: If the device is lent for one answer, its tokens: graphs must pay within them.
        """
        if self._tried:
            return
        self._tried.append(True)
        for model in (self.models.target.vlm, *self.models.drafters.values()):
            if getattr(getattr(model, "decoder", model), "fixed", False):
                tell(f"Trying the steps of {model.name} as graphs")
            calibrate = getattr(model, "calibrate", lambda steps: None)
            if (reason := calibrate(steps)) is not None:
                tell(f"{model.name}: {reason}")
        if self.models.target.batch_invariant:
            self._try_exact(tell)
        self.release()  # caches of these trials

    def _try_exact(self, tell: Callable[[str], None]) -> None:
        """Find out whether the target has batch-invariant steps here, and on a GPU what they cost:
        measured, since the many small kernels that they launch are not in `exact_overhead`.
        """
        target = self.models.target
        on_gpu = target.decoder.device.type != "cpu"
        if on_gpu:
            tell(f"Trying whether {target.name} computes batch-invariant steps here")
        if target.min_invariant_rows is None:
            tell(
                "This target has no batch-invariant steps here: a row's numbers depend on the other"
                f" rows. Lossless answers compared with AR's: {target.exactness(1)}."
            )
        elif on_gpu and self.may_decline:
            cost = calibration.exact_overhead(target.decoder, target.min_invariant_rows)
            if cost > MOST_EXACT_OVERHEAD:
                target.decline_batch_invariance()
                tell(_INEXACT.format(cost=cost))

    def release(self) -> None:
        """Give up caches and graphs that are kept for the next question: before the pair is
        dropped, so that not the garbage collector destroys graphs.
        """
        for model in (self.models.target.vlm, *self.models.drafters.values()):
            getattr(model, "release", lambda: None)()

    @property
    def remarks(self) -> list[str]:
        """Return what a user should know before relying on the target or the trained heads, in
        sentences.
        """
        drafters = self.models.drafters.values()
        penalties = hub.unapplied_penalties(
            self.models.target.vlm.model.generation_config.to_dict()
        )
        of_heads = [remark for drafter in drafters for remark in getattr(drafter, "remarks", ())]
        return [penalties, *of_heads] if penalties else of_heads


def load(
    pair: PairSpec,
    roles: Sequence[Role] | None = None,
    progress: Callable[[str], None] | None = None,
    options: Options = AS_IT_FITS,
    place: Availability | None = None,
) -> Loaded:
    """Load a pair's target and its drafters of these roles (None: all that are available).

    place: As `place_of` returned, if it was asked.

    Raises ValueError if the pair does not run here, a role is missing, or weights cannot be loaded.
    """
    machine = detect()
    roles = list(roles_here(pair) if roles is None else roles)
    place = place or place_of(pair, roles, options)
    loading.limit_threads(machine.n_cpus)
    # Packing and trying out are many small products.
    with threads.fitted() as fit:

        def tell(text: str) -> None:
            fit()
            if progress is not None:
                progress(text)

        loaded = _load(pair, machine, roles, tell, options, place)
        fit()
        if not machine.per_call:
            loaded.try_out(tell)
    return loaded


def place_of(pair: PairSpec, roles: Sequence[Role], options: Options) -> Availability:
    """Return where and how the pair runs with these drafters; ValueError if it does not here."""
    machine = detect()
    if not packed_linear.has_kernels():
        machine = replace(machine, kernels=False)  # the compiler failed
    place = available(pair, machine, options, roles)
    if not place.ok:
        raise ValueError(f"{pair.called} does not run here: {place.reason}")
    here = roles_here(pair)
    if missing := [role for role in roles if role not in here]:
        raise ValueError(f"{pair.called} has no {ROLES[missing[0]]} here.")
    return place


def _in_8_bits(place: Availability) -> bool:
    """Whether the target has the lean decoder's own 8-bit layout, not a library's."""
    return place.device == "cpu" and place.quantised == "8bit"


def _load(
    pair: PairSpec,
    machine: Machine,
    roles: Sequence[Role],
    tell: Callable[[str], None],
    options: Options,
    place: Availability,
) -> Loaded:
    loading.release()
    packing = "none" if _in_8_bits(place) else place.quantised
    plan = loading.LoadPlan(place.dtype, place.device, place.split, packing)

    def folder(checkpoint: Checkpoint, is_head: bool) -> Path:
        if checkpoint.base:
            return photo_assembly.target(checkpoint.folder, tell)
        if checkpoint.local:
            return checkpoint.folder
        return loading.fetch(checkpoint.id, tell, is_head, machine.offline)

    # 1. The target: its weights, what makes its prompts, how its steps run.
    tell(f"Loading {pair.target.id}")
    weights = folder(pair.target, False)
    model = loading.model(weights, plan, pair.target.id)
    # The shipped models were trained with Pillow's resizing, which differs slightly from
    # torchvision's.
    prompter = PromptBuilder(loading.processor(weights, pair.target.id, pair.target.shipped), model)
    packed = PACKED.get(place.quantised)
    name = f"{pair.target.title}, {packed} weights" if packed else pair.target.title
    backend = "8bit" if _in_8_bits(place) else "auto"
    vlm = VLM(model, name, prompter.special_ids, backend, ends=prompter.end_ids)
    target = VLMTarget(vlm, _exact(pair, place, vlm, options, tell))
    # 2. Its drafters, which are small: they stay whole, on the device of the target's first layers.
    whole = replace(plan, split={}, quantised="none")
    drafters: dict[str, Any] = {}
    for role in roles:
        one = pair.drafters[role]
        tell(f"Loading {one.id}")
        opening = Opening(one, partial(folder, one), whole, target, prompter)
        drafters[role] = opener(role)(opening)
    models = Models(target, drafters, prompter.words())
    texts, may_decline = prompter.token_texts(), options.exact is None
    return Loaded(pair, models, prompter, texts, place, versions(), may_decline)


def _exact(
    pair: PairSpec, place: Availability, vlm: VLM, options: Options, tell: Callable[[str], None]
) -> bool:
    """Return whether the target is to score with batch-invariant steps; say so if they would cost
    too much.

    # choice: float32 stays without them where they cost something: rounding decides so
    # rarely there that computing the text again (`Scores.recompute`) costs less.
    """
    if options.exact is not None or _in_8_bits(place) or vlm.decoder.batch_invariant:
        return options.exact == "on" or _in_8_bits(place) or options.exact is None
    if place.dtype == "float32":
        return False
    cost = exact_overhead(pair, place)
    if cost > MOST_EXACT_OVERHEAD:
        tell(_INEXACT.format(cost=cost))
    return cost <= MOST_EXACT_OVERHEAD
