"""What can be known of a model before its weights are read, and whether two fit together.

Given a local folder or a repository of the hub, reads its configuration, its tokenizer, its list of
files and the headers of its safetensors; builds the library's own class on the meta device, where
weights take no memory, and compares the two. Knows families, but no methods or machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, get_safetensors_metadata, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    NotASafetensorsRepoError,
    StrictDataclassError,
)
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.utils import logging

from specvl_demo.decoders import packed_decoder
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.vlm import eight_bits

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

INDEX = "model.safetensors.index.json"
_AGAIN = "Remove it and load the model again while the hub can be reached."
_UNREACHED = (
    ". The Hugging Face hub was not reached: check the network, name a local folder, or set"
    " HF_HUB_OFFLINE=1 to use only what is in the local cache."
)
_TYPES = {
    **{"F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64, "BOOL": torch.bool},
    **{"U8": torch.uint8, "I8": torch.int8, "I32": torch.int32, "I64": torch.int64},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
}
"""By their names in safetensors; others are taken for float32."""
_NAMED = 4
"""Tensors that a sentence names."""
_READ = ("config.json", "tokenizer.json")
# The settings that decide into how many tokens a picture is split, wherever a family keeps them.
_SPLIT_SETTINGS = (
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


PLAIN = {
    **{"repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "no_repeat_ngram_size": 0},
    **{"min_length": 0, "min_new_tokens": 0, "guidance_scale": 1.0},
}
"""Settings of generation that change a greedy answer, and their values that change nothing."""


@dataclass(frozen=True)
class Card:
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

    @property
    def title(self) -> str:
        return FAMILIES.get(self.family, self.family)


def read(source: str, offline: bool = False, text: bool = False) -> Card:
    """Return the card of a folder or a repository.

    Args:
        offline: Use only the hub's local cache.
        text: Also accept what only drafts: a text-only language model, or an assistant.

    Raises:
        ValueError: With a sentence if it cannot be read or is not of a supported family.
    """
    folder = Path(source)
    if folder.is_dir():
        files = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        configs = {name: read_json(folder / name) for name in _READ if name in files}
        facts: dict[str, Any] = {"params": _count_params(folder), "licence": "see its folder"}
        facts["folder"] = folder
    else:
        files, facts, configs = _from_hub(source, offline)
    config = configs.get("config.json")
    if config is None and offline and not folder.is_dir():
        raise ValueError(
            f"{source} is not in the local cache, and HF_HUB_OFFLINE forbids looking it up."
        )
    if config is None:
        raise ValueError(
            f"{source} has no config.json: it is not a model that transformers can load."
        )
    family, drafters = config.get("model_type", ""), (*LANGUAGE, *ASSISTANTS) if text else ()
    if family not in (*FAMILIES, *drafters):
        served = ", ".join((*FAMILIES.values(), *drafters))
        raise ValueError(
            f"{source} is of type {family or 'unknown'!r}; supported are {served} and Pixtral."
        )
    if (config.get("text_config") or {}).get("hidden_size_per_layer_input") and family == "gemma4":
        raise ValueError(f"{source} is a small Gemma 4, which is not supported: {_PER_LAYER}.")
    if "tokenizer.json" not in configs:
        raise ValueError(
            f"{source} has no tokenizer.json, which is needed to compare its vocabulary."
        )
    stored = sum(size for name, size in files.items() if name.endswith(".safetensors"))
    if not stored and files:
        raise ValueError(f"{source} has no weights in safetensors; others are not read.")
    return Card(
        id=source,
        family=family,
        params=float(facts.get("params") or 0),
        bytes=stored,
        licence=str(facts.get("licence") or "not stated"),
        tokens=_token_ids(configs["tokenizer.json"]),
        folder=facts["folder"],
        positions=int((config.get("text_config") or config).get("max_position_embeddings") or 0),
    )


def hub_head(repo: str, offline: bool = False) -> Card | None:
    """Return the card of an EAGLE-3 or DFlash head on the hub, from its configuration, with its
    format as family; None if it is something else.

    Heads of other formats are recognised only in local folders, by their tensors.
    """
    files, facts, configs = _from_hub(repo, offline)
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
    licence = str(facts.get("licence") or "not stated")
    params = float(facts.get("params") or 0)
    return Card(repo, kind, params, held, licence, {}, facts["folder"])


def unapplied_penalties(config: Mapping[str, Any]) -> str:
    """Return what a generation_config asks for besides sampling, in a sentence, or "".

    # choice: methods are compared on the model's own distribution, so penalties are only told.
    """
    set_so = {name: config.get(name) for name in PLAIN}
    penalties = [
        f"{name} {value:g}" for name, value in set_so.items() if value not in (None, PLAIN[name])
    ]
    what = ", ".join(penalties)
    return f"The target's generation_config asks for {what}; not applied here." if penalties else ""


def is_vlm(folder: Path) -> bool:
    """Whether a local folder's configuration is of a supported vision-language family."""
    config = folder / "config.json"
    return config.is_file() and read_json(config).get("model_type") in FAMILIES


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


def split_pictures_alike(mine: Any, theirs: Any) -> bool:
    """Whether two models, by their loaded configurations, split a picture into the same tokens."""
    same = _split_settings(mine.to_dict()) == _split_settings(theirs.to_dict())
    return mine.model_type == theirs.model_type and same


def _split_settings(config: dict[str, Any]) -> dict[str, Any]:
    vision = config.get("vision_config") or {}
    settings = {name: config[name] for name in _SPLIT_SETTINGS if name in config}
    return settings | {f"vision.{name}": vision[name] for name in _SPLIT_SETTINGS if name in vision}


def _token_ids(tokenizer: dict[str, Any]) -> dict[str, int]:
    model = tokenizer["model"]["vocab"]
    # Unigram models store a list of (token, score), the others a table.
    table = model if isinstance(model, dict) else {token: i for i, (token, _) in enumerate(model)}
    return {
        **table,
        **{token["content"]: token["id"] for token in tokenizer.get("added_tokens", ())},
    }


def read_json(path: Path) -> dict[str, Any]:
    """Return the top-level table of a JSON file; ValueError with a sentence if it has none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ValueError(f"{path.name} of {path.parent.name} cannot be read: {fault}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} of {path.parent.name} is not a JSON object.")
    return content


def _count_params(folder: Path) -> int:
    """Count parameters from the headers of the safetensors files; their data is not read."""
    try:
        return sum(tensor.numel() for tensor in headers(folder).values())
    except ValueError:
        return 0  # `outline` reports it when the model is loaded


def _from_hub(
    repo: str, offline: bool
) -> tuple[dict[str, int], dict[str, Any], dict[str, dict[str, Any]]]:
    """Return files with sizes, facts, and the contents of the small files."""
    files: dict[str, int] = {}
    facts: dict[str, Any] = {}
    configs: dict[str, dict[str, Any]] = {}
    try:
        if not offline:
            info = HfApi().model_info(repo, files_metadata=True)
            files = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
            facts["params"] = info.safetensors.total if info.safetensors else 0
            facts["licence"] = info.card_data.get("license") if info.card_data else None
        for name in _READ:
            try:
                file = Path(hf_hub_download(repo, name, local_files_only=offline))
                configs[name], facts["folder"] = read_json(file), file.parent
            except EntryNotFoundError:
                continue
    except HFValidationError:
        raise ValueError(
            f"There is no folder {repo}, and hub models are named OWNER/NAME."
        ) from None
    except (_HTTPError, OSError) as fault:
        advice = "" if isinstance(fault, HfHubHTTPError) else _UNREACHED
        raise ValueError(f"{repo} could not be looked up: {_first_line(fault)}{advice}") from fault
    return files, facts, configs


# ---------------------------------------------------------------- weights before they are read


def headers(folder: Path) -> dict[str, Tensor]:
    """Return the tensors that the library would read from a folder's safetensors, by name, without
    data; none if it has none. ValueError as `shards` and `tensors_in`.
    """
    index = folder / INDEX
    files = shards(index) if index.is_file() else folder.glob("model.safetensors")
    return {name: tensor for file in files for name, tensor in tensors_in(file, True).items()}


def shards(index: Path, prefix: str = "") -> list[Path]:
    """Return the files that an index of weights names; only those of tensors whose names begin with
    the prefix, if there are any.

    Raises:
        ValueError: With a sentence if the index is damaged or a file is missing.
    """
    folder, named = index.parent, read_json(index).get("weight_map")
    if not isinstance(named, dict):
        raise ValueError(f"{index.name} of {folder.name} has no weight_map to name its files.")
    chosen = [file for name, file in named.items() if name.startswith(prefix)] or named.values()
    files = [folder / Path(name).name for name in sorted(set(map(str, chosen)))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(
            f"{folder.name} lacks {len(missing)} of its {len(files)} weight files"
            f" ({_first_few(missing)}), probably because a download broke off. Load it again while"
            " the hub can be reached."
        )
    return files


def tensors_in(file: Path, outline: bool, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, only those with this prefix if there are any.

    outline: Without data. ValueError with a sentence if the file is damaged or cut short.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            every = [*opened.keys()]
            names = [name for name in every if name.startswith(prefix)] or every
            if not outline:
                return {name: opened.get_tensor(name) for name in names}
            slices = {name: opened.get_slice(name) for name in names}
            return {name: empty(x.get_shape(), x.get_dtype()) for name, x in slices.items()}
    except SafetensorError:
        raise ValueError(
            f"{file.name} of {file.parent.name} is damaged or cut short. {_AGAIN}"
        ) from None


def headers_on_hub(repo: str) -> dict[str, Tensor]:
    """Return the same for a repository of the hub."""
    try:
        files = get_safetensors_metadata(repo).files_metadata.values()
    except (NotASafetensorsRepoError, EntryNotFoundError):
        return {}
    except (_HTTPError, OSError) as fault:
        raise ValueError(f"{repo} could not be looked up: {type(fault).__name__}") from None
    named = ((name, tensor) for file in files for name, tensor in file.tensors.items())
    return {name: empty(tensor.shape, tensor.dtype) for name, tensor in named}


def empty(shape: Iterable[int], dtype: str) -> Tensor:
    """Return a tensor without data, of a type by its name in safetensors."""
    kind = _TYPES.get(dtype, torch.float32)
    return torch.empty(tuple(shape), dtype=kind, device="meta")


def auto_class(sees: bool) -> Any:
    """Return the library's class of models that see, or of language models.

    Looked up here, not above: the page's server reads methods, and never builds a model.
    """
    from specvl_demo.vlm import efficientnet_lite  # noqa: PLC0415

    efficientnet_lite.register()
    mend_gemma4()
    name = "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
    return getattr(transformers, name)


def outline(
    folder: Path, name: str, sees: bool, tensors: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """Return the model in a folder without its weights, on the meta device.

    tensors: Without data; None for those of its files. Packed ones are compared on loading.

    Raises:
        ValueError: With a sentence if the library cannot build it, or if tensors are
            missing, unexpected or of another shape.
    """
    tensors = headers(folder) if tensors is None else tensors
    auto, report = auto_class(sees), None
    with explained(name), quiet():
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        packed = any(
            getattr(one, "quantization_config", None) for one in (config, config.get_text_config())
        )
        if packed or not tensors:
            with torch.device("meta"):
                model = auto.from_config(config)
        else:
            _refuse_unscaled(tensors, name)
            found_class = auto._model_mapping[type(config)]
            model, report = found_class.from_pretrained(
                None,
                config=config,
                state_dict=dict(tensors),
                dtype=torch.float32,
                device_map={"": "meta"},
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    if report is not None:
        refuse_strangers(report, name)
    return model


def _refuse_unscaled(tensors: Mapping[str, Tensor], name: str) -> None:
    # An MTP layer beside the target's own weights is read, and scaled, as a head.
    of_target = {key: tensor for key, tensor in tensors.items() if not key.startswith("mtp.")}
    first = next(
        (key for key, tensor in of_target.items() if tensor.dtype in eight_bits.FLOATS), None
    )
    if first is not None:
        raise ValueError(
            f"{first} is stored in 8-bit floats, but config.json has no quantization_config that"
            " says how to scale them."
        )


def refuse_strangers(report: Mapping[str, Any], name: str) -> None:
    """Raise ValueError if the library found tensors missing, unexpected or of another shape.

    report: What it reports of loading. It fills what is missing with random numbers.
    """
    shapes = [
        f"{key} ({[*stored]}, not {[*needed]})" for key, stored, needed in report["mismatched_keys"]
    ]
    wrong = {
        "lack": report["missing_keys"],
        "also hold": [key for key in report["unexpected_keys"] if not key.startswith("mtp.")],
        "have other shapes than its config.json asks for:": shapes,
    }
    parts = [f"{verb} {_first_few(keys)}" for verb, keys in wrong.items() if keys]
    if parts:
        raise ValueError(f"{name} could not be loaded: its weights {'; they '.join(parts)}.")


def _first_few(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more


def mend_gemma4() -> None:
    """Work around a fault of transformers 5.23 that prevents building Gemma 4 assistants.

    Has no effect if the library builds them or does not know them.
    """
    config: Any = getattr(transformers, "Gemma4TextConfig", None)
    original = getattr(config, "kv_sharing_modes", None)
    if not isinstance(original, property) or getattr(original.fget, "mended", False):
        return
    read: Any = original.fget

    def modes(self: Any) -> list[str | None]:
        all_read = self.num_kv_shared_layers == self.num_hidden_layers
        return ["reuse"] * self.num_hidden_layers if all_read else read(self)

    modes.mended = True  # type: ignore[attr-defined]
    config.kv_sharing_modes = property(modes)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Convert load errors to one ValueError with a sentence."""
    try:
        yield
    except ImportError as fault:
        raise ValueError(
            f"{name} needs a package that is not installed: {_first_line(fault)}"
        ) from fault
    except (OSError, ValueError, StrictDataclassError) as fault:
        hint = ""
        if "safetensors" in str(fault):
            hint = " Only safetensors are read, since pickled weights can run code."
        raise ValueError(f"{name} could not be loaded: {_first_line(fault)}{hint}") from fault
    except torch.cuda.OutOfMemoryError as fault:
        raise ValueError(
            f"{name} does not fit into the GPU's free memory: {_first_line(fault)}"
        ) from fault


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the library's progress bars and its report of loading; both are told in sentences."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _first_line(fault: BaseException) -> str:
    return str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__


# ---------------------------------------------------------------- sizes


def sizes(model: Any) -> dict[str, Any]:
    """Return `kv`, `tower` and `fused_bytes` of `pairs.Checkpoint` for a model without weights."""
    decoder, plain = model.get_decoder(), HFDecoder(model)
    text = {id(weight) for weight in (*decoder.parameters(), model.get_output_embeddings().weight)}
    tower = sum(weight.numel() for weight in model.parameters() if id(weight) not in text)
    # Small models are published in 16 bits, and packed in 16 bits.
    packed_bytes = 2 * plain.n_weights if packed_decoder.packs(decoder) else 0
    return {"kv": plain.n_cached, "tower": tower, "fused_bytes": packed_bytes}


def text_config(folder: Path) -> dict[str, Any]:
    """Return a configuration's decoder section, completed by the library's defaults."""
    auto_class(sees=True)  # registers this project's own towers
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    return config.get_text_config().to_dict()
