"""Several processes train one head together: one computes answers and features, all learn. Those whose
gradients no distributed module averages exchange them in the trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specvl_demo.methods.heads.checkpoints import open_head
from specvl_demo.vlm import loading
from specvl_demo.vlm.encoder import VLM
from tests.contract.families.zoo import picture
from tests.contract.pair_in_processes import HELD_OUT, N
from tests.pocketlike import save_pair

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("dream",)
"""The one with most parts: what it leaves without a gradient would stop several processes."""


@pytest.mark.timeout(600)
def test_two_processes_train_the_heads_of_a_pair(tmp_path: Path) -> None:
    save_pair(tmp_path)
    picture(0).save(tmp_path / "a.png")
    lines = [{"prompt": f"what is in picture {i}", "images": ["a.png"]} for i in range(N + HELD_OUT)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, "-m", "tests.contract.pair_in_processes", str(tmp_path), *METHODS],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=560,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = [json.loads(line)["prompt"] for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len(said) == len(set(said)) == N, "every question is answered once, not once a process"
    decoder = VLM(loading.model(tmp_path / "target", loading.Plan(), "target"), "target").decoder
    for method in METHODS:
        card = json.loads((tmp_path / f"head-{method}" / "card.json").read_text())
        assert card["finished"] and card["steps"] == 4 and card["conversations"] <= N
        open_head(tmp_path / f"head-{method}", decoder, (method,))
