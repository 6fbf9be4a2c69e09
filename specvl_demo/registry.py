"""Which models belong together: pairs of a target and its drafters, what they need, and how they are loaded.

Pairs are data (`pairs`). `available` says from sizes alone what runs on a machine and why not, and fetches
nothing; `load` brings the models up. Knows no methods beyond the kind of drafter they ask for.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specvl_demo import __version__, methods
from specvl_demo.methods import Choice, Value
from specvl_demo.pairs import ROLES, Checkpoint, Pair, Role

if TYPE_CHECKING:
    from specvl_demo.assemble import Models
    from specvl_demo.core.text import Lexicon
    from specvl_demo.targets.prompts import Prompter

Dtype = Literal["float32", "bfloat16", "float16"]

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

# Beside the weights: activations, keys and values, the library itself.
OVERHEAD_BYTES = 1_500_000_000
OVERHEAD_SHARE = 0.1
USABLE_SHARE = 0.9


@dataclass(frozen=True)
class Machine:
    """What there is to run on. gpus: name and bytes of memory of each CUDA device that torch can use."""

    n_cpus: int
    memory_bytes: int
    cpu: str
    gpus: tuple[tuple[str, int], ...] = ()
    offline: bool = False

    @property
    def title(self) -> str:
        """The machine in a few words."""
        gpus = ", ".join(f"{name} ({_gb(size)})" for name, size in self.gpus)
        return f"{self.n_cpus} CPU cores ({self.cpu}), {_gb(self.memory_bytes)} memory" + (
            f", {gpus}" if gpus else ""
        )


@dataclass(frozen=True)
class Verdict:
    """Whether a pair runs on a machine, on what, and the sentence that says so."""

    ok: bool
    reason: str
    device: str = "cpu"
    dtype: Dtype = "float32"
    needs_bytes: int = 0
    must_fetch: bool = field(default=False)


def roles_here(pair: Pair) -> dict[Role, Checkpoint]:
    """The drafters of a pair that can be had: shipped ones only where their weights are really there."""
    return {role: one for role, one in pair.drafters.items() if not one.local or _shipped(one)}


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
    if preset is not None and preset not in method.presets:
        known = ", ".join(method.presets) or "none"
        raise ValueError(f"{method.name} has no preset {preset!r}; it has: {known}.")
    standard = next((one for one in (pair.id, "paper") if one in method.presets), None)
    choice = methods.choose(name, rest, standard if preset is None else str(preset), temperature)
    role = choice.drafter.role
    if role is not None and role not in roles_here(pair):
        raise ValueError(f"{method.name} needs a {ROLES[role]}; {pair.id} has none here.")
    return choice


def served(pair: Pair, temperature: float = 0.0) -> list[str]:
    """The methods that the pair's drafters serve with the parts they have by default, `custom` left out."""
    names = []
    for name in methods.METHODS:
        try:
            choose(pair, name, temperature=temperature)
        except ValueError:
            continue
        names.append(name)
    return [name for name in names if name != "custom"]


def detect() -> Machine:
    """This machine. Imports torch only where its build could use a GPU."""
    import psutil

    gpus: tuple[tuple[str, int], ...] = ()
    if not metadata.version("torch").endswith("+cpu"):
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        found = [torch.cuda.get_device_properties(index) for index in range(count)]
        gpus = tuple((one.name, one.total_memory) for one in found)
    return Machine(
        n_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        cpu=platform.machine(),
        gpus=gpus,
        offline=os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"),
    )


def needs_bytes(pair: Pair, dtype: str, role: Role | None = None) -> int:
    """Memory for the target and its largest drafter (or that of a role), with what runs beside them."""
    drafters = [pair.drafters[role]] if role else list(pair.drafters.values())
    weights = pair.target.params + max((one.params for one in drafters), default=0.0)
    return int(weights * DTYPE_BYTES[dtype] * (1 + OVERHEAD_SHARE)) + OVERHEAD_BYTES * (not pair.local)


def available(pair: Pair, machine: Machine, dtype: Dtype | None = None) -> Verdict:
    """Whether the pair runs on the machine, by sizes alone: nothing is fetched, nothing is loaded.

    dtype: what to compute in; None takes bfloat16 on a GPU, float32 on a CPU, where half precision is slower.
    """
    lacking = [one for one in (pair.target,) if one.local and not _shipped(one)]
    if lacking:
        return Verdict(False, f"The weights of {lacking[0].id} are missing from assets; train or copy them.")
    fetch = [one for one in pair.checkpoints if not one.local and not _cached(one)]
    fetch_bytes = sum(one.params * 2 for one in fetch)
    if fetch and machine.offline:
        return Verdict(
            False, f"Not in the local cache, and HF_HUB_OFFLINE forbids to fetch its {_gb(fetch_bytes)}."
        )
    after = f"; fetches about {_gb(fetch_bytes)} from the Hugging Face hub first" if fetch else ""
    tried = []
    for name, memory, device in [
        *((name, size, f"cuda:{i}") for i, (name, size) in enumerate(machine.gpus)),
        ("CPU", machine.memory_bytes, "cpu"),
    ]:
        wanted: Dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
        needs = needs_bytes(pair, wanted)
        if needs <= memory * USABLE_SHARE:
            reason = f"Runs on {name} in {wanted}, needs about {_gb(needs)}{after}."
            return Verdict(True, reason, device, wanted, needs, bool(fetch))
        tried.append(f"{_gb(needs)} in {wanted} on {name}, which has {_gb(memory)}")
    no_gpu = "" if machine.gpus else "; there is no GPU that torch can use"
    return Verdict(False, f"Needs about {' or '.join(tried)}{no_gpu}.")


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
) -> Loaded:
    """Bring up a pair's target and its drafters of these roles (None: all that can be had).

    ValueError with a sentence where the pair does not run here, a role is missing, or weights cannot be had.
    """
    verdict = available(pair, detect(), dtype)
    if not verdict.ok:
        raise ValueError(f"{pair.id} does not run here: {verdict.reason}")
    here = roles_here(pair)
    roles = list(here) if roles is None else list(roles)
    for role in roles:
        if role not in here:
            raise ValueError(f"{pair.id} has no {ROLES[role]} here.")
    from specvl_demo.assemble import Models
    from specvl_demo.drafters import heads
    from specvl_demo.targets.prompts import Prompter
    from specvl_demo.targets.target import VLMTarget
    from specvl_demo.targets.vlm import VLM

    tell = progress or (lambda text: None)
    tell(f"Loading {pair.target.id}")
    model = _model(pair.target, verdict)
    prompter = Prompter(_processor(pair.target), model)
    target = VLMTarget(VLM(model, pair.target.title, prompter.special_ids))
    drafters: dict[str, Any] = {}
    for role in roles:
        tell(f"Loading {here[role].id}")
        if role == "small":
            drafters[role] = VLM(_model(here[role], verdict), here[role].title, prompter.special_ids)
        else:
            drafters[role] = heads.open_head(_folder(here[role]), target.decoder, heads.SERVES[role])
    models = Models(target, drafters, prompter.words())
    return Loaded(pair, models, prompter, prompter.lexicon(), verdict, versions())


def versions() -> dict[str, str]:
    """What was computed with, for the records."""
    names = ("torch", "transformers")
    return {"specvl_demo": __version__} | {name: metadata.version(name) for name in names}


def _model(one: Checkpoint, verdict: Verdict) -> Any:
    import torch
    from transformers import AutoModelForImageTextToText

    # On a GPU the weights go there tensor by tensor; the machine's memory never holds them all.
    place = {"device_map": {"": verdict.device}} if verdict.device != "cpu" else {}
    with _fetching(one), _quiet(one.local):
        model = AutoModelForImageTextToText.from_pretrained(
            one.folder if one.local else one.id,
            dtype=getattr(torch, verdict.dtype),
            local_files_only=one.local,
            **place,
        )
    return model.eval().requires_grad_(False)


def _processor(one: Checkpoint) -> Any:
    from transformers import AutoProcessor

    with _fetching(one):
        return AutoProcessor.from_pretrained(one.folder if one.local else one.id, local_files_only=one.local)


def _folder(one: Checkpoint) -> Path:
    """Where a head's files lie, fetched first where they must be."""
    from huggingface_hub import snapshot_download

    if one.local:
        return one.folder
    with _fetching(one):
        return Path(snapshot_download(one.id))


@contextmanager
def _fetching(one: Checkpoint) -> Iterator[None]:
    """Says in one sentence what keeps a checkpoint from being had."""
    try:
        yield
    except ImportError as fault:
        raise ValueError(f"{one.id} needs a package that is not installed: {_first_line(fault)}") from fault
    except OSError as fault:
        raise ValueError(f"{one.id} could not be had: {_first_line(fault)}") from fault


@contextmanager
def _quiet(wanted: bool) -> Iterator[None]:
    """Without the library's progress bars: shipped weights are there in a moment."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    if wanted:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if wanted and shown:
            logging.enable_progress_bar()


def _first_line(fault: Exception) -> str:
    return str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__


def _shipped(one: Checkpoint) -> bool:
    return (one.folder / "config.json").is_file() and any(one.folder.glob("*.safetensors"))


def _cached(one: Checkpoint) -> bool:
    """Whether the hub's local cache holds this checkpoint; looks at files only."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(one.id, "config.json"), str)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
