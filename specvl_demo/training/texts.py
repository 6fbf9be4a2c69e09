"""Questions and answers about the pocket world, with what each visual word refers to.

A turn's texts are pieces: plain strings, and `Word`s that the picture decides. A word may carry `look`
(what a reader of the picture finds at it, for pointer supervision) and `rest` (the places still to be
named). The words between are drawn at random, so that an answer has easy and hard tokens. Knows scenes and
words; no tokens, no models.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specvl_demo.training import scenes as world
from specvl_demo.training.scenes import COLOURS, KINDS, NUMBERS, PLACES, SHAPES, Chart, Scene, Thing

Look = dict[str, int]  # group -> index of the word that is there
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
    """One question and its answer. `at` is what the answer needs looked up first; `truth` is for scoring."""

    kind: str
    question: list[Piece]
    answer: list[Piece]
    truth: Any
    at: Word = Word("")


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
        return {"kind": 0}
    all_of = {
        "kind": 1 + KINDS.index(thing.kind),
        "colour": list(COLOURS).index(thing.colour),
        "size": world.SIZES.index(thing.size),
        "place": thing.place,
    }
    return {g: all_of[g] for g in groups or ("kind", "colour", "size")}


def place(p: int, scene: Scene | None = None, rest: tuple[int, ...] | None = None) -> Word:
    """One of the nine places; it points at what a scene shows there, and at what is still to come."""
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
    """A number as a word."""
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
    ways = (
        ["in the {p}", "at the {p}"] if w.text == "center" else ["at the {p}", "in the {p}", "near the {p}"]
    )
    return fill(rng.choice(ways), p=w)


def capital(pieces: list[Piece]) -> list[Piece]:
    """The pieces as the beginning of a sentence."""
    first = pieces[0]
    assert isinstance(first, str), (
        "a sentence starts with a plain word: visual words are single tokens in lower case"
    )
    return [first[0].upper() + first[1:], *pieces[1:]]


def ask(rng: random.Random, ways: Sequence[str], **parts: Piece | list[Piece]) -> list[Piece]:
    """A question, now and then in the careless spelling people type."""
    way = rng.choice(ways)
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


DESCRIBE = (
    *(
        "Describe the picture.",
        "Describe this picture.",
        "Describe the picture in detail.",
        "What do you see?",
    ),
    *("What is in the picture?", "Tell me about this picture.", "What is shown in this picture?"),
    *("What does the picture show?", "Please describe what you see.", "Can you describe this picture?"),
    *(
        "Give a description of the picture.",
        "What can you see in this picture?",
        "Describe everything in the picture.",
    ),
    *("List all objects in the picture.", "Which objects are in the picture?", "Describe the scene."),
)


def clauses(rng: random.Random, scene: Scene) -> list[list[Piece]]:
    """One sentence an object, in reading order; place first, so that what follows is a look-up."""
    out = []
    for i, t in enumerate(scene.things):
        left = tuple(o.place for o in scene.things[i + 1 :])
        p, thing, roll = where(rng, place(t.place, scene, left)), phrase(t, left), rng.random()
        if roll < 0.5:
            verb = rng.choice([", there is ", ", you can see ", ", I see ", ", we find "])
            out.append([*capital(p), verb, *thing, "."])
        elif roll < 0.75 or i == 0:
            out.append([*capital(p), rng.choice([" sits ", " lies ", " is placed "]), *thing, "."])
        else:
            verb = rng.choice([" comes ", " there is ", " I see "])
            out.append([rng.choice(["Next, ", "Then, "]), *p, ",", verb, *thing, "."])
    return out


def describe(rng: random.Random, scene: Scene) -> Turn:
    """The whole picture: how many objects on which ground, then one sentence an object."""
    n, places = len(scene.things), tuple(t.place for t in scene.things)
    things = [number(n), " object" if n == 1 else " objects"]
    opening = fill(
        rng.choice(
            [
                *(
                    "This picture contains {n} on a {g} background.",
                    "The image shows {n} on a {g} background.",
                ),
                *("Here we have {n} on a {g} background.", "I can see {n} on a {g} background."),
            ]
        ),
        n=things,
        g=Word(scene.ground),
    )
    answer = list(opening)
    for clause in clauses(rng, scene):
        answer += [" ", *clause]
    at = Word("", {"number": n, "ground": list(world.GROUNDS).index(scene.ground)}, places)
    return Turn("describe", ask(rng, DESCRIBE), answer, scene, at)


def unique(scene: Scene, rng: random.Random, *fields: str) -> Thing | None:
    """An object that no other one equals in these fields; None where there is none."""

    def key(t: Thing) -> tuple:
        return tuple(getattr(t, f) for f in fields)

    alone = [t for t in scene.things if sum(key(o) == key(t) for o in scene.things) == 1]
    return rng.choice(alone) if alone else None


def ask_where(rng: random.Random, scene: Scene) -> Turn | None:
    """The place of an object named by colour and kind; None where no name is unique."""
    t = unique(scene, rng, "colour", "kind")
    if t is None:
        return None
    name = [t.colour, " ", Word(t.kind, look_of(t, "place", "size"))]
    ways = (
        *(
            "Where is the {n}?",
            "Can you find the {n}?",
            "Tell me where the {n} is.",
            "At which place is the {n}?",
        ),
        *("Where in the picture is the {n}?", "Where can I find the {n}?"),
    )
    tail = fill(rng.choice(["It is {s} in size.", "It looks {s}.", "Its size is {s}."]), s=Word(t.size))
    verb = rng.choice([" is ", " can be found ", " is located ", " sits "])
    answer = ["The ", t.colour, " ", t.kind, verb, *where(rng, place(t.place, scene)), ". ", *tail]
    return Turn("where", ask(rng, ways, n=name), answer, t.place, Word("", look_of(t, "place", "size")))


def ask_what(rng: random.Random, scene: Scene) -> Turn:
    """What is at a place, now and then an empty one."""
    taken = [t.place for t in scene.things]
    free = [p for p in range(9) if p not in taken]
    p = rng.choice(free) if free and rng.random() < 0.15 else rng.choice(taken)
    t = scene.at(p)
    ways = (
        *("What is at the {p}?", "Which object is at the {p}?", "What do you see at the {p}?"),
        *("What is in the {p}?", "Which object is in the {p} of the picture?"),
    )
    if t is None:
        body = rng.choice(["There is {n} at the {p}.", "The {p} is {e}."])
        answer = fill(body, n=Word("nothing"), e=Word("empty"), p=PLACES[p])
    else:
        lead = rng.choice(
            [["At the ", PLACES[p], " there is "], ["The object at the ", PLACES[p], " is "], ["That is "]]
        )
        answer = [*lead, *phrase(t), "."]
    return Turn("what", ask(rng, ways, p=place(p, scene)), answer, t, Word("", look_of(t)))


def ask_colour(rng: random.Random, scene: Scene) -> Turn | None:
    """The colour of an object named by its kind; None where no kind is unique."""
    t = unique(scene, rng, "kind")
    if t is None:
        return None
    ways = (
        *("What colour is the {k}?", "Which colour does the {k} have?", "Tell me the colour of the {k}."),
        *("What is the colour of the {k}?", "Which colour is the {k}?"),
    )
    lead = rng.choice(["The {k} is ", "I think the {k} is ", "The colour of the {k} is "]).replace(
        "{k}", t.kind
    )
    answer = [lead, Word(t.colour), ". ", rng.choice(["You can find it ", "It sits "])]
    answer += [*where(rng, place(t.place, scene)), ", and it is ", Word(t.size), "."]
    question = ask(rng, ways, k=Word(t.kind, look_of(t, "place", "colour", "size")))
    return Turn("colour", question, answer, t.colour, Word("", look_of(t, "place", "colour", "size")))


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
    plural: list[Piece] = (
        [target] if attribute == "all" else [target, " objects" if attribute == "colour" else " shapes"]
    )
    ways = (
        "How many {n} are there?",
        "Count the {n}.",
        "How many {n} do you see?",
        "What is the number of {n}?",
    )
    leads = ("I look for {v}, one by one: ", "I go through the picture for {v}: ", "Let me check for {v}: ")
    answer = fill(rng.choice(leads), v=Word(value or "all"))  # what is counted stands beside what is checked
    answer += joined(_checked(scene, attribute, hits))
    ends = [". So the answer is {n}.", ". That makes {n} in total.", ". In total there are {n}."]
    if n == 0:
        ends = [f". So there is {{n}} {name}.", f". That means there is {{n}} {name}."]
    answer += fill(rng.choice(ends), n=number(n))
    at = Word("", {}, tuple(t.place for t in scene.things))
    return Turn("count", ask(rng, ways, n=plural), answer, n, at)


def _checked(scene: Scene, attribute: str, hits: Sequence[Thing]) -> list[list[Piece]]:
    """Every object with what decides whether it counts, and the count so far: each step is one look-up, where
    finding all that match at once is not.
    """
    items: list[list[Piece]] = []
    so_far = 0
    for i, t in enumerate(scene.things):
        left = tuple(o.place for o in scene.things[i + 1 :])
        so_far += t in hits
        item: list[Piece] = [place(t.place, scene, left)]
        if attribute != "all":
            item += [" ", Word(getattr(t, attribute), {"number": so_far if t in hits else 0})]
        items.append([*item, " ", Word("is"), " ", number(so_far)] if t in hits else item)
    return items


def ask_ground(rng: random.Random, scene: Scene) -> Turn:
    """The colour of the background."""
    ways = (
        "What colour is the background?",
        "Which background does the picture have?",
        "What is the background colour?",
    )
    look = {"ground": list(world.GROUNDS).index(scene.ground)}
    answer = fill(
        rng.choice(["The background is {g}.", "It is {g}.", "The background of the picture is {g}."]),
        g=Word(scene.ground),
    )
    return Turn("ground", ask(rng, ways), answer, scene.ground, Word("", look))


QUESTIONS: tuple[tuple[Callable[[random.Random, Scene], Turn | None], float], ...] = (
    (ask_where, 0.15),
    (ask_what, 0.18),
    (ask_colour, 0.12),
    (ask_count, 0.60),
    (ask_ground, 0.04),
)
