"""Where a figure comes from: the machine, its load, the versions, the weights, the commit."""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import torch

from specvl_demo.decoders import packed_linear
from specvl_demo.pairs import on_disk
from specvl_demo.pairs.machine import detect_machine, git_commit, processor_name, versions
from specvl_demo.records import JsonObject

if TYPE_CHECKING:
    from specvl_demo.serving.loaded import LoadedPair

BUSY_SHARE = 0.15
"""Share of the machine that other programs may use before ratios are omitted."""


def disturbance(others_share: float) -> JsonObject:
    """Return how much of the machine other programs used meanwhile, and whether that is a lot."""
    return {"others_share_meanwhile": others_share, "busy": others_share > BUSY_SHARE}


def collect_facts(loaded: LoadedPair | None = None) -> JsonObject:
    """Return machine, versions, commit and time; of a pair also device, precision, weights."""
    facts: JsonObject = {
        "title": detect_machine().title,
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "versions": {**versions(), "python": platform.python_version()},
        "commit": git_commit(),
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    if loaded is not None:
        plan = loaded.plan
        facts |= {"device": plan.device, "dtype": plan.dtype, "quantised": plan.quantised}
        facts["kernels"] = plan.device == "cpu" and packed_linear.has_kernels()
        models = loaded.pair.checkpoints.items()
        facts["weights"] = {role: on_disk.fingerprint(model) for role, model in models}
    return facts
