"""Whether a pair, and each method on it, runs on a machine, from sizes only.

Memory counted: weights of the target and of the requested drafters, keys and values of every lane,
a pass over a prompt with its pictures, captured graphs, and what the process itself needs.
"""

from __future__ import annotations

import importlib.util
import json
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from specvl_demo.options import Dtype, Quantised, Switch
from specvl_demo.pairs import Checkpoint, PairSpec, Role, base_weights, fingerprints
from specvl_demo.pairs.machine import Machine, gb

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
# Slightly more than the bits themselves: scales, and what stays in half precision.
QUANTISED_BYTES: dict[str, float] = {"8bit": 1.2, "4bit": 0.7}
PACKED: dict[str, str] = {"8bit": "8-bit", "4bit": "4-bit"}

PROCESS_BYTES: dict[str, int] = {"cpu": 450_000_000, "cuda": 600_000_000}
"""Libraries and their buffers on a CPU; a GPU's context, which no counter of torch includes."""
GRAPHS_BYTES = 150_000_000
"""On a GPU, for each model: its graphs' pool, masks, workspaces of products."""
FORWARD_BYTES = 400_000_000
"""On a GPU: what computing a prompt with a picture holds, as measured with Qwen2.5-VL 7B."""
CACHE_SPARE = 1.2
"""Caches on a GPU come in sizes a quarter apart, with room for the largest step."""
N_LANES = 2
MOST_EXACT_OVERHEAD = 0.05
"""Cost of batch-invariant steps, as a share of a plain step, above which they are not the default
on a GPU: AR runs them too, and a slower AR would inflate every speedup.
"""
USABLE_SHARE = 0.9
BFLOAT16_FROM = (8, 0)
"""Compute capability from which a GPU supports bfloat16; below it, float16 is native."""


@dataclass(frozen=True)
class Options:
    """How weights are to be loaded; None leaves the choice to what fits.

    Attributes:
        dtype: By default bfloat16 on a GPU that supports it, float16 on an older one, float32 on a
            CPU.
        quantised: The target's weights in 8 or 4 bits on a GPU, by default 4 bits only if nothing
            else fits. On a CPU it has no meaning: `Checkpoint.eight_bits` decides.
        exact: Steps whose rows do not depend on each other, if the loaded target supports them; by
            default with 8 bits on a CPU, and in half precision if they cost little
            (`exact_overhead`).
    """

    dtype: Dtype | None = None
    quantised: Quantised | None = None
    exact: Switch | None = None

    @classmethod
    def read(cls, dtype: Any, quantised: Any = None) -> Options:
        """Return these options; ValueError if one is unknown."""
        return cls(
            _one_of(get_args(Dtype), "The dtype", dtype),
            _one_of(get_args(Quantised), "The packing of weights", quantised),
        )


AS_IT_FITS = Options()


def _one_of(words: Sequence[str], name: str, value: Any) -> Any:
    """Return one of these words, or None if nothing is given."""
    if value in (None, ""):
        return None
    if value not in words:
        raise ValueError(f"{name} must be one of {', '.join(words)}, not {reprlib.repr(value)}.")
    return value


@dataclass(frozen=True)
class Availability:
    """Whether a pair runs on a machine, where, and a sentence with the reason.

    split: Bytes by CUDA device, if the target is spread over several.
    """

    ok: bool
    reason: str
    device: str = "cpu"
    dtype: Dtype = "float32"
    needs_bytes: int = 0
    must_fetch: bool = False
    split: Mapping[int, int] = field(default_factory=dict)
    quantised: Quantised = "none"


def available(
    pair: PairSpec,
    machine: Machine,
    options: Options = AS_IT_FITS,
    roles: Collection[Role] | None = None,
) -> Availability:
    """Return whether the pair runs on the machine with its drafters of these roles (None: all)."""
    checkpoints = [pair.target, *drafters(pair, roles)]
    reason = _why_not_here(pair, checkpoints, machine)
    reason = reason or _why_not_quantised(machine, options.quantised)
    if reason is not None:
        return Availability(False, reason)
    fetch = _to_fetch(checkpoints)
    fetched = gb(_stored_bytes(fetch))
    after = f"; fetches about {fetched} from the Hugging Face hub first" if fetch else ""
    n = len(checkpoints) - 1
    whom = f" for the target and {n} of its drafters" if n else " for the target alone"
    tried = []
    for name, memory_bytes, place in _places(pair, machine, options):
        size = memory_needs(pair, place, roles).total
        packed = f" with {PACKED[place.quantised]} weights" if place.quantised != "none" else ""
        if size <= memory_bytes * USABLE_SHARE:
            where = f"Runs on {name} in {place.dtype}{packed}"
            reason = f"{where}, needs about {gb(size)}{whom}{after}."
            return replace(place, ok=True, reason=reason, needs_bytes=size, must_fetch=bool(fetch))
        tried.append(
            f"{gb(size)} in {place.dtype}{packed} on {name} ({gb(memory_bytes)} of memory)"
        )
    no_gpu = "" if machine.gpus else "; there is no GPU that torch can use"
    return Availability(False, f"Needs about {' or '.join(tried)}{whom}{no_gpu}.")


class MemoryNeeds(NamedTuple):
    """Bytes that a race needs: weights, keys and values of all lanes, what one model holds while it
    computes a prompt, what captured steps keep, `PROCESS_BYTES`.
    """

    weights: int
    caches: int
    forward: int
    graphs: int
    process: int

    @property
    def total(self) -> int:
        return sum(self)


def memory_needs(
    pair: PairSpec,
    place: Availability,
    roles: Collection[Role] | None = None,
    n_lanes: int = N_LANES,
) -> MemoryNeeds:
    """Return the memory for the target and its drafters of these roles (None: all) while lanes
    race.

    n_lanes: Each has keys and values; one more copy is the prefill's while the last lane begins.
    """
    each, on_cpu = DTYPE_BYTES[place.dtype], place.device == "cpu"
    # On a CPU, 8-bit weights are the fused decoder's own layout, stored in addition to the weights.
    in_layout = on_cpu and place.quantised == "8bit"
    packed = each if in_layout else QUANTISED_BYTES.get(place.quantised, each)
    others = drafters(pair, roles)
    every = (pair.target, *others)
    weights = pair.target.params * packed + sum(checkpoint.params for checkpoint in others) * each

    def number(checkpoint: Checkpoint) -> int:
        """Bytes of a number in the decoder: the fused one has float32, whatever its weights are."""
        return DTYPE_BYTES["float32"] if on_cpu and checkpoint.fused_bytes else each

    # choice: every lane but AR's is counted with the pair's largest drafter.
    largest = max(others, key=lambda checkpoint: checkpoint.kv, default=None)
    cached: float = pair.target.kv * (n_lanes + 1) * number(pair.target)
    if largest is not None:
        cached += largest.kv * (n_lanes - 1) * number(largest)
    if on_cpu:
        weights += sum(checkpoint.fused_bytes for checkpoint in every)
    else:
        cached *= CACHE_SPARE
    return MemoryNeeds(
        int(weights),
        int(cached * pair.n_tokens),
        0 if on_cpu else FORWARD_BYTES,
        0 if on_cpu else GRAPHS_BYTES * len(every),
        PROCESS_BYTES[place.device.partition(":")[0]],
    )


def exact_overhead(pair: PairSpec, place: Availability) -> float:
    """Return what batch-invariant steps add to an AR step there, as a share of the bytes that it
    reads.

    Derived, not measured: they write the whole cache in float32 in every layer, and read it again.
    """
    each = DTYPE_BYTES[place.dtype]
    packed = QUANTISED_BYTES.get(place.quantised, each)
    cached = pair.target.kv * pair.n_tokens
    read = (pair.target.active or pair.target.params - pair.target.tower) * packed
    return cached * 2 * DTYPE_BYTES["float32"] / (read + cached * each)


def drafters(pair: PairSpec, roles: Collection[Role] | None) -> list[Checkpoint]:
    """Return the pair's drafters of these roles, None for all."""
    return [
        checkpoint for role, checkpoint in pair.drafters.items() if roles is None or role in roles
    ]


def has_weights(checkpoint: Checkpoint) -> bool:
    """Whether the weights of a checkpoint are in its folder or in the hub's local cache.

    A configuration may be cached without weights, from a check whether the model fits.
    """
    folder = _folder(checkpoint)
    return folder is not None and any(
        file.suffix in (".safetensors", ".bin") for file in folder.iterdir()
    )


def config(checkpoint: Checkpoint, name: str = "config.json") -> dict[str, Any] | None:
    """Return a checkpoint's file of this name if its folder or the hub's local cache has it."""
    folder = _folder(checkpoint)
    if folder is None or not (folder / name).is_file():
        return None
    return json.loads((folder / name).read_text(encoding="utf-8"))


def _folder(checkpoint: Checkpoint) -> Path | None:
    """Return where a checkpoint's config.json is here, if anywhere; checks only files."""
    local = checkpoint.folder / "config.json"
    path = local if checkpoint.local else fingerprints.cached_config(checkpoint.id)
    return path.parent if path is not None and path.is_file() else None


def _to_fetch(checkpoints: Collection[Checkpoint]) -> list[Checkpoint]:
    return [entry for entry in checkpoints if not (entry.local or has_weights(entry))]


def _why_not_here(
    pair: PairSpec, checkpoints: Collection[Checkpoint], machine: Machine
) -> str | None:
    if pair.target.local and not has_weights(pair.target):
        if not pair.target.shipped:
            return f"The weights of {pair.target.id} are not there."
        return f"The weights of {pair.target.id} are missing from assets; train or copy them."
    if pair.target.base and (reason := base_weights.why_not(pair.target.folder)):
        return reason
    fetch = _to_fetch(checkpoints)
    if fetch and machine.offline:
        size = gb(_stored_bytes(fetch))
        return f"Not in the local cache, and HF_HUB_OFFLINE forbids fetching its {size}."
    return None


def _why_not_quantised(machine: Machine, quantised: Quantised | None) -> str | None:
    if quantised in (None, "none"):
        return None
    if not machine.gpus:
        return f"{PACKED[quantised]} weights need a GPU that torch can use; there is none."
    if not _has_bitsandbytes():
        return f"{PACKED[quantised]} weights need the package bitsandbytes, which is not installed."
    return None


def _has_bitsandbytes() -> bool:
    return importlib.util.find_spec("bitsandbytes") is not None


def _stored_bytes(some: Collection[Checkpoint]) -> float:
    return sum(checkpoint.params * 2 for checkpoint in some)


def _places(
    pair: PairSpec, machine: Machine, options: Options
) -> Iterator[tuple[str, int, Availability]]:
    """Yield name, memory and how the pair would run there, best first: one GPU, several, one with
    packed weights, then the processor.
    """

    def half(capability: tuple[int, int]) -> Dtype:
        return options.dtype or ("bfloat16" if capability >= BFLOAT16_FROM else "float16")

    def untried(
        device: str, dtype: Dtype, split: Mapping[int, int], quantised: Quantised
    ) -> Availability:
        return Availability(False, "", device, dtype, split=split, quantised=quantised)

    packing = options.quantised or "none"
    packings: list[Quantised] = [packing]
    if options.quantised is None and machine.gpus and _has_bitsandbytes():
        packings.append("4bit")
    for quantised in packings:
        for i, gpu in enumerate(machine.gpus):
            place = untried(f"cuda:{i}", half(gpu.capability), {}, quantised)
            yield gpu.name, gpu.memory_bytes, place
        if len(machine.gpus) > 1:
            split = {i: int(gpu.memory_bytes * USABLE_SHARE) for i, gpu in enumerate(machine.gpus)}
            name = f"{len(split)} GPUs ({' + '.join(gpu.name for gpu in machine.gpus)})"
            whole = sum(gpu.memory_bytes for gpu in machine.gpus)
            weakest = min(gpu.capability for gpu in machine.gpus)
            yield name, whole, untried("cuda:0", half(weakest), split, quantised)
    if packing == "none":
        rounded: Quantised = "8bit" if pair.target.eight_bits and machine.kernels else "none"
        yield "CPU", machine.memory_bytes, untried("cpu", options.dtype or "float32", {}, rounded)
