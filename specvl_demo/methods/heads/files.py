"""The files of a trained head: config.json and weights, safetensors or .bin, whole or sharded.

Pickled code is never executed. What they omit or set unlike the target is reported in sentences.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.faults import cause
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.records import JsonObject
from specvl_demo.vlm import eight_bits, outlines

_OF_TARGET = "mtp."
"""How names of a head among its target's own weights begin; of such files nothing else is read."""
_PREFIXES = re.compile(r"^((module|ea_layer|draft_model|model|mtp)\.)+")
_RENAMED = {"adaptive_embedding": "residual"}
_PARTS = {"midlayer": "layers.0", "transformer": "layers.0", "fusion_fc": "fc"}
"""EAGLE-3's authors use the first name; speculators uses the others for EAGLE-2's heads."""
_WHOLE = ("model.safetensors", "pytorch_model.bin")
AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
PARTIAL = "partial_rotary_factor"
UNSERVED: JsonObject = {
    PARTIAL: 1.0,
    "use_aux_hidden_state": True,
    "parallel_draft_step": 1,
    # EAGLE-3.1's further norms; what tells Domino, DFlash 2 and DSpark apart, as it is in DFlash.
    **dict.fromkeys(("norm_before_fc", "fc_norm", "norm_output"), False),
    "projector_type": "dflash",
    "sample_from_anchor": False,
    "shift_label": False,
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping")),
    **dict.fromkeys(("attention_multiplier", "residual_multiplier", "embedding_multiplier"), 1.0),
}
"""Fields of a head's config that change what it computes, and are not served: with the values that
change nothing.
"""


def read_head(folder: Path, outline: bool = False) -> tuple[dict[str, Tensor], JsonObject]:
    """Return all tensors of a folder under canonical names, on the host, and its config.json.

    outline: Only their names, shapes and types, as tensors without data.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise ValueError(f"{folder.name} has no config.json; a head needs one next to its weights")
    settings = flatten_config(outlines.read_json(config))
    named = [pair for file in _weight_files(folder) for pair in _tensors(file, outline).items()]
    return _canonical_tensors(named, folder.name), settings


def _canonical_tensors(named: Iterable[tuple[str, Tensor]], source: str) -> dict[str, Tensor]:
    tensors = {}
    for stored_name, tensor in named:
        name = canonical_tensor_name(stored_name)
        if name in tensors:
            raise ValueError(f"{source} holds {name} twice; keep only one of the two")
        tensors[name] = tensor
    return eight_bits.apply_scales(eight_bits.unpack_matrices(tensors))


def flatten_config(settings: JsonObject) -> JsonObject:
    """Return a config with nested sections lifted to the top. Null means not set, anywhere."""
    settings = _without_nulls(settings)
    layer = settings.get("transformer_layer_config") or settings.get("text_config") or {}
    eagle = settings.get("eagle_config") or {}
    # Its layer numbers differ by one from those at the top: see `eagle3.layers_read`.
    inner = {name: value for name, value in eagle.items() if name != AUX_LAYERS}
    return {**inner, **layer, **settings}


def rotary_settings(config: JsonObject) -> JsonObject:
    """Return what a config says of rotary positions; as in the library, its table of them counts
    before what stands beside it.
    """
    beside = {name: config[name] for name in ("rope_theta", PARTIAL) if name in config}
    return {**beside, **(config.get("rope_parameters") or config.get("rope_scaling") or {})}


def refuse_unserved(settings: JsonObject, source: str, title: str) -> None:
    """Raise ValueError if a config sets something that is not computed here."""
    fields = {**settings, **rotary_settings(settings), **settings.get("dflash_config", {})}
    for name, plain in UNSERVED.items():
        if (value := fields.get(name, plain)) != plain:
            raise ValueError(
                f"{source} is {title} of a kind that is not supported: its config has {name}"
                f" {value!r}"
            )


def layer_numbers(values: Any, source: str) -> tuple[int, ...]:
    """Return a list of layer numbers; ValueError if it is none."""
    try:
        return tuple(map(int, values))
    except (TypeError, ValueError):
        raise ValueError(
            f"the config.json of {source} must list the numbers of its target's layers, not"
            f" {values!r}"
        ) from None


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}


def canonical_tensor_name(name: str) -> str:
    """Return a tensor's published name without wrappers' prefixes and in its current spelling."""
    name = _PREFIXES.sub("", name)
    part, _, rest = name.partition(".")
    name = f"{_PARTS[part]}.{rest}" if part in _PARTS else name
    return _RENAMED.get(name, name)


def differences(settings: JsonObject, target: JsonObject, source: str, windows: bool) -> list[str]:
    """Return sentences about settings that a head's config leaves out, or that differ from its
    target's.

    windows: Whether heads of its format apply sliding windows.
    """
    remarks = []
    if not windows and "sliding_attention" in settings.get("layer_types", ()):
        remarks.append(f"{source} was trained with a sliding window, which is not applied here.")
    fields, theirs = ({**config, **rotary_settings(config)} for config in (settings, target))
    for name, default in (("rope_theta", 10000.0), ("rms_norm_eps", 1e-6)):
        of_head = fields.get(name)
        of_target = theirs.get(name)
        if of_head is None:
            remarks.append(f"The config of {source} does not set {name}; {default:g} is assumed.")
        elif of_target is not None and float(of_head) != float(of_target):
            remarks.append(f"{source} has {name} {of_head:g}, but its target has {of_target:g}.")
    return remarks


def drop_target_embeddings(
    tensors: dict[str, Tensor], decoder: LanguageBackend, allowed: bool, source: str
) -> list[str]:
    """Drop a head's own copy of the embeddings if it is the target's, whose table is used.

    One that differs was trained with the head, if the format allows that, or is another target's.
    """
    table = tensors.get("embed_tokens.weight")
    if table is None or table.shape[-1] != decoder.width:
        return []
    rows = torch.linspace(0, min(table.shape[0], decoder.vocab) - 1, 64).round().long().unique()
    theirs = table[rows].float()
    ours = decoder.embed(rows.to(decoder.device)).float().cpu()
    # Some families scale the table's output, so directions are compared; rows of unused ids may be
    # zero.
    alike = torch.nn.functional.cosine_similarity(theirs, ours, dim=-1).median().item()
    if alike >= 0.99:
        del tensors["embed_tokens.weight"]
        return []
    if allowed:
        return [
            f"{source} has its own embeddings; their similarity to the target's is {alike:.2f}."
        ]
    raise ValueError(
        f"{source} was trained for another model: the similarity of its embeddings to the target's"
        f" is {alike:.2f}"
    )


def _weight_files(folder: Path) -> list[Path]:
    for whole in _WHOLE:
        if (folder / whole).is_file():
            return [folder / whole]
        index = folder / f"{whole}.index.json"
        if index.is_file():
            return outlines.weight_files(index, _OF_TARGET)
    raise ValueError(f"{folder.name} has no weights: it needs {' or '.join(_WHOLE)}, or an index")


def _tensors(file: Path, outline: bool) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        return outlines.tensors_in(file, outline, _OF_TARGET)
    try:
        loaded = torch.load(file, map_location="meta" if outline else "cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as reason:
        raise ValueError(
            f"{file.name} is not a plain file of weights, and no other file is opened:"
            f" {cause(reason)}"
        ) from None
    loaded = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise ValueError(f"{file.name} contains something other than named tensors")
    return loaded
