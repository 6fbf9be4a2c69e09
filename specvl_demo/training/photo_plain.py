"""Phrases of the photo recipe, and plain prompts without a photograph: what chat is kept alive with."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

PHRASES: dict[str, Any] = json.loads(Path(__file__).with_name("photo_phrases.json").read_text("utf-8"))
"""plain, ask: topics, and what is asked about each kind of them. questions: about a photograph, by the kind
of answer. things: questions about one thing, with the form of the answer. openings, go on, orders: how the
base is made to write long answers."""


def prompts(seed: int = 5) -> list[str]:
    """All plain prompts, shuffled by a seed: more than 2,000 different ones."""
    rng = random.Random(seed)
    sums = [f"{rng.randint(2, 99)} {sign} {rng.randint(2, 99)}" for sign in ("plus", "minus", "times") * 40]
    plain, asks = PHRASES["plain"], PHRASES["ask"]
    topics = {"thing": plain["things"], "place": plain["places"], "deed": plain["deeds"], "sum": sums}
    made = [ask.format(x=x) for kind, xs in topics.items() for ask, x in itertools.product(asks[kind], xs)]
    made = sorted({*made, *plain["others"]})
    rng.shuffle(made)
    return made
