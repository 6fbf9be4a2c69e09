"""A pair of any two models of a supported family, named by the user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from specvl_demo.methods.heads import checkpoints, files
from specvl_demo.pairs import CUSTOM, Checkpoint, PairSpec, Role, find
from specvl_demo.pairs.machine import offline
from specvl_demo.serving.choosing import default_pair
from specvl_demo.vlm import hub, loading, outlines
from specvl_demo.vlm.prompts import PromptBuilder


def named_pair(name: str | None, target: str | None, drafter: str | None) -> PairSpec:
    """Return the pair of this id, by default `default_pair`; of two models if a target is named."""
    if target is not None:
        return custom_pair(target, drafter)
    if drafter is not None:
        raise ValueError("A drafter needs the target that it drafts for.")
    return find(name) if name else default_pair()


def custom_pair(target: str, drafter: str | None = None) -> PairSpec:
    """Return a pair of two models, by folder or hub id, checked before weights are read; ValueError
    if they do not fit.

    The drafter may also be the folder of a trained head, or an EAGLE-3 or DFlash head of the hub.
    """
    first = hub.read_card(target)
    checkpoint = _read_checkpoint(first, speaks=True)
    drafters = {}
    note = ""
    if (layer := _mtp_layer(first, checkpoint)) is not None:
        drafters["mtp"] = layer
    if drafter is not None:
        folder = Path(drafter)
        if folder.is_dir() and not hub.is_vlm(folder) and (kind := checkpoints.role_in(folder)):
            _check_head(folder, kind, first)
            weights = (*folder.glob("*.safetensors"), *folder.glob("*.bin"))
            params = sum(file.stat().st_size for file in weights) / 2
            drafters[kind] = Checkpoint(str(folder.resolve()), params, "see its folder", True)
        elif not folder.is_dir() and (card := hub.head_card(drafter)) is not None:
            drafters[card.family] = _read_checkpoint(card)
        else:
            second = hub.read_card(drafter, text=True)
            if reason := hub.misfit(first, second):
                raise ValueError(reason)
            role: Role = "assistant" if second.family in hub.ASSISTANTS else "small"
            drafters[role] = _read_checkpoint(second)
            if 0 < second.positions < first.positions:
                note = (
                    f"The drafter takes {second.positions} positions, the target"
                    f" {first.positions}: a longer prompt and answer are refused."
                )
    name = " with ".join(Path(part).absolute().name for part in (target, drafter) if part)
    return PairSpec(CUSTOM, name, hub.FAMILIES[first.family], checkpoint, drafters, note=note)


def _check_head(folder: Path, kind: Role, target: hub.ModelCard) -> None:
    """Raise ValueError if a head's tensors, by names and shapes, are not made for the target."""
    tensors, settings = files.read_head(folder, outline=True)
    text = outlines.text_config(target.folder)
    sizes = text["hidden_size"], text["vocab_size"]
    checkpoints.check_fit(checkpoints.FORMATS[kind], tensors, settings, folder.name, *sizes)


def _mtp_layer(card: hub.ModelCard, target: Checkpoint) -> Checkpoint | None:
    """Return the MTP layer among a target's own weights, by its config and a folder's tensors."""
    text = hub.text_section(outlines.read_json(card.folder / "config.json"))
    layers = text.get("mtp_num_hidden_layers")
    if not layers or (target.local and checkpoints.role_in(card.folder) != "mtp"):
        return None
    # About as large as any other layer.
    params = (target.params - target.tower) * layers / text["num_hidden_layers"]
    return Checkpoint(target.id, params, target.licence, target.local)


def _read_checkpoint(card: hub.ModelCard, speaks: bool = False) -> Checkpoint:
    """Return a model's place and sizes; ValueError with a sentence if its weights do not match its
    configuration, by their headers, or a folder's chat template cannot be used.

    speaks: Try its chat template too.
    """
    local = Path(card.id).is_dir()
    # Without a count, stored weights are assumed to be in half precision.
    params = card.params or card.bytes / 2
    name = str(Path(card.id).resolve()) if local else card.id
    checkpoint = Checkpoint(name, params, card.licence, local)
    if card.family in hub.HEADS:
        return checkpoint
    tensors = None
    if not local:
        tensors = {} if offline() else hub.hub_weight_headers(card.id)
    model: Any = outlines.outline_model(card.folder, card.id, card.family in hub.FAMILIES, tensors)
    if card.family in hub.ASSISTANTS:
        return checkpoint
    if local and speaks:
        PromptBuilder(loading.load_processor(card.folder, card.id), model)
    return replace(checkpoint, **outlines.memory_sizes(model))
