"""Loads models: from a folder or the hub, on one device or several, quantised or not.

Given a model's location and a plan, returns the library's model or processor; ValueError with one
sentence if that fails. Reads only safetensors; never runs code from a hub repository. Knows nothing
of pairs or of what fits a machine, which the plan's author decides.
"""

from __future__ import annotations

import gc
import io
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from torch import nn
from tqdm import tqdm
from transformers import AutoProcessor, BitsAndBytesConfig, modeling_utils

from specvl_demo.pairs.fitting import LoadPlan
from specvl_demo.pairs.machine import offline
from specvl_demo.vlm import outlines

Tell = Callable[[str], None]

HUB_S = 10.0
"""How many seconds the hub may take to answer at all."""

_SMALL = ("*.json", "*.model", "*.txt", "*.jinja")
_OTHERS = ("*/*", "consolidated*")
"""Copies in other layouts that some repositories contain: never needed, as large as the model."""


def load_model(folder: Path, plan: LoadPlan, name: str, sees: bool = True) -> nn.Module:
    """Return the model in a folder, ready to compute: one that sees, or a language model."""
    outlines.outline_model(folder, name, sees)
    # On a GPU the weights go there tensor by tensor; main memory never holds them all.
    place: dict[str, Any] = {}
    if plan.split:
        place = {"device_map": "auto", "max_memory": dict(plan.split)}
    elif plan.device != "cpu":
        place = {"device_map": {"": plan.device}}
    if plan.quantised != "none" and not plan.in_own_layout:
        place["quantization_config"] = BitsAndBytesConfig(
            load_in_8bit=plan.quantised == "8bit",
            load_in_4bit=plan.quantised == "4bit",
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=getattr(torch, plan.dtype),
        )
    with outlines.load_errors(name), outlines.quiet(), _weight_by_weight():
        loaded, report = outlines.auto_class(sees).from_pretrained(
            folder,
            dtype=getattr(torch, plan.dtype),
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **place,
        )
    # What its files alone could not tell: of packed weights.
    outlines.refuse_misfits(report, name)
    outside = {str(d) for d in getattr(loaded, "hf_device_map", {}).values()} & {"cpu", "disk"}
    if plan.split and outside:
        raise ValueError(f"{name} does not fit on {len(plan.split)} GPUs without main memory.")
    return loaded.eval().requires_grad_(False)


@contextmanager
def _weight_by_weight() -> Iterator[None]:
    """Let every weight be allocated by itself, not all of them as one block first, as the library
    does on a GPU: inside that block, what is freed once matrices are joined could not be returned.
    """
    library: Any = modeling_utils
    warm_up = library.caching_allocator_warmup
    library.caching_allocator_warmup = lambda *_: None
    try:
        yield
    finally:
        library.caching_allocator_warmup = warm_up


def load_processor(folder: Path, name: str, pillow: bool = False) -> Any:
    """Return the processor in a folder: chat template, tokenizer, picture preparation.

    pillow: Resize with Pillow even if torchvision is installed, for models that were trained so.
    """
    with outlines.load_errors(name):
        return AutoProcessor.from_pretrained(
            folder, local_files_only=True, **({"backend": "pil"} if pillow else {})
        )


def fetch_repo(repo: str, tell: Tell, is_head: bool = False) -> Path:
    """Fetch missing files of a hub repository into the cache, if the hub may be contacted, and tell
    the progress.

    is_head: Also fetch .bin files, which heads are read from as plain weights.
    """
    best = 0

    class Bar(tqdm):
        """Draws nothing, and tells how much arrived; one is for the network, one for the disk."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal best
            done = super().update(n)
            if self.unit == "B" and self.total and self.n - best > self.total / 200:
                best = self.n
                tell(f"Fetching {repo}: {self.n / 1e9:.1f} of {self.total / 1e9:.1f} GB")
            return done

    patterns = [*_SMALL, "*.safetensors", *(("*.bin",) if is_head else ())]
    alone = offline()
    silent = not alone and not hub_answers()
    with outlines.load_errors(repo):
        try:
            folder = snapshot_download(
                repo,
                allow_patterns=patterns,
                ignore_patterns=list(_OTHERS),
                tqdm_class=Bar,
                local_files_only=alone or silent,
            )
        except LocalEntryNotFoundError:
            if not silent:
                raise
            raise ValueError(
                f"the hub did not answer within {HUB_S:.0f} s. Try again later."
            ) from None
    return Path(folder)


def hub_answers() -> bool:
    """Whether the hub answers at all, tested briefly: its client would retry for minutes."""
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


def free_unused() -> None:
    """Free unused models before loading others."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
