"""From a checkpoint to the folder of its files, and from there to a model with its prompts."""

from __future__ import annotations

from pathlib import Path

from specvl_demo.pairs import Checkpoint
from specvl_demo.pairs.fitting import LoadPlan
from specvl_demo.vlm import loading, photo_assembly
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.prompts import PromptBuilder


def folder_of(checkpoint: Checkpoint, is_head: bool, tell: loading.Tell, offline: bool) -> Path:
    """Return the folder of a checkpoint's files, assembled or fetched first if they are not here.

    is_head: Also fetch .bin files, which heads are read from as plain weights.
    """
    if checkpoint.base:
        return photo_assembly.local_target(checkpoint.folder, tell)
    if checkpoint.local:
        return checkpoint.folder
    return loading.fetch_repo(checkpoint.id, tell, is_head, offline)


def open_vlm(checkpoint: Checkpoint, folder: Path, plan: LoadPlan) -> tuple[VLM, PromptBuilder]:
    """Return the target in a folder, ready to compute, and what makes its prompts."""
    model = loading.load_model(folder, plan, checkpoint.id)
    # The shipped models were trained with Pillow's resizing, which differs slightly from
    # torchvision's.
    processor = loading.load_processor(folder, checkpoint.id, pillow=checkpoint.shipped)
    prompter = PromptBuilder(processor, model)
    name = f"{checkpoint.title}, {plan.packing} weights" if plan.packing else checkpoint.title
    backend = "8bit" if plan.in_own_layout else "auto"
    return VLM(model, name, prompter.special_ids, backend, ends=prompter.end_ids), prompter
