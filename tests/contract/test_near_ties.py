"""Where rounding could decide between two tokens, the text is read again, so that every lossless
lane takes the same one whatever trees it drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from specvl_demo.core import sampling
from specvl_demo.core.engine import Lane, SharedPrefill, race
from specvl_demo.core.sampling import Sampler, Sampling
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Policy, Scores, Target
from specvl_demo.methods.ar import OneNode
from specvl_demo.methods.policies import Chain, ChainSettings, RankedTree
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMSession, VLMTarget
from tests.conftest import ask, ids_of, tiny_llava, tiny_prompt
from tests.fakes import TableDrafter, parts

POLICIES: dict[str, Callable[[], Policy]] = {
    "ar": OneNode,
    "chain": lambda: Chain(ChainSettings(gamma=3)),
    "tree": lambda: RankedTree([(0,), (1,), (0, 0), (0, 1)]),
}


def answers(target: Target, seed: int) -> list[list[int]]:
    """Answers of one, of several and of branching rows a round to one question."""
    vocab = target.decoder.vocab
    table = torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(3))
    said = []
    for policy in POLICIES.values():
        request = ask(target, tiny_prompt(), sampling=Sampling(1.0, seed=seed), max_new_tokens=12)
        made = replace(parts(TableDrafter(table), policy()), draws="shared")
        said.append(ids_of(race([Lane("lane", made, SharedPrefill(request))])))
    return said


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rounding large: every pass adds up to 0.3 nats that depend on its number of rows."""
    plain = VLMSession.score

    def score(self: VLMSession, tree: DraftTree) -> Scores:
        scores = plain(self, tree)
        generator = torch.Generator().manual_seed(len(tree))
        noise = torch.rand(scores.logits.shape, generator=generator)
        return replace(scores, logits=scores.logits + 0.3 * noise)

    monkeypatch.setattr(VLMSession, "score", score)


@pytest.mark.parametrize("close", [0.0, 0.3])
def test_rounding_decides_no_token(
    target: Target, coarse: None, monkeypatch: pytest.MonkeyPatch, close: float
) -> None:
    """Twelve answers of three shapes of tree: equal if leads below the rounding are settled, and
    some differ if none is.
    """
    monkeypatch.setattr(sampling, "NEAR_TIE_NATS", close)
    equal = [len({tuple(one) for one in answers(target, seed)}) == 1 for seed in range(12)]
    assert all(equal) == (close > 0)


def test_reading_again_gives_the_scores_of_the_lane(target: Target) -> None:
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


def test_half_precision_is_left_to_exact_steps() -> None:
    """There, too many tokens are close for reading again to be worth its time."""
    prompt, root = tiny_prompt(), chain(0)
    for dtype, recomputes in ((torch.float32, True), (torch.bfloat16, False)):
        target = VLMTarget(VLM(tiny_llava().to(dtype), "tiny target"))
        session = target.open(target.prefill(target.encode(prompt)), 16, 8)
        scores = session.score(DraftTree(prompt.ids[-1:], root))
        assert (scores.recompute is not None) == recomputes
        assert ("read again" in target.exactness(8)) == recomputes


def test_a_lead_counts_in_the_logits_unit() -> None:
    """At temperature 0.1 a lead of 1e-4 logits is 1e-3 of the numbers compared, and still close."""
    sampler = Sampler(Sampling(0.1), torch.device("cpu"))
    assert sampler.near_ties(torch.tensor([[1.0, 1.0 - 1e-3], [1.0, 0.9]])) == [True, False]
