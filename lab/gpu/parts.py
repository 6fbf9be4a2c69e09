"""The parts of the report: what runs in each process."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lab.gpu import models, steps
from lab.gpu.isolated import UNKNOWN, Aside, Message, Part, Row, Setting, Started, sentence
from specvl_demo import pairs
from specvl_demo.compare import provenance
from specvl_demo.compare.peers import PEERS, LibraryPeers
from specvl_demo.core import engine
from specvl_demo.core.engine import Lane, SharedPrefill
from specvl_demo.core.types import NO_AUX
from specvl_demo.decoders import calibration
from specvl_demo.decoders.timing import peak_bytes, synchronize
from specvl_demo.media import MediaFile
from specvl_demo.methods.base import METHODS, build_parts
from specvl_demo.options import Sampling
from specvl_demo.pairs import PairSpec
from specvl_demo.pairs.fitting import Options, memory_needs
from specvl_demo.pairs.machine import processor_name
from specvl_demo.places import EXAMPLES
from specvl_demo.question import Question
from specvl_demo.records import LaneRecords, Round, gather_lanes
from specvl_demo.report.metrics import compare_with_ar
from specvl_demo.report.remarks import compare_answers
from specvl_demo.serving import choosing, loader, session

TAU = 3.3
"""Acceptance length of a chain of five, where a table has no other."""
TAUS = (2.0, TAU, 5.0)
HEADS = ("eagle2", "eagle3", "hivis", "dflash", "dream")
PICTURE = EXAMPLES / "coffee.jpg"
SCENE = EXAMPLES / "scene.png"
QUESTIONS = (
    *("Describe the picture in detail.", "What might happen next?"),
    *("What is in the foreground?", "Which colours are there?"),
)
LANES = ("ar", "chain", "tree")
"""Of the race that memory is measured in."""
FEW = ("chain", "tree")
"""Methods that are raced at every acceptance length."""
LONG = 8000
"""Tokens of context that a step is measured after, besides a picture's."""
WATCHED_ROUNDS = 4
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")
"""Calls by which the host waits for a device."""
ITEM_FAULTS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError)
"""What leaves the process usable. After a device fault it is not, so that one ends the process."""
COMPILED = "hf-generate, static cache, compiled"

LOADING, MEMORY, ROUNDS = "Loading", "Memory with three lanes", "What a round asks of the device"
CHOSEN = "Attention and graphs, by rows"

SMALL = ("ar", "chain", "tree", "specvlm", "tabed", "sage", "lvspec", "fly", "ngram")
S_RACE = 2.3
"""Seconds of a method's answers on one H200, by counts: 5 x 64 tokens at 2 to 12 ms, captures."""


class Step(NamedTuple):
    """One step of a part: the table that its rows belong to, its name, what it should take."""

    table: str
    name: str
    seconds: float
    rows: Callable[[Asking], Iterable[Row]]


class Asking:
    """A loaded pair and what it is asked: every question is read once, for all methods.

    pictures: Of every question. limit: New tokens of an answer.
    """

    def __init__(
        self, spec: PairSpec, dtype: Any, picture: Path, setting: Setting, folder: Path
    ) -> None:
        begun = time.perf_counter()
        notes: list[str] = []
        self.setting, self.folder = setting, folder
        self.loaded = loader.load_pair(spec, None, notes.append, Options(dtype=dtype))
        self.about: Row = {"pair": spec.title, "dtype": self.loaded.plan.dtype}
        seconds = time.perf_counter() - begun
        self.loading = self.about | {"seconds": seconds, "notes": notes}
        self.target = self.loaded.models.target
        questions = QUESTIONS[:1] if setting.tiny else QUESTIONS
        self._requests = [
            session.make_request(
                self.loaded,
                Question(
                    text,
                    (MediaFile(str(picture)),),
                    max_new_tokens=16 if setting.tiny else 64,
                    sampling=Sampling(seed=seed),
                ),
            )
            for seed, text in enumerate(questions)
        ]
        self._shared = [SharedPrefill(request) for request in self._requests]
        for shared in self._shared:
            shared.reserve(NO_AUX)  # the plain prefill stays for all methods
        self._ars: dict[tuple[float, bool], list[LaneRecords]] = {}

    def lanes(self, name: str, temperature: float) -> list[LaneRecords]:
        """Return a method's answers, one after the other, after a warm-up on the first question."""
        choice = choosing.choose(self.loaded.pair, name, None, temperature)
        answers: list[LaneRecords] = []
        for shared in self._shared:
            drawn = replace(shared.request.sampling, temperature=temperature)
            shared.request = replace(shared.request, sampling=drawn)
            if not answers:
                session.warm_up(self.loaded, shared.request, [choice], shared, side_by_side=False)
            lanes = session.make_lanes(self.loaded, shared.request, [choice], shared)
            answers += gather_lanes(engine.race(lanes))
        return answers

    def race(self, name: str, temperature: float = 0.0) -> Row:
        """Return a method's figures over all questions, beside AR's."""
        key = temperature, self.target.batch_invariant
        if key not in self._ars:
            self._ars[key] = self.lanes("ar", temperature)
        return _race_row(
            self._ars[key] if name == "ar" else self.lanes(name, temperature), self._ars[key]
        )

    def exact(self, name: str) -> Row:
        """Return the same of batch-invariant steps; `exactness` tells if there are none."""
        before = self.target.batch_invariant, self.target.min_invariant_rows
        self.target.batch_invariant = True
        self.target.__dict__.pop("min_invariant_rows", None)  # tried anew
        try:
            return self.race(name)
        finally:
            self.target.batch_invariant, self.target.min_invariant_rows = before

    def peer(self, name: str) -> Row:
        """Return the figures of one of the library's ways, beside AR's."""
        library = LibraryPeers(self.loaded.models, [name], [])
        library.cache = "static" if name == COMPILED else library.cache
        answers = []
        for request in (self._requests[0], *self._requests[:2]):
            answer = library.decode_answer(name, request)
            if answer is None:
                return {**UNKNOWN, "method": name, "note": library.notes[name]}
            answers.append(answer)
        del answers[0]  # it warmed the library up
        mine = sum(a.n_decoded for a in answers) / sum(a.decode_s for a in answers)
        self.race("ar")
        ars = self._ars[0.0, self.target.batch_invariant][:2]
        seconds = sum(round_.seconds for lane in ars for round_ in lane.rounds)
        return {
            "method": name,
            "tokens_per_s": mine,
            "speedup_vs_ar": mine * seconds / sum(len(lane.token_ids) for lane in ars),
            "identical_to_ar": [a.token_ids for a in answers] == [r.token_ids for r in ars],
            "lossless": None,
            "note": library.notes[name],
        }

    def chosen(self) -> Iterator[Row]:
        """Yield which attention, and whether graphs, the target's steps of each row count have."""
        decoder = self.target.decoder
        ways = getattr(decoder, "_fastest_attention", None)
        for (_, rows, _), way in sorted(getattr(ways, "_chosen", {}).items()):
            named = getattr(way, "func", way).__name__
            yield {"rows": rows, "attention": named}
        if getattr(decoder, "_flash_keeps_rows", False):
            yield {"rows": "exact", "attention": "flash_rows"}
        yield {"graphs": decoder.fixed, "refused": decoder.runner.refused}

    def watched(self, name: str) -> Row:
        """Return waits, reads of single numbers and kernels of a round, in an answer's middle."""
        choice = choosing.choose(self.loaded.pair, name)
        lane = Lane(name, build_parts(choice, self.loaded.models), self._shared[0])
        lane.begin()
        lane.step()
        on_gpu, rounds = self.target.decoder.device.type == "cuda", 0
        with steps.profiled(self.target.decoder.device) as seen:
            while not lane.done and rounds < WATCHED_ROUNDS:
                rounds += isinstance(lane.step(), Round)
        counts = {event.key: event.count for event in seen.key_averages()}
        kernels = sum(count for key, count in counts.items() if key.startswith("cudaLaunchKernel"))
        each = max(rounds, 1)
        return self.about | {
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
        loaded, device = self.loaded, self.target.decoder.device
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        for _ in session.race(self.loaded, self._requests[0], choices):
            pass
        parts = memory_needs(loaded.pair, loaded.plan, [*loaded.models.drafters], len(choices))
        taken, outside = peak_bytes(device), 0
        if device.type == "cuda":
            free, whole = torch.cuda.mem_get_info(device)
            outside = whole - free - torch.cuda.memory_reserved(device)
        sizes = parts._asdict() | {"predicted": parts.total, "taken": taken, "outside": outside}
        sizes["measured"] = taken + outside
        row: Row = {f"{part}_gb": size / 1e9 for part, size in sizes.items()}
        return (
            self.about | row | {"measured_over_predicted": sizes["measured"] / sizes["predicted"]}
        )


def _race_row(lanes: list[LaneRecords], ars: list[LaneRecords]) -> Row:
    """Return the pooled figures of one method's answers beside AR's answers."""
    beside, first = compare_with_ar(lanes, ars), lanes[0].begin
    rho = {f"{phase}_steps": cost for phase, cost in beside.rho.items()}
    compared = map(compare_answers, lanes, ars)
    different = next((found for found in compared if found.kind != "same"), None)
    costs = [cost for cost in rho.values() if cost is not None]
    each = [
        speedup
        for lane, ar in zip(lanes, ars, strict=True)
        if (speedup := compare_with_ar([lane], [ar]).speedup_decode)
    ]
    return {
        "method": first.method,
        "temperature": first.sampling.get("temperature", 0.0),
        "lossless": first.lossless,
        "tokens_per_s": beside.metrics.tokens_per_s,
        "tau": beside.metrics.totals.tau,
        "speedup_vs_ar": beside.speedup_decode,
        f"range of {len(ars)}": f"{min(each):.2f} to {max(each):.2f}" if each else None,
        "round_steps": sum(costs) or None,
        **rho,
        "nodes": beside.nodes_per_round,
        "first_prefill_s": first.before_s,
        "prefill_s": lanes[-1].begin.before_s,
        "identical_to_ar": different is None,
        "first_difference": different and different.at,
        "gap_nats": different and different.gap,
        "exactness": first.exactness,
    }


# ---------------------------------------------------------------- the parts


def device(setting: Setting, _: frozenset[str]) -> Iterator[Message]:
    """What there is to run on, as its driver tells, and how fast it reads and multiplies."""
    place = _device()
    row: Row = {"device": processor_name(), **provenance.collect_facts()["versions"]}
    if place.type == "cuda":
        gpu = torch.cuda.get_device_properties(place)
        row |= {"device": gpu.name, "capability": f"{gpu.major}.{gpu.minor}"}
        row["memory_gb"] = gpu.total_memory / 1e9
        names = "driver_version,clocks.sm,clocks.mem,power.limit,utilization.gpu,memory.used"
        ask = ["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader"]
        with suppress(OSError):
            driver = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
            row |= zip(names.split(","), driver.partition("\n")[0].split(", "), strict=False)
    yield row | asdict(steps.bounds(place, _dtype(), 256 if setting.tiny else None))


def run_steps(
    open_pair: Callable[[Setting], Asking],
    plan: Callable[[], list[Step]],
    setting: Setting,
    without: frozenset[str],
) -> Iterator[Message]:
    """Run the steps of one loaded pair but for those in `without` and those without time left."""
    _device()
    asking = open_pair(setting)
    for step in plan():
        if f"{step.table}: {step.name}" in without:
            continue
        if time.monotonic() + step.seconds > setting.end:
            yield Aside(step.table, {**UNKNOWN, "method": step.name, "fault": "Left out."})
            continue
        yield Started(f"{step.table}: {step.name}")
        try:
            yield from (Aside(step.table, row) for row in step.rows(asking))
        except torch.AcceleratorError:
            raise
        except ITEM_FAULTS as fault:
            yield Aside(step.table, {**UNKNOWN, "method": step.name, "fault": sentence(fault)})
            # If the device no longer responds, this ends the process.
            synchronize(asking.target.decoder.device)


def open_shape(name: str, heads: Sequence[str], setting: Setting) -> Asking:
    """Make the models of a shape, unless they are there, and load them."""
    shape, folder = models.SHAPES[name], setting.folder / name
    if setting.tiny:
        shape = models.tiny(shape)
    if not (folder / models.NORMS).exists():
        for other in models.SHAPES:  # whose parts have run: two would fill a disk
            shutil.rmtree(setting.folder / other, ignore_errors=True)
        models.make_pair(shape, folder, _device(), TAUS)
        models.make_heads(shape, folder, _device(), heads)
    return Asking(models.pair_of(folder, heads), None, PICTURE, setting, folder)


def open_shipped(setting: Setting) -> Asking:
    dtype = "float32" if setting.tiny else "bfloat16"  # asked for, so that it goes to the GPU
    return Asking(pairs.find("pocket"), dtype, SCENE, setting, setting.folder)


def steps_of_shape(title: str, heads: Sequence[str], peers: Sequence[str]) -> list[Step]:
    """Return the steps of a shape, the most important first."""
    at, few = f"{title} at τ {TAU}", []
    for tau in (2.0, 5.0):
        few += _races(f"{title} at τ {tau:g}", FEW, tau)
    return [
        Step(LOADING, title, 15, lambda asking: [asking.loading]),
        Step(MEMORY, title, S_RACE, lambda asking: [asking.memory()]),
        *_races(at, SMALL),
        Step(CHOSEN, title, 1, Asking.chosen),
        *_each(f"{at}, exact steps", LANES, Asking.exact, 1.5 * S_RACE),
        *_races(f"{title} at temperature 1", (*LANES, *heads[:1]), temperature=1.0),
        Step(f"{title}: steps", "steps", 26, step_costs),
        *_races(f"{title}: heads", heads),
        *_each(ROUNDS, (*LANES, *heads), Asking.watched, 1),
        *(few if heads else ()),
        *_each(at, peers, Asking.peer, 2 * S_RACE),
    ]


def steps_compiled() -> list[Step]:
    return _each(f"{QWEN} at τ {TAU}", (COMPILED,), Asking.peer, 45)


def steps_of_shipped() -> list[Step]:
    return [
        Step(LOADING, "pocket", 8, lambda asking: [asking.loading]),
        *_races("Pocket pair", (*SMALL, *HEADS), None, each=1.5),
    ]


def _races(
    table: str,
    names: Sequence[str],
    tau: float | None = TAU,
    temperature: float = 0.0,
    each: float = S_RACE,
) -> list[Step]:
    return _each(table, names, partial(Asking.race, temperature=temperature), each, tau)


def _each(
    table: str,
    names: Sequence[str],
    row: Callable[[Asking, str], Row],
    seconds: float,
    tau: float | None = TAU,
) -> list[Step]:
    """Return a step with one row for every method that the pair supports, and for the library's.

    tau: Acceptance length of each row, whatever ran before it; None for the drafter as it is.
    """

    def rows(name: str, asking: Asking) -> Iterator[Row]:
        served = choosing.supported_methods(asking.loaded.pair)
        if name in served or name not in METHODS:
            if tau is not None:
                small = asking.loaded.models.drafters["small"].model
                models.set_tau(small, asking.folder, tau)
            yield row(asking, name)

    return [Step(table, name, seconds, partial(rows, name)) for name in names]


def step_costs(asking: Asking) -> Iterator[Row]:
    """What steps, drafts and prefills of a shape cost beside the least that is possible."""
    decoder, title, tiny = asking.target.decoder, asking.about["pair"], asking.setting.tiny
    limits = steps.bounds(decoder.device, decoder.dtype, 256 if tiny else None)
    # After how many tokens, how many others, and how often steps are timed.
    context, far, repeats = (64, 128, 4) if tiny else (1024, LONG, 20)
    rows = steps.ROWS[:5] if tiny else steps.ROWS
    plain = steps.costs(decoder, title, limits, context, rows, repeats)
    yield from plain
    yield from steps.costs(decoder, f"{title}, {far} tokens", limits, far, (1, 8, 64), repeats // 2)
    if least := calibration.min_invariant_rows(decoder):
        exact = steps.costs(decoder, title, limits, context, (1,), repeats, "exact", least)
        yield from (row | {"vs_step": row["ms"] / plain[0]["ms"]} for row in exact)
    yield steps.prefill_cost(decoder, title, limits, context, repeats)
    small, title = asking.loaded.models.drafters["small"].decoder, "its first layers"
    yield from steps.costs(small, title, limits, context, (1, steps.WIDTH), repeats, "draft")
    yield steps.prefill_cost(small, title, limits, context, repeats)
    for count in (1, rows[-2]):
        yield from steps.kernels(decoder, context, count)


def _device() -> torch.device:
    """Return where models go, found in this process."""
    if torch.cuda.is_available():
        torch.cuda.init()
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def _dtype() -> torch.dtype:
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


def _part(title: str, opened: Any, plan: Callable[[], list[Step]], first_s: float) -> Part:
    """Return the part of one loaded pair. first_s: Of making its models."""
    seconds = [(f"{step.table}: {step.name}", step.seconds) for step in plan()]
    return Part(title, partial(run_steps, opened, plan), [(f"{title}: models", first_s), *seconds])


Q, L = "qwen2.5-vl-7b", "llava-1.5-7b"
QWEN, LLAVA = models.QWEN.title, models.LLAVA.title
PARTS: dict[str, Part] = {
    part.title: part
    for part in (
        Part("Device", device, [("Device", 12)]),
        _part(
            QWEN,
            partial(open_shape, Q, HEADS),
            partial(steps_of_shape, QWEN, HEADS, PEERS),
            30,
        ),
        _part(f"{QWEN}, compiled", partial(open_shape, Q, ()), steps_compiled, 15),
        _part(LLAVA, partial(open_shape, L, ()), partial(steps_of_shape, LLAVA, (), ()), 20),
        _part("Pocket pair", open_shipped, steps_of_shipped, 0),
    )
}
"""By title, in the order in which they run."""
