"""What the small files of a model tell, and whether two models fit together.

Given a local folder or a repository of the hub, reads its configuration, its tokenizer, its list of
files and the headers of its safetensors. Knows families, but no methods or machines.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_safetensors_metadata, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    NotASafetensorsRepoError,
)
from torch import Tensor
from transformers import GenerationConfig

from specvl_demo.core.faults import cause
from specvl_demo.pairs.machine import offline
from specvl_demo.records import JsonObject
from specvl_demo.vlm.outlines import meta_tensor, read_json, weight_headers

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
"""By `model_type` of the configuration, in which Pixtral is a LLaVA with another tower."""

LANGUAGE = ("gemma3_text", "llama", "mistral", "qwen2", "qwen3")
"""Language models that may draft, by `model_type`: they read only text."""
RECURRENT = frozenset({"Qwen3.5", "Qwen3.5 MoE"})
"""Families with layers that keep one running state, which follows one chain of tokens."""
_PER_LAYER = "its layers need token ids in addition to embeddings"
HEADS = ("eagle3", "dflash")
"""Heads that are known by their configurations."""
ASSISTANTS = {"gemma4_assistant": "gemma4"}
"""Drafters that read the keys and values of a target, and the target's family."""

# The hub client's HTTP library, which has changed over time: what a lost connection raises.
_HTTPError: type[BaseException] = HfHubHTTPError.__bases__[0]

_UNREACHED = (
    ". The Hugging Face hub was not reached: check the network, name a local folder, or set"
    " HF_HUB_OFFLINE=1 to use only what is in the local cache."
)
_READ = ("config.json", "tokenizer.json")
# The settings that decide into how many tokens a picture is split, wherever a family keeps them.
_SPLIT_SETTINGS = (
    "image_size",
    "patch_size",
    "spatial_merge_size",
    "temporal_patch_size",
    "spatial_patch_size",
    "scale_factor",
    "image_seq_length",
    "mm_tokens_per_image",
    "downsample_ratio",
    "image_grid_pinpoints",
    "vision_feature_select_strategy",
)
BY_OPTION = {"repetition_penalty": 1, "min_length": 0, "min_new_tokens": 0, "stop_strings": None}
SAMPLED = {"do_sample": False, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
UNAPPLIED: JsonObject = {
    "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0,
    "typical_p": 1.0,
    "num_beams": 1,
    **dict.fromkeys(
        (
            "no_repeat_ngram_size",
            "encoder_no_repeat_ngram_size",
            "penalty_alpha",
            "epsilon_cutoff",
            "eta_cutoff",
            "token_healing",
            "use_mtp",
        ),
        0,
    ),
    **dict.fromkeys(
        (
            "bad_words_ids",
            "suppress_tokens",
            "begin_suppress_tokens",
            "top_h",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "sequence_bias",
            "dola_layers",
            "exponential_decay_length_penalty",
            "watermarking_config",
        )
    ),
}
"""Fields of a generation_config that change answers, by the values that change nothing: those for
which an answer has an option, those that matter only with do_sample, and those not done here. Of
the others, eos_token_id is applied, and what the library knows besides changes no answer.
"""
ELSEWHERE = {
    "internvl_chat": "OpenGVLab/InternVL3-1B-hf",
    **dict.fromkeys(("llava_llama", "llava_mistral"), "llava-hf/llava-v1.6-mistral-7b-hf"),
    "llava_qwen": "llava-hf/llava-onevision-qwen2-7b-ov-hf",
}
"""Types in their authors' own layout, with an example of the repositories in the library's."""
ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")


@dataclass(frozen=True)
class ModelCard:
    """What is known of a model without its weights.

    Attributes:
        family: Its `model_type`.
        params: From the weights' headers or index, rounded; 0 if unknown.
        bytes: Of the weights as stored.
        positions: The most that its configuration takes; 0 if it does not say.
        tokens: Id by token.
        folder: Where its configuration is stored locally.
    """

    id: str
    family: str
    params: float
    bytes: int
    licence: str
    tokens: dict[str, int] = field(repr=False)
    folder: Path
    positions: int = 0


def read_card(source: str, text: bool = False) -> ModelCard:
    """Return the card of a folder or a repository.

    Args:
        text: Also accept what only drafts: a text-only language model, or an assistant.

    Raises:
        ValueError: With a sentence if it cannot be read or is not of a supported family.
    """
    folder = Path(source)
    if folder.is_dir():
        files = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        configs = {name: read_json(folder / name) for name in _READ if name in files}
        params = _count_params(folder)
        facts: JsonObject = {"params": params, "licence": "see its folder", "folder": folder}
        if empty := [n for n, size in files.items() if n.endswith(".safetensors") and not size]:
            raise ValueError(f"{empty[0]} of {source} is an empty file: fetch or save it again.")
    else:
        files, facts, configs = _hub_files(source)
    if held := [name for name in ADAPTER if name in files]:
        raise ValueError(
            f"{source} holds an adapter ({', '.join(held)}), which is not applied here: merge it"
            " into its base model (merge_and_unload of peft) and name the merged folder; or remove"
            " what belongs to it to run the base model."
        )
    config = configs.get("config.json")
    if config is None:
        lacking = "has no config.json: transformers cannot load it"
        if offline() and not folder.is_dir():
            lacking = "is not in the local cache, and HF_HUB_OFFLINE is set"
        raise ValueError(f"{source} {lacking}.")
    family = config.get("model_type", "")
    drafters = (*LANGUAGE, *ASSISTANTS) if text else ()
    if family in ELSEWHERE or "mm_vision_tower" in config:
        raise ValueError(
            f"{source} is in its authors' own layout, which is not read; take the repository in"
            f" transformers' layout, whose name ends in -hf, such as"
            f" {ELSEWHERE.get(family, ELSEWHERE['llava_llama'])}."
        )
    if family not in (*FAMILIES, *drafters):
        served = ", ".join((*FAMILIES.values(), *drafters))
        raise ValueError(
            f"{source} is of type {family or 'unknown'!r}; supported are {served} and Pixtral."
        )
    text_part = text_section(config)
    if text_part.get("hidden_size_per_layer_input") and family == "gemma4":
        raise ValueError(f"{source} is a small Gemma 4, which is not supported: {_PER_LAYER}.")
    if "tokenizer.json" not in configs:
        raise ValueError(f"{source} has no tokenizer.json to compare its vocabulary by.")
    stored = sum(size for name, size in files.items() if name.endswith(".safetensors"))
    if not stored and files:
        raise ValueError(f"{source} has no weights in safetensors; others are not read.")
    return ModelCard(
        id=source,
        family=family,
        bytes=stored,
        tokens=_token_ids(configs["tokenizer.json"]),
        positions=int(text_part.get("max_position_embeddings") or 0),
        **facts,
    )


def head_card(repo: str) -> ModelCard | None:
    """Return the card of an EAGLE-3 or DFlash head on the hub, from its configuration, with its
    format as family; None if it is something else.

    Heads of other formats are recognised only in local folders, by their tensors.
    """
    files, facts, configs = _hub_files(repo)
    config = configs.get("config.json", {})
    named = " ".join(config.get("architectures") or ()).lower()
    kind = str(config.get("speculators_model_type") or "")
    if "dflash" in named or kind == "dflash" or "dflash_config" in config:
        kind = "dflash"
    elif "eagle3" in named or config.keys() & {"draft_vocab_size", "eagle_config"}:
        kind = "eagle3"
    if kind not in HEADS:
        return None
    held = sum(size for name, size in files.items() if name.endswith((".safetensors", ".bin")))
    return ModelCard(repo, kind, bytes=held, tokens={}, **facts)


def unapplied_settings(config: JsonObject) -> list[str]:
    """Return what a generation_config asks for and is not applied, in sentences.

    # choice: methods are compared on the model's own distribution, so its wishes are only told.
    """

    def named(plain: JsonObject) -> str:
        values = ((name, config.get(name)) for name in plain)
        return ", ".join(
            f"{name} {f'{value:g}' if isinstance(value, float) else reprlib.repr(value)}"
            for name, value in values
            if value not in (None, plain.get(name), [], {})
        )

    fields = {*GenerationConfig().to_dict()}
    parts = {
        "not applied here": named(UNAPPLIED),
        "ask for it by option": named(BY_OPTION | (SAMPLED if config.get("do_sample") else {})),
        "unknown here": named(dict.fromkeys(k for k in config if k not in fields and k[0] != "_")),
    }
    asks = "The target's generation_config asks for"
    return [f"{asks} {what}; {how}." for how, what in parts.items() if what]


def text_section(config: JsonObject) -> JsonObject:
    """Return the language model's part of a config.json, which may also stand at its top."""
    return config.get("text_config") or config


def is_vlm(folder: Path) -> bool:
    """Whether a local folder's configuration is of a supported vision-language family."""
    config = folder / "config.json"
    return config.is_file() and read_json(config).get("model_type") in FAMILIES


def misfit(target: ModelCard, drafter: ModelCard) -> str | None:
    """Return why the drafter cannot draft for the target, in a sentence; None if it can."""
    reads = ASSISTANTS.get(drafter.family)
    if reads and reads != target.family:
        return f"{drafter.id} reads keys and values of a {FAMILIES[reads]}: {target.id} is none."
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


def split_pictures_alike(mine: Any, theirs: Any) -> bool:
    """Whether two models, by their loaded configurations, split a picture into the same tokens."""
    same = _split_settings(mine.to_dict()) == _split_settings(theirs.to_dict())
    return mine.model_type == theirs.model_type and same


def _split_settings(config: JsonObject) -> JsonObject:
    vision = config.get("vision_config") or {}
    settings = {name: config[name] for name in _SPLIT_SETTINGS if name in config}
    return settings | {f"vision.{name}": vision[name] for name in _SPLIT_SETTINGS if name in vision}


def _token_ids(tokenizer: JsonObject) -> dict[str, int]:
    model = tokenizer["model"]["vocab"]
    # Unigram models store a list of (token, score), the others a table.
    table = model if isinstance(model, dict) else {token: i for i, (token, _) in enumerate(model)}
    return table | {token["content"]: token["id"] for token in tokenizer.get("added_tokens", ())}


def _count_params(folder: Path) -> int:
    """Count parameters from the headers of the safetensors files; their data is not read."""
    try:
        return sum(tensor.numel() for tensor in weight_headers(folder).values())
    except ValueError:
        return 0  # `outline_model` tells why


def _hub_files(repo: str) -> tuple[dict[str, int], JsonObject, dict[str, JsonObject]]:
    """Return files with sizes, facts of the card, and the contents of the small files: from the
    local cache only, which has no sizes, if the hub may not be contacted.
    """
    files = {}
    facts: JsonObject = {"params": 0, "licence": "not stated"}
    configs = {}
    try:
        if not offline():
            info = HfApi().model_info(repo, files_metadata=True)
            files = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
            if info.safetensors:
                facts["params"] = info.safetensors.total
            if licence := info.card_data and info.card_data.get("license"):
                facts["licence"] = str(licence)
        for name in _READ:
            try:
                file = Path(hf_hub_download(repo, name, local_files_only=offline()))
                configs[name] = read_json(file)
                facts["folder"] = file.parent
            except EntryNotFoundError:
                continue
    except HFValidationError:
        raise ValueError(f"There is no folder {repo}, and hub names are OWNER/NAME.") from None
    except (_HTTPError, OSError) as fault:
        advice = "" if isinstance(fault, HfHubHTTPError) else _UNREACHED
        raise ValueError(f"{repo} could not be looked up: {cause(fault)}{advice}") from fault
    return files, facts, configs


def hub_weight_headers(repo: str) -> dict[str, Tensor]:
    """Return the tensors of a repository's safetensors, by name, without data."""
    try:
        files = get_safetensors_metadata(repo).files_metadata.values()
    except (NotASafetensorsRepoError, EntryNotFoundError):
        return {}
    except (_HTTPError, OSError) as fault:
        raise ValueError(f"{repo} could not be looked up: {type(fault).__name__}") from None
    named = ((name, tensor) for file in files for name, tensor in file.tensors.items())
    return {name: meta_tensor(tensor.shape, tensor.dtype) for name, tensor in named}
