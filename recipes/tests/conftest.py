"""The recipes' own tests, by `python -m pytest recipes/tests`: no part of `make test`."""

import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from PIL import Image


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Reset torch's threads before every test: training changes them, which slows later tests."""
    torch.set_num_threads(1)


def save_prompts(folder: Path, n: int) -> None:
    """Write prompts.jsonl of n questions about one picture, and this."""
    Image.new("RGB", (80, 60), (90, 140, 30)).save(folder / "a.png")
    lines = [{"prompt": f"what is in picture {i}", "images": ["a.png"]} for i in range(n)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
