"""Loads models: from a folder or the hub, in one type, on one device or several, optionally
quantised.

Given a model's location and a plan, returns the library's model or processor; ValueError with one
sentence if that fails. Reads only safetensors unless the plan allows pickles; never runs code from
a hub repository. Knows nothing of pairs or of what fits a machine, which the plan's author decides.
"""

from __future__ import annotations

import gc
import io
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import nn
from tqdm import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    BitsAndBytesConfig,
)
from transformers.utils import logging

from specvl_demo.options import Quantised
from specvl_demo.pairs import fingerprints
from specvl_demo.vlm import efficientnet_lite

Tell = Callable[[str], None]

HUB_S = 10.0
"""How many seconds the hub may take to answer at all."""

INDEX = "model.safetensors.index.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_AGAIN = "Remove it and load the model again while the hub can be reached."
_SMALL = ("*.json", "*.model", "*.txt", "*.jinja")
_OTHERS = ("*/*", "consolidated*")
"""Copies in other layouts that some repositories contain: never needed, as large as the model."""


@dataclass(frozen=True)
class LoadPlan:
    """How weights are loaded.

    Attributes:
        device: Where they go; not used if `split` is set.
        split: Bytes by CUDA device, to spread the weights over these devices.
        quantised: 8 or 4 bits by bitsandbytes, which needs a GPU.
        pickles: Also read .bin files.
    """

    dtype: str = "float32"
    device: str = "cpu"
    split: Mapping[int, int] = field(default_factory=dict)
    quantised: Quantised = "none"
    pickles: bool = False


def model(folder: Path, plan: LoadPlan, name: str, sees: bool = True) -> nn.Module:
    """Return the model in a folder, ready to compute: a vision-language model, else a language
    model.
    """
    check(folder, name)
    efficientnet_lite.register()
    if not sees:
        mend_gemma4()
    # On a GPU the weights go there tensor by tensor; main memory never holds them all.
    place: dict[str, Any] = {}
    if plan.split:
        place = {"device_map": "auto", "max_memory": dict(plan.split)}
    elif plan.device != "cpu":
        place = {"device_map": {"": plan.device}}
    if plan.quantised != "none":
        place["quantization_config"] = _quantisation(plan)
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    with explained(name), without_bars():
        loaded = kind.from_pretrained(
            folder,
            dtype=getattr(torch, plan.dtype),
            local_files_only=True,
            use_safetensors=None if plan.pickles else True,
            **place,
        )
    outside = {str(d) for d in getattr(loaded, "hf_device_map", {}).values()} & {"cpu", "disk"}
    if plan.split and outside:
        raise ValueError(
            f"{name} does not fit on {len(plan.split)} GPUs; a part of it would stay in main"
            " memory."
        )
    return loaded.eval().requires_grad_(False)


def processor(folder: Path, name: str, pillow: bool = False) -> Any:
    """Return the processor in a folder: chat template, tokenizer, picture preparation.

    pillow: Resize with Pillow even if torchvision is installed, for models that were trained so.
    """
    with explained(name):
        return AutoProcessor.from_pretrained(
            folder, local_files_only=True, **({"backend": "pil"} if pillow else {})
        )


def fetch(repo: str, tell: Tell, pickles: bool = False, offline: bool = False) -> Path:
    """Fetch the missing files of a hub repository into the cache; `tell` is called with the
    progress.
    """
    best = 0

    class Bar(tqdm):
        """Draws nothing, and reports how much has arrived; the client opens one for the network,
        one for the disk.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal best
            done = super().update(n)
            if self.unit == "B" and self.total and self.n - best > self.total / 200:
                best = self.n
                tell(f"Fetching {repo}: {self.n / 1e9:.1f} of {self.total / 1e9:.1f} GB")
            return done

    patterns = [*_SMALL, "*.safetensors", *(("*.bin",) if pickles else ())]
    silent = not offline and not hub_answers()
    with explained(repo):
        try:
            folder = Path(
                snapshot_download(
                    repo,
                    allow_patterns=patterns,
                    ignore_patterns=list(_OTHERS),
                    tqdm_class=Bar,
                    local_files_only=offline or silent,
                )
            )
        except LocalEntryNotFoundError:
            if not silent:
                raise
            raise ValueError(
                f"the hub did not answer within {HUB_S:.0f} s. Try again later."
            ) from None
    if best:  # something came over the network; what lay here was looked at when it came
        verify(folder, repo, tell)
    return folder


def check(folder: Path, name: str) -> None:
    """Raise ValueError with a sentence if files of weights are missing or shorter than their
    headers specify.
    """
    index = folder / INDEX
    if index.is_file():
        try:
            files = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (ValueError, KeyError, AttributeError, TypeError):
            raise ValueError(
                f"{name} could not be loaded: its {index.name} is damaged. {_AGAIN}"
            ) from None
        missing = [file for file in files if not (folder / file).is_file()]
        if missing:
            raise ValueError(
                f"{name} could not be loaded: {len(missing)} of its {len(files)} weight files are"
                " missing, probably because a download broke off. Load it again while the hub can"
                " be reached."
            )
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="np"):
                pass
        except SafetensorError:
            raise ValueError(
                f"{name} could not be loaded: its {file.name} is damaged or cut short. {_AGAIN}"
            ) from None


def verify(folder: Path, name: str, tell: Tell = lambda text: None) -> None:
    """Raise ValueError if a large file in the hub's cache does not match its hash, and remove the
    file.

    The cache names a large file by its SHA-256; the client itself compares only sizes.
    """
    for file in sorted(folder.glob("*.safetensors")):
        blob = file.resolve()
        if not _SHA256.fullmatch(blob.name):
            continue

        def hear(share: float, file: Path = file) -> None:
            tell(f"Checking {name}: {file.name}, {share:.0%}")

        if fingerprints.sha256(blob, tell=hear) != blob.name:
            blob.unlink()
            file.unlink(missing_ok=True)
            raise ValueError(
                f"{name} could not be loaded: {file.name} was damaged in transfer (its SHA-256"
                " differs from the hub's) and was removed. Load it again."
            )


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


def hub_answers() -> bool:
    """Whether the hub answers at all, tested once and briefly: its client would retry for
    minutes.
    """
    try:
        urllib.request.urlopen(
            urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=HUB_S
        ).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as fault:
        # A hub whose certificate is not trusted here is there nevertheless.
        return isinstance(fault.reason, ssl.SSLError)
    except OSError:
        return False
    return True


def release() -> None:
    """Free unused models before loading others."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def share(n_cpus: int) -> None:
    """Limit torch's threads to the available cores.

    A container's share of a large host may be small, and threads without a core only wait for each
    other.
    """
    torch.set_num_threads(min(torch.get_num_threads(), n_cpus))


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Convert load errors to one ValueError with a sentence."""
    try:
        yield
    except ImportError as fault:
        raise ValueError(f"{name} needs a package that is not installed: {_line(fault)}") from fault
    except (OSError, ValueError) as fault:
        hint = ""
        if "safetensors" in str(fault):
            hint = (
                " Pickled weights can run code when they are read; --allow-pickle reads them"
                " anyway."
            )
        raise ValueError(f"{name} could not be loaded: {_line(fault)}{hint}") from fault
    except torch.cuda.OutOfMemoryError as fault:
        raise ValueError(
            f"{name} does not fit into the GPU's free memory: {_line(fault)}"
        ) from fault


def _quantisation(plan: LoadPlan) -> BitsAndBytesConfig:
    if plan.quantised == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=getattr(torch, plan.dtype),
    )


@contextmanager
def without_bars() -> Iterator[None]:
    """Hide the library's own progress bars; progress is reported in words."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _line(fault: Exception) -> str:
    return str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__
