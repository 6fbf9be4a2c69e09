"""A pair of any two models of a supported family, named by the user."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from specvl_demo.methods.heads import checkpoints
from specvl_demo.pairs import CUSTOM, Checkpoint, PairSpec, Role
from specvl_demo.pairs.machine import offline
from specvl_demo.vlm import compatibility, sizes


def custom_pair(target: str, drafter: str | None = None) -> PairSpec:
    """Return a pair of two models, by folder or hub id, checked before weights are fetched.

    The drafter may also be the folder of a trained head, or an EAGLE-3 head of the hub. Reads
    configurations, tokenizers and lists of files.

    Raises:
        ValueError: With a sentence if they do not fit.
    """

    alone = offline()
    first = compatibility.read(target, alone)
    drafters: dict[Role, Checkpoint] = {}
    if drafter is not None:
        role = _head_in(Path(drafter))
        head = None if Path(drafter).is_dir() else compatibility.hub_head(drafter, alone)
        if head is not None:
            drafters["eagle3"] = _checkpoint(head)
        elif role is not None:
            folder = Path(drafter).resolve()
            drafters[role] = Checkpoint(
                str(folder), compatibility.stored(folder) / 2, "see its folder", True
            )
        else:
            second = compatibility.read(drafter, alone, text=True)
            reason = compatibility.misfit(first, second)
            if reason:
                raise ValueError(reason)
            own = second.family in compatibility.ASSISTANTS
            drafters["assistant" if own else "small"] = _checkpoint(second)
    name = first.id.rsplit("/", 1)[-1] + (f" with {drafter.rsplit('/', 1)[-1]}" if drafter else "")
    return PairSpec(CUSTOM, name, first.title, _checkpoint(first), drafters)


def _head_in(folder: Path) -> Role | None:
    """Return the role of the trained head in a local folder; None if it has something else."""

    if not folder.is_dir() or compatibility.is_vlm(folder):
        return None
    return cast("Role | None", checkpoints.role_in(folder))


def _checkpoint(card: compatibility.Card) -> Checkpoint:
    folder = Path(card.id)
    local = folder.is_dir()
    # Without a count, stored weights are assumed to be in half precision.
    params = card.params or card.bytes / 2
    name = str(folder.resolve()) if local else card.id
    found = sizes.read(card.folder, card.family in compatibility.FAMILIES) if card.folder else None
    if found is None:
        return Checkpoint(name, params, card.licence, local)
    # Weights stored in 32 bits may not fit into the 16 of the fused decoder's layout.
    fused_bytes = found.fused * (2 if found.halves else 4)
    return Checkpoint(
        name,
        params,
        card.licence,
        local,
        kv=found.kv,
        tower=found.tower,
        fused_bytes=fused_bytes,
    )
