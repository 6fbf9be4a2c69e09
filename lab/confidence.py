"""Calibrates `report.confidence`: whether the photo pair's target knows when it is wrong.

    python -m lab.confidence DIR [photographs] [FILE]

Asks one question about each of the first held-out photographs of DIR (captions as read by
`recipes.photo_data`, answers known by rule) and, for every third, for a description, which is right
if people named all that it names. FILE keeps the answers. The two cuts are chosen on even
photographs, by `SURE` and `GUESSING`; the table covers the odd ones.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from recipes.photo_data import read
from recipes.photo_questions import FORM, NOUNS, WordIndex, ask, same, words
from specvl_demo import pairs
from specvl_demo.question import Question
from specvl_demo.report.confidence import MAX_TOKENS, lowest_probability
from specvl_demo.serving import choosing, loader, session

SURE, GUESSING = 0.9, 1 / 3
GRID = [round(0.05 * step, 2) for step in range(1, 20)]
DESCRIBE, MAX_DESCRIBED, EVERY = "Describe the picture.", 30, 3
BINS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.01)


def asked(folder: Path, photographs: int) -> Iterator[tuple[int, Path, str, str, list[str]]]:
    """Yield (number, file, question, answer, captions); a description has no answer."""
    photos = read(folder)[1]
    index, rng = WordIndex([p.captions for p in photos]), random.Random(9)
    for number, photo in enumerate(photos[:photographs]):
        for one in ask(photo.captions, rng, 1, index):
            yield number, photo.path, one.question, one.answer, list(photo.captions)
        if number % EVERY == 0:
            yield number, photo.path, DESCRIBE, "", list(photo.captions)


def right(said: str, answer: str, captions: Sequence[str]) -> bool:
    if answer:
        return same(said, answer)
    named = {FORM[word] for word in words(said) if word in FORM}
    seen = {word for caption in captions for word in words(caption)}
    return all(NOUNS[noun].unsafe & seen for noun in named)


def answers(folder: Path, photographs: int, kept: Path) -> list[dict[str, Any]]:
    """Return a row per complete answer; asks what `kept` lacks."""
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    loaded = loader.load_pair(pairs.find("photo"), ())
    ar = choosing.choose(loaded.pair, "ar")
    with kept.open("a") as file:
        for at, (number, path, question, answer, captions) in enumerate(asked(folder, photographs)):
            if at < len(rows):
                continue
            image = Image.open(path).convert("RGB")
            most = MAX_TOKENS if answer else MAX_DESCRIBED
            shown = Question(question, (image,), max_new_tokens=most)
            request = session.make_request(loaded, shown)
            (lane,) = session.run_lanes(loaded, request, [ar])
            whole = lane.end is not None and lane.end.stop == "eos"
            row = {
                "number": number,
                "question": question,
                "said": lane.text,
                "prob": lowest_probability(lane.rounds) if whole else None,
                "right": right(lane.text, answer, captions),
            }
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    return [row for row in rows if row["prob"] is not None]


def share(rows: Sequence[dict[str, Any]]) -> float | None:
    return sum(row["right"] for row in rows) / len(rows) if rows else None


def cuts(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return (from where on an answer is sure, below which it is a guess) by these answers."""

    def above(cut: float) -> float:
        return share([row for row in rows if row["prob"] >= cut]) or 0.0

    def below(cut: float) -> float:
        return share([row for row in rows if row["prob"] < cut]) or 0.0

    sure = next((cut for cut in GRID if above(cut) >= SURE), GRID[-1])
    return sure, next((cut for cut in reversed(GRID) if cut < sure and below(cut) <= GUESSING), 0.0)


def ordered(rows: Sequence[dict[str, Any]]) -> float | None:
    """Return how often a right answer has a higher probability than a wrong one (AUROC)."""
    good, bad = ([row["prob"] for row in rows if row["right"] is is_] for is_ in (True, False))
    pairs_ = [(a > b) + (a == b) / 2 for a in good for b in bad]
    return sum(pairs_) / len(pairs_) if pairs_ else None


def lines(name: str, rows: Sequence[dict[str, Any]], bounds: Sequence[float]) -> list[str]:
    out = [f"{name}: {len(rows)} answers, {share(rows) or 0:.1%} right, AUROC {ordered(rows):.3f}"]
    for low, high in zip(bounds, bounds[1:], strict=False):
        some = [row for row in rows if low <= row["prob"] < high]
        if some:
            out.append(
                f"  {low:.2f} to {min(high, 1):.2f}  {share(some):6.1%} of {len(some)} right"
            )
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("photographs", type=int, nargs="?", default=600)
    parser.add_argument("file", type=Path, nargs="?", default=Path("confidence.jsonl"))
    args = parser.parse_args()
    rows = answers(args.folder, args.photographs, args.file)
    short = [row for row in rows if row["question"] != DESCRIBE]
    halves = [[row for row in short if row["number"] % 2 == half] for half in (0, 1)]
    sure, guessing = cuts(halves[0])
    told = [f"fairly sure from {sure}, guessing below {guessing}"]
    for name, half in zip(("chosen on", "reported on"), halves, strict=True):
        told += lines(name, half, BINS) + lines("  words", half, (0.0, guessing, sure, 1.01))
    described = [row for row in rows if row["question"] == DESCRIBE]
    told += lines("descriptions", described, (0.0, guessing, sure, 1.01))
    sys.stdout.write("\n".join(told) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
