"""A question: its words, pictures and clips, what was said before, and how it is to be answered.

Every door makes one: page, command line, lines of a file, endpoints, `/v1`, Compare and Python.
`read` is the one parser; a door adds only how its files are found.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image

from specvl_demo.core.detokenizer import replace_surrogates
from specvl_demo.media import MediaFile, VideoFrames, Visual, load_files
from specvl_demo.media.files import Want
from specvl_demo.options import (
    DETAIL,
    LOGIT_BIAS,
    MAX_BIASED,
    MAX_NEW_TOKENS_SERVED,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    NEW_TOKENS,
    OF_ANSWERS,
    Sampling,
)
from specvl_demo.pairs import PairSpec
from specvl_demo.records import JsonObject

MAX_TURNS = 16
"""Earlier questions of a conversation."""
MAX_FILES = 8
"""Pictures and clips of one question."""
MAX_SHOWN = 16
"""Pictures and clips of a whole conversation."""
MAX_CHARACTERS = 20_000
"""Of a visitor's text."""

WORDS = ("question", "prompt")
"""Names of the words, of which the first that has a value is taken."""
MEDIA: dict[str, Want] = {
    "media": "any",
    **dict.fromkeys(("image", "images"), "picture"),
    **dict.fromkeys(("video", "videos"), "clip"),
}
"""Names of pictures and clips, all of which are taken, and what their files must be."""
PREFIX = ("prefix", "answer_prefix")
LINE = frozenset({*WORDS, *MEDIA, "kind", "answer", "before", "id", "split"})
"""What a line of a file may say of a question."""

NOTHING = "There is nothing to answer: a question, a picture or a clip is needed."
Medium: TypeAlias = MediaFile | Visual


@dataclass(frozen=True)
class Turn:
    """A question with what it shows, in order; `answer` is None for the open one."""

    question: str
    shown: tuple[Medium, ...]
    answer: str | None = None


@dataclass(frozen=True)
class Question:
    """A question, what was said before it, and how it is to be answered.

    Attributes:
        media: Files, or pictures and clips once `read_files` has run.
        prefix: Text, or ids of the target's tokens, that the answer must begin with.
        picture_detail: The maximum size of a picture in millions of pixels.
        up_to: Whether the answer may be shorter where the target's context ends.
        id, kind, reference: Of a line of a file: its name, the kind of question, and an answer to
            compare with.
    """

    words: str = ""
    media: tuple[Medium, ...] = field(default=(), repr=False)
    earlier: tuple[Turn, ...] = field(default=(), repr=False)
    system: str = ""
    prefix: str | tuple[int, ...] = ()
    max_new_tokens: int = NEW_TOKENS.default
    sampling: Sampling = field(default_factory=Sampling)
    picture_detail: float = DETAIL.default
    up_to: bool = False
    id: str | int | None = None
    kind: str = ""
    reference: str | None = None

    @property
    def turns(self) -> list[Turn]:
        """Return the conversation; its last turn is open."""
        return [*self.earlier, Turn(self.words, self.media)]

    @property
    def all_media(self) -> list[Medium]:
        """Return all its pictures and clips, those of earlier turns first."""
        return [medium for turn in self.turns for medium in turn.shown]

    @property
    def files(self) -> list[MediaFile]:
        """Return those that are files."""
        return [medium for medium in self.all_media if isinstance(medium, MediaFile)]

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self.files]

    def with_media(self, media: Iterable[Medium]) -> Question:
        """Return the question with these in place of `all_media`, in the same order."""
        rest = iter(media)
        *earlier, now = [
            replace(turn, shown=tuple(next(rest) for _ in turn.shown)) for turn in self.turns
        ]
        return replace(self, media=now.shown, earlier=tuple(earlier))

    def read_files(self, pair: PairSpec) -> Question:
        """Return the question with its files read as this pair is shown them; one without words
        asks for a description, in the pair's words.

        Pictures above `picture_detail` are scaled down: families that split a picture by its size
        would make thousands of tokens of a phone's photograph. MediaError if a file cannot be read.
        """
        visuals = iter(load_files(self.files, pair.n_frames))
        pixels = round(self.picture_detail * 1e6)
        opened = self.with_media(
            _scaled_down(next(visuals) if isinstance(medium, MediaFile) else medium, pixels)
            for medium in self.all_media
        )
        *earlier, now = [
            replace(turn, question=_turn_words(turn, pair.describe)) for turn in opened.turns
        ]
        return replace(opened, words=now.question, earlier=tuple(earlier))


def _turn_words(turn: Turn, describe: Mapping[str, str]) -> str:
    """Return the words of a turn, those for a description if it has none."""
    if turn.question.strip() or not turn.shown:
        return turn.question
    clips = any(isinstance(medium, VideoFrames) for medium in turn.shown)
    pictures = "images" if len(turn.shown) > 1 else "image"
    return describe["video" if clips else pictures]


def _scaled_down(visual: Visual, pixels: int) -> Visual:
    if isinstance(visual, VideoFrames):
        return visual
    scale = math.sqrt(pixels / (visual.width * visual.height))
    if scale >= 1:
        return visual
    size = max(1, int(visual.width * scale)), max(1, int(visual.height * scale))
    return visual.resize(size, Image.Resampling.BICUBIC)


# ---------------------------------------------------------------- reading


def read(data: Any, find: Callable[[Any], Medium] | None = None, visitor: bool = False) -> Question:
    """Return the question in plain data, which may be anything at all; ValueError if it is none.

    Earlier turns are under `history`, each with what it showed, or under `before`: then about what
    is shown now.

    Args:
        find: Returns the file or picture that an item of the data means; None if it is a path.
        visitor: Whether it comes from a visitor of the page: text and answer are then limited.
    """
    if not isinstance(data, Mapping):
        raise ValueError(NOTHING)
    find = find or find_file
    before = list_of(
        data.get("before"), Mapping, "Earlier turns", "a list of questions and answers"
    )
    history = list_of(data.get("history"), Mapping, "The history", "a list of earlier questions")
    past = [*before, *history]
    if len(past) > MAX_TURNS:
        raise ValueError(
            f"A conversation can have at most {MAX_TURNS} earlier questions, got {len(past)}. Begin"
            " a new conversation, or continue from an earlier question."
        )
    # All files are counted before any of them is looked for.
    items = [_turn_media(turn) for turn in (*past, data)]
    if (n := sum(map(len, items))) > MAX_SHOWN:
        raise ValueError(
            f"A conversation can have at most {MAX_SHOWN} pictures and clips, got {n}. Begin a new"
            " one."
        )
    limit = MAX_CHARACTERS if visitor else None
    words = [text_of(_first(turn, WORDS, ""), "The question", limit) for turn in (*past, data)]
    if before:  # what is shown belongs to the first question of all
        items[0], items[-1] = items[-1], items[0]
    if not words[-1].strip() and not items[-1]:
        raise ValueError(NOTHING)
    media = [tuple(_with_want(find(item), want) for item, want in some) for some in items]
    answers = [text_of(turn.get("answer", ""), "An answer", limit) for turn in past]
    served = MAX_NEW_TOKENS_SERVED if visitor else None
    name = data.get("id")
    answer = data.get("answer")
    detail = data.get(DETAIL.name)
    return Question(
        words=words[-1],
        media=media[-1],
        earlier=tuple(map(Turn, words, media, answers)),
        system=text_of(data.get("system", ""), "The system prompt", limit),
        prefix=_read_prefix(_first(data, PREFIX), served or NEW_TOKENS.high),
        max_new_tokens=NEW_TOKENS.check(data.get(NEW_TOKENS.name, NEW_TOKENS.default), served),
        sampling=read_sampling(data),
        picture_detail=DETAIL.default if detail is None else DETAIL.check(detail),
        up_to=data.get("up_to") is True,
        id=name if isinstance(name, str | int) else None,
        kind=str(data.get("kind") or "own"),
        reference=None if answer in (None, "") else str(answer),
    )


def _with_want(medium: Medium, want: Want) -> Medium:
    return medium._replace(want=want) if isinstance(medium, MediaFile) else medium


def parse_line(text: str) -> JsonObject:
    """Return the object in a line of JSON; ValueError with a sentence if there is none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as fault:
        reason = fault.msg if isinstance(fault, json.JSONDecodeError) else "a value is too large"
        raise ValueError(f"not a line of JSON ({reason}).") from None
    if not isinstance(line, dict):
        raise ValueError("the line must be an object with a question.")
    return line


def find_file(item: Any, folders: Sequence[Path] = ()) -> MediaFile:
    """Return the file of this path: in the first of the folders that has it, else as it stands."""
    if not isinstance(item, str | os.PathLike):
        raise wrong_kind("Pictures and clips", "paths of files", item)
    places = (folder / item for folder in folders)
    return MediaFile(os.fspath(next((place for place in places if place.is_file()), item)))


def _turn_media(turn: Mapping[str, Any]) -> list[tuple[Any, Want]]:
    """Return what a turn shows, each with what its file must be."""
    items: list[tuple[Any, Want]] = []
    for name, want in MEDIA.items():
        value = turn.get(name)
        if value is None or isinstance(value, str) and not value:
            continue
        values = value if isinstance(value, list | tuple) else [value]
        items += [(item, want) for item in values]
    if len(items) > MAX_FILES:
        raise ValueError(
            f"A question can have at most {MAX_FILES} pictures and clips, got {len(items)}."
        )
    return items


def _read_prefix(value: Any, limit: int) -> tuple[int, ...] | str:
    """Return text, or token ids; the loaded model checks which of them are text."""
    prefix: tuple[int, ...] | str
    if isinstance(value, str):
        prefix = replace_surrogates(value)
        n = len(prefix.encode())  # no token is less than a byte
        what = "bytes"
    else:
        prefix = tuple(list_of(value, int, "The prefix", "a list of token ids"))
        n = len(prefix)
        what = "tokens"
    if n > limit:
        raise ValueError(f"The answer's beginning has {n} {what}; at most {limit} are allowed.")
    return prefix


def read_sampling(data: Mapping[str, Any]) -> Sampling:
    """Return how tokens are sampled; ValueError if something is not of its kind."""
    if not isinstance(ignore := data.get("ignore_eos", False), bool | None):
        raise wrong_kind("ignore_eos", "true or false", ignore)
    numbers: JsonObject = {
        option.name: data[option.name]
        for option in OF_ANSWERS
        if option is not NEW_TOKENS and option.name in data
    }
    biases = _read_biases(data.get(LOGIT_BIAS.name))
    stops = _read_stops(data.get("stop"))
    return Sampling(**numbers, logit_bias=biases, stop=stops, ignore_eos=bool(ignore))


def _read_stops(value: Any) -> tuple[str, ...]:
    texts = [value] if value and isinstance(value, str) else value or None
    stops = list_of(texts, str, "Stop strings", "texts")
    if len(stops) > MAX_STOPS or not all(0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
        raise ValueError(
            f"At most {MAX_STOPS} stop strings of 1 to {MAX_STOP_CHARACTERS} characters count."
        )
    return tuple(map(replace_surrogates, stops))


def _read_biases(value: Any) -> dict[int, float]:
    """Return biases by token id; the loaded model checks that it has these tokens."""
    if not isinstance(value, Mapping | None):
        raise wrong_kind("Logit biases", "an object of numbers by token id", value)
    biases = {str(token): LOGIT_BIAS.check(bias) for token, bias in (value or {}).items()}
    if wrong := [name for name in biases if not (name.isascii() and name.isdecimal())]:
        raise ValueError(f"A logit bias is for the id of a token, not {wrong[0][:20]!r}.")
    if len(biases) > MAX_BIASED:
        raise ValueError(f"Logit biases are for at most {MAX_BIASED} tokens, not {len(biases)}.")
    return {int(name): bias for name, bias in biases.items()}


def _first(data: Mapping[str, Any], names: Iterable[str], otherwise: Any = None) -> Any:
    return next((data[name] for name in names if data.get(name) not in (None, "")), otherwise)


def text_of(value: Any, what: str, limit: int | None = None) -> str:
    """Return text with characters that can be encoded; ValueError if it is none, or too long."""
    if not isinstance(value, str):
        raise wrong_kind(what, "text", value)
    if limit is not None and len(value) > limit:
        raise ValueError(
            f"{what} is too long: it has {len(value)} characters, and at most {limit} are allowed."
        )
    return replace_surrogates(value)


def list_of(value: Any, kind: type, what: str, expected: str) -> list[Any]:
    """Return the items of a list, all of one kind; empty if nothing is given."""
    if not isinstance(value, list | tuple | None):
        raise wrong_kind(what, expected, value)
    for item in value or ():
        if not isinstance(item, kind):
            raise wrong_kind(what, expected, item)
    return list(value or ())


def wrong_kind(what: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"{what} must be {expected}, not {json_kind(value)}.")


def json_kind(value: Any) -> str:
    """Return what a value is, in JSON's words, for a sentence."""
    names = {type(None): "null", bool: "true or false", str: "text", list: "a list"}
    number = "a number" if isinstance(value, int | float) else "an object"
    return names.get(type(value), number)
