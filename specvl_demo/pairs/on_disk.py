"""Which files of a pair's checkpoints are on this machine. Reads no weights and fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from specvl_demo.pairs import ROLES, Checkpoint, PairSpec, Role, base_weights, fingerprints
from specvl_demo.pairs.machine import gb


def has_weights(checkpoint: Checkpoint) -> bool:
    """Whether the weights of a checkpoint are in its folder or in the hub's local cache.

    A configuration may be cached without weights, from a check whether the model fits.
    """
    folder = _folder(checkpoint)
    return folder is not None and any(
        file.suffix in (".safetensors", ".bin") for file in folder.iterdir()
    )


def loadable_drafters(pair: PairSpec) -> dict[Role, Checkpoint]:
    """Return the drafters of a pair that can be loaded: local ones only if their weights exist."""
    return {
        role: checkpoint
        for role, checkpoint in pair.drafters.items()
        if not checkpoint.local or has_weights(checkpoint)
    }


def config(checkpoint: Checkpoint, name: str = "config.json") -> dict[str, Any] | None:
    """Return a checkpoint's file of this name if its folder or the hub's local cache has it."""
    folder = _folder(checkpoint)
    if folder is None or not (folder / name).is_file():
        return None
    return json.loads((folder / name).read_bytes())


def fingerprint(checkpoint: Checkpoint) -> str | None:
    """Return its files' hash, or the hub's revision; None if it is not in the hub's cache."""
    if checkpoint.local:
        return fingerprints.folder_hash(checkpoint.folder)
    config = _cached_config(checkpoint.id)
    # Its snapshot's folder is named after the commit.
    return config.parent.name[:12] if config else None


def to_fetch(checkpoints: Collection[Checkpoint]) -> list[Checkpoint]:
    """Return those whose weights the hub has to send first."""
    return [entry for entry in checkpoints if not (entry.local or has_weights(entry))]


def stored_bytes(checkpoints: Collection[Checkpoint]) -> float:
    return sum(checkpoint.params * 2 for checkpoint in checkpoints)


def why_missing(pair: PairSpec, roles: Collection[Role], offline: bool) -> str | None:
    """Return why the target, or a drafter of these roles, cannot be loaded from here; None if it
    can.
    """
    if pair.target.local and not has_weights(pair.target):
        if not pair.target.shipped:
            return f"The weights of {pair.target.id} are not there."
        return f"The weights of {pair.target.id} are missing from assets; train or copy them."
    here = loadable_drafters(pair)
    if missing := [role for role in roles if role not in here]:
        return f"It has no {ROLES[missing[0]]} here."
    fetch = to_fetch([pair.target, *(here[role] for role in roles)])
    if fetch and offline:
        size = gb(stored_bytes(fetch))
        return f"Not in the local cache, and HF_HUB_OFFLINE forbids fetching its {size}."
    return base_weights.problem(pair.target.folder) if pair.target.base else None


def _folder(checkpoint: Checkpoint) -> Path | None:
    """Return where a checkpoint's config.json is here, if anywhere; checks only files."""
    path = checkpoint.folder / "config.json" if checkpoint.local else _cached_config(checkpoint.id)
    return path.parent if path is not None and path.is_file() else None


def _cached_config(repo: str) -> Path | None:
    """Return the config.json of a hub repository in the local cache."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - not for the shipped pair

    path = try_to_load_from_cache(repo, "config.json")
    return Path(path) if isinstance(path, str) else None
