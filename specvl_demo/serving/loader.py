"""Loads a pair's models: the target, its drafters, and their prompt builders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from specvl_demo.core.detokenizer import TokenTexts
from specvl_demo.decoders import packed_linear
from specvl_demo.decoders.timing import outside_bytes, peak_bytes
from specvl_demo.methods.base import Models
from specvl_demo.methods.heads import checkpoints
from specvl_demo.methods.native import Assistant
from specvl_demo.pairs import ROLES, Checkpoint, PairSpec, Role
from specvl_demo.pairs.machine import Machine, detect, versions
from specvl_demo.serving import threads
from specvl_demo.serving.availability import (
    MOST_EXACT_COST,
    PACKED,
    Availability,
    Options,
    available,
    exact_cost,
    needs,
)
from specvl_demo.serving.choosing import roles_here
from specvl_demo.vlm import compatibility, loading, photo_assembly, shared_drafter
from specvl_demo.vlm.encoder import VLM, LanguageModel
from specvl_demo.vlm.prompts import PromptBuilder
from specvl_demo.vlm.target import VLMTarget


@dataclass(frozen=True)
class Loaded:
    """A pair in memory: models for the lanes, the target's prompt builder, and facts for the
    records.
    """

    pair: PairSpec
    models: Models
    prompter: PromptBuilder
    token_texts: TokenTexts
    availability: Availability
    versions: dict[str, str]
    _tried: list[bool] = field(default_factory=list)

    def try_out(self, tell: Callable[[str], None], steps: int | None = None) -> None:
        """Calibrate, once, how this device runs the models' steps fastest and whether they are
        exact.

        steps: If the device is lent for one answer, its tokens: graphs must pay within them.
        """
        if self._tried:
            return
        self._tried.append(True)
        target = self.models.target
        for one in (target.vlm, *self.models.drafters.values()):
            if getattr(getattr(one, "decoder", one), "fixed", False):
                tell(f"Trying the steps of {one.name} as graphs")
            calibrate = getattr(one, "calibrate", lambda steps: None)
            if (reason := calibrate(steps)) is not None:
                tell(f"{one.name}: {reason}")
        if target.exact and target.decoder.device.type != "cpu":
            tell(f"Trying whether {target.name} computes exact steps here")
        if target.exact and target.least_rows is None:
            tell(
                "This target has no exact steps here: a row's numbers depend on the other rows."
                f" Lossless answers compared with AR's: {target.exactness(1)}."
            )
        self.release()  # caches of these trials

    def release(self) -> None:
        """Give up caches and graphs that are kept for the next question: before the pair is
        dropped, so that not the garbage collector destroys graphs.
        """
        for one in (self.models.target.vlm, *self.models.drafters.values()):
            getattr(one, "release", lambda: None)()

    def memory(self, n_lanes: int) -> dict[str, int]:
        """Return the bytes that were predicted for so many lanes, part by part and in all, and
        those in use at the peak until now: what torch took, what is used of the device besides
        (its context, if no other program is there), and in all.
        """
        place, device = self.availability, self.models.target.decoder.device
        roles = cast("list[Role]", list(self.models.drafters))
        parts = needs(self.pair, place.dtype, roles, place.quantised, place.device, n_lanes)
        taken, outside = peak_bytes(device), outside_bytes(device)
        return {
            **parts._asdict(),
            "predicted": sum(parts),
            "taken": taken,
            "outside": outside,
            "measured": taken + outside,
        }

    @property
    def remarks(self) -> list[str]:
        """Return what a user should know of the trained heads before relying on them, in
        sentences.
        """
        drafters = self.models.drafters.values()
        return [remark for one in drafters for remark in getattr(one, "remarks", ())]


def load(
    pair: PairSpec,
    roles: Sequence[Role] | None = None,
    progress: Callable[[str], None] | None = None,
    options: Options | None = None,
) -> Loaded:
    """Load a pair's target and its drafters of these roles (None: all that are available).

    options: None for those of the environment.

    Raises:
        ValueError: With a sentence if the pair does not run here, a role is missing, or weights
            cannot be loaded.
    """
    machine = detect()
    loading.share(machine.n_cpus)
    # Packing and trying out are many small products.
    with threads.fitted() as fit:

        def tell(text: str) -> None:
            fit()
            if progress is not None:
                progress(text)

        loaded = _load(pair, machine, roles, tell, options)
        fit()
        if not machine.per_call:
            loaded.try_out(tell)
    return loaded


def _load(
    pair: PairSpec,
    machine: Machine,
    roles: Sequence[Role] | None,
    tell: Callable[[str], None],
    options: Options | None,
) -> Loaded:
    options = Options.of_environment() if options is None else options
    if not packed_linear.has_kernels():
        machine = replace(machine, kernels=False)  # the compiler failed
    place = available(pair, machine, options, roles)
    if not place.ok:
        raise ValueError(f"{pair.called} does not run here: {place.reason}")
    here = roles_here(pair)
    roles = list(here) if roles is None else list(roles)
    for role in roles:
        if role not in here:
            raise ValueError(f"{pair.called} has no {ROLES[role]} here.")
    loading.release()
    in_8_bits = place.device == "cpu" and place.quantised == "8bit"
    packing = "none" if in_8_bits else place.quantised
    plan = loading.LoadPlan(place.dtype, place.device, place.split, packing, options.pickles)

    def folder(one: Checkpoint, pickles: bool = options.pickles) -> Path:
        if one.base:
            return photo_assembly.target(one.folder, tell)
        return one.folder if one.local else loading.fetch(one.id, tell, pickles, machine.offline)

    tell(f"Loading {pair.target.id}")
    weights = folder(pair.target)
    model = loading.model(weights, plan, pair.target.id)
    # The shipped models were trained with Pillow's resizing, which differs slightly from
    # torchvision's.
    prompter = PromptBuilder(loading.processor(weights, pair.target.id, pair.target.shipped), model)
    packed = PACKED.get(place.quantised)
    name = f"{pair.target.title}, {packed} weights" if packed else pair.target.title
    backend = "8bit" if in_8_bits else "auto"
    vlm = VLM(model, name, prompter.special_ids, backend)
    exact = options.exact == "on" or in_8_bits or (options.exact is None and vlm.decoder.rows_apart)
    # choice: float32 stays without exact steps where they cost something: rounding decides so
    # rarely there that reading the text again (`Scores.reread`) costs less.
    if options.exact is None and not exact and place.dtype != "float32":
        exact = (cost := exact_cost(pair, place)) <= MOST_EXACT_COST
        if not exact:
            tell(
                f"Steps are not exact: exact ones would cost AR about {cost:.0%} here;"
                " --exact on enables them."
            )
    target = VLMTarget(vlm, exact)
    # Other models are small: they stay whole, on the device of the target's first layers.
    whole = replace(plan, split={}, quantised="none")
    drafters: dict[str, Any] = {}
    for role in roles:
        one = here[role]
        tell(f"Loading {one.id}")
        if role == "small" and shared_drafter.is_shared(folder(one)):
            small = shared_drafter.load(folder(one), model)
            drafters[role] = VLM(
                small, one.title, prompter.special_ids, shares=target.vlm, drafts=True
            )
        elif role == "small":
            sees = compatibility.is_vlm(folder(one))
            small = loading.model(folder(one), whole, one.id, sees)
            if not sees:
                _same_words(weights, pair.target.id, folder(one), one.id)
                drafters[role] = LanguageModel(small, one.title, prompter.special_ids, drafts=True)
                continue
            again = None
            if not compatibility.cut_alike(model.config, small.config):
                again = PromptBuilder(loading.processor(folder(one), one.id), small).again
            drafters[role] = VLM(small, one.title, prompter.special_ids, again=again, drafts=True)
        elif role == "assistant":
            own = loading.model(folder(one), whole, one.id, sees=False)
            drafters[role] = Assistant(own, model, one.title)
        else:
            # Heads open .bin files only as plain weights, in which nothing can run.
            text = cast("Any", model).config.get_text_config().to_dict()
            files = folder(one, pickles=True)
            drafters[role] = checkpoints.open_head(files, target.decoder, role, text)
    models = Models(target, drafters, prompter.words())
    return Loaded(pair, models, prompter, prompter.token_texts(), place, versions())


def _same_words(target: Path, target_id: str, drafter: Path, drafter_id: str) -> None:
    """Raise ValueError with a sentence if a language model's ids differ from its target's."""
    first = replace(compatibility.read(str(target), offline=True), id=target_id)
    second = replace(compatibility.read(str(drafter), offline=True, text=True), id=drafter_id)
    if reason := compatibility.misfit(first, second):
        raise ValueError(reason)
