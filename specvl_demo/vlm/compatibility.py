"""What can be known of a vision-language model before it is loaded, and whether two fit together.

Given a local folder or a repository of the hub, reads its configuration, its tokenizer and its list
of files: kilobytes, never weights. Knows the supported families, but nothing of methods.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError
from safetensors import SafetensorError, safe_open

FAMILIES: dict[str, str] = {
    "llava": "LLaVA",
    "llava_next": "LLaVA-NeXT",
    "llava_onevision": "LLaVA-OneVision",
    "qwen2_vl": "Qwen2-VL",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3_vl": "Qwen3-VL",
    "qwen3_vl_moe": "Qwen3-VL MoE",
    "qwen3_5": "Qwen3.5",
    "qwen3_5_moe": "Qwen3.5 MoE",
    "glm4v": "GLM-4.1V",
    "idefics3": "Idefics3",
    "smolvlm": "SmolVLM",
    "gemma3": "Gemma 3",
    "gemma4": "Gemma 4",
    "mistral3": "Mistral 3",
    "internvl": "InternVL",
}
"""By `model_type` of the configuration. Pixtral appears there as a LLaVA with another
vision tower.
"""

RECURRENT = frozenset({"Qwen3.5", "Qwen3.5 MoE"})
"""Families with layers that keep one running state, which follows one chain of tokens."""
_PER_LAYER = "its layers need token ids in addition to embeddings"
ASSISTANTS = {"gemma4_assistant": "gemma4"}
"""Drafters that read the keys and values of a target, and the target's family."""

# The hub client's HTTP library, which has changed over time: what a lost connection raises.
_HTTPError: type[BaseException] = HfHubHTTPError.__bases__[0]

_READ = ("config.json", "tokenizer.json")
# The settings that decide into how many tokens a picture is split, wherever a family keeps them.
_CUT = (
    *(
        "image_size",
        "patch_size",
        "spatial_merge_size",
        "temporal_patch_size",
        "spatial_patch_size",
    ),
    *("scale_factor", "image_seq_length", "mm_tokens_per_image", "downsample_ratio"),
    *("image_grid_pinpoints", "vision_feature_select_strategy"),
)


class NotLookedUp(ValueError):
    """The hub, or its local cache, did not answer: nothing is known of the model."""


@dataclass(frozen=True)
class Card:
    """What is known of a model without its weights.

    Attributes:
        family: Its `model_type`.
        params: From the weights' headers or index, rounded; 0 if unknown.
        bytes: Of the weights as stored.
        tokens: Id by token.
        folder: Where its configuration is stored locally.
    """

    id: str
    family: str
    params: float
    bytes: int
    licence: str
    tokens: dict[str, int] = field(repr=False)
    folder: Path | None = None

    @property
    def title(self) -> str:
        return FAMILIES.get(self.family, self.family)


def read(source: str, offline: bool = False, text: bool = False, anonymous: bool = False) -> Card:
    """Return the card of a folder or a repository.

    Args:
        offline: Use only the hub's local cache.
        text: Also accept a text-only language model.
        anonymous: Do not use this machine's login at the hub.

    Raises:
        ValueError: With a sentence if it cannot be read or is not of a supported family.
    """
    folder = Path(source)
    if folder.is_dir():
        files = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        known = {name: read_json(folder / name) for name in _READ if name in files}
        facts: dict[str, Any] = {"params": _counted(folder), "licence": "see its folder"}
    else:
        files, facts, known = _from_hub(source, offline, anonymous)
    config = known.get("config.json")
    if config is None and offline and not folder.is_dir():
        raise NotLookedUp(
            f"{source} is not in the local cache, and HF_HUB_OFFLINE forbids looking it up."
        )
    if config is None:
        raise ValueError(
            f"{source} has no config.json: it is not a model that transformers can load."
        )
    family = config.get("model_type", "")
    text_model = text and any(
        name.endswith("ForCausalLM") for name in config.get("architectures") or ()
    )
    if family not in FAMILIES and not text_model:
        served = ", ".join(FAMILIES.values())
        raise ValueError(
            f"{source} is of type {family or 'unknown'!r}; supported are {served} and Pixtral."
        )
    if (config.get("text_config") or {}).get("hidden_size_per_layer_input") and family == "gemma4":
        raise ValueError(f"{source} is a small Gemma 4, which is not supported: {_PER_LAYER}.")
    if "tokenizer.json" not in known:
        raise ValueError(
            f"{source} has no tokenizer.json, which is needed to compare its vocabulary."
        )
    safe = sum(size for name, size in files.items() if name.endswith(".safetensors"))
    pickled = sum(size for name, size in files.items() if name.endswith(".bin"))
    if not safe and not pickled and files:
        raise ValueError(f"{source} has no weights.")
    return Card(
        id=source,
        family=family,
        params=float(facts.get("params") or 0),
        bytes=safe or pickled,
        licence=str(facts.get("licence") or "not stated"),
        tokens=_tokens(known["tokenizer.json"]),
        folder=folder if folder.is_dir() else facts.get("folder"),
    )


def hub_head(repo: str, offline: bool = False) -> Card | None:
    """Return the card of an EAGLE-3 head on the hub, from its configuration; None if it is
    something else.

    Heads of other formats are recognised only in local folders, by their tensors.
    """
    files, facts, known = _from_hub(repo, offline)
    config = known.get("config.json", {})
    named = " ".join(config.get("architectures") or ()).lower()
    if "eagle3" not in named and not config.keys() & {"draft_vocab_size", "eagle_config"}:
        return None
    held = sum(size for name, size in files.items() if name.endswith((".safetensors", ".bin")))
    licence = str(facts.get("licence") or "not stated")
    return Card(repo, "eagle3", float(facts.get("params") or 0), held, licence, {})


def is_vlm(folder: Path) -> bool:
    """Whether a local folder's configuration is of a supported vision-language family."""
    config = folder / "config.json"
    return config.is_file() and read_json(config).get("model_type") in FAMILIES


def stored(folder: Path) -> int:
    """Return the size in bytes of the weights in a local folder: safetensors, else pickled ones."""
    sizes = {
        suffix: sum(path.stat().st_size for path in folder.glob(f"*.{suffix}"))
        for suffix in ("safetensors", "bin")
    }
    return sizes["safetensors"] or sizes["bin"]


def misfit(target: Card, drafter: Card) -> str | None:
    """Return why the drafter cannot draft for the target, in a sentence; None if it can."""
    reads = ASSISTANTS.get(drafter.family)
    if reads and reads != target.family:
        return (
            f"{drafter.id} reads the keys and values of a {FAMILIES[reads]}, which {target.id} is"
            " not."
        )
    if target.id == drafter.id:
        return (
            f"{target.id} is both target and drafter; to draft with the target itself, choose the"
            " drafter 'self' in a method."
        )
    if target.params and drafter.params >= target.params:
        return (
            f"{drafter.id} has {drafter.params / 1e9:.2f}B parameters, {target.id} only "
            f"{target.params / 1e9:.2f}B: a drafter must be smaller than its target."
        )
    mine, theirs = ({i: token for token, i in card.tokens.items()} for card in (target, drafter))
    common = mine.keys() & theirs.keys()
    differ = sorted(i for i in common if mine[i] != theirs[i])
    if differ:
        first = differ[0]
        return (
            f"{drafter.id} has a different vocabulary from {target.id}: id {first} is"
            f" {theirs[first]!r} there and {mine[first]!r} here ({len(differ)} ids differ)."
        )
    if len(common) < 0.9 * len(mine):
        return f"{drafter.id} knows only {len(common)} of the {len(mine)} tokens of {target.id}."
    return None


def cut_alike(mine: Any, theirs: Any) -> bool:
    """Whether two models, by their loaded configurations, split a picture into the same tokens."""
    return mine.model_type == theirs.model_type and _cut(mine.to_dict()) == _cut(theirs.to_dict())


def _cut(config: dict[str, Any]) -> dict[str, Any]:
    vision = config.get("vision_config") or {}
    found = {name: config[name] for name in _CUT if name in config}
    return found | {f"vision.{name}": vision[name] for name in _CUT if name in vision}


def _tokens(tokenizer: dict[str, Any]) -> dict[str, int]:
    model = tokenizer["model"]["vocab"]
    # Unigram models store a list of (token, score), the others a table.
    table = model if isinstance(model, dict) else {token: i for i, (token, _) in enumerate(model)}
    return {**table, **{one["content"]: one["id"] for one in tokenizer.get("added_tokens", ())}}


def read_json(path: Path) -> dict[str, Any]:
    """Return the top-level table of a JSON file; ValueError with a sentence if it has none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ValueError(f"{path.name} of {path.parent.name} cannot be read: {fault}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} of {path.parent.name} is not a JSON object.")
    return found


def _counted(folder: Path) -> int:
    """Count parameters from the headers of the safetensors files; their data is not read."""
    total = 0
    for path in folder.glob("*.safetensors"):
        try:
            with safe_open(path, framework="np") as file:
                total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
        except SafetensorError:
            continue  # `loading.check` reports it when the model is loaded
    return total


def _from_hub(
    repo: str, offline: bool, anonymous: bool = False
) -> tuple[dict[str, int], dict[str, Any], dict[str, dict[str, Any]]]:
    """Return files with sizes, facts, and the contents of the small files."""
    files: dict[str, int] = {}
    facts: dict[str, Any] = {}
    known: dict[str, dict[str, Any]] = {}
    login: dict[str, Any] = {"token": False} if anonymous else {}
    try:
        if not offline:
            info = HfApi(**login).model_info(repo, files_metadata=True)
            files = {one.rfilename: one.size or 0 for one in info.siblings or ()}
            facts["params"] = info.safetensors.total if info.safetensors else 0
            facts["licence"] = info.card_data.get("license") if info.card_data else None
        for name in _READ:
            try:
                file = Path(hf_hub_download(repo, name, local_files_only=offline, **login))
                known[name], facts["folder"] = read_json(file), file.parent
            except EntryNotFoundError:
                continue
    except HFValidationError:
        raise ValueError(
            f"There is no folder {repo}, and hub models are named OWNER/NAME."
        ) from None
    except (_HTTPError, OSError) as fault:
        line = str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__
        raise NotLookedUp(f"{repo} could not be looked up: {line}") from fault
    return files, facts, known


def check_words(target: Path, target_id: str, drafter: Path, drafter_id: str) -> None:
    """Raise ValueError with a sentence if a language model's ids differ from its target's."""
    first = replace(read(str(target), offline=True), id=target_id)
    second = replace(read(str(drafter), offline=True, text=True), id=drafter_id)
    if reason := misfit(first, second):
        raise ValueError(reason)
