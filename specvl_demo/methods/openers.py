"""How a pair's drafters are opened: one function a role, registered beside what drafts with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specvl_demo.pairs import Checkpoint

if TYPE_CHECKING:  # the page's process reads the methods, and loads no model
    from specvl_demo.vlm.loading import LoadPlan
    from specvl_demo.vlm.prompts import PromptBuilder
    from specvl_demo.vlm.target import VLMTarget


@dataclass(frozen=True)
class Opening:
    """What an opener is given.

    Attributes:
        checkpoint: Of the drafter.
        fetch: fetch(is_head) returns the folder of its files, downloaded first if they are not
            here; of a head, .bin files too.
        plan: How models beside the target are loaded: whole, on the device of its first layers.
    """

    checkpoint: Checkpoint
    fetch: Callable[[bool], Path]
    plan: LoadPlan
    target: VLMTarget
    prompter: PromptBuilder


Opener = Callable[[Opening], Any]
OPENERS: dict[str, Opener] = {}
"""By role. Raise ValueError with a sentence if the files do not fit the target."""


def opens(role: str) -> Callable[[Opener], Opener]:
    """Register the function below as the opener of a role."""

    def register(opener: Opener) -> Opener:
        OPENERS[role] = opener
        return opener

    return register
