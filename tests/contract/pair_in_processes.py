"""Trains heads of a pair on disk, in as many processes as it was launched in: the other half of a test.

python -m torch.distributed.run --nproc-per-node 2 -m tests.contract.pair_in_processes FOLDER METHOD...
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import specvl_demo.decoders  # noqa: F401 - before transformers, whose torchvision would not load
from specvl_demo import registry
from specvl_demo.training import stages
from specvl_demo.training.drafters import KINDS

N, HELD_OUT = 6, 2

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    loaded = registry.load(registry.custom(str(folder / "target")), roles=())
    for method in sys.argv[2:]:
        places = stages.Places(
            folder / f"run-{method}",
            folder / f"head-{method}",
            folder / "work",
            folder / "answers.jsonl",
            folder / "prompts.jsonl",
        )
        recipe = replace(KINDS[method].recipe, steps=4, batch=4, stage1=0.5)
        stages.main(loaded, KINDS[method], recipe, places, N, HELD_OUT, minutes=60.0)
