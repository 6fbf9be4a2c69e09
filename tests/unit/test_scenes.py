"""The pocket world: what is drawn is what is described, and a description survives its JSON."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from specvl_demo.world import scenes as world
from specvl_demo.world.held_out_renderer import draw_otherwise
from specvl_demo.world.scenes import COLOURS, GROUNDS, KINDS, PLACES, Chart, Scene, Thing


@pytest.mark.parametrize("seed", range(20))
def test_a_scene_survives_json(seed):
    rng = random.Random(seed)
    scene = world.random_chart(rng, 3) if seed % 4 == 0 else world.random_scene(rng, rng.randint(1, 6))
    data = json.loads(json.dumps(world.scene_to_json(scene)))
    assert world.scene_to_json(world.scene_from_json(data)) == data


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"objects": [{"kind": "cube", "colour": "red", "place": "center"}]}, "'cube'"),
        ({"objects": [{"kind": "star", "colour": "teal", "place": "center"}]}, "'teal'"),
        ({"objects": [{"kind": "star", "colour": "red", "place": "outside"}]}, "'outside'"),
        ({"objects": [{"kind": "star", "colour": "red", "place": "center"}] * 2}, "two objects"),
        ({"ground": "plaid", "objects": []}, "'plaid'"),
        ({"chart": [{"colour": "red", "value": 12}]}, "12"),
        ({"chart": []}, "1 to 6 bars"),
        ([], "JSON object"),
    ],
)
def test_a_wrong_description_is_refused_by_name(data, word):
    with pytest.raises(ValueError, match=word):
        world.scene_from_json(data)


def _pixel_at(picture, place: int) -> np.ndarray:
    w, h = picture.size
    return np.asarray(picture)[int((place // 3 + 0.5) * h / 3), int((place % 3 + 0.5) * w / 3)].astype(int)


@pytest.mark.parametrize("place", range(9))
def test_an_object_stands_at_its_place_in_its_colour(place):
    scene = Scene((Thing("square", "green", "large", place),), "white")
    picture = world.draw(scene, (300, 240))
    assert np.abs(_pixel_at(picture, place) - COLOURS["green"]).max() <= 3
    others = [p for p in range(9) if p != place]
    assert all(np.abs(_pixel_at(picture, p) - GROUNDS["white"]).max() <= 3 for p in others)


def test_every_kind_is_drawn_and_differs_from_every_other():
    pictures = {k: np.asarray(world.draw(Scene((Thing(k, "red", "large", 4),)), (120, 120))) for k in KINDS}
    for i, a in enumerate(KINDS):
        for b in KINDS[i + 1 :]:
            differ = (np.abs(pictures[a].astype(int) - pictures[b]).max(-1) > 60).sum()
            assert differ > 20, f"{a} looks like {b}"


def test_a_clean_drawing_is_always_the_same_and_a_varied_one_is_not():
    scene = world.random_scene(random.Random(0), 4)
    assert np.array_equal(world.draw(scene), world.draw(scene))
    varied = [np.asarray(world.draw(scene, (96, 96), random.Random(s))) for s in (1, 2)]
    assert not np.array_equal(*varied)


@pytest.mark.parametrize("kind", KINDS)
def test_a_free_hand_draws_the_same_thing_there_in_many_ways(kind):
    """Bent and leaning it may be, but in its colour and about as large."""
    scene, n = Scene((Thing(kind, "red", "large", 4),), "white"), 12
    masks = []
    for seed in range(n):
        picture = np.asarray(world.draw(scene, (120, 120), random.Random(seed), free=True)).astype(int)
        drawn = (picture[..., 0] - picture[..., 1]) > 90
        rows, cols = np.nonzero(drawn)
        assert 30 < drawn.sum() < 40 * 40 and np.ptp(rows) > 15
        assert abs(rows.mean() - 60) < 9 and abs(cols.mean() - 60) < 14, "a moon is thick on one side"
        masks.append(drawn)
    assert len({mask.tobytes() for mask in masks}) == n
    steady = world.draw(scene, (120, 120))
    assert np.array_equal(steady, world.draw(scene, (120, 120), None, free=True)), "no chance, no freedom"


def test_bars_are_as_high_as_their_values():
    picture = np.asarray(world.draw(Chart((("red", 3), ("blue", 9))), (200, 200))).astype(int)
    heights = [(np.abs(picture - COLOURS[c]).max(-1) < 12).any(1).sum() for c in ("red", "blue")]
    assert heights[1] / heights[0] == pytest.approx(3, rel=0.06)


@pytest.mark.parametrize("seed", range(5))
def test_the_other_renderer_puts_things_at_the_same_places(seed):
    rng = random.Random(seed)
    colour = rng.choice(list(COLOURS))
    place = rng.randrange(9)
    scene = Scene((Thing("circle", colour, "large", place),), "black")
    picture = draw_otherwise(scene, rng)
    assert np.abs(_pixel_at(picture, place) - COLOURS[colour]).max() < 60
    assert len(PLACES) == 9
