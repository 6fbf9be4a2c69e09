"""Measures both pairs as other processors run them, in turns on one quiet machine.

    python -m lab.processors [--repeats 3] > docs/processors.json

Each build runs in processes of its own: our kernels as this processor runs them, the same kernels
built for AVX2 with torch kept to AVX2 too, and no kernels of ours with torch as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from specvl_demo import pairs
from specvl_demo.compare import measure, questions
from specvl_demo.options import NEW_TOKENS
from specvl_demo.serving import choosing, loader

AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
BUILDS: dict[str, dict[str, str]] = {
    "this processor": {},
    "AVX2": {"SPECVL_KERNELS": "avx2", **AVX2},
    "AVX2, no C compiler": {"SPECVL_KERNELS": "off", **AVX2},
}
METHODS = {"pocket": "ar,chain,eagle2,hivis", "photo": "ar,chain,hivis,dream"}
KIND = {"photo": "describe"}
"""The kind of questions that a slow pair is asked; others are asked all."""


def answers(pair: str) -> dict[str, Any]:
    """Return what this process measures of a pair, without the library's own ways."""
    spec = pairs.find(pair)
    choices = [choosing.choose(spec, name) for name in METHODS[pair].split(",")]
    kind = KIND.get(pair)
    cases = [case for case in questions.pair_questions(spec) if kind in (None, case.kind)]
    loaded = loader.load_pair(spec, choosing.roles_of(choices))
    return measure.run_bench(loaded, cases, choices, 1, NEW_TOKENS.default, peers=())


def in_process(pair: str, variables: dict[str, str]) -> dict[str, Any]:
    """Return the report of a process of its own with these environment variables."""
    run = subprocess.run(
        [sys.executable, "-m", "lab.processors", "--pair", pair],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        check=True,
    )
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def summary(pair: str, reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return AR's tokens/s, and the fastest lossless method, by build: medians and spread."""
    runs = [{row["method"]: row for row in report["rows"]} for report in reports]

    def median(method: str, column: str) -> tuple[float, float]:
        values = [run[method][column] for run in runs]
        middle = statistics.median(values)
        return middle, (max(values) - min(values)) / middle

    methods = [name for name in METHODS[pair].split(",") if name != "ar"]
    fastest = max(methods, key=lambda name: median(name, "speedup_vs_ar")[0])
    ar, ar_spread = median("ar", "tokens_per_s")
    speedup, spread = median(fastest, "speedup_vs_ar")
    return {
        "ar_tokens_per_s": ar,
        "ar_spread": ar_spread,
        "fastest": fastest,
        "tokens_per_s": median(fastest, "tokens_per_s")[0],
        "speedup_vs_ar": speedup,
        "speedup_spread": spread,
        "kind": KIND.get(pair),
        "busy": any(report["machine"]["busy"] for report in reports),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.processors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pair", choices=METHODS, help="measure one pair in this process only")
    asked = parser.parse_args()
    if asked.pair:
        json.dump(answers(asked.pair), sys.stdout)
        return 0
    record: dict[str, Any] = {}
    for pair in METHODS:
        reports: dict[str, list[dict[str, Any]]] = {build: [] for build in BUILDS}
        for _ in range(asked.repeats):
            for build, variables in BUILDS.items():
                reports[build].append(in_process(pair, variables))
        record["machine"] = reports["this processor"][0]["machine"]
        record[pair] = {build: summary(pair, of_build) for build, of_build in reports.items()}
    json.dump(record, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
