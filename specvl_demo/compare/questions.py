"""The questions of a comparison: a pair's own, shipped in examples/, or a user's file of lines.

Shipped lines of the split `evaluate` were never drawn in training; those of `choose` are never
evaluated, so that settings chosen on them can be judged on the others.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar

from specvl_demo.media import Visual, load_any
from specvl_demo.pairs import PairSpec
from specvl_demo.places import EXAMPLES
from specvl_demo.vlm.prompts import Turn

T = TypeVar("T")
Use = Literal["choose", "evaluate", "all"]
"""What questions are for: settings are chosen on some and judged on others."""

POCKET = "pocket-questions.jsonl"
POCKET_KINDS = {
    **{"describe": 3, "clip": 2, "chart": 2, "compare": 2, "count": 1, "where": 1},
    "follow-up": 2,
}
"""How many of each kind are asked of the pocket pair."""
_KINDS = list(POCKET_KINDS)
QUESTION = ("question", "prompt", "query", "instruction", "turns")
PICTURES = ("image", "images", "picture", "video", "videos", "clip")
KIND = ("kind", "topic")
ANSWER = ("reference", "answer", "answers", "label", "caption")
"""Names of columns. For what is shown all that a line has are used, for the others the first."""


@dataclass(frozen=True)
class Row:
    """A line as read, before anything that it shows is opened.

    Attributes:
        shown: Names of files; of a page's question, the uploaded files.
        before: The questions and answers that came first, about what is shown.
    """

    name: str
    text: str
    shown: tuple[Any, ...] = ()
    reference: str | None = None
    kind: str = "own"
    before: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Case:
    """One question with what it shows, and the conversation before it.

    Attributes:
        reference: An answer to compare with, if the source has one.
        kind: The kind of question.
    """

    name: str
    question: str
    shown: tuple[Visual, ...] = field(default=(), repr=False)
    before: tuple[Turn, ...] = field(default=(), repr=False)
    reference: str | None = None
    kind: str = ""

    @property
    def turns(self) -> list[Turn]:
        """Return the conversation; its last turn is open."""
        return [*self.before, Turn(self.question, self.shown)]


def of_pair(pair: PairSpec, use: Use = "evaluate") -> list[Case]:
    """Return a pair's shipped questions for a use; `all` in turn of each kind, of the pocket pair
    only what is held out.
    """
    drawn = pair.questions == POCKET
    splits = {use} if use != "all" else {"evaluate"} if drawn else {"choose", "evaluate"}
    left = Counter(POCKET_KINDS) if use == "evaluate" and drawn else None

    def asked(line: Mapping[str, Any]) -> bool:
        """Decided before its files are opened."""
        if line["split"] not in splits or left is None:
            return line["split"] in splits
        left[line["kind"]] -= 1
        return left[line["kind"]] >= 0

    cases = list(_opened(EXAMPLES / pair.questions, pair.n_frames, asked))
    if use == "all":
        return in_turn(cases)
    return cases if left is None else sorted(cases, key=lambda one: _KINDS.index(one.kind))


def of_file(name: str, most: int, n_frames: int = 8) -> list[Case]:
    """Return the first `most` cases of a file of JSON lines; ValueError with a sentence if there is
    none, or if a line is wrong.
    """
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"There is no file {name}; a line of JSON for each question is needed.")
    cases = list(islice(_opened(path, n_frames), most))
    if not cases:
        raise ValueError(f"{name} has no questions.")
    return cases


def by_kind(cases: Iterable[Case]) -> dict[str, list[Case]]:
    kinds: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        kinds[case.kind].append(case)
    return kinds


def in_turn(cases: Iterable[Case]) -> list[Case]:
    """Return the cases with one of each kind in turn."""
    rounds = zip_longest(*by_kind(cases).values())
    return [case for one_of_each in rounds for case in one_of_each if case is not None]


def _opened(
    path: Path, n_frames: int, filtered: Callable[[Mapping[str, Any]], bool] = bool
) -> Iterator[Case]:
    """Yield one case per line; pictures and clips are files next to the file of lines, or in
    `images` there.
    """

    def case(name: str, line: Mapping[str, Any]) -> Case:
        row = read(name, line)
        inside = [path.parent / "images" / shown for shown in row.shown]
        files = [
            file if file.is_file() else path.parent / shown
            for file, shown in zip(inside, row.shown, strict=True)
        ]
        visuals = tuple(load_any(files, n_frames)) if files else ()
        # What is shown belongs to the first question of all.
        turns = tuple(
            Turn(asked, () if number else visuals, answer)
            for number, (asked, answer) in enumerate(row.before)
        )
        shown = () if turns else visuals
        return Case(row.name, row.text, shown, turns, row.reference, row.kind)

    with path.open(encoding="utf-8") as file:
        yield from each(file, path.name, case, filtered)


def each(
    lines: Iterable[str],
    source: str,
    read_line: Callable[[str, Mapping[str, Any]], T],
    filtered: Callable[[Mapping[str, Any]], bool] = bool,
) -> Iterator[T]:
    """Yield the result of `read_line` for the name and the object of every line of JSON.

    source: The file's name. Raises ValueError with the number of the line if one is wrong.
    """
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            if not isinstance(line, dict):
                raise ValueError("the line must be an object with a question.")
            if line and not filtered(line):
                continue
            yield read_line(str(line.get("id", f"{Path(source).stem}-{number}")), line)
        except json.JSONDecodeError as fault:
            raise ValueError(
                f"{source}, line {number}: not a line of JSON ({fault.msg})."
            ) from None
        except (ValueError, TypeError) as fault:
            raise ValueError(f"{source}, line {number}: {fault}") from None


def read(name: str, line: Mapping[str, Any]) -> Row:
    """Return what a line asks. ValueError if it asks nothing."""
    text = _first(line, QUESTION)
    if isinstance(text, list) and text:
        text = text[0]  # choice: of several turns the first; the others need its answer
    if not isinstance(text, str) or not text.strip():
        columns = ", ".join(line) or "nothing"
        raise ValueError(
            f"a question is needed, under {' or '.join(QUESTION)}; {name} has {columns}."
        )
    answer = _first(line, ANSWER)
    if isinstance(answer, list):
        answer = answer[0] if answer else None
    return Row(
        name,
        text,
        tuple(_files(name, line)),
        None if answer is None else str(answer),
        str(_first(line, KIND) or "own"),
        tuple((str(turn["question"]), str(turn["answer"])) for turn in line.get("before", ())),
    )


def _files(name: str, line: Mapping[str, Any]) -> Iterator[str]:
    for value in (line[column] for column in PICTURES if line.get(column)):
        for file in value if isinstance(value, list) else [value]:
            if not isinstance(file, str):
                raise ValueError(f"pictures and clips are named by their files; {name} has {file}.")
            yield file


def _first(line: Mapping[str, Any], columns: Sequence[str]) -> Any:
    return next((line[name] for name in columns if line.get(name) not in (None, "")), None)
