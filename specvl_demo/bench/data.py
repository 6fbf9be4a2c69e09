"""Anyone's own questions as cases: a file of JSON lines, or a public data set by its hub id or from a folder.

Which columns of a data set hold pictures, question and answer is data (`SETS`); others are read by the usual
names. Rows come through the `datasets` package where it is installed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

from specvl_demo.bench.cases import Case
from specvl_demo.machine import offline
from specvl_demo.media import Clip, MediaError, load_any, to_rgb
from specvl_demo.vlm.prompts import VideoFrames

LETTERS = "ABCDEFGHIJ"


@dataclass(frozen=True)
class Columns:
    """Where a data set keeps what. Several names: the first that a row has.

    config and split: what of it is read. clip: a column of file names, of clips that lie in archives of the
    repository and must be unpacked first; `ending` completes them. choices: one column with a list, or one
    column a choice. ask: the question, where the set has none.
    """

    id: str
    split: str
    config: str | None = None
    question: tuple[str, ...] = ("question",)
    picture: tuple[str, ...] = ("image",)
    clip: tuple[str, ...] = ()
    ending: str = ""
    answer: tuple[str, ...] = ("answer",)
    choices: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    ask: str = ""


SETS: tuple[Columns, ...] = (
    Columns(
        "wchai/lmms_VDC_test",
        "test",
        picture=(),
        clip=("video_name",),
        ending=".mp4",
        answer=("caption",),
        ask="Describe the video in detail.",
    ),
    Columns(
        "OpenGVLab/MVBench", "train", "action_sequence", picture=(), clip=("video",), choices=("candidates",)
    ),
    # Two owners' forms of one set: a folder has the set's name alone, so either row reads both.
    Columns("lmms-lab/ChartQA", "test", question=("question", "query"), answer=("answer", "label")),
    Columns("HuggingFaceM4/ChartQA", "test", question=("query", "question"), answer=("label", "answer")),
    Columns("lmms-lab/textvqa", "validation", answer=("answers",)),
    Columns("lmms-lab/ScienceQA", "test", "ScienceQA-IMG", choices=("choices",), context=("hint",)),
    Columns("lmms-lab/llava-bench-in-the-wild", "train", answer=("gpt_answer",)),
    Columns("lmms-lab/SEED-Bench", "test", choices=("choice_a", "choice_b", "choice_c", "choice_d")),
)
"""The papers' data sets, in the form that holds pictures as data where there is one."""

ANY = Columns(
    "",
    "test",
    question=("question", "query", "prompt", "instruction"),
    picture=("image", "images", "picture"),
    clip=("video", "clip"),
    answer=("answer", "answers", "reference", "label", "caption"),
)
"""How a data set is read that is not among SETS."""


def find(data: str, most: int, media: Path | None = None, n_frames: int = 8) -> list[Case]:
    """The first `most` cases of a JSON-lines file, a data set's folder or a data set of the hub.

    media: a folder of unpacked clips. ValueError with a sentence where something is missing or unreadable.
    """
    path = Path(data)
    if path.is_file():
        return list(islice(_lines(path, n_frames), most))
    if not path.is_dir() and (data.endswith((".jsonl", ".json")) or data.count("/") != 1):
        raise ValueError(f"There is no file or folder {data}, and a data set of the hub is named OWNER/NAME.")
    columns = columns_of(data)
    cases = [
        _case(f"{columns.id.rsplit('/', 1)[-1] or path.name}-{number}", row, columns, media, n_frames)
        for number, row in enumerate(_rows(data, columns, most))
    ]
    if not cases:
        raise ValueError(f"{data} has no rows in its split {columns.split!r}.")
    return cases


def columns_of(data: str) -> Columns:
    """How a data set is read: by its id, a folder by its last name."""
    names = {one.id.lower(): one for one in SETS} | {one.id.rsplit("/", 1)[-1].lower(): one for one in SETS}
    return names.get(data.lower()) or names.get(Path(data).name.lower()) or ANY


def _lines(path: Path, n_frames: int) -> Iterable[Case]:
    """One case a line: question, images and videos (files beside the JSON-lines file), and a reference."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as fault:
                raise ValueError(f"{path.name}, line {number}: not a line of JSON ({fault.msg}).") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path.name}, line {number}: an object is needed, with a question in it.")
            try:
                yield _line(row, f"{path.stem}-{number}", path.parent, n_frames)
            except (ValueError, TypeError) as fault:
                raise ValueError(f"{path.name}, line {number}: {fault}") from None


def _line(row: Mapping[str, Any], name: str, folder: Path, n_frames: int) -> Case:
    question = _first(row, ("question", "prompt"))
    if not isinstance(question, str) or not question.strip():
        known = ", ".join(row) or "nothing"
        raise ValueError(f"a question is needed (under `question` or `prompt`); it has {known}.")
    files = [file for key in ("image", "images", "video", "videos") for file in _many(row.get(key))]
    shown = _open([folder / str(file) for file in files], n_frames)
    reference = _first(row, ("reference", "answer"))
    return Case(str(row.get("id", name)), question, shown, reference=_text(reference), kind="own")


def _rows(data: str, columns: Columns, most: int) -> list[Mapping[str, Any]]:
    try:
        import datasets  # noqa: PLC0415 - an optional package, needed here alone
    except ImportError:
        raise ValueError(
            f"Reading the data set {data} takes the package datasets: pip install datasets."
        ) from None
    local = Path(data).is_dir()
    if not local and offline():
        raise ValueError(f"HF_HUB_OFFLINE forbids to fetch {data}; name a folder that holds it instead.")
    try:
        # A stream: the first rows come without the gigabytes behind them.
        rows = datasets.load_dataset(
            str(Path(data).resolve()) if local else data,
            None if local else columns.config,
            split=columns.split,
            streaming=True,
        )
        return list(islice(rows, most))
    except (OSError, ValueError, RuntimeError) as fault:
        reason = " ".join(str(fault).split())[:200]
        raise ValueError(f"The data set {data} cannot be read: {type(fault).__name__}: {reason}") from None


def _case(name: str, row: Mapping[str, Any], columns: Columns, media: Path | None, n_frames: int) -> Case:
    question = columns.ask or _first(row, columns.question)
    if not question:
        raise ValueError(f"{name} has none of the columns {', '.join(columns.question)}; it has {list(row)}.")
    context = _first(row, columns.context)
    choices = [one for column in columns.choices for one in _many(row.get(column))]
    lines = [*([str(context)] if context else []), str(question)]
    lines += [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    pictures = [_picture(one) for column in columns.picture for one in _many(row.get(column))]
    clips = [_clip(str(one) + columns.ending, media, n_frames) for one in _many(_first(row, columns.clip))]
    answer = _first(row, columns.answer)
    if choices and isinstance(answer, int) and not isinstance(answer, bool) and answer < len(choices):
        answer = LETTERS[answer]
    return Case(name, "\n".join(lines), (*pictures, *clips), reference=_text(answer), kind="data")


def _picture(value: Any) -> Image.Image:
    """As decoded by `datasets`, or as its undecoded bytes or path."""
    if isinstance(value, Image.Image):
        return to_rgb(value)
    if isinstance(value, Mapping) and value.get("bytes"):
        return to_rgb(Image.open(io.BytesIO(value["bytes"])))
    if isinstance(value, Mapping) and value.get("path"):
        return to_rgb(Image.open(value["path"]))
    raise ValueError(f"A picture is needed, got {type(value).__name__}.")


def _clip(name: str, media: Path | None, n_frames: int) -> VideoFrames:
    if media is None:
        raise ValueError(
            f"This data set names its clips ({name}) and packs them into archives: unpack those and "
            "name their folder with --media."
        )
    found = sorted(media.rglob(Path(name).name))
    if not found:
        raise ValueError(f"There is no clip {name} below {media}.")
    (shown,) = _open(found[:1], n_frames)
    return shown if isinstance(shown, VideoFrames) else VideoFrames((shown,))


def _open(paths: Sequence[Path], n_frames: int) -> tuple[Image.Image | VideoFrames, ...]:
    try:
        opened = load_any(paths, n_frames) if paths else []
    except MediaError as fault:
        raise ValueError(str(fault)) from None
    return tuple(VideoFrames(one.frames, one.times_s) if isinstance(one, Clip) else one for one in opened)


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def _many(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _text(value: Any) -> str | None:
    """A reference as text; of several the first."""
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return None if value is None else str(value)
