"""Two pictures: what changed from one to the other, and what is on both."""

from __future__ import annotations

import random
from dataclasses import replace

from specvl_demo.world import scenes as world
from specvl_demo.world.scenes import COLOURS, SHAPES, Scene, Thing
from specvl_demo.world.texts import (
    Look,
    Piece,
    Sample,
    Turn,
    Word,
    ask,
    capital,
    clauses,
    look_of,
    number,
    phrase,
    pick,
    place,
    where,
)

CHANGES = ("colour", "kind", "size", "move", "gone", "new", "same")


def change(rng: random.Random, first: Scene) -> tuple[str, Scene, Thing, Thing | None]:
    """Change one thing: (event, second scene, the thing before or new, the thing after)."""
    free = [p for p in range(9) if first.at(p) is None]
    event = rng.choices(CHANGES, (0.2, 0.16, 0.16, 0.16, 0.14, 0.14, 0.04))[0]
    if event == "gone" and len(first.things) == 1:
        event = "colour"
    old = rng.choice(first.things)
    if event == "same":
        return event, first, old, old
    if event == "new":
        new = world.random_thing(rng, rng.choice(free))
        things = (*first.things, new)
        return event, replace(first, things=tuple(sorted(things, key=lambda t: t.place))), new, new
    if event == "gone":
        return event, replace(first, things=tuple(t for t in first.things if t is not old)), old, None
    if event == "colour":
        new = replace(old, colour=rng.choice([c for c in COLOURS if c != old.colour]))
    elif event == "kind":
        new = replace(old, kind=rng.choice([k for k in SHAPES if k != old.kind]))
    elif event == "size":
        other = "small" if old.size == "large" else "large"
        new = replace(old, size=other, radius=rng.uniform(*world.RADIUS[other]))
    else:
        new = replace(old, place=rng.choice(free))
    things = tuple(new if t is old else t for t in first.things)
    return event, replace(first, things=tuple(sorted(things, key=lambda t: t.place))), old, new


def change_sentence(
    rng: random.Random, event: str, first: Scene, second: Scene, old: Thing, new: Thing | None
) -> list[Piece]:
    """One sentence that says what happened to which object, and where."""
    name = phrase(old, article=False, size=False)
    here = where(rng, place(old.place, second if event == "new" else first))
    if event == "same":
        return [pick(rng, "change same"), Word("same"), "."]
    if event == "move":
        assert new is not None
        way = ["From the ", place(old.place, first), " to the ", place(new.place, second)]
        return [*way, ", the ", *name, pick(rng, "change moved"), "."]
    body: dict[str, list[Piece]] = {
        "colour": [pick(rng, "change colour"), Word(new.colour if new else "")],
        "kind": [pick(rng, "change kind"), Word(new.kind if new else "")],
        "size": [" became ", Word("larger" if new and new.size == "large" else "smaller")],
        "new": [" is ", Word("new")],
    }
    rng.choice("ab")  # nothing depends on this draw but the held-out samples, which must stay what they are
    if event == "gone":
        body["gone"] = [pick(rng, "change gone")]
    tail = " in the second picture." if event in ("gone", "new") else "."
    return [*capital(here), ", the ", *name, *body[event], tail]


def walked(first: Scene, last: Scene) -> tuple[list[Piece], tuple[int, ...]]:
    """Every place that holds something in either picture: what the first shows there, what the last shows,
    and how they differ; and those places.

    So every word is one look-up, and the verdict can be read off the words before it: to see at once that
    something differs is not reliable, to name it twice is.
    """
    places = tuple(p for p in range(9) if first.at(p) or last.at(p))
    out: list[Piece] = []
    for i, p in enumerate(places):
        (_, before), (look, after) = shown(first.at(p)), shown(last.at(p))
        out += ["; "] if i else []
        out += [place(p, first, places[i + 1 :]), " ", *before, ", ", Word("then", look), " ", *after, ": "]
        out += _verdict(first.at(p), last.at(p))
    return out, places


def _verdict(before: Thing | None, after: Thing | None) -> list[Piece]:
    """How what is at a place differs: 'same', 'gone', 'new', or what it is now."""
    if before is None or after is None:
        return [Word("new" if before is None else "gone")]
    if before.colour != after.colour:
        return [Word("now"), " ", Word(after.colour)]
    if before.kind != after.kind:
        return [Word("now"), " a ", Word(after.kind)]
    if before.size != after.size:
        return [Word("now"), " ", Word("larger" if after.size == "large" else "smaller")]
    return [Word("same")]


def shown(t: Thing | None) -> tuple[Look, list[Piece]]:
    """What a reader finds, and its words: 'a large red star' or 'nothing'."""
    return look_of(t), [Word("nothing")] if t is None else phrase(t)


def compare(rng: random.Random, n: int) -> Sample:
    """A pair of pictures that differ in one thing, or not at all, and what changed."""
    first = world.random_scene(rng, n)
    event, second, old, new = change(rng, first)
    walk, places = walked(first, second)
    answer: list[Piece] = [pick(rng, "compare walk"), *walk, ". "]
    answer += change_sentence(rng, event, first, second, old, new)
    if event != "same":
        answer += [" ", pick(rng, "compare rest")]
    at = Word("", look_of(old, "place", "colour", "kind") if event != "same" else {}, places)
    turn = Turn("compare", ask(rng, "compare"), answer, (event, old, new), at)
    return Sample((first, second), (turn,))


def describe_both(rng: random.Random, n: int) -> Sample:
    """A pair of unrelated pictures, and what is on both."""
    pair = world.random_scene(rng, rng.randint(1, n)), world.random_scene(rng, rng.randint(1, n))
    answer: list[Piece] = []
    for lead, scene in zip(("The first picture", " The second picture"), pair, strict=True):
        k = len(scene.things)
        answer += [f"{lead} has ", number(k), " object" if k == 1 else " objects", " on a "]
        answer += [Word(scene.ground), " background."]
        for clause in clauses(rng, scene):
            answer += [" ", *clause]
    at = Word("", {"number": len(pair[0].things)}, tuple(t.place for t in pair[0].things))
    return Sample(pair, (Turn("both", ask(rng, "both"), answer, pair, at),))
