"""The questions of a comparison: a pair's own, shipped in examples/, or a user's file of lines.

Shipped lines of the split `evaluate` were never drawn in training; those of `choose` are never
evaluated, so that settings chosen on them can be judged on the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal

from specvl_demo.pairs import PairSpec
from specvl_demo.places import EXAMPLES
from specvl_demo.question import WORDS, Question, line_of, named, read

Use = Literal["choose", "evaluate", "all"]
"""What questions are for: settings are chosen on some and judged on others."""
Filter = Callable[[Mapping[str, Any]], bool]

POCKET = "pocket-questions.jsonl"
POCKET_KINDS = {
    **{"describe": 3, "clip": 2, "chart": 2, "compare": 2, "count": 1, "where": 1},
    "follow-up": 2,
}
"""How many of each kind are asked of the pocket pair."""
_KINDS = list(POCKET_KINDS)


def of_pair(pair: PairSpec, use: Use = "evaluate") -> list[Question]:
    """Return a pair's shipped questions for a use, opened; `all` in turn of each kind, of the
    pocket pair only what is held out.
    """
    drawn = pair.questions == POCKET
    splits = {use} if use != "all" else {"evaluate"} if drawn else {"choose", "evaluate"}
    left = Counter(POCKET_KINDS) if use == "evaluate" and drawn else None

    def is_asked(line: Mapping[str, Any]) -> bool:
        """Decided before its files are opened."""
        if line["split"] not in splits or left is None:
            return line["split"] in splits
        left[line["kind"]] -= 1
        return left[line["kind"]] >= 0

    questions = list(_opened(EXAMPLES / pair.questions, pair.n_frames, is_asked))
    if use == "all":
        return in_turn(questions)
    if left is None:
        return questions
    return sorted(questions, key=lambda question: _KINDS.index(question.kind))


def of_file(name: str, n: int, n_frames: int = 8) -> list[Question]:
    """Return the first n questions of a file of JSON lines, opened; ValueError with a sentence if
    there is none, or if a line is wrong.
    """
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"There is no file {name}; a line of JSON for each question is needed.")
    questions = list(islice(_opened(path, n_frames), n))
    if not questions:
        raise ValueError(f"{name} has no questions.")
    return questions


def by_kind(questions: Iterable[Question]) -> dict[str, list[Question]]:
    kinds: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        kinds[question.kind].append(question)
    return kinds


def in_turn(questions: Iterable[Question]) -> list[Question]:
    """Return the questions with one of each kind in turn."""
    rounds = zip_longest(*by_kind(questions).values())
    return [question for row in rounds for question in row if question is not None]


def _opened(path: Path, n_frames: int, chosen: Filter = bool) -> Iterator[Question]:
    """Yield the questions of a file; pictures and clips are files next to it, or in `images`
    there.
    """
    find = partial(named, folders=(path.parent / "images", path.parent))
    with path.open(encoding="utf-8") as file:
        yield from each(file, path.name, lambda line: read(line, find), chosen, n_frames)


def each(
    lines: Iterable[str],
    source: str,
    read_line: Callable[[dict[str, Any]], Question],
    chosen: Filter = bool,
    n_frames: int | None = None,
) -> Iterator[Question]:
    """Yield the question of every chosen line of JSON, with its number as id if it has none; opened
    if `n_frames` is given.

    source: The file's name. Raises ValueError with the number of the line if one is wrong.
    """
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = line_of(text)
            if line and not chosen(line):
                continue
            name = str(line.get("id", f"{Path(source).stem}-{number}"))
            question = read_line({**line, "id": name})
            if not question.words.strip():
                raise ValueError(f"a question is needed, under {' or '.join(WORDS)}.")
            yield question if n_frames is None else question.opened(n_frames)
        except ValueError as fault:
            raise ValueError(f"{source}, line {number}: {fault}") from None
