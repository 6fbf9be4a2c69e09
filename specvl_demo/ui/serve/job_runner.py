"""What a worker computes: the events of a job, from models that are kept between jobs: the current
stage, the records of the race, and a sentence with the reason if a run cannot continue.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from contextlib import suppress

from PIL import Image

from specvl_demo import pairs
from specvl_demo.compare.provenance import collect_facts
from specvl_demo.core.faults import lacks_memory, loses_device
from specvl_demo.media import Visual
from specvl_demo.media.files import REMARK
from specvl_demo.pairs import placing
from specvl_demo.pairs.fitting import AS_IT_FITS, Options
from specvl_demo.pairs.machine import detect_machine
from specvl_demo.question import Medium, Question
from specvl_demo.records import AskedQuestion, Thumbnail, gather_lanes
from specvl_demo.report import remarks
from specvl_demo.serving import choosing, loader, session
from specvl_demo.serving.loaded import LoadedPair
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Event, failure_sentence
from specvl_demo.vlm import loading

RECORDING = "Recording steps as graphs"
PHOTOGRAPH = (1280, 960)
"""About as large as photographs are shown to models: graphs serve questions of similar length."""
THUMBNAIL_SIDE, THUMBNAIL_QUALITY = 224, 82


class RunEnded(Exception):
    """The run was stopped, or its visitor has left, while something was being loaded."""


def _fault_event(fault: Exception) -> Event:
    """Return what a visitor is told of a fault that the process survives."""
    if isinstance(fault, ValueError):
        return messages.error_event(str(fault))
    sentence = messages.NO_MEMORY if lacks_memory(fault) else failure_sentence(fault)
    return messages.error_event(sentence, "failed")


def _thumbnail(visual: Visual, file: Medium) -> Thumbnail:
    """Return small copies for the trace: one frame of a picture, every sampled one of a clip."""
    name = visual.info.get(REMARK, "") or getattr(file, "name", "")
    return Thumbnail(name, [_thumbnail_url(frame) for frame in getattr(visual, "frames", [visual])])


def _thumbnail_url(image: Image.Image) -> str:
    """Return a small JPEG of the picture as a data URL."""
    small = image.copy()
    data = io.BytesIO()
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    small.convert("RGB").save(data, "JPEG", quality=THUMBNAIL_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()


class JobRunner:
    """Computes jobs one after the other. Keeps one pair, `first_pair` if it is prepared, with the
    drafters requested so far, and nothing of a job.
    """

    def __init__(self, first_pair: str | None = None) -> None:
        self._first = first_pair
        self._loaded: LoadedPair | None = None
        self._options = AS_IT_FITS
        self._warmed: list[str] = []
        """The lanes of the last bench step."""

    def prepare(self, tell: loading.Tell = lambda _: None) -> None:
        """Load the first pair: a shipped one with all its drafters, of others the target, and the
        drafter of the method that visitors are offered if a GPU has room for it beside the target.

        A shipped one, and any on a GPU, describes a grey picture, so that the first visitor does
        not pay for kernels that are chosen on first use and graphs that are captured.
        """
        if self._first is None:
            return
        pair = pairs.find(self._first)
        with suppress(ValueError):  # the reason is reported when it is requested
            loaded = self.load_pair(pair, None if pair.shipped else [], tell)
            on_gpu = loaded.plan.device != "cpu"
            if pair.shipped or on_gpu:
                offered = ["chain"] if pair.shipped else choosing.offered_methods(pair)[:1]
                lanes = [choosing.choose(pair, name) for name in ("ar", *offered)]
                roles = choosing.roles_of(lanes)
                beside = placing.place(pair, detect_machine(), roles=roles)
                if pair.shipped or beside.plan == loaded.plan:
                    self.load_pair(pair, roles, tell).calibrate(tell)
                else:
                    lanes = lanes[:1]
                if on_gpu:
                    tell(RECORDING)
                grey = Question(media=(Image.new("RGB", PHOTOGRAPH, "grey"),))
                session.warm_up(loaded, session.make_request(loaded, grey), lanes)

    def events(
        self, job: Job, cancelled: Callable[[], bool], tell: loading.Tell = lambda _: None
    ) -> Iterator[Event]:
        """Yield everything that happens in a job; `tell` is called while something is loaded.

        Raises what a run cannot survive: the caller starts afresh, since the state is then unknown.
        """

        def stage(text: str) -> None:
            if cancelled():
                raise RunEnded
            tell(text)

        problem = None
        try:
            # 1. The pair, with the drafters that the lanes need.
            pair = pairs.find(job.pair)
            question = job.question
            choices = job.choices()
            roles = choosing.roles_of(choices)
            if fresh := not self.has_loaded(pair, roles, job.options):
                yield messages.loading_event(pair.title)
            loaded = self.load_pair(pair, roles, stage, job.options)
            loaded.calibrate(stage, question.max_new_tokens if detect_machine().per_call else None)
            # 2. The question, as a request to its target.
            if question.all_media:
                yield {"k": "status", "stage": "media"}
            if cancelled():
                return
            full = not job.timed
            request = session.make_request(loaded, question, full, cancelled)
            if cancelled():
                return
            # 3. Its lanes, side by side.
            if job.timed:
                # The first lane of a job would pay for memory that was given back after the last.
                lanes = sorted(map(repr, job.lanes))
                warmed = self._warmed == lanes
                self._warmed = lanes
                yield {"k": "facts", "facts": collect_facts(loaded)}
                records = session.run_in_turn(loaded, request, choices, warmed)
            else:
                yield {"k": "status", "stage": "prefill"}
                if fresh and loaded.plan.device != "cpu":
                    yield messages.loading_event(RECORDING)
                shown = zip(request.prompt.source.all_media, question.all_media, strict=True)
                notes = AskedQuestion(question.words, [_thumbnail(*each) for each in shown])
                records = session.race(loaded, request, choices, notes=notes, watchers=job.watchers)
            whole = []
            for record in records:
                whole.append(record)
                yield {"k": record.__struct_config__.tag, "record": record}
            if not job.timed:
                yield {"k": "remarks", "record": remarks.race_remarks(gather_lanes(whole))}
        except RunEnded:
            return
        except (RuntimeError, MemoryError, OSError, FloatingPointError, ValueError) as fault:
            if loses_device(fault):
                raise
            problem = _fault_event(fault)
        if problem is not None:
            loading.free_unused()  # only now is everything released that the run held
            yield problem

    def has_loaded(self, pair: pairs.PairSpec, roles: list[pairs.Role], options: Options) -> bool:
        here = self._pair_in_memory(pair, options)
        return here is not None and {*roles} <= {*here.models.drafters}

    def load_pair(
        self,
        pair: pairs.PairSpec,
        roles: list[pairs.Role] | None,
        tell: loading.Tell,
        options: Options = AS_IT_FITS,
    ) -> LoadedPair:
        """Return the pair with these drafters (None: all available), loaded beside it if they have
        room there; a new pair replaces the last.

        Raises ValueError if it does not run here with them; the loaded pair is then kept.
        """
        here = self._pair_in_memory(pair, options)
        if here is None or roles is None or not self.has_loaded(pair, roles, options):
            loaded = [*here.models.drafters] if here else []
            placement = loader.place_pair(pair, roles, options, loaded)
            self._warmed = []
            if here and placement.plan == here.plan and {*loaded} <= {*placement.roles}:
                loader.load_drafters(here, placement.roles, tell)
            else:
                if self._loaded is not None:  # its memory is needed, and its graphs'
                    self._loaded.release_caches()
                self._loaded = None
                self._options = options
                here = self._loaded = loader.load_pair(pair, None, tell, options, placement)
        return here

    def _pair_in_memory(self, pair: pairs.PairSpec, options: Options) -> LoadedPair | None:
        """Return the loaded pair if it is this one, with these options."""
        here = self._loaded
        return here if here and here.pair == pair and self._options == options else None
