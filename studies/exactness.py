"""Counts tokens that differ in half precision between plain decoding and lossless methods, on
random models.

    python -m studies.exactness [--prompts 200] [--dtype bfloat16] [--tokens 16] [--families ...]

For every prompt, a drafter with noise drafts with every lossless method that needs no trained head;
`--plain` disables exact steps.
"""

from __future__ import annotations

import argparse
import copy
import random
from collections import Counter

import torch

from specvl_demo.core.engine import Lane, Request, SharedPrefill, race
from specvl_demo.methods.base import Models, assemble, choose
from specvl_demo.records import gather
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.prompts import PromptBuilder, Turn
from specvl_demo.vlm.target import VLMTarget
from tests.conftest import noisy
from tests.contract.families import zoo
from tests.contract.families.test_exact_steps import FAMILIES

METHODS = ("ar", "chain", "tree", "specvlm", "tabed", "sage", "ngram")
WORDS = zoo.TEXT[0].split() + zoo.TEXT[1].split()


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("--prompts", type=int, default=200)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--tokens", type=int, default=16)
    options.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    options.add_argument("--plain", action="store_true")
    args = options.parse_args()
    torch.set_num_threads(1)
    for name in args.families:
        print(f"{name}: {counted(name, args)}", flush=True)  # noqa: T201


def counted(name: str, args: argparse.Namespace) -> str:
    model, processor = zoo.build(name)
    model = model.to(getattr(torch, args.dtype))
    prompter, rng = PromptBuilder(processor, model), random.Random(0)
    target = VLMTarget(VLM(model, name, prompter.special_ids, backend="hf"), exact=not args.plain)
    small = VLM(noisy(copy.deepcopy(model), 0.08), "small", prompter.special_ids, backend="hf")
    models = Models(target, {"small": small}, prompter.words())
    differ: Counter[str] = Counter()
    n_tokens = n_accepted = n_answers = 0
    for seed in range(args.prompts):
        question = " ".join(rng.choices(WORDS, k=rng.randint(3, 9)))
        prompt = prompter.prompt([Turn(question, (zoo.picture(seed),))])
        request = Request(
            "study",
            prompt,
            target,
            prompter.token_texts(),
            max_new_tokens=args.tokens,
            detail="light",
        )
        shared = SharedPrefill(request)
        lanes = [Lane(name, assemble(choose(name), models), shared) for name in METHODS]
        plain, *others = gather(race(lanes))
        for lane in others:
            n_answers, n_tokens = n_answers + 1, n_tokens + len(lane.token_ids)
            n_accepted += sum(one.n_accepted for one in lane.rounds)
            pairs = zip(plain.token_ids, lane.token_ids, strict=True)
            differ[lane.begin.lane] += sum(a != b for a, b in pairs)
    parted = ", ".join(f"{method} {n}" for method, n in differ.items() if n)
    return (
        f"{differ.total()} of {n_tokens} tokens in {n_answers} answers differ ({parted or 'none'});"
        f" {n_accepted / n_tokens:.0%} were drafted; {target.exactness(26)}"
    )


if __name__ == "__main__":
    main()
