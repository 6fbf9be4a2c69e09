"""Methods set up for a pair, and a pair's models brought up.

Pairs are data (`pairs`); whether they run here is `verdicts`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from specvl_demo import __version__, base_weights, ceilings, pairs, tuned, verdicts
from specvl_demo.machine import Machine, detect, offline
from specvl_demo.methods import base
from specvl_demo.methods.base import Choice, Value
from specvl_demo.pairs import CUSTOM, ROLES, Checkpoint, Pair, Role
from specvl_demo.verdicts import Options, Verdict, available, there

if TYPE_CHECKING:
    from specvl_demo.core.detokenizer import TokenTexts
    from specvl_demo.methods.base import Models
    from specvl_demo.vlm.loading import Plan
    from specvl_demo.vlm.prompts import PromptBuilder
    from specvl_demo.vlm.target import VLMTarget

COMMONEST = "commonest.json"
"""A local target's file: the ids that it says, most said first."""


def default_pair() -> Pair:
    """The pair a visitor starts with: the photo pair where its weights and a drafter are, else the
    drawn scenes'."""
    photo = pairs.find("photo")
    ready = there(photo.target) and base_weights.why_not(photo.target.folder) is None
    # Without a drafter there is nothing to race.
    ready = ready and bool(roles_here(photo))
    return photo if ready else pairs.find("pocket")


def roles_here(pair: Pair) -> dict[Role, Checkpoint]:
    """The drafters of a pair that can be had: local ones only where their weights are really
    there.
    """
    return {role: one for role, one in pair.drafters.items() if not one.local or there(one)}


def roles_of(choices: Sequence[Choice]) -> list[Role]:
    """The roles of the drafters that these methods ask for, each once."""
    roles = dict.fromkeys(one.drafter.role for one in choices if one.drafter.role is not None)
    return cast("list[Role]", list(roles))


def choose(
    pair: Pair, name: str, settings: Mapping[str, Value] | None = None, temperature: float = 0.0
) -> Choice:
    """A method set up for a pair. ValueError with a sentence where something is unknown or does not
    fit.

    `preset` among the settings names the changes to start from; without it those made for the pair,
    else those of the paper.
    """
    if name not in base.METHODS:
        raise ValueError(
            f"There is no method {name!r}; known: {', '.join(_possible(pair, temperature))}; others"
            f" need a drafter that {pair.called} does not have here (`python -m recipes` trains"
            " one). Your own are read from the files that SPECVL_METHODS names."
        )
    method = base.find(name)
    rest = {key: value for key, value in (settings or {}).items() if key != "preset"}
    preset = (settings or {}).get("preset")
    named = presets(pair, name)
    if preset is not None and preset not in named:
        known = ", ".join(named) or "none"
        raise ValueError(f"{method.name} has no preset {preset!r}; it has: {known}.")
    start = named.get(str(preset or standard(pair, name)))
    choice = base.choose(name, rest, start, temperature)
    role = choice.drafter.role
    if role is not None and role not in roles_here(pair):
        a = "an" if ROLES[role].startswith("E") else "a"
        raise ValueError(
            f"{method.name} needs {a} {ROLES[role]}; {pair.called} has {_held(pair)} here."
        )
    return choice


def _held(pair: Pair) -> str:
    """Of two models that a user named what the drafter is; "none" of a listed pair."""
    found = [f"the {ROLES[role]}" for role in roles_here(pair)]
    return " and ".join(found) if found and pair.id == CUSTOM else "none"


def standard(pair: Pair, name: str) -> str | None:
    """The preset a method starts from: the one made for the pair, or for the same with a drafter
    that sees, else the paper's, where it has any."""
    names = (pair.id, pair.id.removesuffix("-text"), "paper")
    return next((one for one in names if one in base.find(name).presets), None)


def presets(pair: Pair, name: str) -> dict[str, Mapping[str, Value]]:
    """The presets of a method by name, with the one that `bench tune` found for this pair on this
    machine.
    """
    own = dict(base.find(name).presets)
    start = own.get(standard(pair, name) or "", {})
    return own | {key: {**start, **found} for key, found in tuned.presets(pair.id, name).items()}


def served(pair: Pair, temperature: float = 0.0) -> list[str]:
    """The methods that the pair's drafters serve with the parts they have by default, `custom` left
    out.

    ValueError with a sentence where what was tuned here cannot be read.
    """
    return [name for name in _possible(pair, temperature) if name != "custom"]


def _possible(pair: Pair, temperature: float) -> list[str]:
    """Those that `served` gives, and `custom` where its own parts can be chosen."""
    tuned.entry(
        pair.id
    )  # once, so that a damaged file does not look like a method that is not served
    names = []
    for name in base.METHODS:
        try:
            choose(pair, name, temperature=temperature)
        except ValueError:
            continue
        names.append(name)
    return names


def verdict(pair: Pair, name: str, machine: Machine) -> Verdict:
    """Whether a method runs on the pair here: with the drafter that it asks for and no other.

    ValueError with a sentence where the pair does not serve it at all.
    """
    role = choose(pair, name).drafter.role
    return available(pair, machine, roles=[one for one in pair.drafters if one == role])


def ceiling(
    pair: Pair, name: str, machine: Machine, runs: Verdict
) -> tuple[str, ceilings.Ceiling] | None:
    """The most that a method can gain where it would run, and for which device that is derived;
    None where it does not run, or nothing says."""
    if not runs.ok:
        return None
    gpu = "cpu" if runs.device == "cpu" else machine.gpus[int(runs.device.rpartition(":")[2])].name
    each = verdicts.DTYPE_BYTES[runs.dtype]
    packed = verdicts.QUANTISED_BYTES.get(runs.quantised, each)
    try:
        device = ceilings.device_of(gpu)
        return device.name, ceilings.ceiling(pair, choose(pair, name), device, each, packed)
    except ValueError:
        return None  # no data sheet of this GPU is here


@dataclass(frozen=True)
class Loaded:
    """A pair in memory: models for the lanes, how the target is asked, and what the records say of
    it all.
    """

    pair: Pair
    models: Models
    prompter: PromptBuilder
    token_texts: TokenTexts
    verdict: Verdict
    versions: dict[str, str]
    _tried: list[bool] = field(default_factory=list)

    def try_out(self, tell: Callable[[str], None]) -> None:
        """Find out, once, how this device runs the models' steps best and whether they are
        exact.
        """
        if self._tried:
            return
        self._tried.append(True)
        target = self.models.target
        for one in (target.vlm, *self.models.drafters.values()):
            if (try_steps := getattr(one, "calibrate", None)) and (
                reason := try_steps()
            ) is not None:
                tell(f"{one.name}: {reason}")
        if target.exact and target.least_rows is None:
            tell(
                f"Lossless answers are {target.exactness(1)} to AR's: a row's numbers depend on the"
                " others."
            )

    @property
    def remarks(self) -> list[str]:
        """What a user should know of the trained heads before trusting them, in sentences."""
        return [
            said for one in self.models.drafters.values() for said in getattr(one, "remarks", ())
        ]


def remarks(pair: Pair) -> list[str]:
    """What the heads' configurations leave out or have otherwise than the target's, as far as files
    are here.

    Weights are not read; `Loaded.remarks` says more.
    """
    from specvl_demo.methods.heads.files import compare, flattened

    target = verdicts.config(pair.target)
    heads = [(one, verdicts.config(one)) for role, one in pair.drafters.items() if role != "small"]
    if target is None:
        return []
    text = target.get("text_config", target)
    return [said for one, own in heads if own for said in compare(flattened(own), text, one.title)]


def load(
    pair: Pair,
    roles: Sequence[Role] | None = None,
    progress: Callable[[str], None] | None = None,
    options: Options | None = None,
) -> Loaded:
    """Bring up a pair's target and its drafters of these roles (None: all that can be had).

    options: None takes those of the environment. ValueError with a sentence where the pair does not
    run here, a role is missing, or weights cannot be had.
    """
    options = Options.of_environment() if options is None else options
    machine = detect()
    verdict = available(pair, machine, options, roles)
    if not verdict.ok:
        raise ValueError(f"{pair.called} does not run here: {verdict.reason}")
    here = roles_here(pair)
    roles = list(here) if roles is None else list(roles)
    for role in roles:
        if role not in here:
            raise ValueError(f"{pair.called} has no {ROLES[role]} here.")
    from specvl_demo.methods.base import Models
    from specvl_demo.methods.heads import checkpoints
    from specvl_demo.methods.native import Assistant
    from specvl_demo.vlm import compatibility, loading, shared_drafter
    from specvl_demo.vlm.encoder import VLM, LanguageModel
    from specvl_demo.vlm.prompts import PromptBuilder
    from specvl_demo.vlm.target import VLMTarget

    loading.release()
    loading.share(machine.n_cpus)
    tell = progress or (lambda text: None)
    plan = loading.Plan(
        verdict.dtype, verdict.device, verdict.split, verdict.quantised, options.pickles
    )

    def folder(one: Checkpoint, pickles: bool = options.pickles) -> Path:
        if one.base:
            from specvl_demo.vlm import photo_assembly

            return photo_assembly.target(one.folder, tell)
        return one.folder if one.local else loading.fetch(one.id, tell, pickles, machine.offline)

    tell(f"Loading {pair.target.id}")
    weights = folder(pair.target)
    model = loading.model(weights, plan, pair.target.id)
    # The shipped models were trained on Pillow's resizing; torchvision resizes a little otherwise.
    prompter = PromptBuilder(loading.processor(weights, pair.target.id, pair.target.shipped), model)
    # choice: float32 is left as it is: where rounding differs it changed no token of any answer
    # measured.
    exact = options.exact == "on" or (options.exact is None and verdict.dtype != "float32")
    packed = verdicts.PACKED.get(verdict.quantised)
    name = f"{pair.target.title}, {packed} weights" if packed else pair.target.title
    target = VLMTarget(VLM(model, name, prompter.special_ids), exact)
    drafters: dict[str, Any] = {}
    for role in roles:
        one = here[role]
        tell(f"Loading {one.id}")
        if role == "small" and shared_drafter.is_shared(folder(one)):
            small = shared_drafter.load(folder(one), model)
            kind = VLM if shared_drafter.sees(folder(one)) else LanguageModel
            drafters[role] = kind(small, one.title, prompter.special_ids, shares=target.vlm)
        elif role == "small":
            # Drafters are small: whole, and beside the target's first layers.
            sees = compatibility.is_vlm(folder(one))
            small = loading.model(
                folder(one), replace(plan, split={}, quantised="none"), one.id, sees
            )
            if not sees:
                _same_words(weights, pair.target.id, folder(one), one.id)
                drafters[role] = LanguageModel(small, one.title, prompter.special_ids)
                continue
            again = None
            if not compatibility.cut_alike(model.config, small.config):
                again = PromptBuilder(loading.processor(folder(one), one.id), small).again
            drafters[role] = VLM(small, one.title, prompter.special_ids, again=again)
        elif role == "assistant":
            own = loading.model(
                folder(one), replace(plan, split={}, quantised="none"), one.id, sees=False
            )
            drafters[role] = Assistant(own, model, one.title)
        else:
            # Heads open .bin files as plain weights only: nothing in them can run.
            text = cast("Any", model).config.get_text_config().to_dict()
            kinds, files = checkpoints.serving(role), folder(one, pickles=True)
            drafters[role] = checkpoints.open_head(files, target.decoder, kinds, text)
    captioner = None if pair.shipped else _captioner(plan, prompter, tell, machine.offline)
    commonest = _commonest(pair.target, target)
    models = Models(target, drafters, prompter.words(), captioner, commonest)
    loaded = Loaded(pair, models, prompter, prompter.token_texts(), verdict, versions())
    if not machine.per_call:
        loaded.try_out(tell)
    return loaded


def _same_words(target: Path, target_id: str, drafter: Path, drafter_id: str) -> None:
    """ValueError with a sentence where a language model's ids mean other words than its
    target's.
    """
    from specvl_demo.vlm import compatibility

    first = replace(compatibility.read(str(target), offline=True), id=target_id)
    second = replace(compatibility.read(str(drafter), offline=True, text=True), id=drafter_id)
    reason = compatibility.misfit(first, second)
    if reason:
        raise ValueError(reason)


def _commonest(target: Checkpoint, model: VLMTarget) -> list[int]:
    """The target's ids, those it says most first: as counted in the folder of a local target (see
    `studies.commonest`), then the others.

    # choice: where nobody counted, the vocabulary's own order: byte-pair merges are learnt
    commonest first.
    """
    counted = target.folder / COMMONEST
    said = json.loads(counted.read_text()) if target.local and counted.is_file() else []
    every = range(model.decoder.vocab)
    return list(dict.fromkeys([*sorted(model.vocabulary.eos), *said, *every]))


def _captioner(
    plan: Plan, prompter: PromptBuilder, tell: Callable[[str], None], offline: bool
) -> Any:
    """Brings Florence-2 up when it is first asked for, and keeps it: by the longest caption, a
    captioner.

    # choice: the small published drafters (68M) cannot describe a picture; the pocket drafter can,
    and does.
    """
    held: list[Any] = []

    def make(length: int) -> Any:
        from specvl_demo.vlm import florence, loading

        if not held:
            folder = loading.fetch(florence.ID, tell, offline=offline)
            whole = replace(plan, split={}, quantised="none")
            model = loading.model(folder, whole, florence.ID)
            held.extend((model, loading.processor(folder, florence.ID)))
        model, processor = held
        return florence.FlorenceCaptions(model, processor, prompter.ids, length)

    return make


def custom(target: str, drafter: str | None = None) -> Pair:
    """A pair of any two models of a known family, by folder or hub id, checked before weights are
    fetched.

    The drafter may also be the folder of a trained head, or an EAGLE-3 head of the hub. Reads
    configurations, tokenizers and lists of files. ValueError with a sentence where they do not fit.
    """
    from specvl_demo.vlm import compatibility

    alone = offline()
    first = compatibility.read(target, alone)
    drafters: dict[Role, Checkpoint] = {}
    if drafter is not None:
        role = _head_in(Path(drafter))
        head = None if Path(drafter).is_dir() else compatibility.hub_head(drafter, alone)
        if head is not None:
            drafters["eagle3"] = _checkpoint(head)
        elif role is not None:
            folder = Path(drafter).resolve()
            drafters[role] = Checkpoint(
                str(folder), compatibility.stored(folder) / 2, "see its folder", True
            )
        else:
            second = compatibility.read(drafter, alone, text=True)
            reason = compatibility.misfit(first, second)
            if reason:
                raise ValueError(reason)
            own = second.family in compatibility.ASSISTANTS
            drafters["assistant" if own else "small"] = _checkpoint(second)
    name = first.id.rsplit("/", 1)[-1] + (f" with {drafter.rsplit('/', 1)[-1]}" if drafter else "")
    return Pair(CUSTOM, name, first.title, _checkpoint(first), drafters)


def _head_in(folder: Path) -> Role | None:
    """The role of the trained head in a local folder; None where it holds something else."""
    from specvl_demo.methods.heads import checkpoints
    from specvl_demo.vlm import compatibility

    if not folder.is_dir() or compatibility.is_vlm(folder):
        return None
    return cast("Role | None", checkpoints.role_in(folder))


def _checkpoint(card: Any) -> Checkpoint:
    folder = Path(card.id)
    local = folder.is_dir()
    # Without a count, stored weights are taken for half precision.
    params = card.params or card.bytes / 2
    return Checkpoint(str(folder.resolve()) if local else card.id, params, card.licence, local)


def versions() -> dict[str, str]:
    names = ("torch", "transformers")
    return {"specvl_demo": __version__} | {name: metadata.version(name) for name in names}
