"""The law of the engine's answers equals the target's, by enumeration: no sampling noise, no chance
to fail.

An answer position has one uniform draw. Over a cell in which no distribution function has a jump
the answer is constant, so running the engine once per product of cells gives every answer's exact
probability.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from specvl_demo.core.detokenizer import TokenTexts
from specvl_demo.core.engine import Lane, Request, SharedPrefill
from specvl_demo.core.sampling import Sampler, Sampling, probabilities
from specvl_demo.core.tree import chain
from specvl_demo.methods.ar import OneNode
from specvl_demo.methods.chain import Chain, ChainSettings
from specvl_demo.methods.eagle2 import BestFirst, BestFirstSettings
from specvl_demo.methods.sage import EntropyTree, SageSettings
from specvl_demo.methods.tree import RankedTree
from tests.conftest import spell
from tests.fakes import TableDrafter, TableTarget, parts, table_prompt

TARGET = torch.tensor([[1.0, 0.2, -0.5], [0.1, 0.9, 0.6], [-0.3, 0.0, 1.4]])
# Wrong after two of three tokens. Its rows are the target's: with its own jumps there were more
# cells, and their product is what takes time.
DRAFTER = TARGET[[1, 0, 2]]
N = 3

POLICIES = {
    "one-node": OneNode,
    "chain": lambda: Chain(ChainSettings(2)),
    "static": lambda: RankedTree([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]),
    "best-first": lambda: BestFirst(BestFirstSettings(nodes=6, width=2, loops=2)),
    "entropy": lambda: EntropyTree(
        SageSettings(growth="online", max_nodes=6, max_width=2, max_depth=3)
    ),
}
SAMPLINGS = [Sampling(1.0), Sampling(0.6, top_p=0.8), Sampling(1.7, top_k=2)]


def law_of_engine(
    policy: str, sampling: Sampling, how: str = "argmax"
) -> dict[tuple[int, ...], float]:
    cuts = probabilities(TARGET, sampling).double().cumsum(-1).flatten()
    edges = torch.cat((torch.zeros(1), cuts, torch.ones(1))).double().clamp(0, 1).unique().tolist()
    cells = [((a + b) / 2, b - a) for a, b in itertools.pairwise(edges) if b - a > 1e-12]
    law: dict[tuple[int, ...], float] = defaultdict(float)
    target = TableTarget(TARGET)
    for draws in itertools.product(cells, repeat=N):
        request = Request(
            "r", table_prompt(), target, TokenTexts(spell), sampling, N, detail="light"
        )
        lane = Lane(
            "lane",
            replace(parts(TableDrafter(DRAFTER), POLICIES[policy]()), draws=how),
            SharedPrefill(request),
        )
        lane.begin()
        lane._sampler._draws = torch.tensor([u for u, _ in draws], dtype=torch.float64)
        answer: list[int] = []
        while not lane.done:
            answer += [token.id for token in lane.step().tokens]
        weight = 1.0
        for _, width in draws:
            weight *= width
        law[tuple(answer)] += weight
    return law


def law_of_target(sampling: Sampling) -> dict[tuple[int, ...], float]:
    probs = probabilities(TARGET, sampling).double()
    law = {}
    for answer in itertools.product(range(3), repeat=N):
        weight = 1.0
        for last, token in itertools.pairwise((0, *answer)):
            weight *= float(probs[last, token])
        if weight > 0:
            law[answer] = weight
    return law


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["plain", "cool-top-p", "hot-top-k"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", ["argmax", "shared"])
def test_the_answers_have_the_targets_law(policy: str, sampling: Sampling, how: str) -> None:
    engine, target = law_of_engine(policy, sampling, how), law_of_target(sampling)
    assert engine.keys() == target.keys()
    for answer, weight in target.items():
        assert engine[answer] == pytest.approx(weight, abs=1e-6)


def test_draws_are_uniform_and_seeded() -> None:
    """Empirical frequencies of 20,000 seeded draws; the seed is fixed, so this cannot fail by
    chance.
    """
    logits = TARGET[:1].expand(20000, -1)
    sampler = Sampler(Sampling(1.0, seed=5), 20000, torch.device("cpu"))
    tree = type("Tree", (), {"shape": chain(19999)})()
    counts = sampler.choose(logits, tree).bincount(minlength=3) / 20000
    assert torch.allclose(counts, probabilities(TARGET[0], Sampling(1.0)), atol=0.01)
    again = Sampler(Sampling(1.0, seed=5), 20000, torch.device("cpu"))
    assert torch.equal(again.choose(logits, tree), sampler.choose(logits, tree))


@pytest.mark.parametrize("gumbel", [False, True])
def test_a_coupled_draft_agrees_as_often_as_the_coupling_promises(gumbel: bool) -> None:
    """Inverse distribution functions on one uniform, or one Gumbel noise for both: never worse than
    independent draws, never better than sum min(p, q), exact where p equals q. Seeded."""
    n, sampling = 4000, Sampling(1.0, seed=3)
    p, q = torch.tensor([1.0, 0.2, -0.5, 0.4]), torch.tensor([0.6, 0.7, -0.2, 0.1])
    sampler = Sampler(sampling, n, torch.device("cpu"), gumbel)
    tree = type("Tree", (), {"shape": chain(0)})()
    agreed = same = 0
    for _ in range(n):
        chosen = int(sampler.choose(p[None], tree))
        agreed += chosen == int(sampler.draft(q[None].log_softmax(-1), 0))
        same += chosen == int(sampler.draft(p[None].log_softmax(-1), 0))
        sampler.advance(1)
    law_p, law_q = p.softmax(-1), q.softmax(-1)
    assert same == n
    assert float(law_p @ law_q) + 0.1 < agreed / n < float(torch.minimum(law_p, law_q).sum()) + 0.02


def test_processing_follows_the_librarys_order() -> None:
    """Temperature, top-k, top-p give what Hugging Face's own processors give."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * 3
    for temperature, k, p in [(0.7, 0, 0.9), (1.3, 5, 1.0), (1.0, 8, 0.6), (2.0, 0, 0.3)]:
        wanted = TemperatureLogitsWarper(temperature)(None, logits)
        wanted = TopKLogitsWarper(k)(None, wanted) if k else wanted
        wanted = TopPLogitsWarper(p)(None, wanted) if p < 1 else wanted
        got = probabilities(logits, Sampling(temperature, p, k))
        assert torch.allclose(got, wanted.softmax(-1), atol=1e-6)


def test_the_smallest_temperature_takes_the_likeliest_token() -> None:
    """Also of logits so large that dividing them first would leave no number."""
    logits = torch.tensor([[1e36, 2e36, -3e36], [0.0, -torch.inf, 1.0]])
    assert probabilities(logits, Sampling(1e-3)).tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": 99.0},
        {"temperature": 1e-40},
        {"top_p": 0.0},
        {"top_k": -2},
    ],
)
def test_sampling_refuses_nonsense(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Sampling(**bad)
