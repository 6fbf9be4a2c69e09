"""From a loaded pair and a question to the records of a race: functions for the command line, the
page and the bench, and the classes `Pair` and `Race` of the public interface.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace as changed
from PIL import Image

from specvl_demo import pairs, records
from specvl_demo.core import engine
from specvl_demo.core.detokenizer import replace_surrogates
from specvl_demo.core.engine import Lane, Request, SharedPrefill
from specvl_demo.core.prefix_cache import PrefixCache
from specvl_demo.core.sampling import Sampling
from specvl_demo.media import VideoFrames, Visual, load_media
from specvl_demo.methods.base import Choice, assemble
from specvl_demo.options import NEW_TOKENS, SEED, TEMPERATURE, TOP_P
from specvl_demo.pairs.machine import Load
from specvl_demo.records import Begin, End, LaneRecords, Question, Record, gather
from specvl_demo.report import figure, tables
from specvl_demo.serving import availability, choosing
from specvl_demo.vlm.prompts import Turn

if TYPE_CHECKING:
    from specvl_demo.serving.loader import Loaded

WARM_TOKENS = 6
PICTURE_PIXELS, LEAST_PIXELS = 1_250_000, 50_000

DESCRIBE = {
    "image": "Describe the picture.",
    "images": "Describe the pictures.",
    "video": "What happens in the clip?",
}


def turn(
    question: str,
    media: Sequence[Visual] = (),
    answer: str | None = None,
    most_pixels: int | None = None,
) -> Turn:
    """A turn of a conversation from decoded media. An empty question asks to describe what is
    shown.

    Pictures of more pixels than that (None: `picture_pixels`) are made smaller: families that cut a
    picture by its size would make thousands of tokens of a photograph from a telephone.
    """
    most = picture_pixels() if most_pixels is None else most_pixels
    shown = tuple(one if isinstance(one, VideoFrames) else _within(one, most) for one in media)
    if not question.strip() and media:
        clips = any(isinstance(m, VideoFrames) for m in media)
        question = DESCRIBE["video" if clips else "images" if len(media) > 1 else "image"]
    return Turn(
        replace_surrogates(question), shown, None if answer is None else replace_surrogates(answer)
    )


def picture_pixels() -> int:
    """The most pixels of a picture that a model is shown: SPECVL_PICTURE_PIXELS, else 1.25 million.

    ValueError with a sentence where that is no number of pixels.
    """
    named = os.environ.get("SPECVL_PICTURE_PIXELS") or str(PICTURE_PIXELS)
    if not named.isdecimal() or int(named) < LEAST_PIXELS:
        raise ValueError(
            f"SPECVL_PICTURE_PIXELS is a number from {LEAST_PIXELS} on, not {named!r}."
        )
    return int(named)


def _within(image: Image.Image, most: int) -> Image.Image:
    scale = math.sqrt(most / (image.width * image.height))
    if scale >= 1:
        return image
    size = max(1, int(image.width * scale)), max(1, int(image.height * scale))
    return image.resize(size, Image.Resampling.BICUBIC)


def request(
    loaded: Loaded,
    turns: Sequence[Turn],
    max_new_tokens: int = NEW_TOKENS.default,
    sampling: Sampling | None = None,
    system: str = "",
    detail: Literal["full", "light"] = "full",
    cancelled: Callable[[], bool] = bool,
    cache: PrefixCache | None = None,
    prefix: str | Sequence[int] = (),
) -> Request:
    """A request to the loaded target. ValueError with a sentence where the prompt does not fit it.

    cache: of the conversation; what its questions have in common is computed once. prefix: text or
    ids that the answer has to begin with.
    """
    begun = loaded.prompter.ids(replace_surrogates(prefix)) if isinstance(prefix, str) else prefix
    return Request(
        id=secrets.token_hex(6),
        prompt=loaded.prompter.prompt(
            turns, replace_surrogates(system), max_new_tokens, cache, begun
        ),
        target=loaded.models.target,
        token_texts=loaded.token_texts,
        sampling=sampling or Sampling(),
        max_new_tokens=max_new_tokens,
        detail=detail,
        pair=loaded.pair.id,
        versions=loaded.versions,
        cancelled=cancelled,
    )


def lanes(
    loaded: Loaded,
    asked: Request,
    choices: Sequence[Choice],
    shared: SharedPrefill | None = None,
) -> list[Lane]:
    """One new lane for each choice, named by its method; a method that runs twice is numbered.

    shared: encodings and prefills of other lanes for the same request.
    """
    shared = shared or SharedPrefill(asked)
    names: list[str] = []
    for choice in choices:
        same = sum(name.split("#")[0] == choice.method.name for name in names)
        names.append(f"{choice.method.name}#{same + 1}" if same else choice.method.name)
    return [
        Lane(name, assemble(choice, loaded.models), shared)
        for name, choice in zip(names, choices, strict=True)
    ]


def warm(
    loaded: Loaded, asked: Request, choices: Sequence[Choice], shared: SharedPrefill | None = None
) -> None:
    """Let every lane run a few tokens whose records are thrown away; what they encode and prefill
    stays in `shared`.

    Whoever computes first pays for allocations and kernels chosen on first use; in a race that is
    AR, and every speedup would be flattered. What has answered in this conversation is warm.
    """
    cache = asked.prompt.cache
    warmed = set() if cache is None else cache.warm
    shared = shared or SharedPrefill(asked)
    for choice in choices:
        parts = assemble(choice, loaded.models)
        if parts.key not in warmed:
            lane = Lane("warm-up", parts, shared, WARM_TOKENS)
            lane.begin()
            while not lane.done:
                lane.step()
            # It is not ended: the conversation keeps nothing of it.
            warmed.add(parts.key)


def race(
    loaded: Loaded,
    asked: Request,
    choices: Sequence[Choice],
    warmed: bool = False,
    shared: SharedPrefill | None = None,
    notes: Question | None = None,
) -> Iterator[Record]:
    """The records of a race between these choices. warmed: they ran just before, so no warm-up is
    needed.

    shared: the request's, for who wants more of it afterwards. notes: what a person asked, told
    with the first lane alone.
    """
    shared = shared or SharedPrefill(asked)
    running = lanes(loaded, asked, choices, shared)
    if not warmed:
        warm(loaded, asked, choices, shared)
    load = Load()
    for record in engine.race(running):
        if isinstance(record, End):
            record = changed(record, load=load.others())
        elif isinstance(record, Begin) and notes is not None:
            record, notes = changed(record, notes=notes), None
        yield record


class Race:
    """Methods answering one question side by side. Iterating gives records as they come, and again
    as often as wanted; everything else first runs the race to its end. lock: held while a record is
    made, so that threads may share the race, and races a pair.
    """

    def __init__(
        self, running: Iterator[Record], lock: AbstractContextManager[Any] | None = None
    ) -> None:
        self._running = running
        self._lock = lock or nullcontext()
        self._records: list[Record] = []

    def __iter__(self) -> Iterator[Record]:
        at = 0
        while True:
            with self._lock:
                if at == len(self._records):
                    record = next(self._running, None)
                    if record is None:
                        return
                    self._records.append(record)
            yield self._records[at]
            at += 1

    @property
    def lanes(self) -> list[LaneRecords]:
        """Every lane's Begin, Rounds and End, in the order of the methods; `.text` is its
        answer.
        """
        return gather(self)

    def table(self) -> str:
        """The lanes' numbers as a Markdown table."""
        return tables.render(tables.lane_rows(self.lanes), tables.LANE_COLUMNS)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace: JSON lines that the page, `trace check` and `trace html` read."""
        records.write(Path(path), list(self))

    def figure(self, path: str | os.PathLike[str]) -> None:
        """Write the race as one SVG figure, for a page or a paper."""
        Path(path).write_text(figure.svg(self.lanes), encoding="utf-8")

    def html(self, path: str | os.PathLike[str], compact: bool = False) -> None:
        """Write the race as one HTML file that opens anywhere, with charts; compact: without, in
        less than 400 kB.
        """
        from specvl_demo.report import html  # noqa: PLC0415 - plotly, for those who draw

        Path(path).write_text(html.page(self.lanes, compact), encoding="utf-8")


class Pair:
    """A loaded target with its drafters; see `specvl_demo.load`."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._lock = Lock()

    @property
    def methods(self) -> list[str]:
        """The methods that this pair serves."""
        return choosing.served(self._loaded.pair)

    def race(
        self,
        question: str = "",
        images: Sequence[str | os.PathLike[str]] = (),
        videos: Sequence[str | os.PathLike[str]] = (),
        methods: Sequence[str] = ("ar",),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        max_new_tokens: int = NEW_TOKENS.default,
        temperature: float = TEMPERATURE.default,
        top_p: float = TOP_P.default,
        seed: int = SEED.default,
        prefix: str | Sequence[int] = (),
    ) -> Race:
        """A race of methods on one question about picture and clip files.

        settings: parameters by method. prefix: text or token ids that every answer continues, such
        as another race's `token_ids` up to some place, and another token after them. ValueError
        with a sentence where something is unknown or does not fit, before anything is computed.
        """
        pair = self._loaded.pair
        max_new_tokens = NEW_TOKENS.check(max_new_tokens)
        sampling = Sampling(temperature, top_p=top_p, seed=seed)
        for name, value, kind, what in (
            ("question", question, str, "text"),
            ("settings", settings or {}, Mapping, "a dictionary of parameters by method"),
        ):
            if not isinstance(value, kind):
                raise ValueError(f"{name} is {what}, not an object of type {type(value).__name__}.")
        images = _listed("images", images, (str, os.PathLike), "paths of picture files")
        videos = _listed("videos", videos, (str, os.PathLike), "paths of clip files")
        methods = _listed("methods", methods, (str,), "names of methods")
        for name, own in (settings or {}).items():
            if name not in methods:
                raise ValueError(
                    f"settings names {name!r}, which is none of methods: {', '.join(methods)}."
                )
            if not isinstance(own, Mapping):
                raise ValueError(
                    f'settings[{name!r}] is no dictionary such as {{"gamma": 4}}, but {own!r}.'
                )
        if not isinstance(prefix, str):
            prefix = _listed("prefix", prefix, (int,), "token ids, or one text")
        if not methods:
            raise ValueError("methods names no method.")
        if not question.strip() and not images and not videos:
            raise ValueError("There is nothing to answer: give a question, images or videos.")
        chosen = [
            choosing.choose(pair, name, (settings or {}).get(name), temperature) for name in methods
        ]
        pictures, clips = load_media(images, videos, pair.n_frames)
        turns = [turn(question, [*pictures, *clips])]
        asked = request(
            self._loaded,
            turns,
            max_new_tokens,
            sampling,
            prefix=prefix,
        )
        return Race(race(self._loaded, asked, chosen, notes=Question(question)), self._lock)


def _listed(name: str, given: Any, kinds: tuple[type, ...], what: str) -> list[Any]:
    """The items of an argument of `Pair.race`; ValueError with a sentence where it is no list of
    these.
    """
    if isinstance(given, (str, bytes, os.PathLike)) or not isinstance(given, Iterable):
        raise ValueError(
            f"{name} is a list of {what}, not an object of type {type(given).__name__}."
        )
    items = list(given)
    for item in items:
        if not isinstance(item, kinds):
            raise ValueError(f"{name} holds {what}, not an object of type {type(item).__name__}.")
    return items


def load(pair: str, dtype: str | None = None) -> Pair:
    """See `specvl_demo.load`."""
    from specvl_demo.serving import loader  # noqa: PLC0415 - transformers, where models are loaded

    known = availability.DTYPE_BYTES
    if dtype not in (None, *known):
        raise ValueError(f"There is no dtype {dtype!r}; known: {', '.join(known)}.")
    return Pair(
        loader.load(pairs.find(pair), options=availability.Options.of_environment(dtype=dtype))
    )
