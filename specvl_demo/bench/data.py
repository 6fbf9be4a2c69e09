"""A user's own questions as cases: a file of JSON lines, or a public data set by its hub id or from
a folder.

A line and a row of a data set are read alike, by the usual names of columns; `SETS` has what these
do not cover. Rows are read by the `datasets` package, which must be installed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from specvl_demo.bench.cases import Case, Use, follow_up
from specvl_demo.media import load_any, to_rgb
from specvl_demo.pairs.machine import offline

T = TypeVar("T")
LETTERS = "ABCDEFGHIJ"

QUESTION = ("question", "query", "prompt", "instruction", "turns")
PICTURES = ("image", "images", "picture")
CLIPS = ("video", "videos", "clip", "video_name")
CHOICES = ("choices", "candidates", "choice_a", "choice_b", "choice_c", "choice_d")
CONTEXT = ("hint",)
KIND = ("kind", "topic")
ANSWER = ("reference", "answer", "answers", "label", "gpt_answer", "caption")
"""Names of columns. For a question or an answer the first that a row has is used, for the others
all.
"""


@dataclass(frozen=True)
class DataRow:
    """A row as read, before anything that it shows is opened.

    Attributes:
        shown: Names of files, or pictures as data.
        before: The questions and answers that came first, about what is shown.
    """

    name: str
    text: str
    shown: tuple[Any, ...] = ()
    reference: str | None = None
    kind: str = "own"
    before: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Published:
    """What is read of a data set: its split and config.

    Attributes:
        ask: The question, if the set has none.
        ending: Completes the names of its clips, which are in archives of the repository and must
            be unpacked.
    """

    split: str = "test"
    config: str | None = None
    ask: str = ""
    ending: str = ""


SETS: dict[str, Published] = {
    "wchai/lmms_VDC_test": Published(ask="Describe the video in detail.", ending=".mp4"),
    "OpenGVLab/MVBench": Published("train", "action_sequence"),
    "lmms-lab/textvqa": Published("validation"),
    "lmms-lab/ScienceQA": Published("test", "ScienceQA-IMG"),
    "lmms-lab/llava-bench-in-the-wild": Published("train"),
}
"""The papers' data sets that need special reading, in the form that has pictures as data."""
MMSPEC = "mmspec.jsonl"
"""The lines of a split of MMSpec (arXiv 2603.14989), in a folder with its pictures in `images`."""


def find(data: str, most: int, media: Path | None = None, n_frames: int = 8) -> list[Case]:
    """Return the first `most` cases of a JSON-lines file, a data set's folder or a data set of the
    hub.

    media: A folder of unpacked clips.

    Raises:
        ValueError: With a sentence if something is missing or unreadable.
    """
    path = Path(data)
    if (path / MMSPEC).is_file():
        path /= MMSPEC
    if path.is_file():
        return list(islice(_lines(path, n_frames), most))
    if not path.is_dir() and (data.endswith((".jsonl", ".json")) or data.count("/") != 1):
        raise ValueError(
            f"There is no file or folder {data}, and data sets of the hub are named OWNER/NAME."
        )
    by_name = {known.rsplit("/", 1)[-1].lower(): one for known, one in SETS.items()}
    published = by_name.get(path.name.lower(), Published())

    def unpacked(name: str) -> Path:
        return _unpacked(name + published.ending, media)

    cases = [
        _case(f"{path.name}-{number}", row, unpacked, n_frames, published.ask)
        for number, row in enumerate(_rows(data, published, most))
    ]
    if not cases:
        raise ValueError(f"{data} has no rows in its split {published.split!r}.")
    return cases


def shipped(path: Path, use: Use, n_frames: int = 8) -> list[Case]:
    """Return the cases of a shipped file that are for this use, by its column `split`."""
    return list(_lines(path, n_frames, lambda row: use in ("all", row["split"])))


def _lines(
    path: Path, n_frames: int, wanted: Callable[[Mapping[str, Any]], bool] = bool
) -> Iterable[Case]:
    """Yield one case per line; pictures and clips are files next to the file of lines, or in
    `images` there.
    """

    def beside(name: str) -> Path:
        inside = path.parent / "images" / name
        return inside if inside.is_file() else path.parent / name

    with path.open(encoding="utf-8") as file:
        yield from each(
            file, path.name, lambda name, row: _case(name, row, beside, n_frames), wanted
        )


def each(
    lines: Iterable[str],
    source: str,
    read: Callable[[str, Mapping[str, Any]], T],
    wanted: Callable[[Mapping[str, Any]], bool] = bool,
) -> Iterator[T]:
    """Yield the result of `read` for the name and the row of every line of JSON.

    source: The file's name. Raises ValueError with the number of the line if one is wrong.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("the line must be an object with a question.")
            if row and not wanted(row):
                continue
            yield read(str(row.get("id", f"{Path(source).stem}-{number}")), row)
        except json.JSONDecodeError as fault:
            raise ValueError(
                f"{source}, line {number}: not a line of JSON ({fault.msg})."
            ) from None
        except (ValueError, TypeError) as fault:
            raise ValueError(f"{source}, line {number}: {fault}") from None


def _rows(data: str, published: Published, most: int) -> list[Mapping[str, Any]]:
    try:
        import datasets  # noqa: PLC0415 - an optional package, needed only here
    except ImportError:
        raise ValueError(
            f"Reading the data set {data} needs the package datasets: pip install datasets."
        ) from None
    local = Path(data).is_dir()
    if not local and offline():
        raise ValueError(
            f"HF_HUB_OFFLINE forbids fetching {data}; name a folder that contains it instead."
        )
    try:
        # Streamed: the first rows arrive without the gigabytes after them.
        rows = datasets.load_dataset(
            str(Path(data).resolve()) if local else data,
            None if local else published.config,
            split=published.split,
            streaming=True,
        )
        return list(islice(rows, most))
    except (OSError, ValueError, RuntimeError) as fault:
        reason = " ".join(str(fault).split())[:200]
        raise ValueError(
            f"The data set {data} cannot be read: {type(fault).__name__}: {reason}"
        ) from None


def _case(
    name: str, row: Mapping[str, Any], place: Callable[[str], Path], n_frames: int, ask: str = ""
) -> Case:
    """Return the case of one row. place: maps a file named in the row to its location."""
    one = question(name, row, ask)
    decoded = [_picture(shown) for shown in one.shown if not isinstance(shown, str)]
    files = [place(shown) for shown in one.shown if isinstance(shown, str)]
    opened = load_any(files, n_frames) if files else []
    return follow_up(name, one.text, (*decoded, *opened), one.before, one.reference, one.kind)


def question(name: str, row: Mapping[str, Any], ask: str = "") -> DataRow:
    """Return what a row asks. ask: the question of all rows. ValueError if there is none."""
    text = ask or _first(row, QUESTION)
    if isinstance(text, list) and text:
        text = text[0]  # choice: of several turns the first; the others need its answer
    if not isinstance(text, str) or not text.strip():
        known = ", ".join(row) or "nothing"
        raise ValueError(
            f"a question is needed, under {' or '.join(QUESTION)}; {name} has {known}."
        )
    choices = _all(row, CHOICES)
    lines = [*map(str, _all(row, CONTEXT)), text]
    lines += [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    answer = _first(row, ANSWER)
    if type(answer) is int and 0 <= answer < len(choices):
        answer = LETTERS[answer]
    if isinstance(answer, list | tuple):
        answer = answer[0] if answer else None
    return DataRow(
        name,
        "\n".join(lines),
        (*_all(row, PICTURES), *_all(row, CLIPS)),
        None if answer is None else str(answer),
        str(_first(row, KIND) or "own"),
        tuple((str(turn["question"]), str(turn["answer"])) for turn in row.get("before", ())),
    )


def _picture(value: Any) -> Image.Image:
    """Return a picture decoded by `datasets`, or its undecoded bytes or path."""
    if isinstance(value, Image.Image):
        return to_rgb(value)
    if isinstance(value, Mapping) and (stored := value.get("bytes") or value.get("path")):
        return to_rgb(Image.open(io.BytesIO(stored) if isinstance(stored, bytes) else stored))
    raise ValueError(f"A picture is needed, not {type(value).__name__}.")


def _unpacked(name: str, media: Path | None) -> Path:
    """Return the clip of this name anywhere below the folder of unpacked clips."""
    if media is None:
        raise ValueError(
            f"This data set names its clips ({name}) and stores them in archives: unpack those and"
            " name their folder with --media."
        )
    found = sorted(media.rglob(Path(name).name))
    if not found:
        raise ValueError(f"There is no clip {name} below {media}.")
    return found[0]


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def _all(row: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """Return the values of all these columns, with lists flattened."""
    found: list[Any] = []
    for value in (row[name] for name in names if row.get(name) not in (None, "")):
        found += value if isinstance(value, list | tuple) else [value]
    return found
