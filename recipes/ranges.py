"""The largest absolute inputs of every layer's down projection, on a target's own answers.

`decoders.rotated` balances these channels before it rounds them to 8 bits. The target answers with
its weights as they are stored, on a CPU; photographs that are held out are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from recipes import answers, photo_data, photo_writer
from specvl_demo.decoders.rotated import RANGES
from specvl_demo.serving.loader import Loaded

SEED = 11
LONGEST = 96
"""Most tokens of an answer."""


@contextmanager
def watched(model: PreTrainedModel) -> Iterator[Tensor]:
    """Yield a tensor [layers, channels] that collects the largest absolute inputs until the end."""
    decoder: Any = model.get_decoder()
    seen = torch.zeros(len(decoder.layers), decoder.config.intermediate_size)
    with ExitStack() as hooks:
        for row, layer in zip(seen, decoder.layers, strict=True):

            def widen(_: Any, inputs: tuple[Tensor], row: Tensor = row) -> None:
                torch.maximum(row, inputs[0].abs().flatten(0, -2).amax(0).float(), out=row)

            hooks.callback(layer.mlp.down_proj.register_forward_pre_hook(widen).remove)
        yield seen


@torch.inference_mode()
def measure(loaded: Loaded, data: Path, n: int) -> Path:
    """Replace the ranges in the target's folder by those over `n` answers, some about training
    photographs and some without a picture; return the file.

    Raises:
        ValueError: If half precision cannot hold them.
    """
    learn, _ = photo_data.read(data)
    target = loaded.models.target
    with watched(target.vlm.model) as seen:
        for line in photo_writer.prompt_lines(learn, data, n, SEED):
            prompt = answers.prompt_of(loaded.prompter, line, data, LONGEST)
            [ids] = answers.replies(target, [prompt.inputs], LONGEST)
            target.vlm.model(**answers.example(prompt, ids).inputs)
    half = seen.half()
    if not half.isfinite().all():
        raise ValueError(f"a range is {seen.max().item():.0f}, more than half precision holds")
    file = loaded.pair.target.folder / RANGES
    np.save(file, half.numpy())
    return file
