"""From a loaded pair and a question to the records of a race: functions for the command line, the
page and the bench, and the classes `Pair` and `Race` of the public interface.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as changed
from PIL import Image

from specvl_demo import records
from specvl_demo.core import engine
from specvl_demo.core.engine import Lane, Request, SharedPrefill
from specvl_demo.media import to_rgb
from specvl_demo.media.files import REMARK, MediaError
from specvl_demo.methods.base import Choice, build_parts, note_names
from specvl_demo.options import NEW_TOKENS, SEED, TEMPERATURE, TOP_P, Sampling
from specvl_demo.pairs import fitting
from specvl_demo.pairs.machine import MachineLoad
from specvl_demo.places import AnyPath
from specvl_demo.question import Medium, Question, find_file, read, wrong_kind
from specvl_demo.records import (
    WHOLE,
    AskedQuestion,
    Begin,
    End,
    LaneRecords,
    Record,
    Round,
    gather_lanes,
)
from specvl_demo.report import figure, html, tables
from specvl_demo.report.confidence import confidence
from specvl_demo.report.remarks import TIMED_TOKENS
from specvl_demo.serving import choosing, threads

if TYPE_CHECKING:
    from specvl_demo.serving.loaded import LoadedPair

Choices = Sequence[Choice]
WARM_TOKENS = 6
AGAIN_S = 1.0
"""How long short answers may be decoded again."""
LOAD_EVERY_S = 1.0
"""How often a round of a race notes the share of all cores that other programs use so far."""


def make_request(
    loaded: LoadedPair,
    question: Question,
    full: bool = True,
    cancelled: Callable[[], bool] = bool,
) -> Request:
    """Return a request to the loaded target; ValueError if a file cannot be read, or the prompt
    does not fit. full, cancelled: See `Request`.
    """
    question = question.read_files(loaded.pair)
    prompt = loaded.prompter.prompt(question)
    max_new_tokens = question.max_new_tokens
    if question.up_to:
        max_new_tokens = min(max_new_tokens, loaded.prompter.context - len(prompt))
    return Request(
        id=secrets.token_hex(6),
        prompt=prompt,
        target=loaded.models.target,
        token_texts=loaded.token_texts,
        sampling=_resolved(question.sampling, loaded),
        max_new_tokens=max_new_tokens,
        full=full,
        pair=loaded.pair.id,
        versions=loaded.versions,
        cancelled=cancelled,
    )


def _resolved(sampling: Sampling, loaded: LoadedPair) -> Sampling:
    """Return the sampling with the checkpoint's repetition penalty if that is asked for; ValueError
    for a bias on a token that the target does not have.
    """
    size = loaded.models.target.vocabulary.size
    if (highest := max(sampling.logit_bias, default=0)) >= size:
        raise ValueError(f"There is no token {highest} to bias: this target has {size} tokens.")
    if sampling.repetition_penalty:
        return sampling
    config: Any = loaded.models.target.vlm.model.generation_config
    return replace(sampling, repetition_penalty=config.repetition_penalty or 1.0)


def make_lanes(
    loaded: LoadedPair, request: Request, choices: Choices, shared: SharedPrefill | None = None
) -> list[Lane]:
    """Return one new lane for each choice, named by its method.

    shared: Encodings and prefills of other lanes for the same request.
    """
    shared = shared or SharedPrefill(request)
    return [
        Lane(choice.method.name, build_parts(choice, loaded.models), shared) for choice in choices
    ]


def warm_up(
    loaded: LoadedPair,
    request: Request,
    choices: Choices,
    shared: SharedPrefill | None = None,
    side_by_side: bool = True,
) -> None:
    """Run every lane for a few tokens; encodings and prefills stay in `shared`.

    The first computation pays for allocations and for kernels chosen on first use. In a race that
    would be AR, which would inflate every speedup.

    side_by_side: Whether the lanes will be open at once: each then needs a cache with graphs.
    """
    shared = shared or SharedPrefill(request)
    open_lanes = []
    for choice in choices:
        if request.cancelled():
            return
        lane = Lane("warm-up", build_parts(choice, loaded.models), shared, WARM_TOKENS)
        lane.begin()
        while not lane.done:
            lane.step()
        if side_by_side:
            open_lanes.append(lane)


def run_lanes(loaded: LoadedPair, request: Request, choices: Choices) -> list[LaneRecords]:
    """Return the whole lanes of these choices, run in a race without a warm-up."""
    return gather_lanes(engine.race(make_lanes(loaded, request, choices)))


def race(
    loaded: LoadedPair,
    request: Request,
    choices: Choices,
    warmed: bool = False,
    notes: AskedQuestion | None = None,
    watchers: Sequence[int] = (),
) -> Iterator[Record]:
    """Yield the records of a race between these choices; beside AR, lanes with short answers end
    last, once these were timed again.

    warmed: They ran just before, so no warm-up is needed. notes: What the user asked, recorded only
    with the first lane. watchers: See `MachineLoad`.
    """
    media = getattr(request.prompt.source, "all_media", ())
    if remarks := [seen.info[REMARK] for seen in media if REMARK in seen.info]:
        notes = changed(notes or AskedQuestion(), remarks=remarks)
    shared = SharedPrefill(request)
    running = make_lanes(loaded, request, choices, shared)
    if not warmed:
        warm_up(loaded, request, choices, shared)
    load = MachineLoad(watchers)
    noted = time.monotonic()
    folded = {}
    short = {}
    steady = loaded.models.target.decoder.batch_invariant
    with threads.fitted_threads() as fit_threads:
        for record in engine.race(running):
            if isinstance(record, Begin):
                if notes is not None:
                    record = changed(record, notes=notes)
                    notes = None
                folded[record.lane] = LaneRecords(record, [])
            elif isinstance(record, Round):
                if time.monotonic() - noted > LOAD_EVERY_S:
                    noted = time.monotonic()
                    record = changed(record, notes=record.notes | {"load": load.others_share()})
                folded[record.lane].rounds.append(record)
            else:
                sure = confidence(folded[record.lane]._replace(end=record))
                used = {"load": load.others_share(), "watching": load.watchers_share()}
                record = changed(record, confidence=sure, **used)
                # Too few tokens to be timed by decoding the answer once.
                few = record.stop in WHOLE and 0 < record.totals.n_tokens < TIMED_TOKENS
                if few and len(choices) > 1 and "ar" in folded:
                    short[record.lane] = record
                    continue
            # Only where a row has the same bits on any number of threads, and only for steps: how
            # pictures and prompts are split among threads changes their last bits.
            if steady and len(folded) == len(choices):
                fit_threads()
            yield record
        running.clear()  # their caches, with what is captured of them, serve once more
        again = _decode_again(loaded, shared, choices, short)
    for name, end in short.items():
        yield changed(end, again=again[name])


def _decode_again(
    loaded: LoadedPair, shared: SharedPrefill, choices: Choices, short: Mapping[str, End]
) -> dict[str, list[float]]:
    """Return the seconds of decoding short answers again, by lane: in turns, until each has
    `TIMED_TOKENS` tokens in all, or none can be decoded before `AGAIN_S` is over.
    """
    again: dict[str, list[float]] = {name: [] for name in short}
    waiting = [choice for choice in choices if choice.method.name in short]
    until = time.monotonic() + AGAIN_S
    request = replace(shared.request, full=False)
    silent = SharedPrefill(request, like=shared)
    reserved = make_lanes(loaded, request, waiting, silent)  # they keep the prefill for the others
    while waiting and reserved:
        choice = waiting.pop(0)
        name = choice.method.name
        totals = short[name].totals
        if time.monotonic() + totals.decode_s > until:
            continue
        (lane,) = make_lanes(loaded, request, [choice], silent)
        lane.begin()
        while not lane.done:
            lane.step()
        if lane.totals.n_tokens != totals.n_tokens:  # cancelled, or rounding chose other tokens
            continue
        again[name].append(lane.clock)
        if (1 + len(again[name])) * totals.n_tokens < TIMED_TOKENS:
            waiting.append(choice)
    return again


def run_in_turn(
    loaded: LoadedPair, request: Request, choices: Choices, warmed: bool
) -> Iterator[Record]:
    """Yield the records of lanes that run one after the other, each as `bench` runs it.

    warmed: They ran just before, so that only the first one is warmed up.
    """
    warm_up(loaded, request, choices[:1] if warmed else choices, side_by_side=False)
    for choice in choices:
        if request.cancelled():
            return
        load = MachineLoad()
        (lane,) = run_lanes(loaded, request, [choice])
        if lane.end is None or request.cancelled():
            return
        yield lane.begin
        yield from lane.rounds
        yield changed(lane.end, load=load.others_share())


class Race:
    """Methods answering one question side by side.

    Iterating yields records as they are made, and can be repeated; everything else first runs the
    race to its end. lock: held while a record is made, so that threads may share race and pair.
    """

    def __init__(self, running: Iterator[Record], lock: Lock) -> None:
        self._running = running
        self._lock = lock
        self._records: list[Record] = []

    def __repr__(self) -> str:
        return f"<Race: {len(self._records)} records so far; `table()` runs it to its end>"

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
        """Every lane's Begin, Rounds and End, in the methods' order; `.text` is its answer."""
        return gather_lanes(self)

    def table(self) -> str:
        """Return the lanes' numbers as a Markdown table."""
        return tables.to_markdown(tables.lane_rows(self.lanes), tables.LANE_COLUMNS)

    def save(self, path: AnyPath) -> None:
        """Write the trace: JSON lines that the page, `trace check` and `trace html` read."""
        records.write_trace(Path(path), list(self))

    def figure(self, path: AnyPath) -> None:
        """Write the race as one SVG figure, for a page or a paper."""
        Path(path).write_text(figure.race_svg(self.lanes), "utf-8")

    def html(self, path: AnyPath) -> None:
        """Write the page with this race, read-only, as one HTML file that opens in any browser."""
        Path(path).write_text(html.race_page(self.lanes, names=note_names()), "utf-8")


class Pair:
    """A loaded target with its drafters; see `load`."""

    def __init__(self, loaded: LoadedPair) -> None:
        self._loaded = loaded
        self._lock = Lock()

    @property
    def methods(self) -> list[str]:
        """Return the methods that this pair supports."""
        return choosing.supported_methods(self._loaded.pair)

    def race(
        self,
        question: str = "",
        images: Sequence[AnyPath | Image.Image] = (),
        videos: Sequence[AnyPath] = (),
        methods: Sequence[str] = ("ar",),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        max_new_tokens: int = NEW_TOKENS.default,
        temperature: float = TEMPERATURE.default,
        top_p: float = TOP_P.default,
        seed: int = SEED.default,
        prefix: str | Sequence[int] = (),
        **sampling: Any,
    ) -> Race:
        """Return a race of methods on one question about pictures and clips; ValueError if
        something is unknown or does not fit, before anything is computed.

        images, videos: Paths; pictures may also be Pillow's, of an array `Image.fromarray(array)`.
        settings: Parameters by method. prefix: Text or token ids that every answer continues, such
        as another race's `token_ids` up to some place, and another token after them. sampling: The
        other fields of `options.Sampling`, such as `repetition_penalty`.
        """
        if unknown := sampling.keys() - Sampling.__dataclass_fields__:
            raise TypeError(f"race has no argument {', '.join(unknown)}; see options.Sampling.")
        pair = self._loaded.pair
        fields = {
            "question": question,
            "images": images,
            "videos": videos,
            "prefix": prefix,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
            **sampling,
        }
        query = read(fields, _read_medium)
        named_lanes = choosing.read_lanes(methods, settings)
        temperature = query.sampling.temperature
        chosen = [choosing.choose(pair, *lane, temperature) for lane in named_lanes]
        notes = AskedQuestion(query.words)
        running = race(self._loaded, make_request(self._loaded, query), chosen, notes=notes)
        return Race(running, self._lock)


def _read_medium(item: Any) -> Medium:
    """Return the picture, or the file of this path."""
    if isinstance(item, str | os.PathLike):
        return find_file(item)
    if not isinstance(item, Image.Image):
        raise wrong_kind(
            "Pictures and clips", "paths, or Pillow's images (of arrays: Image.fromarray)", item
        )
    if not all(item.size):
        raise MediaError("A picture has no pixels.")
    try:
        return to_rgb(item)
    except OSError as fault:  # Pillow decodes a file only when its pixels are asked for
        raise MediaError(f"A picture cannot be decoded: {fault}.") from None


def load(
    pair: str = "photo",
    dtype: str | None = None,
    target: str | None = None,
    drafter: str | None = None,
) -> Pair:
    """Return a target with its drafters, loaded.

    Args:
        pair: "photo", "pocket" or another id of `python -m specvl_demo models`.
        dtype: float32, bfloat16 or float16; None for bfloat16 on a GPU, float32 on a CPU.
        target: Any model of a supported family instead of a pair: a folder, or its hub id.
        drafter: A smaller model with its vocabulary, or the folder of a trained head.

    Raises:
        ValueError: With a sentence if the pair is unknown or does not run here.
    """
    # transformers, where models are loaded
    from specvl_demo.serving import loader  # noqa: PLC0415
    from specvl_demo.serving.custom import named_pair  # noqa: PLC0415

    options = fitting.Options.read(dtype)
    return Pair(loader.load_pair(named_pair(pair, target, drafter), options=options))
