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
    return pair_questions(pair)[:n] if data is None else file_questions(data, n, pair.n_frames)


def pair_questions(pair: PairSpec) -> list[Question]:
    """Return what a pair is measured with, opened: of the pocket pair, some of each kind."""
    questions = shipped_questions(pair, "evaluate")
    if pair.questions == POCKET:
        kinds = group_by_kind(questions)
        questions = [question for kind, n in POCKET_KINDS.items() for question in kinds[kind][:n]]
    return [question.read_files(pair.n_frames) for question in questions]


def shipped_questions(pair: PairSpec, *splits: str, **shared: Any) -> list[Question]:
    """Return a pair's shipped questions of these splits. shared: What all are asked with."""
    lines = (EXAMPLES / pair.questions).read_text("utf-8").splitlines()
    some = [line for line in lines if json.loads(line)["split"] in splits]
    find = partial(find_file, folders=(EXAMPLES,))
    return list(read_lines(some, pair.questions, lambda line: read({**line, **shared}, find)))


def file_questions(name: str, n: int, n_frames: int = 8) -> list[Question]:
    """Return the first n questions of a file of JSON lines, opened; ValueError with a sentence if
    there is none, or if a line is wrong. Its pictures and clips lie next to it, or in `images`.
    """
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"There is no file {name}; a line of JSON for each question is needed.")
    find = partial(find_file, folders=(path.parent / "images", path.parent))
    with path.open(encoding="utf-8-sig") as file:
        read_line = partial(read, find=find)
        questions = list(islice(read_lines(file, path.name, read_line, n_frames), n))
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
    lines: Iterable[str],
    source: str,
    read_line: Callable[[dict[str, Any]], Question],
    n_frames: int | None = None,
) -> Iterator[Question]:
    """Yield the question of every line of JSON, with its number as id if it has none.

    n_frames: Opened with as many of a clip, if given. A wrong line's error names source and number.
    """
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = parse_line(text)
            name = str(line.get("id", f"{Path(source).stem}-{number}"))
            words = f"a question is needed, under {' or '.join(WORDS)}"
            if not line.keys() & {*WORDS}:
                raise ValueError(f"{words}; this line has {', '.join(line)[:200] or 'nothing'}.")
            question = read_line({**line, "id": name})
            if not question.words.strip():
                raise ValueError(f"{words}.")
            yield question if n_frames is None else question.read_files(n_frames)
        except ValueError as fault:
            raise ValueError(f"{source}, line {number}: {fault}") from None
