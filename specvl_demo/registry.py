"""Which models belong together: pairs of a target and its drafters, what they need, and how they are loaded.

Pairs are data (`pairs`). `available` says from sizes alone what runs on a machine and why not, and fetches
nothing; `load` brings the models up. Knows no methods beyond the kind of drafter they ask for.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specvl_demo import __version__, methods, tuned
from specvl_demo.machine import Machine, detect, gb, offline
from specvl_demo.methods import Choice, Value
from specvl_demo.pairs import ROLES, Checkpoint, Pair, Role

if TYPE_CHECKING:
    from specvl_demo.assemble import Models
    from specvl_demo.core.text import Lexicon
    from specvl_demo.targets.loading import Plan
    from specvl_demo.targets.prompts import Prompter

Dtype = Literal["float32", "bfloat16", "float16"]

Quantised = Literal["none", "8bit", "4bit"]

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
# A little above the bits themselves: scales, and what stays in half precision.
QUANTISED_BYTES: dict[str, float] = {"8bit": 1.2, "4bit": 0.7}
PACKED: dict[str, str] = {"8bit": "8-bit", "4bit": "4-bit"}

# Beside the weights: activations, keys and values, the library itself.
OVERHEAD_BYTES = 1_500_000_000
OVERHEAD_SHARE = 0.1
USABLE_SHARE = 0.9


@dataclass(frozen=True)
class Verdict:
    """Whether a pair runs on a machine, on what, and the sentence that says so.

    split: bytes by CUDA device, where the target is spread over several.
    """

    ok: bool
    reason: str
    device: str = "cpu"
    dtype: Dtype = "float32"
    needs_bytes: int = 0
    must_fetch: bool = field(default=False)
    split: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """How weights are to be brought up, where the machine's own choice will not do.

    dtype: None takes bfloat16 on a GPU, float32 on a CPU, where half precision is slower. quantised: the
    target's weights in 8 or 4 bits. pickles: read .bin files too, which can run code.
    """

    dtype: Dtype | None = None
    quantised: Quantised = "none"
    pickles: bool = False


AS_IS = Options()


def roles_here(pair: Pair) -> dict[Role, Checkpoint]:
    """The drafters of a pair that can be had: local ones only where their weights are really there."""
    return {role: one for role, one in pair.drafters.items() if not one.local or _there(one)}


def choose(
    pair: Pair, name: str, settings: Mapping[str, Value] | None = None, temperature: float = 0.0
) -> Choice:
    """A method set up for a pair. ValueError with a sentence where something is unknown or does not fit.

    `preset` among the settings names the changes to start from; without it those made for the pair, else
    those of the paper.
    """
    method = methods.find(name)
    rest = {key: value for key, value in (settings or {}).items() if key != "preset"}
    preset = (settings or {}).get("preset")
    named = presets(pair, name)
    if preset is not None and preset not in named:
        known = ", ".join(named) or "none"
        raise ValueError(f"{method.name} has no preset {preset!r}; it has: {known}.")
    start = named.get(str(preset or standard(pair, name)))
    choice = methods.choose(name, rest, start, temperature)
    role = choice.drafter.role
    if role is not None and role not in roles_here(pair):
        raise ValueError(f"{method.name} needs a {ROLES[role]}; {pair.id} has none here.")
    return choice


def standard(pair: Pair, name: str) -> str | None:
    """The preset a method starts from: the one made for the pair, else the paper's, where it has any."""
    return next((one for one in (pair.id, "paper") if one in methods.find(name).presets), None)


def presets(pair: Pair, name: str) -> dict[str, Mapping[str, Value]]:
    """The presets of a method by name, with the one that `bench tune` found for this pair on this machine."""
    own = dict(methods.find(name).presets)
    start = own.get(standard(pair, name) or "", {})
    return own | {key: {**start, **found} for key, found in tuned.presets(pair.id, name).items()}


def served(pair: Pair, temperature: float = 0.0) -> list[str]:
    """The methods that the pair's drafters serve with the parts they have by default, `custom` left out.

    ValueError with a sentence where what was tuned here cannot be read.
    """
    tuned.entry(pair.id)  # once, so that a damaged file does not look like a method that is not served
    names = []
    for name in methods.METHODS:
        try:
            choose(pair, name, temperature=temperature)
        except ValueError:
            continue
        names.append(name)
    return [name for name in names if name != "custom"]


def needs_bytes(
    pair: Pair, dtype: str, roles: Collection[Role] | None = None, quantised: Quantised = "none"
) -> int:
    """Memory for the target and its largest drafter (of these roles; None: of all), with what runs beside
    them."""
    largest = max((one.params for one in _drafters(pair, roles)), default=0.0)
    weights = pair.target.params * QUANTISED_BYTES.get(quantised, DTYPE_BYTES[dtype])
    weights += largest * DTYPE_BYTES[dtype]
    return int(weights * (1 + OVERHEAD_SHARE)) + OVERHEAD_BYTES * (not pair.shipped)


def _drafters(pair: Pair, roles: Collection[Role] | None) -> list[Checkpoint]:
    return [one for role, one in pair.drafters.items() if roles is None or role in roles]


def available(
    pair: Pair, machine: Machine, options: Options = AS_IS, roles: Collection[Role] | None = None
) -> Verdict:
    """Whether the pair runs on the machine with its drafters of these roles (None: all), by sizes alone:
    nothing is fetched, nothing is loaded."""
    if pair.target.local and not _there(pair.target):
        lost = "are missing from assets; train or copy them" if pair.target.shipped else "are not there"
        return Verdict(False, f"The weights of {pair.target.id} {lost}.")
    wanted = [pair.target, *_drafters(pair, roles)]
    fetch = [one for one in wanted if not one.local and not _cached(one)]
    fetch_bytes = sum(one.params * 2 for one in fetch)
    if fetch and machine.offline:
        return Verdict(
            False, f"Not in the local cache, and HF_HUB_OFFLINE forbids to fetch its {gb(fetch_bytes)}."
        )
    if options.quantised != "none":
        title = PACKED[options.quantised]
        if not machine.gpus:
            return Verdict(False, f"{title} weights need a GPU that torch can use; there is none.")
        if importlib.util.find_spec("bitsandbytes") is None:
            return Verdict(False, f"{title} weights need the package bitsandbytes, which is not installed.")
    after = f"; fetches about {gb(fetch_bytes)} from the Hugging Face hub first" if fetch else ""
    packed = f" with {PACKED[options.quantised]} weights" if options.quantised != "none" else ""
    tried = []
    for name, memory, device, split in _places(machine, options):
        dtype: Dtype = options.dtype or ("float32" if device == "cpu" else "bfloat16")
        needs = needs_bytes(pair, dtype, roles, options.quantised)
        if needs <= memory * USABLE_SHARE:
            reason = f"Runs on {name} in {dtype}{packed}, needs about {gb(needs)}{after}."
            return Verdict(True, reason, device, dtype, needs, bool(fetch), split)
        tried.append(f"{gb(needs)} in {dtype}{packed} on {name}, which has {gb(memory)}")
    no_gpu = "" if machine.gpus else "; there is no GPU that torch can use"
    return Verdict(False, f"Needs about {' or '.join(tried)}{no_gpu}.")


def _places(machine: Machine, options: Options) -> Iterator[tuple[str, int, str, dict[int, int]]]:
    """Where a pair could go, best first: name, memory, device, and shares where it is spread."""
    for i, (name, size) in enumerate(machine.gpus):
        yield name, size, f"cuda:{i}", {}
    if len(machine.gpus) > 1:
        split = {i: int(size * USABLE_SHARE) for i, (_, size) in enumerate(machine.gpus)}
        names = " + ".join(name for name, _ in machine.gpus)
        yield f"{len(split)} GPUs ({names})", sum(size for _, size in machine.gpus), "cuda:0", split
    if options.quantised == "none":
        yield "CPU", machine.memory_bytes, "cpu", {}


@dataclass(frozen=True)
class Loaded:
    """A pair in memory: models for the lanes, how the target is asked, and what the records say of it all."""

    pair: Pair
    models: Models
    prompter: Prompter
    lexicon: Lexicon
    verdict: Verdict
    versions: dict[str, str]


def load(
    pair: Pair,
    roles: Sequence[Role] | None = None,
    dtype: Dtype | None = None,
    progress: Callable[[str], None] | None = None,
    options: Options = AS_IS,
) -> Loaded:
    """Bring up a pair's target and its drafters of these roles (None: all that can be had).

    dtype: short for options with this type. ValueError with a sentence where the pair does not run here, a
    role is missing, or weights cannot be had.
    """
    options = replace(options, dtype=dtype) if dtype is not None else options
    machine = detect()
    verdict = available(pair, machine, options, roles)
    if not verdict.ok:
        raise ValueError(f"{pair.id} does not run here: {verdict.reason}")
    here = roles_here(pair)
    roles = list(here) if roles is None else list(roles)
    for role in roles:
        if role not in here:
            raise ValueError(f"{pair.id} has no {ROLES[role]} here.")
    from specvl_demo.assemble import Models
    from specvl_demo.drafters import heads
    from specvl_demo.targets import fit, loading
    from specvl_demo.targets.prompts import Prompter
    from specvl_demo.targets.target import VLMTarget
    from specvl_demo.targets.vlm import VLM

    loading.release()
    loading.share(machine.n_cpus)
    tell = progress or (lambda text: None)
    plan = loading.Plan(verdict.dtype, verdict.device, verdict.split, options.quantised, options.pickles)

    def folder(one: Checkpoint, pickles: bool = options.pickles) -> Path:
        return one.folder if one.local else loading.fetch(one.id, tell, pickles, machine.offline)

    tell(f"Loading {pair.target.id}")
    model = loading.model(folder(pair.target), plan, pair.target.id)
    # The shipped models were trained on Pillow's resizing; torchvision resizes a little otherwise.
    prompter = Prompter(loading.processor(folder(pair.target), pair.target.id, pair.target.shipped), model)
    target = VLMTarget(VLM(model, pair.target.title, prompter.special_ids))
    drafters: dict[str, Any] = {}
    for role in roles:
        one = here[role]
        tell(f"Loading {one.id}")
        if role == "small":
            # Drafters are small: whole, and beside the target's first layers.
            small = loading.model(folder(one), replace(plan, split={}, quantised="none"), one.id)
            again = None
            if not fit.cut_alike(model.config, small.config):
                again = Prompter(loading.processor(folder(one), one.id), small).again
            drafters[role] = VLM(small, one.title, prompter.special_ids, again=again)
        else:
            # Heads open .bin files as plain weights only: nothing in them can run.
            drafters |= heads.open_role(folder(one, pickles=True), target.decoder, role)
    captioner = None if pair.shipped else _captioner(plan, prompter, tell, machine.offline)
    models = Models(target, drafters, prompter.words(), captioner)
    return Loaded(pair, models, prompter, prompter.lexicon(), verdict, versions())


def _captioner(plan: Plan, prompter: Prompter, tell: Callable[[str], None], offline: bool) -> Any:
    """Brings Florence-2 up when it is first asked for, and keeps it: by the longest caption, a captioner.

    # choice: hub drafters of TABED's kind (68M) cannot describe a picture; the pocket drafter can, and does.
    """
    held: list[Any] = []

    def make(length: int) -> Any:
        from specvl_demo.drafters import florence
        from specvl_demo.targets import loading

        if not held:
            folder = loading.fetch(florence.ID, tell, offline=offline)
            whole = replace(plan, split={}, quantised="none")
            model = loading.model(folder, whole, florence.ID)
            held.extend((model, loading.processor(folder, florence.ID)))
        return florence.FlorenceCaptions(*held, prompter.ids, length)

    return make


def custom(target: str, drafter: str | None = None) -> Pair:
    """A pair of any two models of a known family, by folder or hub id, checked before weights are fetched.

    The drafter may also be the folder of a trained head. Reads configurations, tokenizers and lists of files.
    ValueError with a sentence where they do not fit.
    """
    from specvl_demo.targets import fit

    alone = offline()
    first = fit.read(target, alone)
    drafters: dict[Role, Checkpoint] = {}
    if drafter is not None:
        role = _head_in(Path(drafter))
        if role is not None:
            folder = Path(drafter).resolve()
            drafters[role] = Checkpoint(str(folder), fit.stored(folder) / 2, "see its folder", True)
        else:
            second = fit.read(drafter, alone)
            reason = fit.misfit(first, second)
            if reason:
                raise ValueError(reason)
            drafters["small"] = _checkpoint(second)
    name = first.id.rsplit("/", 1)[-1] + (f" with {drafter.rsplit('/', 1)[-1]}" if drafter else "")
    return Pair("custom", name, first.title, _checkpoint(first), drafters)


def _head_in(folder: Path) -> Role | None:
    """The role of the trained head in a local folder; None where it holds something else."""
    from specvl_demo.drafters import heads
    from specvl_demo.targets import fit

    return heads.role_in(folder) if folder.is_dir() and not fit.is_vlm(folder) else None


def _checkpoint(card: Any) -> Checkpoint:
    folder = Path(card.id)
    local = folder.is_dir()
    # Without a count, stored weights are taken for half precision.
    params = card.params or card.bytes / 2
    return Checkpoint(str(folder.resolve()) if local else card.id, params, card.licence, local)


def versions() -> dict[str, str]:
    """What was computed with, for the records."""
    names = ("torch", "transformers")
    return {"specvl_demo": __version__} | {name: metadata.version(name) for name in names}


def _there(one: Checkpoint) -> bool:
    """Whether a local checkpoint's folder holds weights."""
    files = [*one.folder.glob("*.safetensors"), *one.folder.glob("*.bin")]
    return (one.folder / "config.json").is_file() and bool(files)


def _cached(one: Checkpoint) -> bool:
    """Whether the hub's local cache holds this checkpoint's weights; looks at files only.

    A configuration alone is there as soon as somebody asked whether the model fits.
    """
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(one.id, "config.json")
    if not isinstance(found, str):
        return False
    return any(file.suffix in (".safetensors", ".bin") for file in Path(found).parent.iterdir())
