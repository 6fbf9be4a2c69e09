"""From a loaded pair and a question to the records of a race, for the command line, the page and the bench.

Given models, turns with pictures and chosen methods, gives lanes and their records. Knows nothing of files,
terminals or pages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from specvl_demo.assemble import assemble
from specvl_demo.core import engine
from specvl_demo.core.engine import Lane, Request, Shared
from specvl_demo.core.memory import Memory
from specvl_demo.core.text import whole
from specvl_demo.core.types import Sampling
from specvl_demo.media import Clip, Picture
from specvl_demo.methods import Choice
from specvl_demo.records import Record
from specvl_demo.registry import Loaded
from specvl_demo.targets.prompts import Film, Turn

WARM_TOKENS = 6

DESCRIBE = {
    "image": "Describe the picture.",
    "images": "Describe the pictures.",
    "video": "What happens in the clip?",
}


def turn(question: str, media: Sequence[Picture | Clip] = (), answer: str | None = None) -> Turn:
    """A turn of a conversation from decoded media. An empty question asks to describe what is shown."""
    shown = tuple(m.image if isinstance(m, Picture) else Film(m.frames, m.times_s) for m in media)
    if not question.strip() and media:
        clips = any(isinstance(m, Clip) for m in media)
        question = DESCRIBE["video" if clips else "images" if len(media) > 1 else "image"]
    return Turn(whole(question), shown, None if answer is None else whole(answer))


def request(
    loaded: Loaded,
    turns: Sequence[Turn],
    max_new_tokens: int = 160,
    sampling: Sampling | None = None,
    system: str = "",
    detail: Literal["full", "light"] = "full",
    cancelled: Callable[[], bool] = bool,
    memory: Memory | None = None,
) -> Request:
    """A request to the loaded target. ValueError with a sentence where the prompt does not fit it.

    memory: what is kept of the conversation from one question to the next; its lanes fill it.
    """
    known = None if memory is None else memory.encoded.get(loaded.models.target.decoder)
    before = None if known is None else known.made_of
    return Request(
        id=secrets.token_hex(6),
        prompt=loaded.prompter.prompt(turns, whole(system), max_new_tokens, before),
        target=loaded.models.target,
        lexicon=loaded.lexicon,
        sampling=sampling or Sampling(),
        max_new_tokens=max_new_tokens,
        detail=detail,
        pair=loaded.pair.id,
        versions=loaded.versions,
        cancelled=cancelled,
        memory=memory,
    )


def lanes(loaded: Loaded, asked: Request, choices: Sequence[Choice]) -> list[Lane]:
    """One new lane for each choice, named by its method; a method that runs twice is numbered."""
    shared = Shared(asked)
    names: list[str] = []
    for choice in choices:
        same = sum(name.split("#")[0] == choice.method.name for name in names)
        names.append(f"{choice.method.name}#{same + 1}" if same else choice.method.name)
    return [
        Lane(name, assemble(choice, loaded.models), shared)
        for name, choice in zip(names, choices, strict=True)
    ]


def warm(loaded: Loaded, asked: Request, choices: Sequence[Choice]) -> None:
    """Let every lane run a few tokens whose records are thrown away.

    Whoever computes first pays for allocations and kernels chosen on first use; in a race that is the plain
    model, and every speedup would be flattered. What has answered in this conversation is warm.
    """
    ran = set() if asked.memory is None else asked.memory.ran
    few = replace(asked, max_new_tokens=min(WARM_TOKENS, asked.max_new_tokens), memory=None)
    cold = [lane for lane in lanes(loaded, few, choices) if lane.parts.key not in ran]
    for _ in engine.race(cold):
        pass


def race(loaded: Loaded, asked: Request, choices: Sequence[Choice]) -> Iterator[Record]:
    """The records of a race between these choices, after warming up."""
    warm(loaded, asked, choices)
    yield from engine.race(lanes(loaded, asked, choices))
