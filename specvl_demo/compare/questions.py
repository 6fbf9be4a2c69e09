"""The questions of a comparison: a pair's own, shipped in examples/, or a user's file of lines.

Shipped lines of the split `evaluate` were never drawn in training; those of `choose` are never
evaluated, so that settings chosen on them can be judged on the others.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from specvl_demo.pairs import PairSpec
from specvl_demo.places import EXAMPLES
from specvl_demo.question import WORDS, Question, find_file, parse_line, read

POCKET = "pocket-questions.jsonl"
POCKET_KINDS = {
    "describe": 3,
    "clip": 2,
    "chart": 2,
    "compare": 2,
    "count": 1,
    "where": 1,
    "follow-up": 2,
}
"""How many of each kind are asked of the pocket pair."""


def bench_questions(pair: PairSpec, data: str | None, n: int) -> list[Question]:
    """Return the first n questions of the user's file if one is named, else of the pair's own."""
    return pair_questions(pair)[:n] if data is None else file_questions(data, n, pair)


def pair_questions(pair: PairSpec) -> list[Question]:
    """Return what a pair is measured with, opened: of the pocket pair, some of each kind."""
    questions = shipped_questions(pair, "evaluate")
    if pair.questions == POCKET:
        kinds = group_by_kind(questions)
        questions = [question for kind, n in POCKET_KINDS.items() for question in kinds[kind][:n]]
    return [question.read_files(pair) for question in questions]


def shipped_questions(pair: PairSpec, *splits: str, **shared: Any) -> list[Question]:
    """Return a pair's shipped questions of these splits. shared: What all are asked with."""
    lines = (EXAMPLES / pair.questions).read_text("utf-8").splitlines()
    some = [line for line in lines if json.loads(line)["split"] in splits]
    find = partial(find_file, folders=(EXAMPLES,))
    return list(read_lines(some, pair.questions, lambda line: read({**line, **shared}, find)))


def file_questions(name: str, n: int, pair: PairSpec) -> list[Question]:
    """Return the first n questions of a file of JSON lines, opened; ValueError with a sentence if
    there is none, or if a line is wrong. Its pictures and clips lie next to it, or in `images`.
    """
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"There is no file {name}; a line of JSON for each question is needed.")
    find = partial(find_file, folders=(path.parent / "images", path.parent))
    with path.open(encoding="utf-8-sig") as file:
        opened = read_lines(file, path.name, lambda line: read(line, find).read_files(pair))
        questions = list(islice(opened, n))
    if not questions:
        raise ValueError(f"{name} has no questions.")
    return questions


def group_by_kind(questions: Iterable[Question]) -> dict[str, list[Question]]:
    kinds = defaultdict[str, list[Question]](list)
    for question in questions:
        kinds[question.kind].append(question)
    return kinds


def interleave_kinds(questions: Iterable[Question]) -> list[Question]:
    """Return the questions with one of each kind in turn."""
    rounds = zip_longest(*group_by_kind(questions).values())
    return [question for row in rounds for question in row if question is not None]


def read_lines(
    lines: Iterable[str], source: str, read_line: Callable[[dict[str, Any]], Question]
) -> Iterator[Question]:
    """Yield the question of every line of JSON, with its number as id if it has none.

    A wrong line's error names source and number; so does that of an id which an earlier line has.
    """
    numbers: dict[str, int] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = parse_line(text)
            name = line.get("id")
            name = f"{Path(source).stem}-{number}" if name is None else str(name)
            if not any(str(line.get(key) or "").strip() for key in WORDS):
                raise ValueError(
                    f"a question is needed, under {' or '.join(WORDS)}, not blank; this line has"
                    f" {', '.join(line)[:200] or 'nothing'}."
                )
            if (first := numbers.setdefault(name, number)) < number:
                raise ValueError(
                    f"its id {name[:100]!r} is that of line {first} too; give every question its"
                    " own, or none."
                )
            yield read_line({**line, "id": name})
        except ValueError as fault:
            raise ValueError(f"{source}, line {number}: {fault}") from None
