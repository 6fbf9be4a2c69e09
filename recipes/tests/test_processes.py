"""Several processes train one head together: one computes answers and features, all learn. Those
whose gradients no distributed module averages exchange them in the trainer.

python -m recipes.tests.test_processes FOLDER    the two processes, forked after one
import of torch
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from recipes import stages
from recipes.drafters import KINDS
from recipes.tests.conftest import save_prompts
from recipes.trainer import Trainer, processes
from specvl_demo.methods.heads.checkpoints import open_head
from specvl_demo.serving import loader
from specvl_demo.serving.custom import custom_pair
from specvl_demo.vlm import loading
from specvl_demo.vlm.encoder import VLM
from tests.shared.pocketlike import save_pair
from tests.shared.server import run_python

METHOD = "dream"
"""The one with most parts: what it leaves without a gradient would stop several processes."""
N, HELD_OUT = 6, 2


@pytest.mark.timeout(600)
def test_two_processes_train_the_heads_of_a_pair(tmp_path: Path):
    save_pair(tmp_path)
    save_prompts(tmp_path, N + HELD_OUT)
    words = "-m", "recipes.tests.test_processes", tmp_path
    done = run_python(*words, timeout=560)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [
        json.loads(line)["prompt"] for line in (tmp_path / "answers.jsonl").read_text().splitlines()
    ]
    assert len(said) == len(set(said)) == N, "every question is answered once, not once a process"
    decoder = VLM(
        loading.load_model(tmp_path / "target", loading.LoadPlan(), "target"), "target"
    ).decoder
    card = json.loads((tmp_path / f"head-{METHOD}" / "card.json").read_text())
    assert card["finished"] and card["steps"] == 4 and card["conversations"] <= N
    open_head(tmp_path / f"head-{METHOD}", decoder, METHOD)


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


def trained(folder: Path) -> None:
    """What each of the processes does."""
    assert processes().num_processes == 2
    loaded = loader.load_pair(custom_pair(str(folder / "target")), roles=())
    check_average(folder)
    names = (f"run-{METHOD}", f"head-{METHOD}", "work", "answers.jsonl", "prompts.jsonl")
    recipe = replace(KINDS[METHOD].recipe, steps=4, batch=4, stage1=0.5)
    places = stages.Places(*(folder / name for name in names))
    stages.main(loaded, KINDS[METHOD], recipe, places, N, HELD_OUT, minutes=60.0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    how = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "start_method": "fork"}
    elastic_launch(LaunchConfig(1, 1, 2, **how), trained)(Path(sys.argv[1]))
