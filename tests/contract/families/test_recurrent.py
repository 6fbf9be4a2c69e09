"""Families whose layers keep one running state: chains match the library's answers, whatever was
rejected; branches are refused.

Tiny random models of the real classes with their real processor, in float32.
"""

import pytest

from specvl_demo import pairs
from specvl_demo.decoders import recurrent
from specvl_demo.methods.base import Models
from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.serving import choosing
from tests.contract.families.conftest import TOKENS, Here, load, often
from tests.shared import zoo
from tests.shared.heads import built
from tests.shared.refusals import refuses
from tests.shared.tiny import rounds_of

pytest.importorskip("torchvision", reason="the processor of this family needs torchvision")

CHAINS = {
    "chain": ("chain", {"gamma": 4}),
    "a drafter that sees no picture": ("custom", {"views": "text-only"}),
    "itself": ("custom", {"drafter": "self", "policy": "chain"}),
    "prompt lookup": ("ngram", {}),
}


@pytest.fixture(params=often(zoo.RECURRENT))
def here(request: pytest.FixtureRequest) -> Here:
    return load(request.param)


@pytest.mark.parametrize(
    ("shown", "method"), [*(("picture", method) for method in CHAINS), ("clip", "chain")]
)
@pytest.mark.parametrize("most", [0, recurrent.MAX_REPLAYED])
def test_chains_give_the_plain_answer(here: Here, shown: str, method: str, most: int, monkeypatch):
    """Whether rejected rows are replayed together with new ones or separately."""
    monkeypatch.setattr(recurrent, "MAX_REPLAYED", most)
    name, settings = CHAINS[method]
    rounds = rounds_of(here.answer(name, shown, **settings))
    if method == "chain":
        rejected = [len(round_.tree.tokens) - len(round_.path) for round_ in rounds]
        assert any(rejected) and len(rounds) < TOKENS, "nothing was rejected, or nothing accepted"
    if method == "itself":
        assert all(len(one.tree.tokens) == len(one.path) for one in rounds[:-1])


def test_a_block_drafter_gives_the_plain_answer(here: Here):
    """DFlash's heads for this family read layers with a state as well as those that attend."""
    decoder = here.target.decoder
    head = built("dflash", decoder, Geometry(decoder.width, 4, 2, 16))
    models = Models(here.target, {"dflash": head})
    records = here.answer("dflash", "picture", models, gamma=3)
    assert any(len(round_.tree.tokens) == 4 for round_ in rounds_of(records))


def test_branches_are_refused_in_a_sentence(here: Here):
    assert here.target.min_invariant_rows is None
    for name, settings in (("tree", {}), ("custom", {"policy": "best-first", "nodes": 9})):
        refuses(
            "one line of tokens; choose a policy that drafts a",
            here.answer,
            name,
            "picture",
            **settings,
        )
    refuses("draft from only one view", here.answer, "tabed", "picture")


def test_a_pair_offers_no_methods_that_draft_trees():
    one = pairs.Checkpoint("target", 6e9, "x"), pairs.Checkpoint("drafter", 1e9, "x")
    pair = pairs.PairSpec("p", "P", "Qwen3.5", one[0], {"small": one[1]})
    served = choosing.supported_methods(pair)
    assert {"chain", "ngram"} < set(served)
    assert not {"tree", "sage", "specvlm"} & set(served)
    refuses("tree drafts a tree, but Qwen3.5 has linear-attention", choosing.choose, pair, "tree")
    assert choosing.choose(pair, "custom", {"policy": "chain"}).policy.name == "chain"
