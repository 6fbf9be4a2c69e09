"""Questions and answers about the pocket world, with what each visual word refers to.

A turn's texts are pieces: plain strings, and `Word`s that the picture decides. A word may carry `look`
(what a reader of the picture finds at it, for pointer supervision) and `rest` (the places still to be
named). The words between are drawn at random, so that an answer has easy and hard tokens. Knows scenes and
words; no tokens, no models.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specvl_demo.training import scenes as world
from specvl_demo.training.scenes import COLOURS, KINDS, NUMBERS, PLACES, SHAPES, Chart, Clip, Scene, Thing

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
    return Word(PLACES[p], look_of(scene.at(p)) if scene else {}, rest)


def kind(t: Thing, rest: tuple[int, ...] | None = None) -> Word:
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
    ways = (
        ["in the {p}", "at the {p}"] if w.text == "center" else ["at the {p}", "in the {p}", "near the {p}"]
    )
    return fill(rng.choice(ways), p=w)


def capital(pieces: list[Piece]) -> list[Piece]:
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
    out: list[Piece] = []
    for i, item in enumerate(items):
        out += ([] if i == 0 else [" and "] if i == len(items) - 1 else [", "]) + item
    return out


# ---------------------------------------------------------------- one scene

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
    def key(t: Thing) -> tuple:
        return tuple(getattr(t, f) for f in fields)

    alone = [t for t in scene.things if sum(key(o) == key(t) for o in scene.things) == 1]
    return rng.choice(alone) if alone else None


def ask_where(rng: random.Random, scene: Scene) -> Turn | None:
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
    attribute, value, hits = matches(rng, scene)
    name = value
    if rng.random() < 0.14:
        attribute, value, hits, name = "all", "", list(scene.things), "object"
    elif attribute == "colour":
        name = value + " object"
    places, n = tuple(t.place for t in hits), len(hits)
    target = Word(value or "objects", {"number": n}, places)
    plural: list[Piece] = (
        [target] if attribute == "all" else [target, " objects" if attribute == "colour" else " shapes"]
    )
    ways = (
        "How many {n} are there?",
        "Count the {n}.",
        "How many {n} do you see?",
        "What is the number of {n}?",
    )
    question, at = ask(rng, ways, n=plural), Word("", {"number": n}, places)
    if n == 0:
        body = rng.choice(
            [
                f"I looked at every object, but there is {{z}} {name} in the picture.",
                f"After checking the whole picture, I can say there is {{z}} {name}.",
            ]
        )
        return Turn("count", question, fill(body, z=Word("no")), 0, at)
    lead = rng.choice(["Let me check them one by one: ", "I will go through the picture: ", "I can see "])
    answer: list[Piece] = [lead]
    items: list[list[Piece]] = []
    for i, t in enumerate(hits):
        items.append([number(i + 1), " ", *where(rng, place(t.place, scene, places[i + 1 :]))])
    answer += joined(items)
    answer += fill(
        rng.choice([". So the answer is {n}.", ". That makes {n} in total.", ". In total there are {n}."]),
        n=number(n),
    )
    return Turn("count", question, answer, n, at)


def ask_ground(rng: random.Random, scene: Scene) -> Turn:
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
    (ask_where, 0.23),
    (ask_what, 0.20),
    (ask_colour, 0.19),
    (ask_count, 0.40),
    (ask_ground, 0.06),
)

# ---------------------------------------------------------------- charts


def read_chart(rng: random.Random, chart: Chart) -> Turn:
    n, values = len(chart.bars), [v for _, v in chart.bars]
    ways = (
        *(
            "Read the bar chart.",
            "What does the chart show?",
            "What are the values in the chart?",
            "Describe the chart.",
        ),
        *(
            "Describe the picture.",
            "What do you see?",
            "What are the values of the bars?",
            "Describe this picture in detail.",
        ),
    )
    opening = rng.choice(
        [
            "This is a bar chart with {n} {b}.",
            "The chart has {n} {b}.",
            "The picture shows a chart with {n} {b}.",
        ]
    )
    answer = fill(opening, n=number(n), b="bar" if n == 1 else "bars")
    for colour, value in chart.bars:
        form = rng.choice(
            ["The {c} bar reaches {v}.", "The {c} bar has a value of {v}.", "The {c} bar stands at {v}."]
        )
        answer += [" ", *fill(form, c=Word(colour, {"number": value}), v=number(value))]
    if values.count(max(values)) == 1 and n > 1:
        top = Word(chart.bars[values.index(max(values))][0])
        answer += [" ", *fill(rng.choice(["The highest bar is {c}.", "So {c} is the tallest bar."]), c=top)]
    return Turn("chart", ask(rng, ways), answer, chart.bars, Word("", {"number": n}))


def ask_chart(rng: random.Random, chart: Chart) -> Turn:
    values = [v for _, v in chart.bars]
    colour, value = rng.choice(chart.bars)
    roll = rng.random()
    if roll < 0.55:
        ways = (
            "What is the value of the {c} bar?",
            "How high is the {c} bar?",
            "What does the {c} bar show?",
            "Which value has the {c} bar?",
        )
        body = rng.choice(
            ["The {c} bar reaches {v}.", "The {c} bar has a value of {v}.", "It stands at {v}."]
        )
        look = {"number": value}
        return Turn(
            "bar",
            ask(rng, ways, c=Word(colour, look)),
            fill(body, c=colour, v=number(value)),
            value,
            Word("", look),
        )
    if roll < 0.85 and values.count(max(values)) == 1:
        best = chart.bars[values.index(max(values))]
        ways = (
            "Which bar is the highest?",
            "What is the tallest bar?",
            "Which colour has the largest value?",
        )
        body = rng.choice(
            ["The highest bar is the {c} one, with a value of {v}.", "It is the {c} bar, which reaches {v}."]
        )
        at = Word("", {"number": best[1], "colour": list(COLOURS).index(best[0])})
        return Turn("highest", ask(rng, ways), fill(body, c=Word(best[0]), v=number(best[1])), best[0], at)
    ways = ("How many bars are there?", "How many bars does the chart have?", "Count the bars.")
    body = rng.choice(["There are {n} bars in the chart.", "The chart has {n} bars."])
    return Turn(
        "bars",
        ask(rng, ways),
        fill(body, n=number(len(values))),
        len(values),
        Word("", {"number": len(values)}),
    )


# ---------------------------------------------------------------- pairs of pictures

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


def compare(rng: random.Random, n: int) -> Sample:
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
    answer: list[Piece] = [
        rng.choice(
            [
                "The two pictures are almost the same. ",
                "Let me compare the two pictures. ",
                "I compared both pictures carefully. ",
            ]
        )
    ]
    if event == "same":
        answer = ["Let me compare the two pictures. "]
    answer += change_sentence(rng, event, first, second, old, new)
    if event != "same":
        answer += [
            " ",
            rng.choice(
                [
                    "Everything else stayed the same.",
                    "The rest did not change.",
                    "All other objects are unchanged.",
                ]
            ),
        ]
    places = () if event == "same" else tuple({old.place, new.place if new else old.place})
    at = Word("", look_of(old, "place", "colour", "kind") if event != "same" else {}, places)
    turn = Turn("compare", ask(rng, ways), answer, (event, old, new), at)
    return Sample((first, second), (turn,))


def describe_both(rng: random.Random, n: int) -> Sample:
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


# ---------------------------------------------------------------- clips

CLIP_EVENTS = ("move", "colour", "gone", "appear", "grow")
N_FRAMES = 4


def random_clip(rng: random.Random, bystander: bool) -> Clip:
    """Four frames in which one thing happens to one object; perhaps another one rests."""
    event = rng.choices(CLIP_EVENTS, (0.4, 0.15, 0.15, 0.15, 0.15))[0]
    ground, steps = rng.choice(list(world.GROUNDS)), N_FRAMES - 1
    start, detail, used = rng.randrange(9), {}, set()
    if event == "move":
        axis, a, line = rng.choice("hvd"), rng.choice([0, 2]), rng.randrange(3)
        b = 2 - a
        end_row = rng.choice([0, 2])
        start, end = {"h": (line * 3 + a, line * 3 + b), "v": (a * 3 + line, b * 3 + line)}.get(
            axis, (a * 3 + end_row, b * 3 + 2 - end_row)
        )
        used = {start, end, (start + end) // 2}
        detail = {"to": end, "path": {"h": "horizontal", "v": "vertical", "d": "diagonal"}[axis]}
    actor = world.random_thing(rng, start)
    when = rng.randint(1, steps)
    if event == "colour":
        detail = {"colour": rng.choice([c for c in COLOURS if c != actor.colour]), "frame": when}
    elif event in ("gone", "appear"):
        detail = {"frame": when}
    elif event == "grow":
        detail = {"to": "larger" if actor.size == "small" else "smaller"}
    rest = ()
    if bystander:
        p = rng.choice([p for p in range(9) if p not in used | {start}])
        other = world.random_thing(rng, p)
        rest = (other,) if other.name != actor.name else ()
    frames = []
    for i in range(N_FRAMES):
        u, now = i / steps, actor
        if event == "move":
            now = _slide(actor, detail["to"], u)
        elif event == "colour" and i >= when:
            now = replace(actor, colour=detail["colour"])
        elif event == "grow":
            goal = sum(world.RADIUS["large" if actor.size == "small" else "small"]) / 2
            now = replace(actor, radius=actor.radius + (goal - actor.radius) * u)
        shown = not (event == "gone" and i >= when) and not (event == "appear" and i < when)
        things = sorted((*rest, *((now,) if shown else ())), key=lambda t: t.place)
        frames.append(Scene(tuple(things), ground))
    return Clip(tuple(frames), event, actor, detail | {"rest": rest})


def _slide(actor: Thing, end: int, u: float) -> Thing:
    """The actor a share `u` of its way along; its place is the cell it is in by then."""
    x = actor.place % 3 + (end % 3 - actor.place % 3) * u
    y = actor.place // 3 + (end // 3 - actor.place // 3) * u
    cell = round(x) + 3 * round(y)
    return replace(actor, place=cell, dx=actor.dx + (x - round(x)) / 3, dy=actor.dy + (y - round(y)) / 3)


def ask_clip(rng: random.Random, clip: Clip) -> Turn:
    a, d = clip.actor, clip.detail
    start = clip.frames[0]
    ways = (
        *(
            "What happens in the clip?",
            "Describe the video.",
            "What is going on in this clip?",
            "What happens in the video?",
        ),
        *(
            "Describe the clip.",
            "What happens?",
            "Describe what happens in this video.",
            "What do you see in the video?",
        ),
    )
    opening = rng.choice(
        ["The clip shows ", "In this clip we see ", "The video begins with ", "At first I see "]
    )
    intro = [opening, *phrase(a), " ", *where(rng, place(a.place, start)), ". "]
    it = rng.choice(["It ", "The object "])
    if clip.event == "move":
        going = rng.choice(["moves", "travels", "slides", "glides"]) + rng.choice(
            [" steadily", "", " slowly"]
        )
        answer = [*intro, it + going + " toward the ", place(d["to"], clip.frames[-1])]
        answer += fill(
            rng.choice([". The path is {p}.", ". So the motion is {p}.", ". That is {p} motion."]),
            p=Word(d["path"]),
        )
    elif clip.event == "colour":
        turn = rng.choice(["it turns ", "its colour changes to ", "it becomes "])
        answer = [
            *intro,
            it + "stays in place, but " + turn,
            Word(d["colour"]),
            " in frame ",
            number(d["frame"] + 1),
            ".",
        ]
    elif clip.event == "gone":
        verb = rng.choice(["disappears", "vanishes", "is gone"])
        answer = [*intro, it, Word(verb), " in frame ", number(d["frame"] + 1), "."]
    elif clip.event == "appear":
        lead = rng.choice(["At the start the spot is empty. Then ", "Nothing is there at first. Then "])
        end = where(rng, place(a.place, clip.frames[-1]))
        answer = [
            lead,
            *phrase(a),
            rng.choice([" appears ", " shows up "]),
            *end,
            " in frame ",
            number(d["frame"] + 1),
            ".",
        ]
    else:
        verb = "grows" if d["to"] == "larger" else "shrinks"
        answer = [
            *intro,
            it + "stays in place, but it ",
            Word(verb),
            rng.choice([" over time.", " from frame to frame."]),
        ]
    for t in d["rest"]:
        lead = rng.choice(["Meanwhile, ", "At the same time, ", "During the whole clip, "])
        answer += [
            " ",
            lead,
            *where(rng, place(t.place, start)),
            ", ",
            *phrase(t),
            rng.choice([" stays.", " rests.", " remains."]),
        ]
    if not d["rest"]:
        body = rng.choice(["The background is {g}.", "All of this happens on a {g} background."])
        answer += [" ", *fill(body, g=Word(start.ground))]
    look = look_of(a, "kind", "colour", "place")
    return Turn("clip", ask(rng, ways), answer, clip, Word("", look, (a.place,)))
