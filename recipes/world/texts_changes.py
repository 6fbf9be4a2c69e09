"""What changes between pictures: pairs, and clips of four frames in which one thing happens to one
object.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from recipes.world import scenes as world
from recipes.world.scenes import COLOURS, NUMBERS, SHAPES, Clip, Scene, Thing
from recipes.world.texts import (
    Look,
    Piece,
    Sample,
    Turn,
    Word,
    ask,
    capital,
    clauses,
    joined,
    look_of,
    number,
    phrase,
    pick,
    place,
    say,
    where,
)

CHANGES = ("colour", "kind", "size", "move", "gone", "new", "same")
CLIP_EVENTS = ("move", "colour", "gone", "appear", "grow")
N_FRAMES = 4


def change(rng: random.Random, first: Scene) -> tuple[str, Scene, Thing, Thing | None]:
    """Change one thing: (event, second scene, the thing before or new, the thing after)."""
    free = [p for p in range(9) if first.at(p) is None]
    event = rng.choices(CHANGES, (0.2, 0.16, 0.16, 0.16, 0.14, 0.14, 0.04))[0]
    if event == "gone" and len(first.things) == 1:
        event = "colour"
    old = rng.choice(first.things)
    if event == "same":
        return event, first, old, old
    rest = [t for t in first.things if t is not old]
    new: Thing | None = None
    if event == "new":
        rest = [*first.things]
        old = new = world.random_thing(rng, rng.choice(free))
    elif event == "colour":
        new = replace(old, colour=rng.choice([c for c in COLOURS if c != old.colour]))
    elif event == "kind":
        new = replace(old, kind=rng.choice([k for k in SHAPES if k != old.kind]))
    elif event == "size":
        other = "small" if old.size == "large" else "large"
        new = replace(old, size=other, radius=rng.uniform(*world.RADIUS[other]))
    elif event == "move":
        new = replace(old, place=rng.choice(free))
    return event, replace(first, things=world.arranged([*rest, *([new] if new else [])])), old, new


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
        ends = place(old.place, first), place(new.place, second)
        way: list[Piece] = ["From the ", ends[0], " to the ", ends[1]]
        return [*way, ", the ", *name, pick(rng, "change moved"), "."]
    body: dict[str, list[Piece]] = {
        "colour": [pick(rng, "change colour"), Word(new.colour if new else "")],
        "kind": [pick(rng, "change kind"), Word(new.kind if new else "")],
        "size": [" became ", Word("larger" if new and new.size == "large" else "smaller")],
        "new": [" is ", Word("new")],
    }
    # Nothing depends on this draw but the held-out samples, which must stay what they are.
    rng.choice("ab")
    if event == "gone":
        body["gone"] = [pick(rng, "change gone")]
    tail = " in the second picture." if event in ("gone", "new") else "."
    return [*capital(here), ", the ", *name, *body[event], tail]


def walked(first: Scene, last: Scene) -> tuple[list[Piece], tuple[int, ...]]:
    """Return every place that has something in either picture: what the first shows there, what the
    last shows, and how they differ; and those places.

    So every word is one look-up, and the verdict can be read from the words before it: seeing at
    once that something differs is not reliable, naming it twice is.
    """
    places = tuple(p for p in range(9) if first.at(p) or last.at(p))
    out: list[Piece] = []
    for i, p in enumerate(places):
        (_, before), (look, after) = shown(first.at(p)), shown(last.at(p))
        out += ["; "] if i else []
        out += [place(p, first, places[i + 1 :]), " ", *before, ", "]
        out += [Word("then", look), " ", *after, ": "]
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
    look = look_of(old, "place", "colour", "kind") if event != "same" else {}
    turn = Turn("compare", ask(rng, "compare"), answer, (event, old, new), look, places)
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
    places = tuple(t.place for t in pair[0].things)
    look = {"number": NUMBERS[len(places)]}
    return Sample(pair, (Turn("both", ask(rng, "both"), answer, pair, look, places),))


# ---------------------------------------------------------------- clips


def random_clip(rng: random.Random, bystander: bool) -> Clip:
    """Four frames in which one thing happens to one object; perhaps another one rests."""
    event = rng.choices(CLIP_EVENTS, (0.4, 0.15, 0.15, 0.15, 0.15))[0]
    ground, steps = rng.choice(list(world.GROUNDS)), N_FRAMES - 1
    start = rng.randrange(9)
    detail: dict[str, Any] = {}
    used: set[int] = set()
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
    rest: tuple[Thing, ...] = ()
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
            size = "large" if actor.size == "small" else "small"
            assert actor.radius is not None  # as every random thing has
            radius = actor.radius + (sum(world.RADIUS[size]) / 2 - actor.radius) * u
            now = replace(actor, size=actor.size if u < 0.5 else size, radius=radius)
        shown = not (event == "gone" and i >= when) and not (event == "appear" and i < when)
        frames.append(Scene(world.arranged((*rest, *((now,) if shown else ()))), ground))
    return Clip(tuple(frames), event, actor, detail | {"rest": rest})


def _slide(actor: Thing, end: int, u: float) -> Thing:
    """The actor a share `u` of its way along; its place is the cell it is in by then."""
    x = actor.place % 3 + (end % 3 - actor.place % 3) * u
    y = actor.place // 3 + (end // 3 - actor.place // 3) * u
    dx, dy = actor.dx + (x - round(x)) / 3, actor.dy + (y - round(y)) / 3
    return replace(actor, place=round(x) + 3 * round(y), dx=dx, dy=dy)


def frame_by_frame(clip: Clip) -> list[Piece]:
    """The actor as every frame shows it, or nothing: what happens to it can then be read off."""
    items: list[list[Piece]] = []
    for i, scene in enumerate(clip.frames):
        actor = next((t for t in scene.things if t not in clip.detail["rest"]), None)
        look, words = shown(actor)
        here: list[Piece] = [" at the ", place(actor.place, scene)] if actor else []
        look = look_of(actor, "kind", "colour", "size", "place") if actor else look
        lead = f"{'F' if i == 0 else 'f'}rame {NUMBERS[i + 1]} "
        items.append([lead, Word("shows", look), " ", *words, *here])
    return joined(items)


def ask_clip(rng: random.Random, clip: Clip) -> Turn:
    """What happens in a clip: place by place, frame by frame, then in words."""
    a, d = clip.actor, clip.detail
    start = clip.frames[0]
    walk, places = walked(start, clip.frames[-1])
    opening = pick(rng, "clip opening")
    there = clip.frames[-1 if clip.event == "appear" else 0]
    seen = [*phrase(a), " ", *where(rng, place(a.place, there))]
    answer: list[Piece] = [pick(rng, "clip walk"), *walk, ". ", *frame_by_frame(clip), ". "]
    answer += [opening, *seen, ". "]
    it = pick(rng, "clip it")
    if clip.event == "move":
        going = pick(rng, "clip moves") + pick(rng, "clip how")
        answer += [it + going + " toward the ", place(d["to"], clip.frames[-1])]
        answer += say(rng, "clip path", p=Word(d["path"]))
    elif clip.event != "grow":
        happenings: dict[str, list[Piece]] = {
            "colour": ["turns ", Word(d.get("colour", ""))],
            "gone": ["is ", Word("gone")],
            "appear": [Word("appears")],
        }
        answer += [it, *happenings[clip.event], " in frame ", number(d["frame"] + 1), "."]
    else:
        verb = Word("grows" if d["to"] == "larger" else "shrinks")
        answer += [it + "stays in place, but it ", verb, pick(rng, "clip grows")]
    for t in d["rest"]:
        answer += [" ", pick(rng, "clip meanwhile"), *where(rng, place(t.place, start)), ", "]
        answer += [*phrase(t), pick(rng, "clip stays")]
    if not d["rest"]:
        answer += [" ", *say(rng, "clip ground", g=Word(start.ground))]
    look = look_of(a, "kind", "colour", "place")
    return Turn("clip", ask(rng, "clip"), answer, clip, look, places)
