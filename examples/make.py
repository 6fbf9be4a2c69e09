"""Make the examples: draw their pictures, record their races, find where every method shines and struggles.

    python examples/make.py pictures        drawn anew, always the same
    python examples/make.py races           recorded on this machine; it should have nothing else to do

Writes beside itself: pictures, a clip, `*.trace.jsonl`, and examples.json, which the page reads.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import findings  # noqa: E402
from findings import Finding  # noqa: E402

from specvl_demo import methods, pairs, records, registry  # noqa: E402
from specvl_demo.records import Begin, Record, Round  # noqa: E402
from specvl_demo.report.declared import DECLARED  # noqa: E402
from specvl_demo.report.metrics import Lane  # noqa: E402
from specvl_demo.training.scenes import Chart, Scene, Thing, draw  # noqa: E402
from specvl_demo.ui.decoding import Models, events  # noqa: E402
from specvl_demo.ui.jobs import Job  # noqa: E402

PAIR = "pocket"
REPEATS = 3
TOKENS = 160
BUSY_SHARE = 0.25
DIGITS = 5
"""Significant digits of probabilities in a recorded race; seconds stay as they are."""


@dataclass(frozen=True)
class Example:
    """A tile of the page: what it asks. recorded: its race ships as a trace. Its method is measured."""

    id: str
    title: str
    question: str
    media: tuple[str, ...]
    recorded: bool = False


EXAMPLES = (
    Example("scene", "Five things", "Describe the picture in detail.", ("scene.png",), True),
    Example("chart", "A bar chart", "Read the chart.", ("chart.png",), True),
    Example("clip", "A clip", "What happens in the clip?", ("clip.webm",), True),
    Example(
        "change",
        "Spot the change",
        "What is different between the two pictures?",
        ("before.png", "after.png"),
    ),
    Example("crowd", "A crowd", "Describe the picture.", ("crowd.png",)),
    Example("count", "A short answer", "How many stars are there?", ("stars.png",)),
)

LARGE, SMALL = "large", "small"
SCENE = Scene(
    (
        Thing("star", "red", LARGE, 0),
        Thing("circle", "blue", SMALL, 2),
        Thing("arrow", "green", LARGE, 4),
        Thing("heart", "yellow", SMALL, 6),
        Thing("moon", "purple", LARGE, 8),
    ),
    "navy",
)
CHART = Chart((("red", 4), ("blue", 7), ("green", 2), ("orange", 9)), "white")
BEFORE = Scene(
    (
        Thing("square", "orange", LARGE, 1),
        Thing("ring", "cyan", LARGE, 3),
        Thing("triangle", "pink", SMALL, 5),
        Thing("diamond", "green", LARGE, 7),
    ),
    "beige",
)
AFTER = replace(BEFORE, things=(*BEFORE.things[:1], Thing("ring", "red", LARGE, 3), *BEFORE.things[2:]))
CROWD = Scene(
    tuple(
        Thing(kind, colour, size, at)
        for at, (kind, colour, size) in enumerate(
            (
                ("cross", "red", LARGE),
                ("digit seven", "blue", LARGE),
                ("heart", "pink", SMALL),
                ("star", "yellow", LARGE),
                ("ring", "green", SMALL),
                ("moon", "cyan", LARGE),
                ("diamond", "purple", LARGE),
                ("circle", "orange", SMALL),
                ("triangle", "red", LARGE),
            )
        )
    ),
    "gray",
)
STARS = Scene(
    (
        Thing("star", "yellow", LARGE, 0),
        Thing("star", "red", SMALL, 4),
        Thing("star", "blue", LARGE, 5),
        Thing("square", "green", LARGE, 6),
    ),
    "white",
)
SIZE = (384, 384)
CLIP_FRAMES, CLIP_HZ = 16, 8


def pictures() -> None:
    """Draw every picture and the clip."""
    for name, scene in (
        ("scene", SCENE),
        ("chart", CHART),
        ("before", BEFORE),
        ("after", AFTER),
        ("crowd", CROWD),
        ("stars", STARS),
    ):
        draw(scene, SIZE).save(HERE / f"{name}.png", optimize=True)
    writer = cv2.VideoWriter(str(HERE / "clip.webm"), cv2.VideoWriter_fourcc(*"VP80"), CLIP_HZ, SIZE)
    for frame in range(CLIP_FRAMES):
        u = frame / (CLIP_FRAMES - 1)
        # From the middle left to the middle right: one place is a third of the picture.
        ball = Thing("circle", "blue", LARGE, 3, dx=2 * u / 3)
        scene = Scene((Thing("star", "yellow", SMALL, 1), ball), "white")
        writer.write(np.asarray(draw(scene, SIZE))[:, :, ::-1])
    writer.release()


def races(anyway: bool) -> None:
    """Record the races of the tiles, measure all methods on all of them, write examples.json."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > BUSY_SHARE and not anyway:
        sys.exit(
            f"This machine is busy (load {load:.2f} a core); its times would mean nothing. --anyway records."
        )
    machine = registry.detect().title + (", busy with other work" if load > BUSY_SHARE else "")
    models = Models()
    served = [name for name in registry.served(pairs.find(PAIR)) if name != "ar"]
    found = {name: {one.id: measured(models, one, name)[0] for one in EXAMPLES} for name in served}
    shown = findings.assign(found, [one.id for one in EXAMPLES if one.recorded], list(DECLARED))
    index = [tile(models, one, shown[one.id], found, machine) for one in EXAMPLES]
    lessons = {name: findings.lesson(list(by.values())) for name, by in found.items()}
    document = {"machine": machine, "examples": index, "lessons": lessons}
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (HERE / "examples.json").write_text(text, encoding="utf-8")


def tile(
    models: Models, example: Example, name: str, found: Mapping[str, Mapping[str, Finding]], machine: str
) -> dict[str, Any]:
    """An example's entry; where its race is to ship it is recorded, and the words are about the recording."""
    finding = found[name][example.id]
    entry: dict[str, Any] = {key: value for key, value in vars(example).items() if key != "recorded"}
    if example.recorded:
        finding, lines = measured(models, example, name)
        records.write(HERE / f"{example.id}.trace.jsonl", lines)
        entry |= {"trace": f"{example.id}.trace.jsonl", "machine": machine}
    why = f"{methods.find(name).title}: {findings.said(finding)}"
    return entry | {"methods": [name], "why": why}


def measured(models: Models, example: Example, name: str) -> tuple[Finding, list[Record]]:
    """A method on an example: the repetition in the middle, with its records."""
    runs = []
    for _ in range(REPEATS):
        lines = run(models, example, [name])
        plain, lane = (Lane(*parts) for parts in records.validate_trace(lines).values())
        runs.append((findings.find(example.id, plain, lane), lines))
    runs = [one for one in runs if one[0].comparison.plausible]
    if not runs:
        sys.exit(
            f"The times of {name} on {example.id} contradict themselves (a speedup above τ): this machine "
            "was too busy. Record again when it has nothing else to do."
        )
    chosen = findings.middle([one for one, _ in runs])
    return next(one for one in runs if one[0] is chosen)


def run(models: Models, example: Example, names: Iterable[str]) -> list[Record]:
    """The records of one race with the heat of every token, as the page would keep them."""
    job = Job(
        PAIR,
        tuple((name, {}) for name in ("ar", *names)),
        example.question,
        tuple(str(HERE / name) for name in example.media),
        max_new_tokens=TOKENS,
        names=example.media,
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
    """The same record with probabilities of few digits."""
    if isinstance(record, Begin) or not isinstance(record, Round):
        return record
    tree = replace(
        record.tree,
        draft_logp=rounded(record.tree.draft_logp),
        target_logp=rounded(record.tree.target_logp),
    )
    views = record.views and {name: short_lists(lists) for name, lists in record.views.items()}
    candidates = record.candidates and short_lists(record.candidates)
    return replace(record, tree=tree, views=views, candidates=candidates)


def rounded(value: Any) -> Any:
    """Floats of few significant digits, in lists too."""
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def short_lists(lists: list[list[Any]]) -> list[list[Any]]:
    """Candidates with short probabilities."""
    return [[replace(one, prob=rounded(one.prob)) for one in some] for some in lists]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("pictures", "races"))
    parser.add_argument("--anyway", action="store_true", help="record although the machine is busy")
    options = parser.parse_args()
    if options.what == "pictures":
        pictures()
    else:
        races(options.anyway)


if __name__ == "__main__":
    main()
