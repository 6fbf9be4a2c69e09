"""What could win where: ceilings on devices by their data sheets. Derived; nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specvl_demo import ceilings, registry, verdicts
from specvl_demo.ceilings import Device
from specvl_demo.machine import Gpu, Machine
from specvl_demo.methods.base import Choice
from specvl_demo.pairs import PAIRS, Pair
from specvl_demo.verdicts import Quantised

WAYS: tuple[tuple[Quantised, float], ...] = (("none", 2.0), ("4bit", verdicts.QUANTISED_BYTES["4bit"]))
"""How a target's weights may lie on a device, and bytes of each."""


def report() -> dict[str, Any]:
    """`machine, settings, rows`: a row a pair, with the method of the highest ceiling on every device."""
    rows = []
    for pair in (pair for pair in PAIRS if not pair.shipped):
        choices = [registry.choose(pair, name) for name in registry.served(pair) if name != "ar"]
        row: dict[str, str | None] = {"pair": pair.id}
        rows.append(row | {device.name: best(pair, choices, device) for device in ceilings.DEVICES})
    acceptance = {
        "lookup": ceilings.LOOKUP_ACCEPTANCE,
        "chain": ceilings.CHAIN_ACCEPTANCE,
        "tree": ceilings.TREE_ACCEPTANCE,
    }
    return {"machine": {}, "settings": {"acceptance": acceptance}, "rows": rows}


def best(pair: Pair, choices: Sequence[Choice], device: Device) -> str | None:
    """The highest ceiling with its method; None where the pair does not fit."""
    found = []
    for choice in choices:
        roles = [role for role in pair.drafters if role == choice.drafter.role]
        machine = Machine(1, 0, "", (Gpu(device.name, int(device.memory_bytes)),))
        for quantised, size in WAYS:
            needs = verdicts.needs_bytes(pair, "bfloat16", roles, quantised, machine.device)
            if needs <= device.memory_bytes * verdicts.USABLE_SHARE:
                speedup = ceilings.ceiling(pair, choice, device, target_bytes=size).speedup
                packed = "" if quantised == "none" else ", 4-bit"
                found.append((speedup, f"{speedup:.1f} {choice.method.name}{packed}"))
                break
    return max(found, key=lambda one: one[0])[1] if found else None
