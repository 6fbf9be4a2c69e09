"""Loads a pair's models: the target, its drafters, and their prompt builders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from specvl_demo.decoders import packed_linear
from specvl_demo.methods.base import Models, Opening, opener
from specvl_demo.pairs import Checkpoint, PairSpec, Role, on_disk, placing
from specvl_demo.pairs.fitting import AS_IT_FITS, LoadPlan, Options, wants_exact
from specvl_demo.pairs.machine import detect_machine, git_commit, processor_name, versions
from specvl_demo.serving import threads
from specvl_demo.serving.loaded import LoadedPair
from specvl_demo.vlm import loading, photo_assembly
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.prompts import PromptBuilder
from specvl_demo.vlm.target import VLMTarget


def load_pair(
    pair: PairSpec,
    roles: Sequence[Role] | None = None,
    progress: loading.Tell = lambda _: None,
    options: Options = AS_IT_FITS,
    placement: placing.Placement | None = None,
) -> LoadedPair:
    """Load a pair's target and its drafters of these roles (None: all that are here).

    placement: As `place_pair` returned, if it was asked.

    Raises ValueError if the pair does not run here, a role is missing, or weights cannot be loaded.
    """
    # 1. Where and how: asked once, before anything is read or fetched.
    machine = detect_machine()
    placement = placement or place_pair(pair, roles, options)
    plan = placement.plan
    # A container may have few cores, and threads without a core only wait for each other.
    torch.set_num_threads(min(torch.get_num_threads(), machine.n_cpus))
    # Packing and trying out are many small products.
    with threads.fitted_threads() as fit_threads:

        def tell(text: str) -> None:
            fit_threads()
            progress(text)

        # 2. The target: its weights, what makes its prompts, how its steps run.
        loading.free_unused()
        tell(f"Loading {pair.target.id}")
        folder = folder_of(pair.target, False, tell)
        vlm, prompter = open_vlm(pair.target, folder, plan)
        target = VLMTarget(vlm, wants_exact(plan, options))
        models = Models(target, {}, prompter.word_ids())
        ran_with = {"machine": f"{processor_name()}, {machine.title}"} | versions()
        if commit := git_commit():
            ran_with["commit"] = commit
        loaded = LoadedPair(
            pair,
            models,
            prompter,
            prompter.token_texts(),
            plan,
            ran_with,
            may_decline=options.exact is None,
        )
        # 3. Its drafters.
        load_drafters(loaded, placement.roles, tell)
        # 4. How this device runs their steps fastest.
        fit_threads()
        if not machine.per_call:
            loaded.calibrate(tell)
    return loaded


def folder_of(checkpoint: Checkpoint, is_head: bool, tell: loading.Tell) -> Path:
    """Return the folder of a checkpoint's files, assembled or fetched first if they are not here.

    is_head: Also fetch .bin files, which heads are read from as plain weights.
    """
    if checkpoint.base:
        return photo_assembly.local_target(checkpoint.folder, tell)
    if checkpoint.local:
        return checkpoint.folder
    return loading.fetch_repo(checkpoint.id, tell, is_head)


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


def load_drafters(loaded: LoadedPair, roles: Sequence[Role], tell: loading.Tell) -> None:
    """Load drafters of these roles beside what is there.

    They are small: they stay whole, on the device of the target's first layers.
    """
    whole = replace(loaded.plan, split={}, quantised="none")
    models = loaded.models
    for role in roles:
        if role in models.drafters:
            continue
        checkpoint = loaded.pair.drafters[role]
        tell(f"Loading {checkpoint.id}")
        fetch = partial(folder_of, checkpoint, tell=tell)
        opening = Opening(checkpoint, fetch, whole, models.target, loaded.prompter)
        models.drafters[role] = opener(role)(opening)
    for role in ("target", *models.drafters):
        checkpoint = loaded.pair.checkpoints[role]
        if checkpoint.shipped or not checkpoint.local:  # to read a user's own may take minutes
            loaded.versions[f"weights of {role}"] = on_disk.fingerprint(checkpoint) or "unknown"


def place_pair(
    pair: PairSpec, roles: Sequence[Role] | None, options: Options, loaded: Sequence[Role] = ()
) -> placing.Placement:
    """Return where and how the pair runs with these drafters; ValueError if it does not here. See
    `placing.place`.
    """
    machine = detect_machine()
    if not packed_linear.has_kernels():
        machine = replace(machine, kernels=False)  # the compiler failed
    placement = placing.place(pair, machine, options, roles, loaded)
    if not placement.ok:
        raise ValueError(f"{pair.display_name} does not run here: {placement.reason}")
    return placement
