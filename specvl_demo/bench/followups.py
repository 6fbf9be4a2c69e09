"""How soon a follow-up question begins to be answered, beside the first question of its conversation.

Given a loaded pair and chosen methods, gives a row a method and kind of picture: milliseconds from the
question to its first tokens (prompt, vision, prefill, the drafter's prefill, first round), first and
follow-up, and their ratio within a conversation. What a memory keeps is what makes the difference.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from PIL import Image

from specvl_demo import session
from specvl_demo.bench import cases, provenance
from specvl_demo.bench.measure import Tell, silent, spread
from specvl_demo.core.memory import Memory
from specvl_demo.methods import Choice
from specvl_demo.registry import Loaded
from specvl_demo.targets.prompts import Film, Turn

FRAMES = (1, 4, 16)
"""Pictures a conversation is about: one alone, or a clip of so many frames."""
SCENES = 4
"""Conversations of every kind, in turn: repeats see other pictures."""
FIRST = "Describe what you see."
THEN = "What colour is the background?"
WANTED = 0.35
"""The most of the first question's time that a follow-up's should take."""
COLUMNS = (
    *("method", "shown", "visual", "first_token_ms", "follow_up_ms", "of_first", "spread"),
    *("within", "runs"),
)


@dataclass
class _Runs:
    """Seconds to the first tokens, a figure a conversation."""

    first: list[float] = field(default_factory=list)
    then: list[float] = field(default_factory=list)
    visual: int = 0

    def row(self, method: str, frames: int) -> dict[str, Any]:
        ratios = [b / a for a, b in zip(self.first, self.then, strict=True)]
        return {
            "method": method,
            "shown": "a picture" if frames == 1 else f"a clip of {frames} frames",
            "visual": self.visual,
            "first_token_ms": 1e3 * median(self.first),
            "follow_up_ms": 1e3 * median(self.then),
            "of_first": median(ratios),
            "spread": spread(ratios),
            "within": median(ratios) <= WANTED,
            "runs": len(ratios),
        }


def followups(
    loaded: Loaded, choices: Sequence[Choice], repeats: int, max_new_tokens: int, tell: Tell = silent
) -> dict[str, Any]:
    """`machine, settings, rows`. of_first: follow-up / first question, median over conversations."""
    watch = provenance.Watch()
    runs: dict[tuple[str, int], _Runs] = defaultdict(_Runs)
    for repeat in range(repeats + 1):
        tell(f"repeat {repeat} of {repeats}", repeat / (repeats + 1))
        shift = repeat % len(choices)
        for frames in FRAMES:
            shown = _shown(frames, repeat % SCENES)
            for choice in [*choices[shift:], *choices[:shift]]:
                found = _conversation(loaded, choice, shown, max_new_tokens)
                if repeat:  # the first time round warms up
                    kept = runs[choice.method.name, frames]
                    kept.first.append(found[0])
                    kept.then.append(found[1])
                    kept.visual = found[2]
    return {
        "machine": {**provenance.describe(loaded), **watch.read()},
        "settings": {"pair": loaded.pair.id, "repeats": repeats, "max_new_tokens": max_new_tokens},
        "rows": [
            runs[choice.method.name, frames].row(choice.method.name, frames)
            for frames in FRAMES
            for choice in choices
        ],
    }


def _conversation(
    loaded: Loaded, choice: Choice, shown: Image.Image | Film, most: int
) -> tuple[float, float, int]:
    """Seconds to the first tokens of a first question and of its follow-up, and the visual tokens."""
    memory = Memory()
    first, said, visual = _asked(loaded, choice, [Turn(FIRST, (shown,))], memory, most)
    turns = [Turn(FIRST, (shown,), said), Turn(THEN)]
    return first, _asked(loaded, choice, turns, memory, most)[0], visual


def _asked(
    loaded: Loaded, choice: Choice, turns: Sequence[Turn], memory: Memory, most: int
) -> tuple[float, str, int]:
    """Seconds to the first tokens, the whole answer, and the visual tokens of the prompt."""
    started = time.perf_counter()
    request = session.request(loaded, turns, most, detail="light", memory=memory)
    ready = time.perf_counter() - started
    (lane,) = session.lanes(loaded, request, [choice])
    begin = lane.begin()
    rounds = [lane.step()]
    while not lane.done:
        rounds.append(lane.step())
    lane.end()
    text = "".join(token.text for one in rounds if one for token in one.tokens)
    return ready + begin.before_s + rounds[0].seconds, text, begin.n_visual


def _shown(frames: int, scene: int) -> Image.Image | Film:
    clip = cases.clip(frames, first=scene * frames)
    return clip.frames[0] if frames == 1 else clip
