"""Targets and the drafters that fit them: ids, families, licences, sizes. The list is `pairs.json`,
with ids as in the papers' code and on the model cards, and rounded sizes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from specvl_demo.places import ASSETS

Role = str
"""A key of ROLES."""
ROLES: dict[Role, str] = {
    "small": "small model with the target's vocabulary",
    "eagle2": "EAGLE-2 head on the target's features",
    "eagle3": "EAGLE-3 head on three of the target's layers",
    "hivis": "HiViS head on the target's features, blind to visual positions",
    "dream": "DREAM head with cross-attention to the target's features",
    "dflash": "DFlash head that drafts a block in one forward",
    "mtp": "layer that predicts one token further, among the target's own weights",
    "assistant": "drafter of the target's family that reads the target's keys and values",
}


DESCRIBE = {
    "image": "Describe the picture.",
    "images": "Describe the pictures.",
    "video": "What happens in the clip?",
}
"""What is asked without words, by what is shown."""
CUSTOM = "custom"
"""The id of a pair of two models that a user has named."""


@dataclass(frozen=True)
class Checkpoint:
    """One set of weights: a public repository of the hub, or, if `local`, a folder, which is never
    fetched.

    Attributes:
        params: Rounded.
        base: If the folder has only trained changes, the package of the weights they apply to
            (`base_weights`).
        kv: Numbers that its cache keeps per token, 2 x layers x key heads x their width; 0 if few
            or unknown.
        tower: The part of `params` in the vision tower, which no step reads.
        fused_bytes: Memory of the packed CPU decoder's own layout of its matrices, in addition to
            the weights; 0 if that decoder does not run it.
        eight_bits: Whether its weights are rounded to 8 bits on a CPU where our own kernels run.
    """

    id: str
    params: float
    licence: str
    local: bool = False
    base: str | None = None
    kv: int = 0
    tower: float = 0.0
    fused_bytes: float = 0.0
    eight_bits: bool = False

    @property
    def folder(self) -> Path:
        return ASSETS / self.id

    @property
    def shipped(self) -> bool:
        return self.local and self.folder.is_relative_to(ASSETS)

    @property
    def title(self) -> str:
        return self.id.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class PairSpec:
    """A target with the drafters that fit it: same vocabulary, or heads trained on its features.

    questions: The file of examples/ that it is measured with. describe: See `DESCRIBE`. n_frames:
    Of a clip.
    n_tokens: Of a prompt with a picture, and the answer.
    """

    id: str
    title: str
    family: str
    target: Checkpoint
    drafters: dict[Role, Checkpoint]
    n_frames: int = 8
    n_tokens: int = 2048
    knows: Literal["anything", "photographs", "scenes"] = "anything"
    questions: str = "photo-questions.jsonl"
    note: str = ""
    describe: Mapping[str, str] = field(default_factory=DESCRIBE.copy)

    @property
    def display_name(self) -> str:
        """How messages name it: by its id, or by the folders of a user's own two models."""
        return self.title if self.id == CUSTOM else self.id

    @property
    def shipped(self) -> bool:
        return all(model.shipped for model in self.checkpoints.values())

    @property
    def checkpoints(self) -> dict[Role, Checkpoint]:
        """Return all its weights, the target's as those of the role "target"."""
        return {"target": self.target, **self.drafters}


def from_json(text: str) -> tuple[PairSpec, ...]:
    """Return the pairs in JSON of the form of `pairs.json`: they refer to its checkpoints by id."""
    entries = json.loads(text)
    checkpoints = {}
    for name, facts in entries["checkpoints"].items():
        layers_heads_width = facts.pop("kv", [0])
        if facts.pop("fused", False):
            # All of these are stored in 16 bits, and packed in 16 bits.
            facts["fused_bytes"] = 2 * (facts["params"] - facts.get("tower", 0))
        checkpoints[name] = Checkpoint(name, kv=2 * math.prod(layers_heads_width), **facts)
    specs = []
    for row in entries["pairs"]:
        target = checkpoints[row.pop("target")]
        drafters = {role: checkpoints[name] for role, name in row.pop("drafters").items()}
        row["describe"] = DESCRIBE | row.pop("describe", {})
        specs.append(PairSpec(target=target, drafters=drafters, **row))
    return tuple(specs)


PAIRS = from_json(Path(__file__).with_name("pairs.json").read_text("utf-8"))


def find(pair_id: str) -> PairSpec:
    """Return the pair of this id; ValueError with the known ids if there is none."""
    by_id = {pair.id: pair for pair in PAIRS}
    if pair_id not in by_id:
        raise ValueError(f"There is no pair {pair_id!r}; known: {', '.join(by_id)}.")
    return by_id[pair_id]
