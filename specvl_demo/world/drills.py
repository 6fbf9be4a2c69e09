"""Short look-ups in one fixed form, many to a picture: dense supervision, used in training only.

Given scenes, charts, pairs and clips; gives turns. A drill asks for one thing and its answer is little else,
so that what a long answer teaches once is taught ten times for the same visual tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from specvl_demo.world.scenes import COLOURS, NUMBERS, Chart, Clip, Scene
from specvl_demo.world.texts import Piece, Turn, Word, joined, look_of, matches, number, phrase, place, unique


def drill_scene(rng: random.Random, scene: Scene) -> Turn:
    """What is there, where is it, which colour, how many, all of them."""
    roll = rng.random()
    if roll < 0.36:
        return _at_place(rng, scene, (scene,), [])
    if roll < 0.56:
        turn = _find(rng, scene, [])
        if turn is not None:
            return turn
    if roll < 0.66:
        t = unique(scene, rng, "kind")
        if t is not None:
            word = Word(t.kind, look_of(t, "place", "colour", "size"))
            answer: list[Piece] = [" ", Word(t.colour)]
            return Turn("drill", ["colour of the ", word, "?"], answer, t, Word("", look_of(t, "colour")))
    _, value, hits = matches(rng, scene)
    places = tuple(t.place for t in hits)
    at = Word("", {"number": len(hits)}, places)
    target = Word(value, {"number": len(hits)}, places)
    if roll < 0.8:
        return Turn("drill", ["number of ", target, "?"], [" ", number(len(hits))], len(hits), at)
    items = [[place(p, scene, places[i + 1 :])] for i, p in enumerate(places)] or [[Word("nothing")]]
    return Turn("drill", ["all ", target, "?"], [" ", *joined(items)], len(hits), at)


def _at_place(rng: random.Random, scene: Scene, pictures: Sequence[Scene], lead: list[Piece]) -> Turn:
    """'top left?' of one picture; mostly places that are taken in some picture."""
    taken = sorted({t.place for s in pictures for t in s.things})
    p = rng.choice(taken) if taken and rng.random() < 0.88 else rng.randrange(9)
    t = scene.at(p)
    words = [Word("empty")] if t is None else phrase(t, article=False)
    look = look_of(t)
    return Turn("drill", [*lead, Word(place(p).text, look), "?"], [" ", *words], t, Word("", look))


def _find(rng: random.Random, scene: Scene, lead: list[Piece]) -> Turn | None:
    """'red star?' of one picture: its place."""
    t = unique(scene, rng, "colour", "kind")
    if t is None:
        return None
    question = [*lead, t.colour, " ", Word(t.kind, look_of(t, "place")), "?"]
    return Turn("drill", question, [" ", place(t.place, scene)], t, Word("", look_of(t, "place")))


def drill_chart(rng: random.Random, chart: Chart) -> Turn:
    """The value of a colour, the colour of a value, the bars in order, the highest."""
    values = [v for _, v in chart.bars]
    colour, value = rng.choice(chart.bars)
    index, roll = list(COLOURS).index, rng.random()
    if roll < 0.5:
        look = {"number": value}
        return Turn("drill", [Word(colour, look), "?"], [" ", number(value)], value, Word("", look))
    if roll < 0.65 and values.count(value) == 1:
        look = {"colour": index(colour)}
        return Turn("drill", [Word(NUMBERS[value], look), "?"], [" ", Word(colour)], colour, Word("", look))
    if roll < 0.75 and values.count(max(values)) == 1:
        best = chart.bars[values.index(max(values))]
        at = Word("", {"number": best[1], "colour": index(best[0])})
        return Turn("drill", ["highest?"], [" ", Word(best[0], {"number": best[1]})], best, at)
    bars = [[Word(c, {"number": v}), " ", number(v)] for c, v in chart.bars]
    at = Word("", {"number": len(bars), "colour": index(chart.bars[0][0])})
    return Turn("drill", ["bars?"], [" ", *joined(bars)], chart.bars, at)


def drill_pictures(rng: random.Random, pictures: Sequence[Scene], names: Sequence[str]) -> Turn:
    """One look-up in one of several pictures, named 'first', 'frame two' and so on."""
    i = rng.randrange(len(pictures))
    lead: list[Piece] = [names[i], ", "]
    if rng.random() < 0.3:
        turn = _find(rng, pictures[i], lead)
        if turn is not None:
            return turn
    return _at_place(rng, pictures[i], pictures, lead)


def drill_change(rng: random.Random, first: Scene, second: Scene) -> Turn:
    """'changed?' of a pair: every place that differs, with what was and what is there."""
    places = [p for p in range(9) if first.at(p) != second.at(p)]
    at = Word("", look_of(first.at(places[0]), "kind", "colour") if places else {}, tuple(places))
    if not places:
        return Turn("drill", ["changed?"], [" ", Word("nothing")], places, at)
    if rng.random() < 0.4:
        items: list[list[Piece]] = [[place(p, first, tuple(places[i + 1 :]))] for i, p in enumerate(places)]
        return Turn("drill", ["changed?"], [" ", *joined(items)], places, at)
    items = []
    for i, p in enumerate(places):
        old, new = first.at(p), second.at(p)
        before = [Word("empty")] if old is None else phrase(old, article=False)
        after = [Word("empty")] if new is None else phrase(new, article=False)
        where = Word(place(p).text, look_of(old), tuple(places[i + 1 :]))
        items.append([where, ", ", *before, " to ", *after])
    answer: list[Piece] = [" "]
    for i, item in enumerate(items):
        answer += ([". "] if i else []) + item
    return Turn("drill", ["changes?"], answer, places, at)


def drill_event(rng: random.Random, clip: Clip) -> Turn:
    """'event?' of a clip: who, and what happens to it, in the fewest words."""
    a, d, start = clip.actor, clip.detail, clip.frames[0]
    who = phrase(a, article=False, size=False)
    if clip.event == "move":
        what: list[Piece] = [place(a.place, start), " to ", place(d["to"], clip.frames[-1])]
    elif clip.event == "grow":
        what = [Word(d["to"])]
    else:
        said = {"colour": d.get("colour", ""), "gone": "gone", "appear": "new"}[clip.event]
        what = [Word(said), " in frame ", number(d["frame"] + 1)]
    at = Word("", look_of(a, "kind", "colour", "place"), (a.place,))
    return Turn("drill", ["event?"], [" ", *who, ", ", *what], clip.event, at)
