"""Makes the examples: their pictures and clips, their recorded races, and where every method shines
and struggles.

    python examples/make.py pictures             drawn again, always the same
    python examples/make.py questions            the bench's questions, always the same
    python examples/make.py photographs FOLDER   from a folder of originals (see README.md)
    python examples/make.py races [ID ...]       recorded here; nothing else should run
    python examples/make.py lessons              where every method keeps most and fewest drafts

Writes pictures, clips and `*.trace.jsonl` next to this file, and the measurements into
examples.json, which the page reads. A new example is an entry written there by hand.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
from msgspec.structs import replace
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import findings  # noqa: E402
from findings import Finding  # noqa: E402

from recipes.world import texts  # noqa: E402
from recipes.world.samples import HELD_OUT, KINDS_OF_TURN, numbered  # noqa: E402
from recipes.world.scenes import Chart, Scene, Thing, draw  # noqa: E402
from recipes.world.texts import text_of  # noqa: E402
from specvl_demo import pairs, records  # noqa: E402
from specvl_demo.methods import base  # noqa: E402
from specvl_demo.pairs.machine import detect  # noqa: E402
from specvl_demo.records import Record, Round, gather  # noqa: E402  # noqa: E402
from specvl_demo.serving import choosing  # noqa: E402
from specvl_demo.ui.serve.decoding import Engine, events  # noqa: E402
from specvl_demo.ui.serve.jobs import Job  # noqa: E402

REPEATS = 3
TOKENS = 160
BUSY_SHARE = 0.25
DIGITS = 5
"""Significant digits of probabilities in a recorded race; seconds are unchanged."""
Example = dict[str, Any]
"""An entry of examples.json, a tile of the page.

Written by hand: id, title, question, media, pair, methods with their settings, and the result of
reading the answers with the picture in view. read: whether the plain model's answer and the
method's are right, for the answers with this checksum. fails: a sentence on what the models get
wrong, '' if nothing; such tiles are in a separate tray. price: what a lossy method's answer gets
wrong that the plain one has right. Everything else is recorded.
"""

PHOTOGRAPHS = {
    "photographer": "camera.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "rocket": "rocket.jpg",
    "astronaut": "astronaut.png",
    "clock": "clock_motion.png",
    "pagoda": "china.jpg",
    "dahlia": "flower.jpg",
    "dogs": "friends_by_Aitzol_Berasategi.jpg",
    "stream": "life_by_Aitzol_Berasategi.jpg",
    "mountains": "picosdeeuropa_by_Aitzol_Berasategi.jpg",
    "sunset": "sunset_by_Aitzol_Berasategi.jpg",
    "hillside": "aitzgorri_by_Aitzol_Berasategi.jpg",
    "dandelion": "seeding_by_Clements_Engelhardt.jpg",
    "brushes": "Picture_1A_by_freespace.jpg",
    "fig": "Picture_0B_by_freespace.jpg",
    "room": "Wine_by_Jakkub_Mede.jpg",
    "branches": "Dragonfly_by_Bolly.jpg",
    "bird": "Kleiber_by_Lukas_Baubkus.jpg",
}
"""The originals of the photographs; README.md has their authors and licences."""
CLIPS = {"tour": ("cat", "coffee", "rocket"), "outing": ("hillside", "brushes", "sunset")}
"""Clips that pan over photographs, with a cut between them."""
PHOTO_SIDE, PHOTO_BYTES = 640, 60 * 1024
LARGE, SMALL = "large", "small"
BEFORE = Scene(
    (
        Thing("square", "orange", LARGE, 1),
        Thing("ring", "cyan", LARGE, 3),
        Thing("triangle", "pink", SMALL, 5),
        Thing("diamond", "green", LARGE, 7),
    ),
    "beige",
)
LEFT = Scene(
    (
        Thing("heart", "red", LARGE, 0),
        Thing("circle", "yellow", LARGE, 2),
        Thing("square", "green", SMALL, 6),
        Thing("star", "purple", LARGE, 8),
    ),
    "white",
)
PICTURES = {
    "scene": Scene(
        (
            Thing("star", "red", LARGE, 0),
            Thing("circle", "blue", SMALL, 2),
            Thing("arrow", "green", LARGE, 4),
            Thing("heart", "yellow", SMALL, 6),
            Thing("moon", "purple", LARGE, 8),
        ),
        "navy",
    ),
    "chart": Chart((("red", 4), ("blue", 7), ("green", 3), ("orange", 9)), "white"),
    "before": BEFORE,
    "after": dataclasses.replace(
        BEFORE, things=(*BEFORE.things[:1], Thing("ring", "red", LARGE, 3), *BEFORE.things[2:])
    ),
    "crowd": Scene(
        (
            Thing("cross", "red", LARGE, 0),
            Thing("digit seven", "blue", LARGE, 1),
            Thing("star", "yellow", LARGE, 3),
            Thing("moon", "cyan", LARGE, 5),
            Thing("diamond", "purple", LARGE, 6),
            Thing("triangle", "red", LARGE, 8),
        ),
        "gray",
    ),
    "shelf": Scene(
        (
            Thing("ring", "orange", LARGE, 0),
            Thing("diamond", "blue", SMALL, 1),
            Thing("square", "green", LARGE, 3),
            Thing("heart", "pink", LARGE, 5),
            Thing("star", "yellow", SMALL, 6),
            Thing("cross", "red", LARGE, 8),
        ),
        "black",
    ),
    "garden": Scene(
        (
            Thing("heart", "red", LARGE, 0),
            Thing("circle", "yellow", LARGE, 2),
            Thing("triangle", "green", SMALL, 4),
            Thing("moon", "blue", LARGE, 6),
            Thing("star", "purple", SMALL, 8),
        ),
        "beige",
    ),
    "left": LEFT,
    "right": dataclasses.replace(
        LEFT, things=(LEFT.things[0], Thing("circle", "blue", LARGE, 2), *LEFT.things[2:])
    ),
    "bars": Chart((("red", 2), ("green", 9), ("blue", 5), ("yellow", 7), ("purple", 3)), "white"),
    "stars": Scene(
        (
            Thing("star", "yellow", LARGE, 0),
            Thing("star", "red", SMALL, 4),
            Thing("star", "blue", LARGE, 5),
            Thing("square", "green", LARGE, 6),
        ),
        "white",
    ),
}
MOVING = {
    "clip": ((Thing("star", "yellow", SMALL, 1), Thing("circle", "blue", LARGE, 3)), "dx", "white"),
    "falls": ((Thing("square", "green", SMALL, 3), Thing("heart", "red", LARGE, 1)), "dy", "beige"),
    "slides": (
        (Thing("moon", "yellow", SMALL, 1), Thing("star", "orange", LARGE, 6)),
        "dx",
        "navy",
    ),
}
"""Clips: what stays and what moves, which way, over which ground."""
SIZE, TOUR_SIZE = (384, 384), (256, 256)
CLIP_FRAMES, CLIP_HZ = 16, 8


def pictures() -> None:
    for name, scene in PICTURES.items():
        draw(scene, SIZE).save(HERE / f"{name}.png", optimize=True)
    for name, ((still, moving), way, ground) in MOVING.items():
        writer = cv2.VideoWriter(
            str(HERE / f"{name}.webm"), cv2.VideoWriter_fourcc(*"VP80"), CLIP_HZ, SIZE
        )
        for frame in range(CLIP_FRAMES):
            u = frame / (CLIP_FRAMES - 1)
            # Across the picture; one place is a third of it.
            scene = Scene((still, dataclasses.replace(moving, **{way: 2 * u / 3})), ground)
            writer.write(np.asarray(draw(scene, SIZE))[:, :, ::-1])
        writer.release()


QUESTIONS_OF_A_KIND = 6
CALIBRATION = {"describe": 3, "clip": 1, "chart": 1, "compare": 1, "count": 1, "where": 1}
CALIBRATION_SEED = 8 * 10**11
"""Far above the seeds of training, far below those of held-out samples."""
TEXTS = (
    "What is a star?",
    "Which colours do you know?",
    "Describe a small red circle.",
    "Count to five.",
    "What can you see in a picture?",
    "Tell me about bar charts.",
)
"""Questions without a picture: nothing the pocket target was taught, which is why they make it
ramble.
"""


def questions() -> None:
    """Write pocket-questions.jsonl and its pictures: the bench's questions to the
    drawn-scene pair.
    """
    folder = HERE / "pocket"
    folder.mkdir(exist_ok=True)
    of_a_kind = range(QUESTIONS_OF_A_KIND)
    lines = [_question("evaluate", HELD_OUT, k, i) for k in KINDS_OF_TURN for i in of_a_kind]
    lines += [_follow_up(i) for i in of_a_kind]
    for i, text in enumerate(TEXTS):
        line = {"id": f"text-{i}", "kind": "text", "split": "evaluate", "question": text}
        lines.append(line)
    for kind, count in CALIBRATION.items():
        lines += [_question("choose", CALIBRATION_SEED, kind, i) for i in range(count)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (HERE / "pocket-questions.jsonl").write_text(text, encoding="utf-8")


def _question(split: str, seed: int, kind: str, i: int, name: str = "") -> dict[str, Any]:
    """Return the line of a drawn question; its pictures are written next to it, losslessly."""
    name = name or f"{kind}-{i}"
    sample, drawn = numbered(seed, kind, i)
    turn = sample.turns[0]
    line: dict[str, Any] = {"id": name, "kind": kind, "split": split}
    line |= {"question": text_of(turn.question).strip(), "answer": text_of(turn.answer).strip()}
    stem = name if split == "evaluate" else f"{split}-{name}"
    if kind == "clip":
        return line | {"video": _stored(f"{stem}.webp", drawn)}
    if len(drawn) == 1:
        return line | {"images": [_stored(f"{stem}.webp", drawn)]}
    stored = [_stored(f"{stem}-{at}.webp", [one]) for at, one in enumerate(drawn, 1)]
    return line | {"images": stored}


def _stored(name: str, frames: list[Image.Image]) -> str:
    path = HERE / "pocket" / name
    moving = {"save_all": True, "append_images": frames[1:], "duration": 500}
    frames[0].save(path, lossless=True, quality=100, method=6, **moving if frames[1:] else {})
    with Image.open(path) as again:
        assert getattr(again, "n_frames", 1) == len(frames), f"{name} lost a frame"
    return f"pocket/{name}"


def _follow_up(i: int) -> dict[str, Any]:
    """Return a scene and its true description, then a question where one of its things is.

    The truth is used as the first answer, so that every machine and every target gets the same
    question.
    """
    line = _question("evaluate", HELD_OUT, "where", 1000 + i, f"follow-up-{i}")
    sample, _ = numbered(HELD_OUT, "where", 1000 + i)
    told = text_of(texts.describe(random.Random(i), sample.pictures[0]).answer).strip()
    return line | {
        "kind": "follow-up",
        "before": [{"question": "Describe the picture.", "answer": told}],
    }


def photographs(folder: Path) -> None:
    """Write the photographs, small enough to ship, and clips that pan over three of them each."""
    for name, original in PHOTOGRAPHS.items():
        image = Image.open(folder / original).convert("RGB")
        image.thumbnail((PHOTO_SIDE, PHOTO_SIDE), Image.Resampling.LANCZOS)
        for quality in range(90, 40, -4):
            image.save(HERE / f"{name}.jpg", quality=quality, optimize=True, progressive=True)
            if (HERE / f"{name}.jpg").stat().st_size <= PHOTO_BYTES:
                break
    for name, shown in CLIPS.items():
        clip(name, shown)


def clip(name: str, shown: Iterable[str]) -> None:
    """Write a clip that pans over photographs."""
    writer = cv2.VideoWriter(
        str(HERE / f"{name}.webm"), cv2.VideoWriter_fourcc(*"VP80"), CLIP_HZ, TOUR_SIZE
    )
    for name in shown:
        image = Image.open(HERE / f"{name}.jpg")
        side = min(image.size)
        for frame in range(CLIP_FRAMES // 2):
            # A cut to each photograph, then slowly across it and closer.
            u = frame / (CLIP_FRAMES // 2 - 1)
            edge = side * (1 - 0.25 * u)
            left, top = (image.width - edge) * u, (image.height - edge) / 2
            view = image.crop((int(left), int(top), int(left + edge), int(top + edge))).resize(
                TOUR_SIZE
            )
            writer.write(np.asarray(view)[:, :, ::-1])
    writer.release()


def races(ids: Iterable[str], anyway: bool) -> None:
    """Record the races of these tiles, or of all, and write examples.json."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > BUSY_SHARE and not anyway:
        sys.exit(
            f"This machine is busy (load {load:.2f} per core), so its times would not be"
            " meaningful. Use --anyway to record nevertheless."
        )
    machine = detect().title + (", busy with other work" if load > BUSY_SHARE else "")
    models = Engine()
    document = read()
    for one in document["examples"]:
        if not ids or one["id"] in ids:
            one |= recording(models, one, machine)
            write(document)


def lessons(pair: str) -> None:
    """Write where every method keeps most and fewest of its drafts, which is the same on any
    machine.
    """
    models = Engine()
    document = read()
    tiles = [one for one in document["examples"] if one["pair"] == pair]
    found: dict[str, list[Finding]] = {}
    for one in tiles:
        served = [name for name in choosing.served(pairs.find(pair)) if name != "ar"]
        lanes = records.validate_trace(run(models, one, [(name, {}) for name in served]))
        plain, *others = lanes
        for lane in others:
            found.setdefault(lane.begin.method, []).append(findings.find(one["id"], plain, lane))
    document["lessons"] |= {name: findings.lesson(by) for name, by in found.items()}
    write(document)


def read() -> dict[str, Any]:
    return json.loads((HERE / "examples.json").read_text(encoding="utf-8"))


def write(document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (HERE / "examples.json").write_text(text, encoding="utf-8")


def recording(models: Engine, example: Example, machine: str) -> Example:
    """Record an example's race; return the recorded fields of its entry."""
    finding, lines = measured(models, example)
    trace = f"{example['id']}.trace.jsonl"
    records.write(HERE / trace, lines)
    if (now := findings.checksum(gather(lines))) != example["read"]["of"]:
        sys.stderr.write(f"{example['id']}: answers ({now}) that have not been read; read them.\n")
    title = base.find(example["methods"][0]).title
    return {"trace": trace, "machine": machine, "why": f"{title}: {findings.said(finding)}"}


def measured(models: Engine, example: Example) -> tuple[Finding, list[Record]]:
    """Return an example's race: the repetition with the median speedup, with its records."""
    runs = [once(models, example) for _ in range(REPEATS)]
    believed = [one for one in runs if one[0].comparison.doubt() is None]
    # The page withholds times that contradict themselves, like those of a busy machine.
    runs = believed or runs
    return sorted(runs, key=lambda one: one[0].speedup)[(len(runs) - 1) // 2]


def once(models: Engine, example: Example) -> tuple[Finding, list[Record]]:
    lines = run(models, example, [(example["methods"][0], example.get("settings", {}))])
    plain, lane = records.validate_trace(lines)
    return findings.find(example["id"], plain, lane), lines


def run(
    models: Engine, example: Example, lanes: Iterable[tuple[str, dict[str, Any]]]
) -> list[Record]:
    """Return the records of one race with the heat of every token, as the page would store them."""
    job = Job(
        example["pair"],
        (("ar", {}), *lanes),
        example["question"],
        tuple(str(HERE / name) for name in example["media"]),
        max_new_tokens=TOKENS,
        names=tuple(example["media"]),
    )
    lines: list[Record] = []
    heat: dict[str, list[str]] = {}
    for event in events(models, job, bool):
        lines += [event["record"]] if "record" in event else []
        heat = event["lanes"] if event["k"] == "heat" else heat
    written: dict[str, int] = {}
    for at, record in enumerate(lines):
        if isinstance(record, Round) and record.lane in heat:
            first = written.get(record.lane, 0)
            written[record.lane] = first + len(record.tokens)
            rows = heat[record.lane][first : first + len(record.tokens)]
            lines[at] = replace(record, notes={**record.notes, "heat": rows})
    return [shorter(record) for record in lines]


def shorter(record: Record) -> Record:
    """Return the same record with probabilities of few digits."""
    if not isinstance(record, Round):
        return record
    plain = msgspec.to_builtins(record)
    plain |= {part: rounded(plain[part]) for part in ("tree", "views", "candidates")}
    return msgspec.convert(plain, Round)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", choices=("pictures", "questions", "photographs", "races", "lessons")
    )
    parser.add_argument(
        "of", nargs="*", help="the folder of the photographs' originals, or ids of races"
    )
    parser.add_argument("--pair", default="pocket", choices=("pocket", "photo"))
    parser.add_argument("--anyway", action="store_true", help="record even if the machine is busy")
    options = parser.parse_args()
    if options.what == "pictures":
        pictures()
    elif options.what == "questions":
        questions()
    elif options.what == "races":
        races(options.of, options.anyway)
    elif options.what == "lessons":
        lessons(options.pair)
    elif len(options.of) != 1:
        parser.error("photographs needs the folder of the originals; see examples/README.md")
    else:
        photographs(Path(options.of[0]))


if __name__ == "__main__":
    main()
