"""What our own kernels draft by one call is what single steps draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import specvl_demo as sv
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Drafter
from specvl_demo.decoders import kernels
from specvl_demo.decoders.layer_stack import ChainDrafter
from specvl_demo.methods.heads.features import FeatureDrafter
from specvl_demo.methods.policies import Chain
from specvl_demo.methods.small_vlm import SmallVLM
from specvl_demo.records import Round

pytestmark = pytest.mark.skipif(not kernels.available(), reason="our own kernels do not run here")

PICTURES = [
    str(Path(__file__).parents[2] / "examples" / name) for name in ("scene.png", "bars.png")
]
CHAINS: dict[str, tuple[str, dict[str, Any]]] = {
    "chain": ("chain", {"gamma": 6}),
    "with a floor": ("chain", {"gamma": 6, "floor": 0.6}),
    "eagle2": ("eagle2", {"preset": "pocket"}),
    "hivis": ("hivis", {"preset": "pocket"}),
    "dream": ("dream", {"preset": "pocket"}),
    "eagle3": ("eagle3", {"policy": "chain", "gamma": 5}),
}


@pytest.fixture(scope="module")
def pair() -> sv.Pair:
    return sv.load("pocket")


def rounds(pair: sv.Pair, method: str, settings: dict[str, Any]) -> list[Round]:
    race = pair.race("Describe both pictures.", PICTURES, [], [method], {method: settings}, 60)
    return [record for record in race if isinstance(record, Round) and record.lane != "ar"]


def assert_alike(some: list[Round], others: list[Round]) -> None:
    assert len(some) == len(others) > 5
    for one, other in zip(some, others, strict=True):
        assert (one.tree.tokens, one.tree.parent) == (other.tree.tokens, other.tree.parent)
        assert one.tree.draft_logp == pytest.approx(other.tree.draft_logp, abs=1e-3)
        assert one.views == other.views


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_that_of_single_steps(
    name: str, pair: sv.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    run = ChainDrafter.run
    monkeypatch.setattr(ChainDrafter, "run", lambda *given: calls.append(1) or run(*given))
    by_one_call = rounds(pair, *CHAINS[name])
    n_calls = len(calls)
    assert n_calls >= len(by_one_call)
    for drafter in (SmallVLM, FeatureDrafter):
        monkeypatch.setattr(drafter, "draft_chain", lambda *_: None)
    assert_alike(by_one_call, rounds(pair, *CHAINS[name]))
    assert len(calls) == n_calls


@pytest.mark.parametrize("name", ["chain", "eagle2", "hivis", "dream", "eagle3"])
def test_what_is_fed_after_it_continues_it(
    name: str, pair: sv.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy may draft a chain and then extend it."""
    propose = Chain.propose

    def further(self: Chain, drafter: Drafter, *given: Any) -> DraftTree:
        tree = propose(self, drafter, *given)
        n, room = len(tree), given[1]
        if not 1 < n <= min(self.gamma, room):
            return tree
        log_probs = drafter.extend(tree.tokens[-1:], (n - 2,))
        assert log_probs is not None and tree.logp is not None
        best = log_probs.max(-1)
        return DraftTree(
            torch.cat((tree.tokens, best.indices)),
            chain(n),
            logp=torch.cat((tree.logp, best.values)),
            rows=(*range(n), -1),
        )

    monkeypatch.setattr(Chain, "propose", further)
    asked = CHAINS[name][0], {"policy": "chain", "gamma": 6, "floor": 0.7}
    by_one_call = rounds(pair, *asked)
    assert any(one.tree.parent[-1] for one in by_one_call)
    for drafter in (SmallVLM, FeatureDrafter):
        monkeypatch.setattr(drafter, "draft_chain", lambda *_: None)
    assert_alike(by_one_call, rounds(pair, *asked))


def test_dreams_blocks_in_one_call_are_those_of_torch(
    pair: sv.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in trees, whose rows see their own branch of queries and of features."""
    tree = "dream", {"preset": "pocket-tree"}
    by_one_call = rounds(pair, *tree)
    monkeypatch.setattr("specvl_demo.methods.dream.stacked", lambda *_: None)
    assert_alike(by_one_call, rounds(sv.load("pocket"), *tree))
