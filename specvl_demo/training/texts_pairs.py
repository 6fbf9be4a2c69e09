"""Two pictures: what changed from one to the other, and what is on both. Given scenes; knows no pixels."""

from __future__ import annotations

import random
from dataclasses import replace

from specvl_demo.training import scenes as world
from specvl_demo.training.scenes import COLOURS, SHAPES, Scene, Thing
from specvl_demo.training.texts import (
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
        return [
            rng.choice(["Nothing changed, they are the ", "I find no change: both are the "]),
            Word("same"),
            ".",
        ]
    if event == "move":
        verb = rng.choice([" moved", " jumped", " was moved"])
        return [
            "From the ",
            place(old.place, first),
            " to the ",
            place(new.place, second),
            ", the ",
            *name,
            verb,
            ".",
        ]
    body: dict[str, list[Piece]] = {
        "colour": [rng.choice([" turned ", " became ", " changed to "]), Word(new.colour if new else "")],
        "kind": [rng.choice([" turned into a ", " became a "]), Word(new.kind if new else "")],
        "size": [" became ", Word("larger" if new and new.size == "large" else "smaller")],
        "gone": [rng.choice([" is ", " has "]), Word("gone")],
        "new": [" is ", Word("new")],
    }
    if event == "gone":
        body["gone"] = [rng.choice([" is gone", " has disappeared", " is missing"])]
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
    ways = (
        *("What is different between the two pictures?", "Compare the two pictures.", "What changed?"),
        *(
            "What is the difference between the pictures?",
            "What changed between the first and the second picture?",
        ),
        *("Compare both pictures.", "Find the difference.", "How do the two pictures differ?"),
    )
    walk, places = walked(first, second)
    leads = ("Let me compare the two pictures: ", "I compare both pictures: ", "Place by place: ")
    answer: list[Piece] = [rng.choice(leads), *walk, ". "]
    answer += change_sentence(rng, event, first, second, old, new)
    if event != "same":
        ends = ("Everything else stayed the same.", "The rest did not change.", "The others are unchanged.")
        answer += [" ", rng.choice(ends)]
    at = Word("", look_of(old, "place", "colour", "kind") if event != "same" else {}, places)
    turn = Turn("compare", ask(rng, ways), answer, (event, old, new), at)
    return Sample((first, second), (turn,))


def describe_both(rng: random.Random, n: int) -> Sample:
    """A pair of unrelated pictures, and what is on both."""
    pair = world.random_scene(rng, rng.randint(1, n)), world.random_scene(rng, rng.randint(1, n))
    answer: list[Piece] = []
    for lead, scene in zip(("The first picture", " The second picture"), pair, strict=True):
        k = len(scene.things)
        answer += [
            f"{lead} has ",
            number(k),
            " object" if k == 1 else " objects",
            " on a ",
            Word(scene.ground),
            " background.",
        ]
        for clause in clauses(rng, scene):
            answer += [" ", *clause]
    ways = (
        "Describe both pictures.",
        "Describe the two pictures.",
        "What do the two pictures show?",
        "What is in the pictures?",
    )
    at = Word("", {"number": len(pair[0].things)}, tuple(t.place for t in pair[0].things))
    return Sample(pair, (Turn("both", ask(rng, ways), answer, pair, at),))
