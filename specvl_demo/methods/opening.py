"""What a drafter's part is given to load the model of its role (`base.Part.open`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specvl_demo.pairs import Checkpoint

if TYPE_CHECKING:  # the page's process reads the methods, and loads no model
    from specvl_demo.pairs.fitting import LoadPlan
    from specvl_demo.vlm.prompts import PromptBuilder
    from specvl_demo.vlm.target import VLMTarget


@dataclass(frozen=True)
class Opening:
    """One model to load, and its target, which is loaded already.

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
