"""Differing tokens in half precision between plain decoding and trees, on random models of many families.

    python -m studies.exactness [--prompts 34] [--dtype bfloat16] [--tokens 24] [--plain]

A drafter with noise drafts a chain and a fixed tree for every prompt; `--plain` leaves the exact steps out.
"""

from __future__ import annotations

import argparse
import copy
import random
from typing import Any

import torch

from specvl_demo.core.engine import Lane, Request, SharedPrefill, race
from specvl_demo.methods.base import Models, assemble, choose
from specvl_demo.records import Round
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.prompts import PromptBuilder, Turn
from specvl_demo.vlm.target import VLMTarget
from tests.conftest import noisy
from tests.contract.families import zoo

FAMILIES = ("llava", "llava-onevision", "qwen2.5-vl", "qwen3-vl", "gemma3", "smolvlm", "internvl")
METHODS = ("ar", "chain", "tree")
WORDS = zoo.TEXT[0].split() + zoo.TEXT[1].split()


def main() -> None:
    """Print one line a family."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--prompts", type=int, default=34)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--tokens", type=int, default=24)
    options.add_argument("--plain", action="store_true")
    asked = options.parse_args()
    torch.set_num_threads(1)
    for name in FAMILIES:
        print(f"{name}: {counted(name, asked)}", flush=True)  # noqa: T201


def counted(name: str, asked: argparse.Namespace) -> str:
    """What was found on one family."""
    model, processor = zoo.build(name)
    model = model.to(getattr(torch, asked.dtype))
    target = VLMTarget(VLM(model, name, backend="hf"), exact=not asked.plain)
    models = Models(target, {"small": VLM(noisy(copy.deepcopy(model), 0.08), "small", backend="hf")}, {})
    prompter, rng = PromptBuilder(processor, model), random.Random(0)
    n_tokens = n_differ = n_answers = 0
    for seed in range(asked.prompts):
        question = " ".join(rng.choices(WORDS, k=rng.randint(3, 9)))
        said = answers(models, prompter, question, zoo.picture(seed), asked.tokens)
        for other in said[1:]:
            n_tokens += len(other)
            n_differ += sum(a != b for a, b in zip(said[0], other, strict=True))
            n_answers += other != said[0]
    return f"{n_differ} of {n_tokens} tokens differ, in {n_answers} answers; {target.exactness(26)}"


def answers(models: Models, prompter: Any, question: str, picture: Any, tokens: int) -> list[list[int]]:
    """Ids by method, plain decoding first."""
    prompt = prompter.prompt([Turn(question, (picture,))])
    request = Request("study", prompt, models.target, prompter.lexicon(), max_new_tokens=tokens)
    lanes = [Lane(name, assemble(choose(name), models), SharedPrefill(request)) for name in METHODS]
    rounds = [record for record in race(lanes) if isinstance(record, Round)]
    return [[token.id for one in rounds if one.lane == name for token in one.tokens] for name in METHODS]


if __name__ == "__main__":
    main()
