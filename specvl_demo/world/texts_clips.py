"""Clips of four frames in which one thing happens to one object, and what is said of it."""

from __future__ import annotations

import random
from dataclasses import replace

from specvl_demo.world import scenes as world
from specvl_demo.world.scenes import COLOURS, NUMBERS, Clip, Scene, Thing
from specvl_demo.world.texts import (
    Piece,
    Turn,
    Word,
    ask,
    joined,
    look_of,
    number,
    phrase,
    pick,
    place,
    say,
    where,
)
from specvl_demo.world.texts_pairs import shown, walked

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
            other = "large" if actor.size == "small" else "small"
            radius = actor.radius + (sum(world.RADIUS[other]) / 2 - actor.radius) * u
            now = replace(actor, size=actor.size if u < 0.5 else other, radius=radius)
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


def frame_by_frame(clip: Clip) -> list[Piece]:
    """The actor as every frame shows it, or nothing: what happens to it can then be read off."""
    items: list[list[Piece]] = []
    for i, scene in enumerate(clip.frames):
        actor = next((t for t in scene.things if t not in clip.detail["rest"]), None)
        look, words = shown(actor)
        here = [" at the ", place(actor.place, scene)] if actor else []
        look = look_of(actor, "kind", "colour", "size", "place") if actor else look
        items.append(
            [f"{'F' if i == 0 else 'f'}rame {NUMBERS[i + 1]} ", Word("shows", look), " ", *words, *here]
        )
    return joined(items)


def ask_clip(rng: random.Random, clip: Clip) -> Turn:
    """What happens in a clip: place by place, frame by frame, then in words."""
    a, d = clip.actor, clip.detail
    start = clip.frames[0]
    walk, places = walked(start, clip.frames[-1])
    opening = pick(rng, "clip opening")
    seen = phrase(a) + [" "] + where(rng, place(a.place, clip.frames[-1 if clip.event == "appear" else 0]))
    answer: list[Piece] = [
        pick(rng, "clip walk"),
        *walk,
        ". ",
        *frame_by_frame(clip),
        ". ",
        opening,
        *seen,
        ". ",
    ]
    it = pick(rng, "clip it")
    if clip.event == "move":
        going = pick(rng, "clip moves") + pick(rng, "clip how")
        answer += [it + going + " toward the ", place(d["to"], clip.frames[-1])]
        answer += say(rng, "clip path", p=Word(d["path"]))
    elif clip.event != "grow":
        what: list[Piece] = {
            "colour": ["turns ", Word(d.get("colour", ""))],
            "gone": ["is ", Word("gone")],
            "appear": [Word("appears")],
        }[clip.event]
        answer += [it, *what, " in frame ", number(d["frame"] + 1), "."]
    else:
        verb = Word("grows" if d["to"] == "larger" else "shrinks")
        answer += [it + "stays in place, but it ", verb, pick(rng, "clip grows")]
    for t in d["rest"]:
        answer += [" ", pick(rng, "clip meanwhile"), *where(rng, place(t.place, start)), ", "]
        answer += [*phrase(t), pick(rng, "clip stays")]
    if not d["rest"]:
        answer += [" ", *say(rng, "clip ground", g=Word(start.ground))]
    look = look_of(a, "kind", "colour", "place")
    return Turn("clip", ask(rng, "clip"), answer, clip, Word("", look, places))
