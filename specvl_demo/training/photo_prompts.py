"""What the photo target is asked so that drafters learn from its answers: questions about photographs.

Drawn from (seed, number) alone, so that a stopped run goes on with the same questions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specvl_demo.training.photo_data import Photo
from specvl_demo.training.photo_tasks import DIFFERENCE, SHORT
from specvl_demo.training.photo_writer import DESCRIBE, NEXT, STORY, plain_prompts
from specvl_demo.world import photo_questions

SHARES = {"short": 0.3, "long": 0.25, "story": 0.25, "question": 0.1, "two": 0.05, "plain": 0.05}
"""Of the prompts: long answers are where drafting pays, so that most of what is learnt comes from them."""


def lines(photos: Sequence[Photo], folder: Path, n: int, seed: int) -> list[dict[str, Any]]:
    """n prompts with the pictures they are about, {"prompt", "images": [path below `folder`]}."""
    index = photo_questions.WordIndex([photo.captions for photo in photos])
    plain = plain_prompts()
    order = random.Random(f"{seed}/order").sample(range(len(photos)), len(photos))
    made = []
    for i in range(n):
        rng = random.Random(f"{seed}/{i}")
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        shown = [photos[order[i % len(order)]]]
        if kind == "two" and len(photos) > 1:
            shown.append(photos[order[(i + 1) % len(order)]])
        asked = photo_questions.ask(shown[0].captions, rng, 1, index) if kind == "question" else []
        if kind == "plain":
            shown, prompt = [], rng.choice(plain)
        elif asked:
            prompt = asked[0].question
        else:
            ways = {"long": DESCRIBE, "story": (*STORY, *NEXT), "two": DIFFERENCE}
            prompt = rng.choice(ways.get(kind, SHORT))
        made.append({"prompt": prompt, "images": [str(one.path.relative_to(folder)) for one in shown]})
    return made
