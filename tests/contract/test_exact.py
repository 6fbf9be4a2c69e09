"""The sampler draws from the distribution of the library's own processors, the same token from the
same noise whatever tree was drafted. Searching long rows by blocks finds what torch finds. Where
rounding could decide between two tokens, the text is read again, so that lossless lanes agree.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specvl_demo.core import highest, noise, sampling
from specvl_demo.core.sampling import Sampler, Sampling, warp_logits
from specvl_demo.core.tree import DraftTree, TreeShape, chain
from specvl_demo.core.types import Scores, Target
from specvl_demo.core.verification import LosslessVerifier
from specvl_demo.methods.ar import OneNode
from specvl_demo.methods.policies import Chain, ChainSettings, StaticTree
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMSession, VLMTarget
from tests.cuda import Launches, OnDeviceOnly
from tests.fakes import TableDrafter
from tests.shared.tiny import EOS, ask, ids_of, parts, run_lane, tiny_llava, tiny_prompt


class Walk(NamedTuple):
    """As much of a tree as the sampler looks at."""

    shape: TreeShape


ROOT = Walk(chain(0))

SAMPLINGS = [Sampling(1.0), Sampling(0.6, top_p=0.8), Sampling(1.2, top_k=9, min_p=0.05)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["plain", "cool-top-p", "top-k-min-p"])
def test_draws_have_the_law_of_the_librarys_warpers(sampling: Sampling):
    """5,000 draws, over the positions of one seed and over the first positions of many seeds:
    chi-square at 1e-6. The seeds are fixed, so this cannot fail by chance."""
    logits = 2 * torch.randn(1, 30, generator=torch.Generator().manual_seed(1))
    wanted = warped(logits, sampling)[0].softmax(-1)
    n, one = 5_000, Sampler(replace(sampling, seed=5), torch.device("cpu"))
    along = one.choose(logits.expand(n, -1), Walk(chain(n - 1)))
    across = [
        Sampler(replace(sampling, seed=seed), torch.device("cpu")).choose(logits, ROOT)
        for seed in range(n)
    ]
    for drawn in (along, torch.cat(across)):
        counts = drawn.bincount(minlength=30)
        inside = wanted > 0
        assert not counts[~inside].any()
        expected = n * wanted[inside]
        excess = ((counts[inside] - expected) ** 2 / expected).sum()
        freedom = inside.sum() - 1
        assert torch.special.gammaincc(freedom / 2, excess / 2) > 1e-6


def test_rounding_changes_no_token():
    """Logits of 50,000 words, and the same moved by a few parts in a million, more than a forward
    over more rows moves them: 500 draws agree, hot and over a long tail."""
    generator, sampling = torch.Generator().manual_seed(0), Sampling(1.5, seed=1)
    sampler = Sampler(sampling, torch.device("cpu"))
    for _ in range(5):
        logits = 3 * torch.randn(1, 50_000, generator=generator)
        moved = logits * (1 + 2e-6 * torch.randn(1, 50_000, generator=generator))
        drawn = [sampler.choose(one.expand(100, -1), Walk(chain(99))) for one in (logits, moved)]
        assert torch.equal(*drawn)
        sampler.advance(range(100))


def test_a_gpu_draws_the_same_numbers_by_itself():
    """The host would take longer than the step whose token is drawn."""
    for seed, at in ((0, 0), (2**63 + 5, 2**31), (2**64 - 1, 7)):
        here = torch.cat([noise.draw_on_host(seed, at + i, 1001) for i in range(3)])
        there = noise.draw_on_device(seed, at, 3, 1001, torch.device("cpu"))
        assert torch.equal(here, there)
    place = torch.device("meta")
    sampler = Sampler(Sampling(1.0, seed=2), place)
    with torch.inference_mode(), OnDeviceOnly(), Launches() as launches:
        for _ in range(noise.AHEAD):
            assert sampler.choose(torch.empty(1, 50, device=place), ROOT).shape == (1,)
            sampler.advance([0])
    assert launches.n < 32 * noise.AHEAD


def test_a_smaller_vocabulary_has_the_same_noise():
    """A drafter that knows the first ids only draws as the target does when those are all."""
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(0))
    wide = torch.nn.functional.pad(logits, (0, 60), value=-torch.inf)
    sampler = Sampler(Sampling(1.0, seed=2), torch.device("cpu"))
    for _ in range(50):
        drafted = sampler.draft(logits.log_softmax(-1), 0)
        assert torch.equal(drafted, sampler.choose(wide, ROOT))
        sampler.advance([0])


def test_a_coupled_draft_agrees_as_often_as_the_coupling_promises():
    """Between (1 - d) / (1 + d) and 1 - d at a total variation d; always where p equals q."""
    n, sampling = 4000, Sampling(1.0, seed=3)
    p, q = torch.tensor([1.0, 0.2, -0.5, 0.4]), torch.tensor([0.6, 0.7, -0.2, 0.1])
    sampler = Sampler(sampling, torch.device("cpu"))
    agreed = same = 0
    for _ in range(n):
        chosen = int(sampler.choose(p[None], ROOT))
        agreed += chosen == int(sampler.draft(q[None].log_softmax(-1), 0))
        same += chosen == int(sampler.draft(p[None].log_softmax(-1), 0))
        sampler.advance([0])
    overlap = float(torch.minimum(p.softmax(-1), q.softmax(-1)).sum())
    assert same == n
    assert overlap / (2 - overlap) - 0.02 < agreed / n < overlap + 0.02


def warped(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Hugging Face's own processors, in the order of its `generate`."""
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    scores = TopKLogitsWarper(sampling.top_k)(None, scores) if sampling.top_k else scores
    scores = TopPLogitsWarper(sampling.top_p)(None, scores) if sampling.top_p < 1 else scores
    return MinPLogitsWarper(sampling.min_p)(None, scores) if sampling.min_p else scores


def test_processing_follows_the_librarys_order():
    """Temperature, top-k, top-p and min-p give what Hugging Face's own processors give."""
    logits = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * 3
    cuts = {"top_p": (0.9, 1.0, 0.3), "top_k": (0, 3, 50), "min_p": (0.0, 0.05, 1.0)}
    for temperature, *values in product((0.7, 2.0), *cuts.values()):
        sampling = Sampling(temperature, **dict(zip(cuts, values)))
        wanted = warped(logits, sampling).softmax(-1)
        assert torch.allclose(warp_logits(logits, sampling).softmax(-1), wanted, atol=1e-6)


class OpenAIPenalties(LogitsProcessor):
    """OpenAI's formula, which the library lacks, over what follows the first n ids."""

    def __init__(self, n: int, presence: float, frequency: float) -> None:
        self.n, self.presence, self.frequency = n, presence, frequency

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = ids[0, self.n :].bincount(minlength=scores.shape[-1])
        return scores - self.frequency * counts - self.presence * (counts > 0)


ADJUSTED = [
    ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
    ({"repetition_penalty": 0.8}, {"repetition_penalty": 0.8}),
    ({"presence_penalty": 1.5}, {"openai": (1.5, 0.0)}),
    ({"presence_penalty": -1.0, "frequency_penalty": 1.2}, {"openai": (-1.0, 1.2)}),
    ({"logit_bias": {9: 8.0, 20: -9.0}}, {}),
    ({"min_new_tokens": 9, "logit_bias": {EOS: 9.0}}, {"min_new_tokens": 9}),
    ({"ignore_eos": True, "logit_bias": {EOS: 9.0}}, {"suppress_tokens": [EOS]}),
]


@pytest.mark.parametrize(("settings", "library"), ADJUSTED, ids=lambda given: " ".join(given))
def test_the_plain_answer_is_the_librarys(target: Target, settings: Any, library: Any):
    """Greedy, against `generate` with its own processors. The end is made likely by a bias; without
    the first setting the answer is another one.
    """
    prompt, (presence, frequency) = tiny_prompt(), library.get("openai", (0.0, 0.0))
    biases = {(token,): bias for token, bias in settings.get("logit_bias", {}).items()}
    expected = target.vlm.model.generate(
        **prompt.inputs,
        max_new_tokens=24,
        do_sample=False,
        pad_token_id=0,
        logits_processor=[OpenAIPenalties(len(prompt), presence, frequency)],
        sequence_bias=biases or None,
        **{name: value for name, value in library.items() if name != "openai"},
    )[0, len(prompt) :].tolist()
    request = ask(target, prompt, sampling=Sampling(**settings))
    assert ids_of(run_lane(parts(), request)) == expected
    bare = ask(target, prompt, sampling=Sampling(**dict(list(settings.items())[1:])))
    assert ids_of(run_lane(parts(), bare)) != expected


def test_the_smallest_temperature_takes_the_likeliest_token():
    """Also of logits so large that dividing them first would leave no number."""
    logits = torch.tensor([[1e36, 2e36, -3e36], [0.0, -torch.inf, 1.0]])
    assert warp_logits(logits, Sampling(1e-3)).softmax(-1).tolist() == [
        [0.0, 1.0, 0.0],
        [0.0, 0.0, 1.0],
    ]


@pytest.mark.parametrize("size", [100, 16_384, 49_152, 50_000])
@pytest.mark.parametrize("n", [1, 7])
def test_the_highest_scores_and_their_places_equal_those_of_torch(n: int, size: int):
    rows = torch.randn(n, size, generator=torch.Generator().manual_seed(size))
    rows[0, size // 2 :] = -torch.inf
    assert torch.equal(highest.argmax(rows), rows.argmax(-1))
    for k in (1, 2, 10):
        values, places = highest.topk(rows, k)
        assert torch.equal(values, rows.topk(k).values)
        assert torch.equal(places, rows.topk(k).indices)


def test_of_equal_numbers_the_first_is_found():
    rows = torch.zeros(2, 16_384)
    rows[0, [70, 75, 9000]] = 1
    rows[1, 16_383] = 1
    assert highest.argmax(rows).tolist() == [70, 16_383]
    assert highest.argmax(torch.full((1, 16_384), -torch.inf)).tolist() == [0]


def test_a_row_that_is_not_a_number_stays_one():
    rows = torch.zeros(1, 16_384)
    rows[0, 9000] = torch.nan
    assert highest.topk(rows, 2)[0][0, 0].isnan()


POLICIES = {
    "ar": OneNode,
    "chain": lambda: Chain(ChainSettings(gamma=3)),
    "tree": lambda: StaticTree([(0,), (1,), (0, 0), (0, 1)]),
}


def answers(target: Target, seed: int) -> list[list[int]]:
    """Answers of one, of several and of branching rows a round to one question."""
    vocab = target.decoder.vocab
    table = torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(3))
    said = []
    for policy in POLICIES.values():
        request = ask(target, tiny_prompt(), sampling=Sampling(1.0, seed=seed), max_new_tokens=12)
        made = replace(parts(TableDrafter(table), policy()), draws="shared")
        said.append(ids_of(run_lane(made, request)))
    return said


@pytest.fixture
def coarse(monkeypatch) -> None:
    """Make rounding large: every pass adds up to 0.3 nats that depend on its number of rows."""
    plain = VLMSession.score

    def score(self: VLMSession, tree: DraftTree) -> Scores:
        scores = plain(self, tree)
        generator = torch.Generator().manual_seed(len(tree))
        noise = torch.rand(scores.logits.shape, generator=generator)
        return replace(scores, logits=scores.logits + 0.3 * noise)

    monkeypatch.setattr(VLMSession, "score", score)


@pytest.mark.parametrize("close", [0.0, 0.3])
def test_rounding_decides_no_token(target: Target, coarse: None, monkeypatch, close: float):
    """Twelve answers of three shapes of tree: equal if leads below the rounding are settled, and
    some differ if none is.
    """
    monkeypatch.setattr(sampling, "NEAR_TIE_NATS", close)
    equal = [len({tuple(one) for one in answers(target, seed)}) == 1 for seed in range(12)]
    assert all(equal) == (close > 0)


def test_reading_again_gives_the_scores_of_the_lane(target: Target):
    """At every node of a tree, up to rounding, before and after tokens were committed; the lane's
    own state stays as it was.
    """
    prompt = tiny_prompt()
    encoded = target.encode(prompt)
    session = target.open(target.prefill(encoded), 16, 8)
    ids = torch.tensor([int(prompt.ids[-1]), 11, 12, 13])
    tree = DraftTree(ids, chain(3))
    for kept in ([0, 1], [0, 1, 2, 3]):
        scores = session.score(tree)
        assert scores.recompute is not None
        for end in range(1, 5):
            again = scores.recompute(range(end))
            assert torch.allclose(again, scores.logits[end - 1], atol=1e-4)
        assert torch.equal(session.score(tree).logits, scores.logits)
        session.commit(kept)


def test_every_close_choice_of_a_path_is_read_again_once():
    """Also those that follow each other."""
    logits, read = torch.zeros(4, 9), []

    def again(path: Sequence[int]) -> torch.Tensor:
        read.append(len(path))
        return logits[0].clone()

    tree = DraftTree(torch.tensor([5, 0, 0, 0]), chain(3))
    scores = Scores(logits, logits, recompute=again)
    sampler = Sampler(Sampling(), torch.device("cpu"))
    verdict = LosslessVerifier().verify(tree, scores, sampler)
    assert (verdict.tokens, read) == ([0, 0, 0, 0], [1, 2, 3, 4])


def test_half_precision_is_left_to_exact_steps():
    """There, too many tokens are close for reading again to be worth its time."""
    prompt, root = tiny_prompt(), chain(0)
    for dtype, recomputes in ((torch.float32, True), (torch.bfloat16, False)):
        target = VLMTarget(VLM(tiny_llava().to(dtype), "tiny target"))
        session = target.open(target.prefill(target.encode(prompt)), 16, 8)
        scores = session.score(DraftTree(prompt.ids[-1:], root))
        assert (scores.recompute is not None) == recomputes
        assert ("read again" in target.exactness(8)) == recomputes


def test_a_lead_counts_in_the_logits_unit():
    """At temperature 0.1 a lead of 1e-4 logits is 1e-3 of the numbers compared, and still close."""
    sampler = Sampler(Sampling(0.1), torch.device("cpu"))
    assert sampler.near_ties(torch.tensor([[1.0, 1.0 - 1e-3], [1.0, 0.9]])) == [True, False]
