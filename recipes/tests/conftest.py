"""The recipes' own tests, by `python -m pytest recipes/tests`: no part of `make test`."""

import json
from pathlib import Path

from PIL import Image


def save_prompts(folder: Path, n: int) -> None:
    """Write prompts.jsonl of n questions about one picture, and this."""
    Image.new("RGB", (80, 60), (90, 140, 30)).save(folder / "a.png")
    lines = [{"prompt": f"what is in picture {i}", "images": ["a.png"]} for i in range(n)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
