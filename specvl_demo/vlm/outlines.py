"""A model before its weights are read: their names, shapes and types, and the library's own class.

Reads the headers of a folder's safetensors, builds the class on the meta device, where weights take
no memory, and compares the two; what the library refuses is told in sentences. Knows no families.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.utils import logging

from specvl_demo.core.faults import cause
from specvl_demo.decoders import packed_decoder
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.records import JsonObject
from specvl_demo.vlm import eight_bits

INDEX = "model.safetensors.index.json"
_AGAIN = "Remove it and load the model again while the hub can be reached."
_TYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""By their names in safetensors; others are taken for float32."""
_NAMED = 4
"""Tensors that a sentence names."""


def read_json(path: Path) -> JsonObject:
    """Return the top-level table of a JSON file; ValueError with a sentence if it has none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as fault:
        raise ValueError(f"{path.name} of {path.parent.name} cannot be read: {fault}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} of {path.parent.name} is not a JSON object.")
    return content


def weight_headers(folder: Path) -> dict[str, Tensor]:
    """Return the tensors that the library would read from a folder's safetensors, by name, without
    data; none if it has none. ValueError as `weight_files` and `tensors_in`.
    """
    index = folder / INDEX
    files = weight_files(index) if index.is_file() else folder.glob("model.safetensors")
    return {name: tensor for file in files for name, tensor in tensors_in(file, True).items()}


def weight_files(index: Path, prefix: str = "") -> list[Path]:
    """Return the files that an index of weights names; only those of tensors whose names begin with
    the prefix, if there are any.

    Raises:
        ValueError: With a sentence if the index is damaged or a file is missing.
    """
    folder = index.parent
    named = read_json(index).get("weight_map")
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
            return {name: meta_tensor(x.get_shape(), x.get_dtype()) for name, x in slices.items()}
    except SafetensorError:
        where = f"{file.name} of {file.parent.name}"
        raise ValueError(f"{where} is damaged or cut short. {_AGAIN}") from None


def meta_tensor(shape: Iterable[int], dtype: str) -> Tensor:
    """Return a tensor without data, of a type by its name in safetensors."""
    return torch.empty(tuple(shape), dtype=_TYPES.get(dtype, torch.float32), device="meta")


def auto_class(sees: bool) -> Any:
    """Return the library's class of models that see, or of language models.

    Looked up here, not above: the page's server reads methods, and never builds a model.
    """
    from specvl_demo.vlm import efficientnet_lite  # noqa: PLC0415

    efficientnet_lite.register()
    mend_gemma4()
    return transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM


def outline_model(
    folder: Path, name: str, sees: bool, tensors: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """Return the model in a folder without its weights, on the meta device.

    tensors: Without data; None for those of its files. Packed ones are compared on loading.

    Raises:
        ValueError: With a sentence if the library cannot build it, or if tensors are
            missing, unexpected or of another shape.
    """
    tensors = weight_headers(folder) if tensors is None else tensors
    auto = auto_class(sees)
    report = None
    with load_errors(name), quiet():
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        packed = any(
            getattr(part, "quantization_config", None)
            for part in (config, config.get_text_config())
        )
        if packed or not tensors:
            with torch.device("meta"):
                model = auto.from_config(config)
        else:
            _refuse_unscaled(tensors, name)
            # `from_config`, which is public, takes no tensors to compare with.
            model, report = auto._model_mapping[type(config)].from_pretrained(
                None,
                config=config,
                state_dict=dict(tensors),
                dtype=torch.float32,
                device_map={"": "meta"},
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    if report is not None:
        refuse_misfits(report, name)
    return model


def _refuse_unscaled(tensors: Mapping[str, Tensor], name: str) -> None:
    # An MTP layer beside the target's own weights is read, and scaled, as a head.
    floats = (key for key, tensor in tensors.items() if tensor.dtype in eight_bits.FLOATS)
    packed = (key for key in floats if not key.startswith("mtp."))
    if (first := next(packed, None)) is not None:
        raise ValueError(
            f"{first} is stored in 8-bit floats, but config.json has no quantization_config that"
            " says how to scale them."
        )


def refuse_misfits(report: JsonObject, name: str) -> None:
    """Raise ValueError if the library found tensors missing, unexpected or of another shape.

    report: What it reports of loading. It fills what is missing with random numbers.
    """
    unexpected = report["unexpected_keys"]
    if any(".base_layer." in key or ".lora_A." in key for key in unexpected):
        raise ValueError(
            f"{name} was saved with its adapter unmerged (base_layer, lora_A): load it with peft,"
            " call merge_and_unload and save it again."
        )
    shapes = [
        f"{key} ({[*stored]}, not {[*needed]})" for key, stored, needed in report["mismatched_keys"]
    ]
    wrong = {
        "lack": report["missing_keys"],
        "also hold": [key for key in unexpected if not key.startswith("mtp.")],
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
def load_errors(name: str) -> Iterator[None]:
    """Convert load errors to one ValueError with a sentence."""
    try:
        yield
    except ImportError as fault:
        raise ValueError(f"{name} needs a package that is missing: {cause(fault)}.") from fault
    except (OSError, ValueError, StrictDataclassError) as fault:
        hint = ""
        if "safetensors" in str(fault):
            hint = " Only safetensors are read, since pickled weights can run code."
        raise ValueError(f"{name} could not be loaded: {cause(fault)}.{hint}") from fault
    except torch.cuda.OutOfMemoryError as fault:
        raise ValueError(f"{name} exceeds the GPU's free memory: {cause(fault)}.") from fault


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the library's progress bars and its report of loading; both are told in sentences."""
    bars = logging.is_progress_bar_enabled()
    level = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def memory_sizes(model: Any) -> JsonObject:
    """Return `kv`, `tower` and `fused_bytes` of `pairs.Checkpoint` for a model without weights."""
    decoder = model.get_decoder()
    plain = HFDecoder(model)
    text = {id(weight) for weight in (*decoder.parameters(), model.get_output_embeddings().weight)}
    tower = sum(weight.numel() for weight in model.parameters() if id(weight) not in text)
    # Small models are published in 16 bits, and packed in 16 bits.
    packed_bytes = 2 * plain.n_weights if packed_decoder.packs_for_cpu(decoder) else 0
    return {"kv": plain.n_cached, "tower": tower, "fused_bytes": packed_bytes}


def text_config(folder: Path) -> JsonObject:
    """Return a configuration's decoder section, completed by the library's defaults."""
    auto_class(sees=True)  # registers this project's own towers
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    return config.get_text_config().to_dict()
