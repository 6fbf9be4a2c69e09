"""The files of a trained head: config.json and weights, safetensors or .bin, whole or sharded.

Pickled code is never executed.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specvl_demo.vlm import compatibility, eight_bits

_PREFIXES = re.compile(r"((module|ea_layer|draft_model|model)\.)+")
_RENAMED = {"adaptive_embedding": "residual"}
_WHOLE = ("model.safetensors", "pytorch_model.bin")


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a folder under canonical names, on the host, and its config.json."""
    config = folder / "config.json"
    if not config.is_file():
        raise ValueError(f"{folder.name} has no config.json; a head needs one beside its weights")
    settings = flattened(compatibility.read_json(config))
    tensors: dict[str, Tensor] = {}
    for file in _files(folder):
        for name, tensor in _open(file).items():
            if canonical(name) in tensors:
                raise ValueError(f"{folder.name} holds {canonical(name)} twice; it is unclear which counts")
            tensors[canonical(name)] = tensor
    return eight_bits.unpacked(tensors), settings


def flattened(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the nested sections of speculators' and other formats lifted to the top level."""
    layer = settings.get("transformer_layer_config") or {}
    flat = {**layer, **{key: value for key, value in settings.items() if value is not None}}
    for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        nested = (settings.get("eagle_config") or {}).get(name)
        if nested is not None:
            flat.setdefault(name, nested)
    return flat


def canonical(name: str) -> str:
    """A tensor's published name without wrappers' prefixes and older spellings."""
    if (wrapped := _PREFIXES.match(name)) is not None:
        name = name[wrapped.end() :]
    if name.startswith("midlayer."):
        name = name.replace("midlayer.", "layers.0.", 1)
    return _RENAMED.get(name, name)


def _files(folder: Path) -> list[Path]:
    for whole in _WHOLE:
        if (folder / whole).is_file():
            return [folder / whole]
        index = folder / f"{whole}.index.json"
        if index.is_file():
            named = compatibility.read_json(index).get("weight_map")
            if not isinstance(named, dict):
                raise ValueError(f"{index.name} of {folder.name} has no weight_map, which names the shards")
            shards = sorted(set(map(str, named.values())))
            missing = [shard for shard in shards if not (folder / Path(shard).name).is_file()]
            if missing:
                raise ValueError(f"{folder.name} names shards that are not there: {', '.join(missing)}")
            return [folder / Path(shard).name for shard in shards]
    raise ValueError(f"{folder.name} has no weights; needed is {' or '.join(_WHOLE)}, whole or with an index")


def _open(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except SafetensorError as fault:
            raise ValueError(
                f"{file.name} of {file.parent.name} is damaged or cut short: {str(fault).splitlines()[0]}"
            ) from None
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as reason:
        raise ValueError(
            f"{file.name} is not a plain file of weights, and other files are not opened: "
            f"{str(reason).splitlines()[0]}"
        ) from None
    loaded = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise ValueError(f"{file.name} holds something other than named tensors")
    return loaded
