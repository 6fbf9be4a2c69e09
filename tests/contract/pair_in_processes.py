"""Trains heads of a pair on disk, in as many processes as it was launched in: the other half of a test.

python -m torch.distributed.run --nproc-per-node 2 -m tests.contract.pair_in_processes FOLDER METHOD...
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

import specvl_demo.decoders  # noqa: F401 - before transformers, whose torchvision would not load
from specvl_demo import registry
from specvl_demo.training import stages
from specvl_demo.training.drafters import KINDS
from specvl_demo.training.trainer import Trainer, processes

N, HELD_OUT = 6, 2


def check_average(folder: Path) -> None:
    """Processes with different batches end with the same weights, those of their mean gradient."""
    who, layer = processes().process_index, torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(layer.weight)
    sgd = torch.optim.SGD(layer.parameters(), lr=1.0)
    run = Trainer("average", folder / "average", {}, {"layer": layer}, [sgd], 1, 1.0, average=True)
    run.train(lambda _: iter([torch.tensor([[0.2 + 0.4 * who]])]), lambda x: (layer(x).sum(), {}))
    lr = sgd.param_groups[0]["lr"]
    torch.testing.assert_close(layer.weight.detach(), torch.tensor([[1.0 - lr * 0.4]]))
    assert lr > 0


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    loaded = registry.load(registry.custom(str(folder / "target")), roles=())
    check_average(folder)
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
