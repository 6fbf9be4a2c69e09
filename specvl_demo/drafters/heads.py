"""From a folder of published or own weights to a head that drafts, whatever its format.

Given a folder and the target's decoder, gives the built head, shared by lanes. Knows which format is served
by which class, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from specvl_demo.core.types import Decoder
from specvl_demo.drafters import checkpoints
from specvl_demo.drafters.checkpoints import Kind
from specvl_demo.drafters.comparators import Eagle3Head, ViSpecHead
from specvl_demo.drafters.dream import DreamHead
from specvl_demo.drafters.features import FeatureHead, HiViSHead

SERVES: dict[str, tuple[Kind, ...]] = {
    "eagle2": ("eagle2", "vispec", "eagle3"),
    "hivis": ("hivis",),
    "dream": ("dream",),
}
"""Which formats will do for a pair's role: ViSpec and EAGLE-3 heads draft the way EAGLE-2's do."""

VARIANTS: dict[str, tuple[str, ...]] = {"hivis": ("stage-1",), "dream": ("no-cross",)}
"""Heads trained with a part left out, in folders beside the shipped ones: NAME-VARIANT."""

AnyHead = FeatureHead | DreamHead

CLASSES: dict[Kind, type[FeatureHead] | type[DreamHead]] = {
    "eagle2": FeatureHead,
    "hivis": HiViSHead,
    "dream": DreamHead,
    "vispec": ViSpecHead,
    "eagle3": Eagle3Head,
}


def open_head(folder: Path, decoder: Decoder, kinds: Iterable[Kind] = ()) -> AnyHead:
    """The head in `folder` for this target. kinds: formats that will do, empty for any.

    Raises ValueError with one sentence where the files are no such head or do not fit the target.
    """
    return build(checkpoints.load(folder, decoder, kinds), decoder)


def open_role(folder: Path, decoder: Decoder, role: str) -> dict[str, AnyHead]:
    """The head for a pair's role, by that role; its variants, where they lie beside it, by ROLE-VARIANT."""
    opened = {role: open_head(folder, decoder, SERVES[role])}
    for variant in VARIANTS.get(role, ()):
        beside = folder.with_name(f"{folder.name}-{variant}")
        if (beside / "config.json").is_file():
            opened[f"{role}-{variant}"] = open_head(beside, decoder, SERVES[role])
    return opened


def role_in(folder: Path) -> str | None:
    """Which role the head in a folder serves; None where it holds no head that is known here."""
    try:
        tensors, _ = checkpoints.read(folder)
        kind = checkpoints.recognise(tensors, folder.name)
    except ValueError:
        return None
    return next(role for role, kinds in SERVES.items() if kind in kinds)


def build(head: checkpoints.Head, decoder: Decoder) -> AnyHead:
    """The class that serves a format."""
    return CLASSES[head.kind](head, decoder)
