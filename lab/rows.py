"""What a step of the pair's target costs by its rows: the nodes of a tree scored at once."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from lab.gpu import steps
from lab.options import LabOptions
from specvl_demo.compare import provenance
from specvl_demo.decoders import kernels

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 64)
CONTEXT = 264
"""Rows in the cache before them: about a photograph and a question."""
ROUNDS = 9
"""In each repeat, every row count has so many turns."""


def report(options: LabOptions) -> dict[str, Any]:
    """Return `processor, threads, device, dtype, commit, kernels, context, rounds` and `rows:
    [{rows, ms, steps, least_ms}]`: the median, with output head and choice of tokens, in
    milliseconds and in steps of one row, and the shortest.
    """
    loaded = options.load(())
    target, rounds = loaded.models.target, ROUNDS * options.repeats
    decoder, least = target.decoder, target.min_invariant_rows
    sequence = steps.started(decoder, CONTEXT, max(ROWS))
    scored = {rows: steps.step_of(decoder, sequence, rows, least) for rows in ROWS}
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for number in range(rounds):
        options.tell(f"round {number + 1} of {rounds}", number / rounds)
        for rows, once in scored.items():
            times[rows] += steps.seconds_of(once, decoder.device, 1, warm=2 * (number == 0))
    ms = {rows: median(seconds) * 1e3 for rows, seconds in times.items()}
    facts = provenance.collect_facts(loaded)
    return {
        **{name: facts[name] for name in ("processor", "threads", "device", "dtype", "commit")},
        "kernels": _level_of_kernels() if facts["kernels"] else None,
        "context": CONTEXT,
        "rounds": rounds,
        "rows": [
            {"rows": n, "ms": ms[n], "steps": ms[n] / ms[1], "least_ms": min(times[n]) * 1e3}
            for n in ROWS
        ],
    }


def _level_of_kernels() -> str:
    """Return the kind of processor that they are built for, as `build_kernels` calls it."""
    # Where a library was loaded from ctypes keeps under no public name.
    return Path(kernels.library()._name).stem.removeprefix("kernels-").rpartition("-")[0]
