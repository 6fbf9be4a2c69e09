"""Whether a pair, with drafters of some roles, runs on a machine, where, and if not, why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specvl_demo.pairs import PairSpec, Role, fitting, on_disk
from specvl_demo.pairs.machine import Machine, gb

AT_HOME = (
    " It is so small that a GPU would take longer to launch its steps than this processor's kernels"
    " take to compute them; with a dtype asked for it goes to the GPU."
)
SMALLER = (
    ". Methods without the small drafter need less; so do 4-bit weights, which need the package"
    " bitsandbytes."
)


@dataclass(frozen=True)
class Placement:
    """Whether a pair runs on a machine, how, and a sentence with the reason.

    Attributes:
        roles: Of the drafters to load.
    """

    ok: bool
    reason: str
    plan: fitting.LoadPlan = fitting.LoadPlan()
    roles: Sequence[Role] = ()
    needs_bytes: int = 0
    must_fetch: bool = False


def place(
    pair: PairSpec,
    machine: Machine,
    options: fitting.Options = fitting.AS_IT_FITS,
    roles: Sequence[Role] | None = None,
    loaded: Sequence[Role] = (),
) -> Placement:
    """Return whether and how the pair runs on the machine with its drafters of these roles (None:
    all that are here, but for the largest if a GPU has room only without them).

    loaded: Drafters that stay, if they leave enough room for the pair to run as without them.
    """
    any_will_do = roles is None
    roles = list(on_disk.loadable_drafters(pair) if roles is None else roles)
    reason = on_disk.why_missing(pair, roles, machine.offline)
    reason = reason or fitting.why_not_quantised(machine, options.quantised)
    if reason is not None:
        return Placement(False, reason)
    if any_will_do and machine.gpus:
        smallest_first = sorted(roles, key=lambda role: pair.drafters[role].params)
        for n in range(len(roles), -1, -1):
            on_gpu = place(pair, machine, options, smallest_first[:n], loaded)
            if on_gpu.plan.device != "cpu":
                return on_gpu
    fetch = on_disk.to_fetch([pair.target, *(pair.drafters[role] for role in roles)])
    fetched = gb(on_disk.stored_bytes(fetch))
    after = f"; fetches about {fetched} from the Hugging Face hub first" if fetch else ""
    n = len(roles)
    whom = f" for the target and {n} of its drafters" if n else " for the target alone"
    tried = []
    for name, memory_bytes, plan in fitting.plans(pair, machine, options):
        size = fitting.memory_needs(pair, plan, roles).total
        room = memory_bytes * fitting.USABLE_SHARE
        packed = f" with {plan.packing} weights" if plan.packing else ""
        giant = size > fitting.MAX_CPU_FLOAT32_BYTES and options.dtype is None
        if size <= room and giant and plan.device == "cpu":
            tried.append(f"{gb(size)} in float32 on the CPU, so slow that --dtype float32 must ask")
        elif size <= room:
            every = list(dict.fromkeys([*loaded, *roles]))
            if (together := fitting.memory_needs(pair, plan, every).total) <= room:
                roles = every
                size = together
            where = f"Runs on {name} in {plan.dtype}{packed}"
            reason = f"{where}, needs about {gb(size)}{whom}{after}."
            reason += AT_HOME if plan.device == "cpu" and machine.gpus and pair.shipped else ""
            return Placement(True, reason, plan, roles, size, bool(fetch))
        else:
            where = f"{name} ({gb(memory_bytes)} of memory)"
            tried.append(f"{gb(size)} in {plan.dtype}{packed} on {where}")
    no_gpu = SMALLER if machine.gpus else f"; {machine.no_gpu}."
    return Placement(False, f"Needs about {' or '.join(tried)}{whom}{no_gpu}")
