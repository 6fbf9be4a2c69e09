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
from tests.contract.families.conftest import SHOWN, TOKENS, Here, load, often
from tests.shared import zoo
from tests.shared.heads import built
from tests.shared.refusals import refuses
from tests.shared.tiny import rounds_of

pytest.importorskip("torchvision", reason="the processor of this family needs torchvision")

shown = pytest.mark.parametrize("shown", SHOWN)
CHAINS = {
    "chain": ("chain", {"gamma": 4}),
    "a drafter that sees no picture": ("custom", {"views": "text-only"}),
    "itself": ("custom", {"drafter": "self", "policy": "chain"}),
    "prompt lookup": ("ngram", {}),
}


@pytest.fixture(params=often(zoo.RECURRENT))
def here(request: pytest.FixtureRequest) -> Here:
    return load(request.param)


@shown
def test_plain_decoding_is_what_generate_gives(here: Here, shown: str):
    ids, _ = here.reference(shown)
    assert len(set(ids)) > 4, "an answer that repeats itself would prove little"
    assert here.answer("ar", shown)[0] == ids
    assert here.target.min_invariant_rows is None


@pytest.mark.parametrize(
    ("shown", "method"), [*(("picture", method) for method in CHAINS), ("clip", "chain")]
)
@pytest.mark.parametrize("most", [0, recurrent.MAX_REPLAYED])
def test_chains_give_the_plain_answer(here: Here, shown: str, method: str, most: int, monkeypatch):
    """Whether rejected rows are replayed together with new ones or separately."""
    monkeypatch.setattr(recurrent, "MAX_REPLAYED", most)
    name, settings = CHAINS[method]
    answer, records = here.answer(name, shown, **settings)
    assert answer == here.reference(shown)[0]
    rounds = rounds_of(records)
    if method == "chain":
        rejected = [len(round_.tree.tokens) - len(round_.path) for round_ in rounds]
        assert any(rejected) and len(rounds) < TOKENS, "nothing was rejected, or nothing accepted"
    if method == "itself":
        assert all(len(one.tree.tokens) == len(one.path) for one in rounds[:-1])


def test_a_block_drafter_gives_the_plain_answer(here: Here):
    """DFlash's heads for this family read layers with a state as well as those that attend."""
    width = here.target.decoder.width
    config = {"block_size": 4, "dflash_config": {"mask_token_id": 0, "target_layer_ids": [0, 1]}}
    geometry = Geometry(width, 4, 2, 16)
    head = built("dflash", here.target.decoder, geometry, config)
    models = Models(here.target, {"dflash": head})
    answer, records = here.answer("dflash", "picture", models, gamma=3)
    assert answer == here.reference("picture")[0]
    assert any(len(round_.tree.tokens) == 4 for round_ in rounds_of(records))


def test_branches_are_refused_in_a_sentence(here: Here):
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
