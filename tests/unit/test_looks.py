"""Where a drafter with an attention of its own looked, recorded with every token it guessed."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence

import pytest
from torch import Tensor

import specvl_demo
from specvl_demo.decoders import layer_stack
from specvl_demo.methods.dream import DreamDrafter
from specvl_demo.methods.heads.blocks import CrossBlock
from specvl_demo.places import EXAMPLES

MOST_ROWS = 16
"""Rows of a round's forward; a prompt's has more."""
PATCHES = 36


@pytest.mark.parametrize("preset", ["pocket", "pocket-tree"])
def test_what_is_recorded_is_the_attention_that_drafted(
    monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    """DREAM's cross-attention, worked out for the record, is that of the forwards that drafted, in
    chains and in trees; there is a byte for each patch. Other drafters record none.
    """
    monkeypatch.setattr(layer_stack, "stacked", lambda *_: None)  # forwards of torch, to listen to
    drafted: list[Tensor] = []
    apart: list[float] = []
    forward, looked = CrossBlock.__call__, DreamDrafter.attention

    def listen(self: CrossBlock, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None):
        if len(x) <= MOST_ROWS:
            free = x.new_zeros(len(x), keys.shape[-2])
            drafted.extend(self.weights(x, keys, free if mask is None else mask))
        return forward(self, x, keys, values, mask)

    def compare(self: DreamDrafter, rows: Sequence[int]) -> Tensor:
        found = looked(self, rows)
        fed = drafted[-self._fed :]
        for row, weights in zip(rows, found, strict=True):
            own = fed[row][: len(weights)]
            apart.append(float((weights[: len(own)] - own).abs().max() / own.max()))
        drafted.clear()
        return found

    monkeypatch.setattr(CrossBlock, "__call__", listen)
    monkeypatch.setattr(DreamDrafter, "attention", compare)
    race = specvl_demo.load("pocket").race(
        "Describe the picture in detail.",
        images=[EXAMPLES / "shelf.png"],
        methods=["ar", "eagle2", "dream"],
        settings={"dream": {"preset": preset}},
    )
    _, eagle, dream = race.lanes
    assert len(apart) > 40 and max(apart) < 0.01
    assert not any("attention" in r.notes for r in eagle.rounds)
    for r in dream.rounds:
        looks = [note and b64decode(note) for note in r.notes["attention"]]
        assert len(looks) == len(r.tokens)
        assert all(look is None or (len(look) == PATCHES and max(look) == 255) for look in looks)
