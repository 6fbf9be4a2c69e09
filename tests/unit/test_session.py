"""A question through the session: what its lanes have in common is computed once."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from specvl_demo import session
from specvl_demo.core.engine import Lane, SharedPrefill
from specvl_demo.methods.base import assemble, choose
from specvl_demo.records import Begin, End
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.shared_drafter import with_layers
from tests.conftest import ask, tiny_prompt


def test_warm_up_and_race_share_encodings_and_prefills(
    models: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lanes: one vision pass a model, one prefill of the target, in the warm-up; the race finds them."""
    passes: Counter[str] = Counter()
    target, small = models.target, models.drafter("small")
    for owner, name in ((target, "prefill"), (target.vlm, "encode"), (small, "encode")):
        run = getattr(owner, name)

        def counted(*words: object, run: object = run, key: str = f"{owner.name} {name}") -> object:
            passes[key] += 1
            return run(*words)

        monkeypatch.setattr(owner, name, counted)
    loaded, asked = SimpleNamespace(models=models), ask(target, tiny_prompt())
    records = list(session.race(loaded, asked, [choose("ar"), choose("chain")]))
    assert passes == {"tiny target encode": 1, "tiny drafter encode": 1, "tiny target prefill": 1}
    assert [record.totals.n_tokens for record in records if isinstance(record, End)] == [24, 24]
    assert all(record.prefill_s > 0 for record in records if isinstance(record, Begin))


def test_a_prefill_is_dropped_when_its_last_lane_has_begun(models: object) -> None:
    shared = SharedPrefill(ask(models.target, tiny_prompt()))
    first, second = (Lane(name, assemble(choose(name), models), shared) for name in ("ar", "chain"))
    first.begin()
    assert len(shared._prefills) == 1
    second.begin()
    assert not shared._prefills


def test_a_drafter_with_its_targets_tower_looks_through_it(
    models: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of its own, everything before them the target's: no second vision pass."""
    target = models.target
    small = VLM(with_layers(target.vlm.model, 1), "one layer", shares=target.vlm)
    monkeypatch.setattr(small, "_encode", lambda prompt: pytest.fail("its tower ran"))
    shared = SharedPrefill(ask(target, tiny_prompt()))
    assert shared.encoded(small) is shared.encoded(target)
    assert torch.equal(small.encode(tiny_prompt()).embeds, shared.encoded(target).embeds)


def test_a_model_is_shown_no_more_pixels_than_it_is_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(width: int, height: int) -> tuple[int, int]:
        (image,) = session.turn("?", [Image.new("RGB", (width, height))]).shown
        return image.size

    assert shown(1000, 1000) == (1000, 1000)
    assert shown(4000, 3000) == (1290, 968)
    monkeypatch.setenv("SPECVL_PICTURE_PIXELS", "3000000")
    assert shown(4000, 3000) == (2000, 1500)
    monkeypatch.setenv("SPECVL_PICTURE_PIXELS", "many")
    with pytest.raises(ValueError, match="SPECVL_PICTURE_PIXELS is a number from 50000 on, not 'many'"):
        shown(10, 10)
