"""The upper bound of a method's speedup on a pair and a device, derived from operations and bytes.

A forward over n rows takes at least max(bytes read / bandwidth, operations / arithmetic rate). With
draft depth γ and T nodes verified, a round yields τ tokens for one target forward over T rows (V)
and γ draft forwards (D): ceiling = τ · step / (V + γ · D), including the host's share of step and
round. τ follows from an assumed acceptance, or was published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specvl_demo.pairs import Checkpoint, PairSpec

if TYPE_CHECKING:
    from specvl_demo.methods.base import Choice

ACCEPTANCE, LOOKUP_ACCEPTANCE = 0.8, 0.2
"""Share of draft levels accepted, given that the level above was accepted.

# choice: that of a good drafter, whatever it drafts; prompt lookup seldom finds anything. Where an
acceptance was published for a pair, its ceiling is reported too.
"""
HOST_STEP_S, HOST_ROUND_S = 0.23e-3, 0.68e-3
"""What the host adds to a plain step, and to a round that drafts: measured on the pocket pair on
two CPU cores (docs/performance.json, median over methods that draft).

# choice: used for every device; it matters only with small targets.
"""


@dataclass(frozen=True)
class Device:
    """Figures of a data sheet: memory read per second, dense half-precision operations per second,
    memory.
    """

    name: str
    bytes_per_s: float
    flops_per_s: float
    memory_bytes: float


DEVICES = (
    Device("T4", 320e9, 65e12, 16e9),
    Device("A10G", 600e9, 70e12, 24e9),
    Device("L4", 300e9, 121e12, 24e9),
    Device("A100", 2039e9, 312e12, 80e9),
    Device("H100", 3350e9, 989e12, 80e9),
    Device("H200", 4800e9, 989e12, 141e9),
    Device("L40S", 864e9, 362e12, 48e9),
    Device("RTX 4090", 1008e9, 165e12, 24e9),
    Device("RTX 5090", 1792e9, 210e12, 32e9),
    Device("RTX PRO 6000", 1792e9, 500e12, 96e9),
    Device("B200", 8000e9, 2250e12, 192e9),
)
"""The last five are from published comparisons of NVIDIA's cards. For the RTX 5090 and the RTX PRO
6000, these give rates with sparsity: 838e12 in half precision, halved for dense and again for sums
in float32; 4000e12 in four bits, an eighth of it for dense half precision.
"""
CPU = Device("two CPU cores", 36e9, 167e9, 16e9)
"""Measured on one machine in float32 by `bench --suite steps`."""


@dataclass(frozen=True)
class Shape:
    """A round's draft: its depth in draft forwards, the rows that each feeds, and the nodes
    verified, including the root.
    """

    depth: int
    width: int
    nodes: int


@dataclass(frozen=True)
class Ceiling:
    """The speedup over AR at an acceptance, with the acceptance length at it.

    pays_from: The least acceptance at which the method is as fast as AR, None if it never is.
    published: The speedup at the acceptance length published for the pair, None if there is none.
    source: Where it was published.
    """

    speedup: float
    acceptance: float
    tau: float
    pays_from: float | None
    published: float | None = None
    source: str = ""


def device_of(name: str) -> Device:
    """Return the device whose data sheet fits a GPU's name, or a CPU's machine.

    Raises:
        ValueError: With the known names.
    """
    if name.lower() == "cpu":
        return CPU
    words = name.replace("-", " ").split()
    for device in DEVICES:
        # A laptop's card of the same name is smaller.
        if f" {device.name} " in f" {' '.join(words)} " and "Laptop" not in words:
            return device
    known = ", ".join(device.name for device in DEVICES)
    raise ValueError(f"There is no data sheet of {name!r}; known: {known}, cpu.")


SHAPES: dict[str, Callable[[Mapping[str, Any]], Shape]] = {
    "one-node": lambda p: Shape(0, 0, 1),
    "chain": lambda p: Shape(p["gamma"], 1, p["gamma"] + 1),
    "branches": lambda p: Shape(p["gamma"], p["count"], 1 + p["gamma"] * p["count"]),
    "beam": lambda p: Shape(p["gamma"], p["beams"], 1 + p["gamma"] * p["beams"]),
    "adaptive-chain": lambda p: Shape(p["most"], 1, p["most"] + 1),
    "lookup-first": lambda p: Shape(p["gamma"], 1, p["gamma"] + 1),
    "greedy-tree": lambda p: Shape(p["size"] - 1, 1, p["size"]),
    "static-tree": lambda p: Shape(min(5, p["tree_nodes"] - 1), 4, p["tree_nodes"]),
    "best-first": lambda p: Shape(p["loops"] + 1, p["width"], p["nodes"]),
    "entropy-tree": lambda p: Shape(p["max_depth"], p["max_width"], p["max_nodes"]),
}
"""By policy: the largest draft that its parameters allow."""


def shape_of(choice: Choice) -> Shape:
    """Return the largest draft of a method with its settings; ValueError for an unknown policy."""
    if choice.policy.name not in SHAPES:
        raise ValueError(f"The draft of policy {choice.policy.name!r} has no known shape.")
    return SHAPES[choice.policy.name](choice.params)


def ceiling(
    pair: PairSpec,
    choice: Choice,
    device: Device,
    weight_bytes: float = 2.0,
    target_bytes: float | None = None,
    acceptance: float | None = None,
) -> Ceiling:
    """Return the ceiling of a method on a pair; ValueError if the pair lacks its drafter.

    Args:
        weight_bytes: Per number of the drafter and the caches.
        target_bytes: Per weight of the target, if it is packed.
        acceptance: None for the assumed one of its kind of draft.
    """
    shape = shape_of(choice)
    packed = weight_bytes if target_bytes is None else target_bytes

    def target(rows: int) -> float:
        return _forward_s(pair.target, packed, weight_bytes, pair.n_tokens, rows, device)

    draft, role = 0.0, choice.drafter.role
    if role is not None:
        one = next((one for key, one in pair.drafters.items() if key == role), None)
        if one is None:
            raise ValueError(f"{pair.id} has no drafter of kind {role!r}.")
        context = pair.n_tokens * max(1, len(choice.views))
        rows = max(1, shape.width) * max(1, len(choice.views))
        draft = _forward_s(one, weight_bytes, weight_bytes, context, rows, device)
    step = target(1) + HOST_STEP_S
    host = HOST_ROUND_S if shape.depth else HOST_STEP_S
    round_s = target(shape.nodes) + shape.depth * draft + host
    if acceptance is None:
        acceptance = LOOKUP_ACCEPTANCE if role is None else ACCEPTANCE
    steps = (share / 100 for share in range(101))
    pays_from = next((share for share in steps if tau(share, shape.depth) * step >= round_s), None)
    length = tau(acceptance, shape.depth)
    accepted, source = pair.accepted.get(choice.method.name, (None, ""))
    published = None if accepted is None else accepted * step / round_s
    return Ceiling(length * step / round_s, acceptance, length, pays_from, published, source)


def tau(acceptance: float, depth: int) -> float:
    """Return the acceptance length, including the target's own token: 1 + a + a² + … + a^depth."""
    return sum(acceptance**level for level in range(depth + 1))


def _forward_s(
    one: Checkpoint,
    weight_bytes: float,
    cache_bytes: float,
    context: int,
    rows: int,
    device: Device,
) -> float:
    """Return the least seconds of a forward over so many rows after so many tokens.

    In a mixture of experts, each row is assumed to read its own experts.
    """
    weights = one.params - one.tower
    computed = one.active or weights
    read = min(weights, computed * rows) * weight_bytes + one.kv * context * cache_bytes
    return max(read / device.bytes_per_s, 2.0 * computed * rows / device.flops_per_s)
