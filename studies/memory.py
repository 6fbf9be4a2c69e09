"""Memory as it is predicted and as it is measured: a 2B shape with random weights, two lanes, on a
CPU.

    python -m studies.memory [--dtype bfloat16] [--tokens 512]

Peak resident memory of this process beside `availability.needs_bytes` for the same shape. Needs
6 GB in bfloat16.
"""

from __future__ import annotations

import argparse
import math

import torch

from specvl_demo.core.detokenizer import TokenTexts
from specvl_demo.core.engine import Lane, Request, SharedPrefill, race
from specvl_demo.core.types import Prompt
from specvl_demo.decoders.timing import peak_bytes
from specvl_demo.methods.base import Models, assemble, choose
from specvl_demo.pairs import Checkpoint, Pair
from specvl_demo.pairs.machine import gb
from specvl_demo.serving.availability import needs_bytes
from specvl_demo.vlm import random_models
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget

NAME, NEW_TOKENS = "qwen2-vl-2b", 4


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--tokens", type=int, default=512)
    asked = options.parse_args()
    model = random_models.random_model(NAME, asked.dtype, "cpu")
    params = sum(weight.numel() for weight in model.parameters())
    text = random_models.SHAPES[NAME][1]
    head = text["hidden_size"] // text["num_attention_heads"]
    kv = 2 * math.prod((text["num_hidden_layers"], text["num_key_value_heads"], head))
    target = VLMTarget(VLM(model, NAME))
    ids = torch.randint(
        10, 1000, (asked.tokens - NEW_TOKENS,), generator=torch.Generator().manual_seed(0)
    )
    prompt = Prompt(ids, torch.zeros_like(ids, dtype=torch.bool), {"input_ids": ids[None]})
    request = Request("memory", prompt, target, TokenTexts(str), max_new_tokens=NEW_TOKENS)
    shared = SharedPrefill(request)
    lanes = [
        Lane(name, assemble(choose(name), Models(target, {}, {})), shared)
        for name in ("ar", "ngram")
    ]
    records = list(race(lanes))
    one = Checkpoint(NAME, params, "", kv=kv)
    pair = Pair("memory", NAME, "", one, {}, n_tokens=asked.tokens)
    predicted, measured = needs_bytes(pair, asked.dtype, ()), peak_bytes(torch.device("cpu"))
    print(f"{NAME} {asked.dtype}, {params / 1e9:.2f}B weights, {len(records)} records")  # noqa: T201
    print(f"predicted {gb(predicted)}, measured {gb(measured)}: {measured / predicted:.3f}")  # noqa: T201


if __name__ == "__main__":
    main()
