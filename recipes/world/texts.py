"""Questions and answers about the pocket world, with what each visual word refers to.

A turn's texts are pieces: plain strings, and `Word`s that the picture decides. A word may carry
`look` (what a reader of the picture finds at it, for pointer supervision) and `rest` (the places
still to be named). The words between are drawn at random, so that an answer has easy and hard
tokens.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.world import scenes as world
from recipes.world.scenes import COLOURS, KINDS, NUMBERS, PLACES, SHAPES, Chart, Scene, Thing

PHRASES: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("phrases.json").read_text("utf-8")
)
"""Ways to say a thing, by its name."""
Look = dict[str, str]  # group -> the word of it that is there
GROUPS: dict[str, tuple[str, ...]] = {
    "kind": ("empty", *KINDS),
    "colour": tuple(COLOURS),
    "size": world.SIZES,
    "ground": tuple(world.GROUNDS),
    "place": PLACES,
    "number": NUMBERS,
}


@dataclass(frozen=True)
class Word:
    """A word decided by the picture, and what it points at."""

    text: str
    look: Look = field(default_factory=dict)
    rest: tuple[int, ...] | None = None


Piece = str | Word


@dataclass(frozen=True)
class Turn:
    """One question and its answer. `look` and `rest` (as in a `Word`) are what the answer needs
    looked up first; `truth` is for scoring.
    """

    kind: str
    question: list[Piece]
    answer: list[Piece]
    truth: Any = None
    look: Look = field(default_factory=dict)
    rest: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Sample:
    """Pictures (scenes in order; a clip is its frames) and the conversation about them."""

    pictures: tuple[Scene | Chart, ...]
    turns: tuple[Turn, ...]


def text_of(pieces: Sequence[Piece]) -> str:
    """The plain text of some pieces."""
    return "".join(p if isinstance(p, str) else p.text for p in pieces)


def look_of(thing: Thing | None, *groups: str) -> Look:
    """What is to be seen at a place: all of it, or only some groups."""
    if thing is None:
        return {"kind": "empty"}
    seen = {**vars(thing), "place": PLACES[thing.place]}
    return {group: seen[group] for group in groups or ("kind", "colour", "size")}


def place(p: int, scene: Scene | None = None, rest: tuple[int, ...] | None = None) -> Word:
    """One of the nine places; it points at what a scene shows there, and at what is still to
    come.
    """
    return Word(PLACES[p], look_of(scene.at(p)) if scene else {}, rest)


def kind(t: Thing, rest: tuple[int, ...] | None = None) -> Word:
    """What an object is; it points at where it is, its colour and its size."""
    return Word(t.kind, look_of(t, "place", "colour", "size"), rest)


def phrase(
    t: Thing, rest: tuple[int, ...] | None = None, article: bool = True, size: bool = True
) -> list[Piece]:
    """'a large red star'."""
    head: list[Piece] = ["a "] if article else []
    if article and not size and t.colour == "orange":
        head = ["an "]
    if size:
        head += [Word(t.size), " "]
    return [*head, Word(t.colour), " ", kind(t, rest)]


def number(n: int) -> Word:
    return Word(NUMBERS[n])


def fill(template: str, **parts: Piece | list[Piece]) -> list[Piece]:
    """Split a template at its {names} and put pieces there."""
    out: list[Piece] = []
    for chunk in template.replace("}", "{").split("{"):
        part = parts.get(chunk, chunk)
        out += part if isinstance(part, list) else [part]
    return [p for p in out if p != ""]


def where(rng: random.Random, w: Word) -> list[Piece]:
    """'at the top left', in one of several wordings."""
    return say(rng, "at the center" if w.text == "center" else "at", p=w)


def capital(pieces: list[Piece]) -> list[Piece]:
    """The pieces as the beginning of a sentence."""
    first = pieces[0]
    assert isinstance(first, str), "a sentence starts with a plain word, not with a visual one"
    return [first[0].upper() + first[1:], *pieces[1:]]


def pick(rng: random.Random, name: str) -> str:
    """One of the phrases of this name."""
    return rng.choice(PHRASES[name])


def say(rng: random.Random, name: str, /, **parts: Piece | list[Piece]) -> list[Piece]:
    """One of the phrases of this name, with its parts filled in."""
    return fill(pick(rng, name), **parts)


def ask(rng: random.Random, name: str, /, **parts: Piece | list[Piece]) -> list[Piece]:
    """A question, now and then in the careless spelling people type."""
    way = pick(rng, name)
    if rng.random() < 0.12:
        way = (way[0].lower() + way[1:]).rstrip("?.")
    if rng.random() < 0.3:
        way = way.replace("colour", "color")
    if rng.random() < 0.3:
        way = way.replace("picture", rng.choice(["image", "image", "photo"]))
    return fill(way, **parts)


def joined(items: list[list[Piece]]) -> list[Piece]:
    """Items as a list in a sentence: commas, then 'and'."""
    out: list[Piece] = []
    for i, item in enumerate(items):
        out += ([] if i == 0 else [" and "] if i == len(items) - 1 else [", "]) + item
    return out


def clauses(rng: random.Random, scene: Scene) -> list[list[Piece]]:
    """One sentence an object, in reading order; place first, so that what follows is a look-up."""
    out = []
    for i, t in enumerate(scene.things):
        left = tuple(o.place for o in scene.things[i + 1 :])
        p, thing, roll = where(rng, place(t.place, scene, left)), phrase(t, left), rng.random()
        if roll < 0.5:
            verb = pick(rng, "clause first")
            out.append([*capital(p), verb, *thing, "."])
        elif roll < 0.75 or i == 0:
            out.append([*capital(p), pick(rng, "clause sits"), *thing, "."])
        else:
            verb = pick(rng, "clause comes")
            out.append([pick(rng, "clause next"), *p, ",", verb, *thing, "."])
    return out


def describe(rng: random.Random, scene: Scene) -> Turn:
    """The whole picture: how many objects on which ground, then one sentence an object."""
    n, places = len(scene.things), tuple(t.place for t in scene.things)
    things = [number(n), " object" if n == 1 else " objects"]
    answer = say(rng, "describe opening", n=things, g=Word(scene.ground))
    for clause in clauses(rng, scene):
        answer += [" ", *clause]
    look = {"number": NUMBERS[n], "ground": scene.ground}
    return Turn("describe", ask(rng, "describe"), answer, scene, look, places)


def unique(scene: Scene, rng: random.Random, *fields: str) -> Thing | None:
    """Return an object whose values of these fields no other one has; None if there is none."""

    def key(t: Thing) -> tuple:
        return tuple(getattr(t, f) for f in fields)

    alone = [t for t in scene.things if sum(key(o) == key(t) for o in scene.things) == 1]
    return rng.choice(alone) if alone else None


def ask_where(rng: random.Random, scene: Scene) -> Turn | None:
    """The place of an object named by colour and kind; None where no name is unique."""
    t = unique(scene, rng, "colour", "kind")
    if t is None:
        return None
    name: list[Piece] = [t.colour, " ", Word(t.kind, look_of(t, "place", "size"))]
    tail, verb = say(rng, "where size", s=Word(t.size)), pick(rng, "where verb")
    answer = ["The ", t.colour, " ", t.kind, verb, *where(rng, place(t.place, scene)), ". ", *tail]
    return Turn("where", ask(rng, "where", n=name), answer, t.place, look_of(t, "place", "size"))


def ask_what(rng: random.Random, scene: Scene) -> Turn:
    """What is at a place, now and then an empty one."""
    taken = [t.place for t in scene.things]
    free = [p for p in range(9) if p not in taken]
    p = rng.choice(free) if free and rng.random() < 0.15 else rng.choice(taken)
    t = scene.at(p)
    if t is None:
        answer = say(rng, "what nothing", n=Word("nothing"), e=Word("empty"), p=PLACES[p])
    else:
        answer = [*say(rng, "what thing", p=PLACES[p]), *phrase(t), "."]
    return Turn("what", ask(rng, "what", p=place(p, scene)), answer, t, look_of(t))


def ask_colour(rng: random.Random, scene: Scene) -> Turn | None:
    """The colour of an object named by its kind; None where no kind is unique."""
    t = unique(scene, rng, "kind")
    if t is None:
        return None
    answer = [*say(rng, "colour is", k=t.kind), Word(t.colour), ". ", pick(rng, "colour place")]
    answer += [*where(rng, place(t.place, scene)), ", and it is ", Word(t.size), "."]
    look = look_of(t, "place", "colour", "size")
    return Turn("colour", ask(rng, "colour", k=Word(t.kind, look)), answer, t.colour, look)


def matches(rng: random.Random, scene: Scene) -> tuple[str, str, list[Thing]]:
    """What to count: (attribute, value, the objects that have it)."""
    attribute = rng.choice(["colour", "kind"])
    value = getattr(rng.choice(scene.things), attribute)
    if rng.random() < 0.12:
        value = rng.choice(list(COLOURS) if attribute == "colour" else SHAPES)
    return attribute, value, [t for t in scene.things if getattr(t, attribute) == value]


def ask_count(rng: random.Random, scene: Scene) -> Turn:
    """How many objects have a colour or a kind, or how many there are; counted aloud."""
    attribute, value, hits = matches(rng, scene)
    name = value
    if rng.random() < 0.14:
        attribute, value, hits, name = "all", "", list(scene.things), "object"
    elif attribute == "colour":
        name = value + " object"
    n = len(hits)
    target = Word(value or "objects")
    named = {"colour": [" objects"], "kind": [" shapes"], "all": []}
    plural: list[Piece] = [target, *named[attribute]]
    # What is counted is next to what is checked.
    answer = say(rng, "count aloud", v=Word(value or "all"))
    answer += joined(_checked(scene, attribute, hits))
    answer += say(rng, "count some" if n else "count none", n=number(n), name=name)
    places = tuple(t.place for t in scene.things)
    return Turn("count", ask(rng, "count", n=plural), answer, n, rest=places)


def _checked(scene: Scene, attribute: str, hits: Sequence[Thing]) -> list[list[Piece]]:
    """Every object with what decides whether it counts, and the count so far: each step is one
    look-up, where finding all that match at once is not.
    """
    items: list[list[Piece]] = []
    so_far = 0
    for i, t in enumerate(scene.things):
        left = tuple(o.place for o in scene.things[i + 1 :])
        so_far += t in hits
        item: list[Piece] = [place(t.place, scene, left)]
        if attribute != "all":
            now = {"number": NUMBERS[so_far if t in hits else 0]}
            item += [" ", Word(getattr(t, attribute), now)]
        items.append([*item, " ", Word("is"), " ", number(so_far)] if t in hits else item)
    return items


def ask_ground(rng: random.Random, scene: Scene) -> Turn:
    """The colour of the background."""
    answer = say(rng, "ground is", g=Word(scene.ground))
    return Turn("ground", ask(rng, "ground"), answer, scene.ground, {"ground": scene.ground})


QUESTIONS: tuple[tuple[Callable[[random.Random, Scene], Turn | None], float], ...] = (
    (ask_where, 0.15),
    (ask_what, 0.18),
    (ask_colour, 0.12),
    (ask_count, 0.60),
    (ask_ground, 0.04),
)


# ---------------------------------------------------------------- bar charts


def read_chart(rng: random.Random, chart: Chart) -> Turn:
    """Every bar with its colour and value, from left to right."""
    n, values = len(chart.bars), [v for _, v in chart.bars]
    # What comes next is known at the word before it.
    nexts = [{"colour": c, "number": NUMBERS[v]} for c, v in chart.bars]
    many = "bar" if n == 1 else "bars"
    answer = say(rng, "chart opening", n=Word(NUMBERS[n], nexts[0]), b=many)
    for (colour, value), ahead in zip(chart.bars, [*nexts[1:], {}], strict=True):
        bar = Word(colour, {"number": NUMBERS[value]})
        answer += [" ", *say(rng, "chart bar", c=bar, v=Word(NUMBERS[value], ahead))]
    if values.count(max(values)) == 1 and n > 1:
        top = Word(chart.bars[values.index(max(values))][0])
        answer += [" ", *say(rng, "chart top", c=top)]
    look = {"number": NUMBERS[n], "colour": chart.bars[0][0]}
    return Turn("chart", ask(rng, "chart"), answer, chart.bars, look)


def ask_chart(rng: random.Random, chart: Chart) -> Turn:
    """One question about a chart: a bar's value, the highest, or how many."""
    values = [v for _, v in chart.bars]
    colour, value = rng.choice(chart.bars)
    roll = rng.random()
    if roll < 0.55:
        answer = say(rng, "bar is", c=colour, v=number(value))
        look = {"number": NUMBERS[value]}
        return Turn("bar", ask(rng, "bar", c=Word(colour, look)), answer, value, look)
    if roll < 0.85 and values.count(max(values)) == 1:
        best, high = chart.bars[values.index(max(values))]
        answer = say(rng, "highest is", c=Word(best), v=number(high))
        look = {"number": NUMBERS[high], "colour": best}
        return Turn("highest", ask(rng, "highest"), answer, best, look)
    n = len(values)
    answer = say(rng, "bars are", n=number(n))
    return Turn("bars", ask(rng, "bars"), answer, n, {"number": NUMBERS[n]})
