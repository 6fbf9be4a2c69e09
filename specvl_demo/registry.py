"""Which models belong together: pairs of a target and its drafters, what they need, and how they are loaded.

Pairs are data. `available` says from sizes alone what runs on a machine and why not, without fetching
anything; `load` brings the models up and reports its progress. Knows no methods beyond the kind of drafter they
ask for.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

Role = Literal["small", "eagle2", "hivis", "dream"]
Dtype = Literal["float32", "bfloat16", "float16"]

ROLES: dict[str, str] = {
    "small": "small vision-language model with the target's vocabulary",
    "eagle2": "EAGLE-2 head on the target's features",
    "hivis": "HiViS head on the target's features, blind to visual positions",
    "dream": "DREAM head with cross-attention to the target's features",
}
DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
ASSETS = Path(__file__).resolve().parents[1] / "assets"

# Beside the weights: activations, keys and values, the library itself.
OVERHEAD_BYTES = 1_500_000_000
OVERHEAD_SHARE = 0.1
USABLE_SHARE = 0.9


@dataclass(frozen=True)
class Checkpoint:
    """One set of weights: a folder under assets/, or a public repository of the hub. `params` is rounded."""

    id: str
    params: float
    licence: str
    local: bool = False

    @property
    def folder(self) -> Path:
        """Where a shipped checkpoint lies."""
        return ASSETS / self.id

    @property
    def title(self) -> str:
        """The id without its owner."""
        return self.id.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Pair:
    """A target with the drafters that fit it: same vocabulary, or heads trained on its features."""

    id: str
    title: str
    family: str
    target: Checkpoint
    drafters: dict[Role, Checkpoint]
    n_frames: int = 8
    note: str = ""

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The target first, then every drafter."""
        return [self.target, *self.drafters.values()]

    @property
    def local(self) -> bool:
        """Whether all of it is shipped with the software."""
        return all(one.local for one in self.checkpoints)


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


def _hub(repo: str, billions: float, licence: str) -> Checkpoint:
    return Checkpoint(repo, billions * 1e9, licence)


def _pocket(folder: str, millions: float) -> Checkpoint:
    return Checkpoint(f"pocket/{folder}", millions * 1e6, "Apache-2.0", local=True)


_LLAMA2, _QWEN, _QWEN_RESEARCH, _GEMMA = "Llama 2", "Qwen", "Qwen Research", "Gemma"
_APACHE, _UNSTATED = "Apache-2.0", "not stated"

_LLAVA_NOTE = "Published drafters of TABED are whole small LLaVA models."

# Ids as in the papers' code and model cards; sizes in billions of parameters, rounded.
PAIRS: tuple[Pair, ...] = (
    Pair(
        "pocket",
        "Pocket: a small LLaVA that knows drawn scenes",
        "LLaVA (Qwen2 decoder)",
        _pocket("target", 13.0),
        {
            "small": _pocket("drafter", 2.0),
            "eagle2": _pocket("eagle2", 1.5),
            "hivis": _pocket("hivis", 1.5),
            "dream": _pocket("dream", 3.0),
        },
        n_frames=4,
        note="Shipped with the software; trained on drawn scenes, charts and clips only, it knows nothing else.",
    ),
    Pair(
        "llava-1.5-7b",
        "LLaVA-1.5 7B",
        "LLaVA",
        _hub("llava-hf/llava-1.5-7b-hf", 7.06, _LLAMA2),
        {
            "small": _hub("mjbooo/lvlm68m", 0.37, _UNSTATED),
            "hivis": _hub("Irisssme/HiViS-llava-1.5-7b-hf", 0.5, _UNSTATED),
        },
        note=_LLAVA_NOTE,
    ),
    Pair(
        "llava-1.5-13b",
        "LLaVA-1.5 13B",
        "LLaVA",
        _hub("llava-hf/llava-1.5-13b-hf", 13.35, _LLAMA2),
        {
            "small": _hub("mjbooo/lvlm68m", 0.37, _UNSTATED),
            "hivis": _hub("Irisssme/HiViS-llava-1.5-13b-hf", 0.7, _UNSTATED),
        },
        note=_LLAVA_NOTE,
    ),
    Pair(
        "llava-1.6-7b",
        "LLaVA-NeXT (1.6, Vicuna) 7B",
        "LLaVA-NeXT",
        _hub("llava-hf/llava-v1.6-vicuna-7b-hf", 7.06, _LLAMA2),
        {
            "small": _hub("mjbooo/lvlm68m-ov", 0.37, _UNSTATED),
            "eagle2": _hub("Irisssme/EAGLE-2-llava-v1.6-vicuna-7b-hf", 0.37, _UNSTATED),
            "hivis": _hub("Irisssme/HiViS-llava-v1.6-vicuna-7b-hf", 0.5, _UNSTATED),
            "dream": _hub("HideonBed12138/DREAM-llava-v1.6-vicuna-7b", 0.61, _UNSTATED),
        },
        note=_LLAVA_NOTE,
    ),
    Pair(
        "llava-1.6-13b",
        "LLaVA-NeXT (1.6, Vicuna) 13B",
        "LLaVA-NeXT",
        _hub("llava-hf/llava-v1.6-vicuna-13b-hf", 13.35, _LLAMA2),
        {
            "small": _hub("mjbooo/lvlm68m-ov", 0.37, _UNSTATED),
            "hivis": _hub("Irisssme/HiViS-llava-v1.6-vicuna-13b-hf", 0.7, _UNSTATED),
        },
        note=_LLAVA_NOTE,
    ),
    Pair(
        "llava-ov-7b",
        "LLaVA-OneVision 7B with 0.5B",
        "LLaVA-OneVision",
        _hub("llava-hf/llava-onevision-qwen2-7b-ov-hf", 8.03, _APACHE),
        {"small": _hub("llava-hf/llava-onevision-qwen2-0.5b-ov-hf", 0.89, _APACHE)},
    ),
    Pair(
        "llava-ov-72b",
        "LLaVA-OneVision 72B with 7B",
        "LLaVA-OneVision",
        _hub("llava-hf/llava-onevision-qwen2-72b-ov-hf", 73.2, _APACHE),
        {"small": _hub("llava-hf/llava-onevision-qwen2-7b-ov-hf", 8.03, _APACHE)},
        note="The pair of SpecVLM, SAGE and LVSpec.",
    ),
    Pair(
        "qwen2.5-vl-7b",
        "Qwen2.5-VL 7B with 3B",
        "Qwen2.5-VL",
        _hub("Qwen/Qwen2.5-VL-7B-Instruct", 8.29, _APACHE),
        {
            "small": _hub("Qwen/Qwen2.5-VL-3B-Instruct", 3.75, _QWEN_RESEARCH),
            "hivis": _hub("Irisssme/HiViS-Qwen2.5-VL-7B-Instruct", 0.82, _UNSTATED),
        },
        note="3B is a slow drafter for 7B: expect little from the small drafter here.",
    ),
    Pair(
        "qwen2.5-vl-32b",
        "Qwen2.5-VL 32B with 7B",
        "Qwen2.5-VL",
        _hub("Qwen/Qwen2.5-VL-32B-Instruct", 33.5, _APACHE),
        {"small": _hub("Qwen/Qwen2.5-VL-7B-Instruct", 8.29, _APACHE)},
        note="The pair of LVSpec.",
    ),
    Pair(
        "qwen2.5-vl-72b",
        "Qwen2.5-VL 72B with 7B",
        "Qwen2.5-VL",
        _hub("Qwen/Qwen2.5-VL-72B-Instruct", 73.4, _QWEN),
        {"small": _hub("Qwen/Qwen2.5-VL-7B-Instruct", 8.29, _APACHE)},
        note="The pair of SAGE.",
    ),
    Pair(
        "qwen3-vl-8b",
        "Qwen3-VL 8B with 2B",
        "Qwen3-VL",
        _hub("Qwen/Qwen3-VL-8B-Instruct", 8.77, _APACHE),
        {"small": _hub("Qwen/Qwen3-VL-2B-Instruct", 2.13, _APACHE)},
    ),
    Pair(
        "qwen3-vl-32b",
        "Qwen3-VL 32B with 2B",
        "Qwen3-VL",
        _hub("Qwen/Qwen3-VL-32B-Instruct", 33.4, _APACHE),
        {"small": _hub("Qwen/Qwen3-VL-2B-Instruct", 2.13, _APACHE)},
    ),
    Pair(
        "smolvlm2-2.2b",
        "SmolVLM2 2.2B with 256M",
        "SmolVLM",
        _hub("HuggingFaceTB/SmolVLM2-2.2B-Instruct", 2.25, _APACHE),
        {"small": _hub("HuggingFaceTB/SmolVLM2-256M-Video-Instruct", 0.26, _APACHE)},
        note="The smallest real pair: runs on a laptop, slowly.",
    ),
    Pair(
        "gemma-3-12b",
        "Gemma 3 12B with 4B",
        "Gemma 3",
        _hub("google/gemma-3-12b-it", 12.2, _GEMMA),
        {"small": _hub("google/gemma-3-4b-it", 4.3, _GEMMA)},
        note="The hub asks to accept Google's terms first.",
    ),
    Pair(
        "pixtral-12b",
        "Pixtral 12B",
        "Pixtral",
        _hub("mistral-community/pixtral-12b", 12.7, _APACHE),
        {},
        note="No published drafter with its vocabulary fits here: prompt lookup only.",
    ),
)


def find(pair_id: str) -> Pair:
    """The pair of this id; ValueError with the known ids where there is none."""
    for pair in PAIRS:
        if pair.id == pair_id:
            return pair
    raise ValueError(f"There is no pair {pair_id!r}; known: {', '.join(pair.id for pair in PAIRS)}.")


def roles_here(pair: Pair) -> dict[Role, Checkpoint]:
    """The drafters of a pair that can be had: shipped ones only where their weights are really there."""
    return {role: one for role, one in pair.drafters.items() if not one.local or _shipped(one)}


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


def _shipped(one: Checkpoint) -> bool:
    return (one.folder / "config.json").is_file() and any(one.folder.glob("*.safetensors"))


def _cached(one: Checkpoint) -> bool:
    """Whether the hub's local cache holds this checkpoint; looks at files only."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(one.id, "config.json"), str)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
