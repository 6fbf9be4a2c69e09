"""Makes the examples: their photographs and their recorded races. Drawn pictures, and the
questions about them, are frozen: commit 56e9f08 draws them.

    python examples/make.py photographs FOLDER   from a folder of originals (see README.md)
    python examples/make.py races [ID ...]       recorded here; nothing else should run

Writes pictures, clips and `*.trace.jsonl` next to this file, and the measurements into
examples.json, which the page reads. A new example is an entry written there by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import findings  # noqa: E402
from findings import Finding  # noqa: E402

from specvl_demo import records  # noqa: E402
from specvl_demo.compare.provenance import processor_name  # noqa: E402
from specvl_demo.media import MediaFile  # noqa: E402
from specvl_demo.pairs.machine import detect_machine  # noqa: E402
from specvl_demo.question import Question  # noqa: E402
from specvl_demo.records import Record, Round, gather_lanes  # noqa: E402
from specvl_demo.ui.serve.job_runner import JobRunner  # noqa: E402
from specvl_demo.ui.serve.jobs import Job  # noqa: E402

REPEATS = 3
TOKENS = 160
BUSY_SHARE = 0.25
DIGITS = 5
"""Significant digits of probabilities in a recorded race; seconds are unchanged."""
Example = dict[str, Any]
"""An entry of examples.json, a tile of the page.

Written by hand: id, title, question, media, pair, methods, settings of the first, and the result of
reading the answers with the picture in view. read: whether the plain model's answer and the
methods' are right, for the answers with this checksum. fails: a sentence on what the models get
wrong, '' if nothing; such tiles are marked. price: what a lossy method's answer gets wrong that the
plain one has right. Everything else is recorded.
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
TOUR_SIZE = (256, 256)
CLIP_FRAMES, CLIP_HZ = 16, 8


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
    machine = detect_machine().title + (", busy with other work" if load > BUSY_SHARE else "")
    runner = JobRunner()
    document = read()
    for one in document["examples"]:
        if not ids or one["id"] in ids:
            one |= recording(runner, one, machine)
            write(document)


def read() -> dict[str, Any]:
    return json.loads((HERE / "examples.json").read_text(encoding="utf-8"))


def write(document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (HERE / "examples.json").write_text(text, encoding="utf-8")


def recording(runner: JobRunner, example: Example, machine: str) -> Example:
    """Record an example's race; return the recorded fields of its entry."""
    figures, lines = measured(runner, example)
    trace = f"{example['id']}.trace.jsonl"
    records.write_trace(HERE / trace, lines)
    if (now := findings.checksum(gather_lanes(lines))) != example["read"]["of"]:
        sys.stderr.write(f"{example['id']}: answers ({now}) that have not been read; read them.\n")
    if (margin := findings.least_margin(gather_lanes(lines))) < findings.NARROW[example["pair"]]:
        sys.stderr.write(
            f"{example['id']}: an answer hangs on a margin of {margin:.4f} nats, which another"
            " processor may decide otherwise; choose another question.\n"
        )
    today = datetime.now(timezone.utc).date().isoformat()
    return {
        "trace": trace,
        "machine": machine,
        "recorded": {"when": today, "processor": processor_name()},
        "why": findings.sentences(figures),
    }


def measured(runner: JobRunner, example: Example) -> tuple[list[Finding], list[Record]]:
    """Return an example's race: the repetition in which the first method has its median speedup."""
    runs = [once(runner, example) for _ in range(REPEATS)]
    believed = [one for one in runs if one[0][0].comparison.why_doubtful() is None]
    # The page withholds times that contradict themselves, like those of a busy machine.
    runs = believed or runs
    return sorted(runs, key=lambda one: one[0][0].speedup)[(len(runs) - 1) // 2]


def once(runner: JobRunner, example: Example) -> tuple[list[Finding], list[Record]]:
    first, *others = example["methods"]
    lanes = [(first, example.get("settings", {})), *((name, {}) for name in others)]
    lines = run(runner, example, lanes)
    return findings.find_all(example["id"], records.validate_trace(lines)), lines


def run(
    runner: JobRunner, example: Example, lanes: Iterable[tuple[str, dict[str, Any]]]
) -> list[Record]:
    """Return the records of one race, as the page would store them."""
    job = Job(
        example["pair"],
        (("ar", {}), *lanes),
        Question(
            example["question"],
            tuple(MediaFile(str(HERE / name), name=name) for name in example["media"]),
            max_new_tokens=TOKENS,
        ),
    )
    lines: list[Record] = []
    for event in runner.events(job, bool):
        if event["k"] == "error":
            sys.exit(f"{example['id']}: {event['text']}")
        lines += [event["record"]] if isinstance(event.get("record"), Record) else []
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
    parser.add_argument("what", choices=("photographs", "races"))
    parser.add_argument(
        "of", nargs="*", help="the folder of the photographs' originals, or ids of races"
    )
    parser.add_argument("--anyway", action="store_true", help="record even if the machine is busy")
    options = parser.parse_args()
    if options.what == "races":
        races(options.of, options.anyway)
    elif len(options.of) != 1:
        parser.error("photographs needs the folder of the originals; see examples/README.md")
    else:
        photographs(Path(options.of[0]))


if __name__ == "__main__":
    main()
