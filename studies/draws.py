"""Measures how often rounding changes a sampled token: the plain model's row against a verified
one.

    python -m studies.draws [--pair photo] [--data FILE] [--prompts 14] [--tokens 40]

Where AR and a chain of drafts have the same text so far, both rows of logits are the target's and
differ only by rounding. Prints for each temperature and top_p how far they are apart, how often
sampling by the inverse distribution function in the order of the ids gives another token, and how
often Gumbel noise does at most, 2ε / (1 + ε) at a total variation ε; then how often the verifier
finds a choice too close: a token of probability p wins by less than δ in p (1 - p) δ of all draws,
to first order.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from specvl_demo import pairs
from specvl_demo.bench import data, measure
from specvl_demo.core.engine import Lane, Request, SharedPrefill, race
from specvl_demo.core.sampling import CLOSE_NATS, Sampler, Sampling, probabilities
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Scores, Verdict
from specvl_demo.core.verification import Strict
from specvl_demo.methods.base import assemble
from specvl_demo.records import gather
from specvl_demo.serving import choosing, loader
from specvl_demo.serving.loader import Loaded

WAYS = [Sampling(t, top_p=p) for p in (1.0, 0.9) for t in (0.7, 1.0, 1.5)]


class Keeping(Strict):
    """Keeps the target's rows along the answer."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def verify(self, tree: DraftTree, scores: Scores, sampler: Sampler) -> Verdict:
        verdict = super().verify(tree, scores, sampler)
        self.rows += scores.logits[verdict.path].float().clone()
        return verdict


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("--pair", default="photo")
    options.add_argument("--data", default="studies/draws.jsonl")
    options.add_argument("--prompts", type=int, default=14)
    options.add_argument("--tokens", type=int, default=40)
    args = options.parse_args()
    torch.set_num_threads(1)
    loaded = loader.load(pairs.find(args.pair), roles=["small"])
    questions = data.find(args.data, args.prompts)
    beside = [
        rows
        for request in measure.requests(loaded, questions, args.tokens, Sampling(1.0))
        for rows in places(loaded, request)
    ]
    print(f"{len(beside)} places of {len(questions)} answers")  # noqa: T201
    for way in WAYS:
        found = torch.tensor([apart(*rows, way) for rows in beside]).double()
        far, inverse, close = found.mean(0).tolist()
        print(  # noqa: T201
            f"T {way.temperature:g}, top_p {way.top_p:g}: apart {far:.2g}, inverse {inverse:.2g},"
            f" Gumbel at most {float((2 * found[:, 0] / (1 + found[:, 0])).mean()):.2g},"
            f" close calls {close:.2g}"
        )


def places(loaded: Loaded, request: Request) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the two rows [V] of every position, up to where the answers differ."""
    shared, kept, lanes = SharedPrefill(request), [], []
    for name in ("ar", "chain"):
        kept.append(Keeping())
        made = assemble(choosing.choose(loaded.pair, name, temperature=1.0), loaded.models)
        lanes.append(Lane(name, replace(made, verifier=kept[-1]), shared))
    said = [lane.token_ids for lane in gather(race(lanes))]
    for at, rows in enumerate(zip(kept[0].rows, kept[1].rows, strict=False)):
        if said[0][:at] == said[1][:at]:
            yield rows


def apart(a: Tensor, b: Tensor, way: Sampling) -> tuple[float, float, float]:
    """Return the total variation of two rows' distributions, how often one uniform draw gives
    another token by the inverses of their distribution functions, and how often a choice is close.
    """
    p, q = probabilities(a, way).double(), probabilities(b, way).double()
    p, q = p / p.sum(), q / q.sum()
    ends, others = p.cumsum(0), q.cumsum(0)
    shared = torch.minimum(ends, others) - torch.maximum(ends - p, others - q)
    close = float((p * (1 - p)).sum()) * CLOSE_NATS / way.temperature
    return float((p - q).abs().sum() / 2), 1 - float(shared.clamp_min(0).sum()), close


if __name__ == "__main__":
    main()
