"""On which device of a machine a pair fits, and how its weights are loaded there: from sizes only.

Memory counted: weights of the target and of the requested drafters, keys and values of every lane,
a pass over a prompt with its pictures, captured graphs, and what the process itself needs.
"""

from __future__ import annotations

import importlib.util
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

from specvl_demo.options import Dtype, Quantised, Switch
from specvl_demo.pairs import Checkpoint, PairSpec, Role
from specvl_demo.pairs.machine import Machine

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
MAX_EXACT_OVERHEAD = 0.05
"""Cost of batch-invariant steps, as a share of a plain step, above which they are not the
default: AR runs them too, and a slower AR would inflate every speedup.
"""
MAX_CPU_FLOAT32_BYTES = 30e9
"""Above this no pair is loaded in float32 on a CPU by itself: a token would take seconds."""
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
            default with 8 bits on a CPU, and in half precision if they cost little.
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
class LoadPlan:
    """How weights are loaded.

    Attributes:
        device: Where they go; not used if `split` is set.
        split: Bytes by CUDA device, to spread the weights over these devices.
        quantised: 8 or 4 bits by bitsandbytes, which needs a GPU; on a CPU see `in_own_layout`.
    """

    dtype: Dtype = "float32"
    device: str = "cpu"
    split: Mapping[int, int] = field(default_factory=dict)
    quantised: Quantised = "none"

    @property
    def in_own_layout(self) -> bool:
        """Whether the target has the fused decoder's own 8-bit layout, not a library's."""
        return self.device == "cpu" and self.quantised == "8bit"

    @property
    def packing(self) -> str:
        """What messages call the packing of weights: 8-bit or 4-bit; empty if there is none."""
        return PACKED.get(self.quantised, "")


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
    plan: LoadPlan,
    roles: Collection[Role] | None = None,
    n_lanes: int = N_LANES,
) -> MemoryNeeds:
    """Return the memory for the target and its drafters of these roles (None: all) while lanes
    race.

    n_lanes: Each has keys and values; one more copy is the prefill's while the last lane begins.
    """
    each = DTYPE_BYTES[plan.dtype]
    on_cpu = plan.device == "cpu"
    # The fused decoder's own layout is stored in addition to the weights.
    packed = each if plan.in_own_layout else QUANTISED_BYTES.get(plan.quantised, each)
    others = [pair.drafters[role] for role in (pair.drafters if roles is None else roles)]
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
        PROCESS_BYTES[plan.device.partition(":")[0]],
    )


def wants_exact(plan: LoadPlan, options: Options) -> bool | None:
    """Return whether the target is to score with batch-invariant steps; None: only where they cost
    nothing. Those of half precision may be declined once they are measured.

    # choice: float32 stays without them where they cost something: rounding decides so
    # rarely there that computing the text again (`Scores.recompute`) costs less.
    """
    if options.exact is not None or plan.in_own_layout:
        return options.exact == "on" or plan.in_own_layout
    return None if plan.dtype == "float32" else True


def why_not_quantised(machine: Machine, quantised: Quantised | None) -> str | None:
    """Return why weights cannot be packed so on the machine; None if they can."""
    if quantised in (None, "none"):
        return None
    if not machine.gpus:
        return f"{PACKED[quantised]} weights need a GPU that torch can use; there is none."
    if not _has_bitsandbytes():
        return f"{PACKED[quantised]} weights need the package bitsandbytes, which is not installed."
    return None


def _has_bitsandbytes() -> bool:
    return importlib.util.find_spec("bitsandbytes") is not None


def plans(
    pair: PairSpec, machine: Machine, options: Options
) -> Iterator[tuple[str, int, LoadPlan]]:
    """Yield a device's name, its memory and how the pair would be loaded there, best first: one
    GPU, several, one with packed weights, then the processor. A shipped pair is so small that a
    step takes a GPU longer to launch than our kernels to compute: it comes first there.
    """

    def dtype_on(capability: tuple[int, int]) -> Dtype:
        return options.dtype or ("bfloat16" if capability >= BFLOAT16_FROM else "float16")

    packing = options.quantised or "none"
    packings: list[Quantised] = [packing]
    if options.quantised is None and machine.gpus and _has_bitsandbytes():
        packings.append("4bit")
    rounded: Quantised = "8bit" if pair.target.eight_bits and machine.kernels else "none"
    on_cpu = "CPU", machine.memory_bytes, LoadPlan(options.dtype or "float32", "cpu", {}, rounded)
    given = options.dtype is not None or options.quantised is not None or machine.per_call
    if at_home := pair.shipped and machine.kernels and not given:
        yield on_cpu
    usable = {i: gpu for i, gpu in enumerate(machine.gpus) if gpu.built}
    for quantised in packings:
        for i, gpu in usable.items():
            plan = LoadPlan(dtype_on(gpu.capability), f"cuda:{i}", {}, quantised)
            yield gpu.name, gpu.memory_bytes, plan
        if len(usable) > 1:
            split = {i: int(gpu.memory_bytes * USABLE_SHARE) for i, gpu in usable.items()}
            name = f"{len(split)} GPUs ({' + '.join(gpu.name for gpu in usable.values())})"
            whole = sum(gpu.memory_bytes for gpu in usable.values())
            weakest = min(gpu.capability for gpu in usable.values())
            yield name, whole, LoadPlan(dtype_on(weakest), f"cuda:{min(split)}", split, quantised)
    if packing == "none" and not at_home:
        yield on_cpu
