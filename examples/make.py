"""Make the examples: draw their pictures, record their races, find where every method shines and struggles.

    python examples/make.py pictures        drawn anew, always the same
    python examples/make.py races           recorded on this machine; it should have nothing else to do

Writes beside itself: pictures, a clip, `*.trace.jsonl`, and examples.json, which the page reads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from specvl_demo import methods, pairs, records, registry  # noqa: E402
from specvl_demo.records import Begin, Record, Round  # noqa: E402
from specvl_demo.report.metrics import Lane, compare  # noqa: E402
from specvl_demo.training.scenes import Chart, Scene, Thing, draw  # noqa: E402
from specvl_demo.ui.decoding import Models, events  # noqa: E402
from specvl_demo.ui.jobs import Job  # noqa: E402

PAIR = "pocket"
REPEATS = 3
TOKENS = 128
BUSY_SHARE = 0.25
DIGITS = 5
"""Significant digits of probabilities in a recorded race; seconds stay as they are."""


@dataclass(frozen=True)
class Example:
    """A tile of the page: what it asks and which methods race in its recording (none: not recorded)."""

    id: str
    title: str
    question: str
    media: tuple[str, ...]
    methods: tuple[str, ...]
    why: str
    recorded: bool = False


EXAMPLES = (
    Example(
        "scene",
        "Five things",
        "Describe the picture in detail.",
        ("scene.png",),
        ("sage",),
        "A long description: much of it follows from its own words",
        True,
    ),
    Example(
        "chart",
        "A bar chart",
        "Read the chart.",
        ("chart.png",),
        ("tabed",),
        "Between the values every sentence is the same",
        True,
    ),
    Example(
        "clip",
        "A clip",
        "What happens in the clip?",
        ("clip.webm",),
        ("lvspec",),
        "A relaxed method may change the words between the things",
        True,
    ),
    Example(
        "change",
        "Spot the change",
        "What is different between the two pictures?",
        ("before.png", "after.png"),
        ("hivis",),
        "Two pictures, and a drafter that sees neither",
    ),
    Example(
        "crowd",
        "A crowd",
        "Describe the picture.",
        ("crowd.png",),
        ("tree",),
        "More things than it was trained on: guesses fail, and trees cost",
    ),
    Example(
        "count",
        "A short answer",
        "How many stars are there?",
        ("stars.png",),
        ("chain",),
        "So few tokens that nothing can be gained",
    ),
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
    models, machine = (
        Models(),
        registry.detect().title + (", busy with other work" if load > BUSY_SHARE else ""),
    )
    pair = pairs.find(PAIR)
    index = []
    for example in EXAMPLES:
        entry = {key: value for key, value in vars(example).items() if key != "recorded"}
        if example.recorded:
            lines = list(run(models, example, example.methods))
            records.write(HERE / f"{example.id}.trace.jsonl", lines)
            entry |= {"trace": f"{example.id}.trace.jsonl", "machine": machine}
        index.append(entry)
    served = [name for name in registry.served(pair) if name != "ar"]
    lessons = {name: lesson(models, name) for name in served}
    document = {"machine": machine, "examples": index, "lessons": lessons}
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (HERE / "examples.json").write_text(text, encoding="utf-8")


def run(models: Models, example: Example, names: Iterable[str]) -> Iterable[Record]:
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


def lesson(models: Models, name: str) -> dict[str, Any]:
    """The example on which a method gains most and the one on which it gains least, as measured."""
    found = []
    for example in EXAMPLES:
        sides = []
        for _ in range(REPEATS):
            lanes = [Lane(*lane) for lane in records.validate_trace(run(models, example, [name])).values()]
            sides.append((compare(lanes[1], lanes[0]), len(lanes[1].token_ids)))
        speedup = statistics.median(side.speedup_decode or 0.0 for side, _ in sides)
        middle = min(sides, key=lambda one: abs((one[0].speedup_decode or 0.0) - speedup))
        found.append((speedup, example.id, said(*middle, methods.find(name).lossless)))
    worst, *_, best = sorted(found)
    return {
        "shines": {"example": best[1], "why": best[2]},
        "struggles": {"example": worst[1], "why": worst[2]},
    }


def said(side: Any, n_tokens: int, lossless: bool) -> str:
    """What was measured, in a sentence."""
    totals = side.metrics.totals
    kept = totals.n_accepted / max(totals.n_rounds, 1)
    cost = side.rho
    text = (
        f"{side.speedup_decode:.2f}× the plain model: {kept:.1f} drafted tokens kept a round, which cost "
        f"{cost['draft']:.1f} plain steps to draft and {cost['verify']:.1f} to verify"
    )
    relaxed = "" if lossless else f", {totals.n_relaxed} of {n_tokens} tokens relaxed"
    return f"{text}{relaxed}."


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
