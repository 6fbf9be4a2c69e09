"""What our own kernels draft by one call is what single steps draft, and where drafters looked."""

import json
import re
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

import specvl_demo as sv
from specvl_demo.core.types import Drafter
from specvl_demo.decoders import kernels
from specvl_demo.decoders.layer_stack import LevelDrafter
from specvl_demo.methods.dream import DreamDrafter
from specvl_demo.methods.heads import blocks
from specvl_demo.methods.heads.blocks import CrossAttention
from specvl_demo.methods.level_calls import LevelCalls
from specvl_demo.places import EXAMPLES
from specvl_demo.records import Round
from tests.shared.tiny import rounds_of

by_our_kernels = pytest.mark.skipif(not kernels.available(), reason="our kernels do not run here")

PICTURES = [str(EXAMPLES / name) for name in ("scene.png", "bars.png")]
DRAFTED = """
chain              chain   {"gamma": 6}
with a floor       chain   {"gamma": 6, "floor": 0.6}
eagle2             eagle2  {"preset": "pocket"}
hivis              hivis   {"preset": "pocket"}
dream              dream   {"preset": "pocket"}
eagle3             eagle3  {"policy": "chain", "gamma": 5}
tree               tree    {"tree_nodes": 8}
sage               sage    {"growth": "online", "max_nodes": 20}
sage by templates  sage    {"max_nodes": 20}
two views          tabed   {"preset": "pocket"}
four views         tabed   {"preset": "pocket-mtcp"}
two views, a tree  tabed   {"policy": "beam", "beams": 3}
hivis, a tree      hivis   {"preset": "pocket-tree"}
dream, a tree      dream   {"preset": "pocket-tree"}
eagle3, a tree     eagle3  {"preset": "pocket-tree"}
"""
"""What is drafted, the method, and its settings."""
DRAFTS = {
    name: (method, json.loads(settings))
    for name, method, settings in (re.split("  +", line) for line in DRAFTED.strip().splitlines())
}


@pytest.fixture(scope="module")
def pair() -> sv.Pair:
    return sv.load("pocket")


def rounds(pair: sv.Pair, method: str, settings: dict[str, Any]) -> list[Round]:
    race = pair.race("Describe both pictures.", PICTURES, [], [method], {method: settings}, 60)
    return [round_ for round_ in rounds_of(race) if round_.lane != "ar"]


def assert_alike(some: list[Round], others: list[Round]) -> None:
    assert len(some) == len(others) > 5
    for one, other in zip(some, others, strict=True):
        assert (one.tree.tokens, one.tree.parent) == (other.tree.tokens, other.tree.parent)
        assert one.tree.draft_logp == pytest.approx(other.tree.draft_logp, abs=1e-3)
        assert one.views == other.views


@by_our_kernels
@pytest.mark.parametrize("name", DRAFTS)
def test_what_one_call_drafts_is_what_its_operations_draft(name: str, pair: sv.Pair, monkeypatch):
    calls = []
    draft = LevelDrafter.draft
    monkeypatch.setattr(
        LevelDrafter, "draft", lambda *given, **more: calls.append(1) or draft(*given, **more)
    )
    by_one_call = rounds(pair, *DRAFTS[name])
    n_calls = len(calls)
    assert n_calls >= len(by_one_call)
    monkeypatch.setattr(LevelCalls, "draft_level", Drafter.draft_level)
    assert_alike(by_one_call, rounds(pair, *DRAFTS[name]))
    assert len(calls) == n_calls


@by_our_kernels
def test_dream_drafts_the_same_when_its_blocks_run_in_one_call(pair: sv.Pair, monkeypatch):
    """Also in trees, whose rows see their own branch of queries and of features."""
    tree = "dream", {"preset": "pocket-tree"}
    by_one_call = rounds(pair, *tree)
    monkeypatch.setattr("specvl_demo.methods.dream.stack_layers", lambda *_: None)
    assert_alike(by_one_call, rounds(sv.load("pocket"), *tree))


MAX_ROWS = 16
"""Rows of a round's forward; a prompt's has more."""
PATCHES = 36


@pytest.mark.parametrize("preset", ["pocket", "pocket-tree"])
def test_what_is_recorded_is_the_attention_that_drafted(monkeypatch, preset: str):
    """DREAM's cross-attention, worked out for the record, is that of the forwards that drafted, in
    chains and in trees; there is a byte for each patch. Other drafters record none.
    """
    # Forwards of torch, to listen to.
    monkeypatch.setattr(blocks, "takes_layers", lambda *_: False)
    drafted = []
    apart = []
    forward, looked = CrossAttention.__call__, DreamDrafter.attention_to_prompt

    def listen(self: CrossAttention, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None):
        if len(x) <= MAX_ROWS:
            free = x.new_zeros(len(x), keys.shape[-2])
            drafted.extend(self.attention_weights(x, keys, free if mask is None else mask))
        return forward(self, x, keys, values, mask)

    def compare(self: DreamDrafter, rows: Sequence[int], tokens: Tensor) -> Tensor:
        found = looked(self, rows, tokens)
        fed = drafted[-self._sequence.fed :]
        for row, weights in zip(rows, found):
            own = fed[row][: len(weights)]
            apart.append(float((weights[: len(own)] - own).abs().max() / own.max()))
        drafted.clear()
        return found

    monkeypatch.setattr(CrossAttention, "__call__", listen)
    monkeypatch.setattr(DreamDrafter, "attention_to_prompt", compare)
    race = sv.load("pocket").race(
        "Describe the picture in detail.",
        images=[EXAMPLES / "shelf.png"],
        methods=["ar", "eagle2", "dream"],
        settings={"dream": {"preset": preset}},
        max_new_tokens=40,
    )
    _, eagle, dream = race.lanes
    assert len(apart) > 20 and max(apart) < 0.01
    assert not any("attention" in r.notes for r in eagle.rounds)
    for r in dream.rounds:
        looks = [note and b64decode(note) for note in r.notes["attention"]]
        assert len(looks) == len(r.tokens)
        assert all(look is None or (len(look) == PATCHES and max(look) == 255) for look in looks)
