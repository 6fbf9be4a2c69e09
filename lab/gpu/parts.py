"""The parts of the report: what runs in each process."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from lab.gpu import models, steps
from lab.gpu.isolated import Aside, Message, Part, Row, Setting, Started, sentence
from specvl_demo import pairs
from specvl_demo.compare import provenance
from specvl_demo.compare.peers import PEERS, LibraryPeers
from specvl_demo.core.engine import Lane, Request, SharedPrefill
from specvl_demo.decoders import calibration
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.timing import peak_bytes, synchronize
from specvl_demo.media import MediaFile
from specvl_demo.methods.base import build_parts
from specvl_demo.options import Sampling
from specvl_demo.pairs import PairSpec, Role, on_disk
from specvl_demo.pairs.fitting import Options, memory_needs
from specvl_demo.pairs.machine import processor_name
from specvl_demo.places import EXAMPLES
from specvl_demo.question import Question
from specvl_demo.records import LaneRecords, Round, gather_lanes
from specvl_demo.report.metrics import compare_with_ar
from specvl_demo.report.remarks import compare_answers
from specvl_demo.serving import choosing, loader, session
from specvl_demo.serving.loaded import LoadedPair

TAUS = (2.0, 3.3, 5.0)
"""Acceptance lengths of a chain of five that drafters are made for."""
MIDDLE = "early-3.3"
HEADS = ("eagle2", "eagle3", "hivis", "dflash", "dream")
PICTURE = EXAMPLES / "coffee.jpg"
SCENE = EXAMPLES / "scene.png"
QUESTIONS = ("Describe the picture in detail.", "What might happen next?")
LANES = ("ar", "chain", "tree")
"""Of the race that memory is measured in."""
FEW = ("chain", "tree", "specvlm", "tabed", "fly")
"""Methods that are raced at every acceptance length."""
WATCHED_ROUNDS = 4
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")
"""Calls by which the host waits for a device."""
ITEM_FAULTS = (
    *(RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError),
    *(AssertionError, NotImplementedError),
)
"""What leaves the process usable. After a device fault it is not, so that one ends the process."""

_UNKNOWN: Row = {"lossless": None, "identical_to_ar": None}
LOADING, MEMORY, ROUNDS = "Loading", "Memory with three lanes", "What a round asks of the device"


@dataclass(frozen=True)
class Races:
    """The races of one loaded pair: every method beside AR, then the library's ways.

    roles, methods: None for all. temperatures: Those of each method for which it is defined.
    """

    pair: Callable[[Setting], PairSpec]
    pictures: Sequence[Path]
    questions: Sequence[str] = QUESTIONS
    roles: Sequence[Role] | None = None
    dtype: Any = None
    temperatures: Sequence[float] = (0.0,)
    methods: Sequence[str] | None = None
    peers: Sequence[str] = ()
    tokens: int = 64
    tiny_tokens: int = 16

    def run(self, setting: Setting, without: frozenset[str]) -> Iterator[Message]:
        _device()
        begun = time.perf_counter()
        told: list[str] = []
        spec = self.pair(setting)
        loaded = loader.load_pair(spec, self.roles, told.append, Options(dtype=self.dtype))
        about = {"pair": spec.title, "dtype": loaded.plan.dtype}
        if not without:
            seconds = time.perf_counter() - begun
            notes = [text for text in told if not text.startswith("Loading ")]
            least = loaded.models.target.min_invariant_rows
            notes.append(
                f"batch-invariant steps of at least {least} rows"
                if least
                else "no batch-invariant steps"
            )
            yield Aside(LOADING, {**about, "seconds": seconds, "notes": notes})
        roles = {None, *(self.roles or on_disk.loadable_drafters(spec))}
        names = [
            name
            for name in self.methods or choosing.supported_methods(spec)
            if choosing.choose(spec, name).drafter.role in roles
        ]
        # The one that ended a process so far comes last.
        names = sorted(dict.fromkeys(["ar", *names]), key=lambda name: name == "dream")
        asking = _Asking(
            loaded,
            tuple(MediaFile(str(path)) for path in self.pictures),
            self.questions[:1] if setting.tiny else self.questions,
            self.tiny_tokens if setting.tiny else self.tokens,
        )
        for name in (*names, *self.peers):
            if name in without:
                continue
            yield Started(name)
            try:
                if name in self.peers:
                    yield asking.peer(name)
                    continue
                for temperature in self.temperatures:
                    if name in choosing.supported_methods(spec, temperature):
                        yield asking.race(name, temperature)
                yield Aside(ROUNDS, about | asking.watched(name))
            except torch.AcceleratorError:
                raise
            except ITEM_FAULTS as fault:
                yield {**_UNKNOWN, "method": name, "fault": sentence(fault)}
                # If the device no longer responds, this ends the process.
                synchronize(loaded.models.target.decoder.device)
        if not {*LANES} - {*names}:
            yield Started("memory")
            yield Aside(MEMORY, about | asking.memory())


@dataclass(frozen=True)
class _Asking:
    """A loaded pair and what it is asked. limit: new tokens of an answer."""

    loaded: LoadedPair
    pictures: tuple[MediaFile, ...]
    questions: Sequence[str]
    limit: int

    def requests(self, temperature: float = 0.0) -> Iterator[Request]:
        for seed, question in enumerate(self.questions):
            asked = Question(
                question,
                self.pictures,
                max_new_tokens=self.limit,
                sampling=Sampling(temperature, seed=seed),
            )
            yield session.make_request(self.loaded, asked, detail="light")

    def race(self, name: str, temperature: float) -> Row:
        """Return a method's figures over all questions, beside AR in the same races."""
        names = dict.fromkeys(("ar", name))
        choices = [choosing.choose(self.loaded.pair, one, None, temperature) for one in names]
        answers = [
            gather_lanes(session.race(self.loaded, request, choices))
            for request in self.requests(temperature)
        ]
        return _race_row([lanes[-1] for lanes in answers], [lanes[0] for lanes in answers])

    def peer(self, name: str) -> Row:
        """Return the figures of one of the library's ways, beside AR's."""
        pair, served = self.loaded.pair, choosing.supported_methods(self.loaded.pair)
        like = [choosing.choose(pair, one) for one in ("chain", "ngram") if one in served]
        library = LibraryPeers(self.loaded.models, [name], like)
        mine, ours, same = [], [], True
        for request in self.requests():
            (lane,) = gather_lanes(
                session.race(self.loaded, request, [choosing.choose(pair, "ar")])
            )
            # The first answer warms the library up.
            answer = library.decode_answer(name, request) and library.decode_answer(name, request)
            if answer is None:
                # The library's fault, not this part's.
                return {**_UNKNOWN, "method": name, "note": library.notes[name]}
            mine.append(answer.n_decoded / answer.decode_s)
            ours.append(len(lane.token_ids) / sum(round_.seconds for round_ in lane.rounds))
            same = same and answer.token_ids == lane.token_ids
        return {
            "method": name,
            "tokens_per_s": mean(mine),
            "speedup_vs_ar": mean(mine) / mean(ours),
            "identical_to_ar": same,
            "lossless": None,
            "note": library.notes[name],
        }

    def watched(self, name: str) -> Row:
        """Return waits, reads of single numbers and kernels of a round, in an answer's middle."""
        choice = choosing.choose(self.loaded.pair, name)
        parts = build_parts(choice, self.loaded.models)
        lane = Lane(name, parts, SharedPrefill(next(self.requests())))
        lane.begin()
        lane.step()
        on_gpu = self.loaded.models.target.decoder.device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        rounds = 0
        with profile(activities=activities) as seen:
            while not lane.done and rounds < WATCHED_ROUNDS:
                rounds += isinstance(lane.step(), Round)
        counts = {event.key: event.count for event in seen.key_averages()}
        kernels = sum(count for key, count in counts.items() if key.startswith("cudaLaunchKernel"))
        each = max(rounds, 1)
        return {
            "method": name,
            "waits": sum(counts.get(key, 0) for key in WAITS) / each if on_gpu else None,
            "reads": counts.get("aten::_local_scalar_dense", 0) / each,
            "launches": kernels / each if on_gpu else None,
            "graphs": counts.get("cudaGraphLaunch", 0) / each if on_gpu else None,
        }

    def memory(self) -> Row:
        """Return predicted bytes, part by part, and those in use at the peak, after a race of three
        lanes: torch's, and the device's besides.
        """
        choices = [choosing.choose(self.loaded.pair, name) for name in LANES]
        for _ in session.race(self.loaded, next(self.requests()), choices):
            pass
        loaded, device = self.loaded, self.loaded.models.target.decoder.device
        parts = memory_needs(loaded.pair, loaded.plan, [*loaded.models.drafters], len(choices))
        taken, outside = peak_bytes(device), 0
        if device.type == "cuda":
            free, whole = torch.cuda.mem_get_info(device)
            outside = whole - free - torch.cuda.memory_reserved(device)
        sizes = parts._asdict() | {"predicted": parts.total, "taken": taken, "outside": outside}
        sizes["measured"] = taken + outside
        row: Row = {f"{part}_gb": size / 1e9 for part, size in sizes.items()}
        return row | {"measured_over_predicted": sizes["measured"] / sizes["predicted"]}


def _race_row(lanes: list[LaneRecords], ars: list[LaneRecords]) -> Row:
    """Return the pooled figures of one method's answers beside AR's answers."""
    beside, first = compare_with_ar(lanes, ars), lanes[0].begin
    rho = {f"{phase}_steps": cost for phase, cost in beside.rho.items()}
    differences = [
        found
        for lane, ar in zip(lanes, ars, strict=True)
        if (found := compare_answers(lane, ar)).kind != "same"
    ]
    costs = [cost for cost in rho.values() if cost is not None]
    return {
        "method": first.method,
        "temperature": first.sampling.get("temperature", 0.0),
        "lossless": first.lossless,
        "tokens_per_s": beside.metrics.tokens_per_s,
        "tau": beside.metrics.totals.tau,
        "speedup_vs_ar": beside.speedup_decode,
        "round_steps": sum(costs) if costs else None,
        **rho,
        "nodes": beside.nodes_per_round,
        "first_prefill_s": first.before_s,
        "prefill_s": lanes[-1].begin.before_s,
        "identical_to_ar": not differences,
        "first_difference": differences[0].at if differences else None,
        "gap_nats": differences[0].gap if differences else None,
        "exactness": first.exactness,
    }


# ---------------------------------------------------------------- the parts


def device(setting: Setting, without: frozenset[str]) -> Iterator[Message]:
    """What there is to run on, and how fast it reads and multiplies."""
    place = _device()
    row: Row = {"device": processor_name(), **provenance.collect_facts()["versions"]}
    if place.type == "cuda":
        gpu = torch.cuda.get_device_properties(place)
        row |= {"device": gpu.name, "capability": f"{gpu.major}.{gpu.minor}"}
        row |= {"memory_gb": gpu.total_memory / 1e9, "toolkit": torch.version.cuda}
    yield row | asdict(steps.bounds(place, _dtype(), 256 if setting.tiny else None))


def built(name: str, heads: Sequence[str], setting: Setting, _: frozenset[str]) -> Iterator[Row]:
    """Make the models of a shape; every later part loads them from their folders."""
    shape, folder = _shape(name, setting), setting.folder / name
    for other in models.SHAPES:  # whose parts have run: two would fill a disk
        shutil.rmtree(setting.folder / other, ignore_errors=True)
    begun = time.perf_counter()
    for text in models.make_pair(shape, folder, _device(), TAUS):
        yield {"made": text, "seconds": time.perf_counter() - begun}
    models.make_heads(shape, folder, _device(), heads)
    yield {"made": f"heads: {', '.join(heads) or 'none'}", "seconds": time.perf_counter() - begun}


def step_costs(name: str, setting: Setting, _: frozenset[str]) -> Iterator[Message]:
    """What steps, drafts and prefills of a shape cost beside the least that is possible."""
    _device()
    loaded = loader.load_pair(models.pair_of(setting.folder / name, MIDDLE))
    decoder = loaded.models.target.decoder
    small = loaded.models.drafters["small"].decoder
    limits, context, repeats = _measure(decoder, setting)
    rows = steps.ROWS[:5] if setting.tiny else steps.ROWS
    title = _shape(name, setting).title
    plain = steps.costs(decoder, title, limits, context, rows, repeats)
    yield from plain
    if least := calibration.min_invariant_rows(decoder):
        exact = steps.costs(decoder, title, limits, context, (1,), repeats, "exact", least)
        yield from (row | {"vs_step": row["ms"] / plain[0]["ms"]} for row in exact)
    yield steps.prefill_cost(decoder, title, limits, context, repeats)
    yield from _drafts(small, "its first layers", setting)
    for count in (1, rows[-2]):
        for row in steps.kernels(decoder, context, count):
            yield Aside(f"{title}: kernels of a step", row)


def drafter_costs(setting: Setting, _: frozenset[str]) -> Iterator[Message]:
    """What draft steps of the published drafter's shape cost, which is never right."""
    shape = models.tiny(models.DRAFTER) if setting.tiny else models.DRAFTER
    yield from _drafts(models.decoder_of(shape, _device()), shape.title, setting)


def _drafts(decoder: LanguageBackend, title: str, setting: Setting) -> Iterator[Row]:
    limits, context, repeats = _measure(decoder, setting)
    widths = (1, steps.WIDTH)
    yield from steps.costs(decoder, title, limits, context, widths, repeats, "draft")
    yield steps.prefill_cost(decoder, title, limits, context, repeats)


def _measure(decoder: LanguageBackend, setting: Setting) -> tuple[steps.Bounds, int, int]:
    """Return the device's limits, and after how many tokens and how often steps are timed."""
    limits = steps.bounds(decoder.device, decoder.dtype, 256 if setting.tiny else None)
    return (limits, 64, 3) if setting.tiny else (limits, 1024, 20)


def _shipped(_: Setting) -> PairSpec:
    return pairs.find("pocket")


def _pocket(dtype: str) -> Races:
    return Races(
        _shipped,
        (SCENE,),
        ("Describe the picture.",),
        dtype=dtype,
        temperatures=(0.0, 1.0),
        peers=tuple(PEERS) if dtype == "float32" else (),
    )


def _small(
    name: str, tau: float, peers: Sequence[str] = (), methods: Sequence[str] | None = None
) -> Races:
    """Races with the small drafter of one acceptance length."""
    pair = partial(_pair, name, f"early-{tau:g}", ())
    return Races(pair, (PICTURE,), roles=("small",), methods=methods, peers=peers)


def _pair(name: str, drafter: str, heads: Sequence[str], setting: Setting) -> PairSpec:
    return models.pair_of(setting.folder / name, drafter, heads)


def _heads(name: str) -> Races:
    return Races(partial(_pair, name, "", HEADS), (PICTURE,), methods=HEADS, tokens=32)


def _shape(name: str, setting: Setting) -> models.Shape:
    shape = models.SHAPES[name]
    return models.tiny(shape) if setting.tiny else shape


def _device() -> torch.device:
    """Return where models go, found in this process."""
    if torch.cuda.is_available():
        torch.cuda.init()
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def _dtype() -> torch.dtype:
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


Q, L = "qwen2.5-vl-7b", "llava-1.5-7b"
QWEN, LLAVA = models.QWEN.title, models.LLAVA.title
PARTS: dict[str, Part] = {
    part.title: part
    for part in (
        Part("Device", device),
        Part("Pocket pair in float32", _pocket("float32").run, 90),
        Part("Pocket pair in bfloat16", _pocket("bfloat16").run, 90),
        Part(f"{QWEN}: models", partial(built, Q, HEADS), 90),
        Part(f"{QWEN} at τ 3.3", _small(Q, 3.3, tuple(PEERS)).run, 90),
        Part(f"{QWEN}: steps", partial(step_costs, Q), 60),
        Part(f"{models.DRAFTER.title}: draft steps", drafter_costs, 40),
        Part(f"{QWEN}: heads", _heads(Q).run, 90),
        Part(f"{QWEN} at τ 2", _small(Q, 2.0, methods=FEW).run, 60),
        Part(f"{QWEN} at τ 5", _small(Q, 5.0, methods=FEW).run, 60),
        Part(f"{LLAVA}: models", partial(built, L, ()), 60),
        Part(f"{LLAVA} at τ 3.3", _small(L, 3.3, tuple(PEERS)[:2]).run, 60),
        Part(f"{LLAVA}: steps", partial(step_costs, L), 60),
    )
}
"""By title, in the order in which they run."""
