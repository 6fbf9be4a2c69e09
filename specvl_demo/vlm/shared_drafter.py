"""Small drafters that share everything but a few decoder layers with their target.

A folder holds those layers and the final norm; embeddings, output head, vision tower and projector
are the target's own modules, so they are stored only once on disk and in memory, and pictures are
encoded alike. A draft vocabulary names the rows of the output head that it uses.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file
from torch import Tensor, nn

from specvl_demo.decoders.output_head import checked_ids
from specvl_demo.vlm import eight_bits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SECTION = "specvl"
"""The section of config.json for this project's own formats."""

DRAFT_IDS = "draft_ids"
"""The tensor [R] of a drafter's ids, if it has a draft vocabulary."""


def is_shared(folder: Path) -> bool:
    """Whether a folder holds such a drafter."""
    return _settings(folder).get("method") == "drafter"


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return json.loads(path.read_text()).get(SECTION, {}) if path.exists() else {}


def even_layers(n_target: int, n: int) -> list[int]:
    """Return which target layers a drafter of n starts from: first, last, and evenly between."""
    if not 1 <= n <= n_target:
        raise ValueError(f"a drafter of this target must have 1 to {n_target} layers, not {n}")
    return [round(i * (n_target - 1) / max(1, n - 1)) for i in range(n)]


def with_even_layers(target: PreTrainedModel, n: int) -> PreTrainedModel:
    """Return a model of `even_layers` that shares all parameters with the target."""
    held = {id(part): part for part in (*target.parameters(), *target.buffers())}
    model = copy.deepcopy(target, held)
    decoder = model.get_decoder()
    chosen = even_layers(len(decoder.layers), n)
    decoder.layers = nn.ModuleList(decoder.layers[i] for i in chosen)
    for i, layer in enumerate(decoder.layers):
        layer.self_attn.layer_idx = i
    decoder.config.num_hidden_layers = n
    if getattr(decoder.config, "layer_types", None):
        decoder.config.layer_types = [decoder.config.layer_types[i] for i in chosen]
    return model


def load_drafter(folder: Path, target: PreTrainedModel) -> PreTrainedModel:
    """Return the drafter in a folder, on its target's device and in its dtype.

    Raises:
        ValueError: If the folder's tensors are not those of such layers.
    """
    head_settings = _settings(folder)
    tensors = eight_bits.unpack_matrices(load_file(folder / "model.safetensors"))
    model = with_even_layers(target, int(head_settings["layers"]))
    decoder = model.get_decoder()
    if (ids := tensors.pop(DRAFT_IDS, None)) is not None:
        _limit_vocabulary(model, ids, folder)
    parts = nn.ModuleDict({"layers": decoder.layers, "norm": decoder.norm})
    places = dict(parts.named_parameters())
    state = {name: value for name, value in parts.state_dict().items() if name not in places}
    state |= {name: tensor.to(places.get(name, tensor)) for name, tensor in tensors.items()}
    try:
        # As separate parameters: the target's, shared so far, stay unchanged.
        parts.load_state_dict(state, assign=True)
    except RuntimeError as fault:
        raise ValueError(f"{folder} does not have layers of this target: {fault}") from None
    return model


def _limit_vocabulary(model: PreTrainedModel, ids: Tensor, folder: Path) -> None:
    """Limit a model's output head to the rows of these ids, and store the ids."""
    weight = model.get_output_embeddings().weight
    ids = checked_ids(ids, len(weight), str(folder))
    head = nn.Linear(weight.shape[1], len(ids), bias=False, device="meta")
    head.weight = nn.Parameter(weight[ids.to(weight.device)].clone(), requires_grad=False)
    model.set_output_embeddings(head)
    model.register_buffer(DRAFT_IDS, ids, persistent=False)
