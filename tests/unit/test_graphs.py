"""Steps return the same in another shape: level by level or at once, several views together or
separately, rows padded and the whole cache under a mask.
"""

import gc
import random
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specvl_demo.core.engine import Lane, SharedPrefill, race
from specvl_demo.core.tree import TreeShape, chain, shape_of
from specvl_demo.core.types import Capture, Context, Stopwatch
from specvl_demo.decoders import calibration, kernels
from specvl_demo.decoders.backend import GraphCache, GraphRunner
from specvl_demo.decoders.calibration import prefilled_sequence
from specvl_demo.decoders.forward import Captured, ForwardInput
from specvl_demo.decoders.graphs import BUCKETS, GraphStep, StepShape, step_shapes
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.decoders.sequence import CachedSequence, prefill
from specvl_demo.methods.base import Models, build_parts, choose
from specvl_demo.records import Round, tie_nats
from specvl_demo.serving import session
from specvl_demo.serving.loaded import LoadedPair
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget
from tests.cuda import FakeCuda, FakeGraph, graphs_on_the_processor, with_graphs
from tests.shared.heads import built
from tests.shared.tiny import VOCAB, ask, noisy, tiny_llava, tiny_prompt

cuda = pytest.fixture(graphs_on_the_processor)


def contexts_of(vlm: VLM) -> list[Context]:
    """The whole prompt, one without its picture, one with half of it, gaps kept and closed."""
    encoded = vlm.encode(tiny_prompt(2))
    at = torch.arange(len(encoded.ids))
    text = at[~encoded.visual]
    thin = at[~encoded.visual | (at % 2 == 0)]
    return [
        encoded.context("full"),
        encoded.context("text", text, compact=True),
        encoded.context("thin", thin),
        encoded.context("thin, compact", thin, compact=True),
    ]


def fed_by_level(
    stream: CachedSequence, x: torch.Tensor, parent: tuple[int, ...]
) -> tuple[torch.Tensor, list[int]]:
    """Feed a tree level by level: hidden states in the tree's order, and every node's row."""
    shape = shape_of(parent)
    rows: dict[int, int] = {}
    states: dict[int, torch.Tensor] = {}
    for level in range(max(shape.depth) + 1):
        nodes = [node for node, depth in enumerate(shape.depth) if depth == level]
        for node in nodes:
            rows[node] = len(rows)
        if level == 0:
            out = stream.run_root(x[:, :1])
        else:
            parents = [rows[parent[node]] for node in nodes]
            out = stream.extend(x[:, nodes], tuple(parents))
        states |= {node: out[:, i] for i, node in enumerate(nodes)}
    return torch.stack([states[i] for i in range(len(parent))], dim=1), [
        rows[i] for i in range(len(parent))
    ]


@pytest.mark.parametrize("views", [1, 4])
@torch.inference_mode()
def test_a_tree_fed_level_by_level_says_what_it_says_at_once(views: int):
    vlm = VLM(tiny_llava(kv_heads=2), "m")
    contexts = contexts_of(vlm)[:views]
    levels, _, _ = prefill(vlm.decoder, contexts, 400)
    whole = levels.fork(400)
    rng = random.Random(1)
    for size in (1, 6, 3, 70, 9, 2):
        parent = (-1, *(rng.randrange(max(0, i - 12), i) for i in range(1, size)))
        tokens = torch.tensor([rng.randrange(4, VOCAB) for _ in range(size)])
        x = vlm.decoder.embed(tokens).expand(views, -1, -1)
        out, rows = fed_by_level(levels, x, parent)
        assert torch.allclose(out, whole.score(x, shape_of(parent)), atol=1e-5)
        path = shape_of(parent).path(rng.randrange(size))
        whole.commit_nodes(path)
        levels.commit_nodes([rows[node] for node in path])
        assert levels.length == whole.length


LAYERS = (0, 2, 3)


@torch.inference_mode()
def decode(decoder: HFDecoder, rounds: int = 8) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits and layers of trees of many sizes, a path of each kept, drafts in between."""
    stream = prefilled_sequence(decoder, torch.arange(20, device=decoder.device)).fork(256)
    rng, said, layers = random.Random(3), [], []
    for number in range(rounds):
        shape = bush(rng.choice((1, 2, 3, 5, 9, 17, 33)), rng)
        kept = Captured(Capture(layers=LAYERS[: decoder.n_layers])) if number % 2 else None
        said.append(decoder.logits(score(stream, shape, 5 * number, kept))[0])
        layers += [] if kept is None else [kept.layers[i] for i in sorted(kept.layers)]
        stream.commit_nodes(shape.path(len(shape) - 1))
        said.append(decoder.logits(stream.run_root(embedded(stream, [3, 4, 5])))[0])
        stream.extend(embedded(stream, [6, 7]), [0, 0])
        said.append(decoder.logits(stream.extend(embedded(stream, [8]), [1]))[0])
        stream.commit_nodes([0, 1, 3])
    return torch.cat(said), layers


def bush(size: int, rng: random.Random) -> TreeShape:
    return shape_of((-1, *(rng.randrange(i) for i in range(1, size))))


def embedded(stream: CachedSequence, ids: list[int]) -> torch.Tensor:
    return stream.backend.embed(torch.tensor([ids], device=stream.backend.device))


def score(
    stream: CachedSequence, shape: TreeShape, first: int = 0, kept: Captured | None = None
) -> torch.Tensor:
    return stream.score(embedded(stream, [first + i for i in range(len(shape))]), shape, kept)


@pytest.fixture(scope="module")
def pairs_of_models() -> dict[str, Models]:
    return both_backends(tiny_llava(layers=4))


def both_backends(model: torch.nn.Module) -> dict[str, Models]:
    """The same models on ordinary steps and on fixed ones; heads draft on either's target."""
    words = {"newline": (5,), "caption": (6, 7), "describe": (8, 9, 10)}
    found = {}
    for backend in ("hf", "graphs"):
        target = VLMTarget(VLM(model, "target", backend=backend))
        kinds = ("eagle2", "hivis", "dream", "dflash")
        heads = {kind: built(kind, target.decoder) for kind in kinds}
        small = VLM(noisy(model, 0.05), "small", backend=backend)
        found[backend] = Models(target, {"small": small, **heads}, words)
    return found


def test_questions_share_caches_and_what_is_captured_on_them(monkeypatch):
    """Two lanes and the prefill hold three at once; later questions find them again."""
    target = VLMTarget(VLM(tiny_llava(kv_heads=2), "tiny", backend="graphs"))
    models, runner = Models(target, {}, {}), target.decoder.runner
    made = made_steps(monkeypatch)
    first = 0
    for seed in range(5):
        shared = SharedPrefill(ask(target, tiny_prompt(seed=seed % 2)))
        assert list(
            race([Lane(n, build_parts(choose(n), models), shared) for n in ("ar", "ngram")])
        )
        del shared
        gc.collect()
        assert len(runner.free) == 3
        first = first or len(made)
    assert 0 < first <= len(made) == len(set(made)) <= 3 * len({shape for _, shape in made})
    assert {shape.rows for _, shape in made} <= set(BUCKETS)


def made_steps(monkeypatch) -> list[tuple[int, StepShape]]:
    """Every step made from now on: its cache and its shape."""
    made, buffers = [], GraphRunner._new_step

    def noted(runner: GraphRunner, host: object, cache: GraphCache, shape: StepShape) -> GraphStep:
        made.append((id(cache), shape))
        return buffers(runner, host, cache, shape)

    monkeypatch.setattr(GraphRunner, "_new_step", noted)
    return made


class RunningClock(Stopwatch):
    """runs: Whether what happens now is charged to a lane."""

    runs = False

    def start(self) -> None:
        super().start()
        RunningClock.runs = True

    def lap(self, phase: str) -> None:
        super().lap(phase)
        RunningClock.runs = phase not in ("draft", "other_s", "commit_s")

    def skip(self) -> None:
        super().skip()
        RunningClock.runs = True


@pytest.mark.parametrize(
    "names", [("ar", "chain", "tree"), ("ar", "tabed", "sage"), ("ar", "eagle2", "dflash")]
)
def test_a_race_captures_nothing_and_no_lane_is_charged_for_captures(
    pairs_of_models: dict[str, Models], names: tuple[str, ...], monkeypatch
):
    """Neither one that was warmed up nor one that was not."""
    models = pairs_of_models["graphs"]
    loaded: Any = SimpleNamespace(models=models)
    for owner in (models.target.decoder, *models.drafters.values()):
        getattr(owner, "decoder", owner).release_caches()
    made, new_step = made_steps(monkeypatch), GraphRunner._new_step
    monkeypatch.setattr(VLMTarget, "stopwatch", lambda self: RunningClock())

    def uncharged(*words: Any) -> GraphStep:
        assert not RunningClock.runs
        return new_step(*words)

    monkeypatch.setattr(GraphRunner, "_new_step", uncharged)
    # One prompt for the page, a shorter answer for the other.
    request = ask(models.target, tiny_prompt(2), max_new_tokens=12)
    choices = [choose(name) for name in names]
    session.run_lanes(loaded, request, choices)
    assert made
    shared = SharedPrefill(request)
    running = session.make_lanes(loaded, request, choices, shared)
    session.warm_up(loaded, request, choices, shared)
    made.clear()
    list(race(running))
    assert not made


@pytest.mark.parametrize(
    "method", ["ar", "tree", "tabed", "sage", "ngram", "eagle2", "dream", "dflash", "exact"]
)
def test_no_round_captures_a_shape(pairs_of_models: dict[str, Models], method: str, monkeypatch):
    """Lanes are ready for all their steps before their first round is timed."""
    models, in_rounds = pairs_of_models["graphs"], 0
    if method == "exact":
        target = VLMTarget(models.target.vlm, batch_invariant=True)
        models, method = Models(target, models.drafters, models.words), "chain"
        assert target.min_invariant_rows is not None
    gc.collect()
    small, *heads = models.drafters.values()
    for runner in (models.target.decoder.runner, small.decoder.runner, *(h.runner for h in heads)):
        runner.destroy_idle_caches()  # what other tests captured
    made, step = made_steps(monkeypatch), Lane.step

    def timed(lane: Lane) -> object:
        nonlocal in_rounds
        before = len(made)
        round_ = step(lane)
        in_rounds += len(made) - before
        return round_

    monkeypatch.setattr(Lane, "step", timed)
    shared = SharedPrefill(ask(models.target, tiny_prompt()))
    assert list(race([Lane("one", build_parts(choose(method), models), shared)]))
    assert made and in_rounds == 0


def test_eager_steps_stay_where_fixed_ones_fail_or_say_something_else(monkeypatch):
    decoder = with_graphs(HFDecoder(tiny_llava(kv_heads=2)))
    reason = calibration.calibrate(decoder)
    assert decoder.fixed == (reason is None) and (reason is None or "ms as graphs" in reason)
    one, two = (calibration._TrialResult(0.1, s, torch.ones(1, 2)) for s in (0.001, 0.002))
    assert "2.0 ms as graphs" in str(calibration._drawback_of_fixed(one, two, 0.05))
    near = one._replace(logits=torch.tensor([[1.1, 1.0]]))
    other = one._replace(logits=torch.tensor([[1.0, 1.1]]))
    assert "other tokens" in str(calibration._drawback_of_fixed(near, other, tie_nats("float32")))
    assert calibration._drawback_of_fixed(near, other, tie_nats("bfloat16")) is None
    compute = decoder.runner._run_step

    def wrong(host: object, step: GraphStep, cache: object) -> None:
        compute(host, step, cache)
        step.hidden = -step.hidden

    decoder.runner._run_step = wrong
    assert "chose other tokens" in str(calibration.calibrate(decoder)) and not decoder.fixed

    def broken(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    decoder.runner._run_step = broken
    reason = calibration.calibrate(decoder)
    assert "failed (operation not permitted when stream is capturing)" in str(reason)
    assert not decoder.fixed and torch.isfinite(decode(decoder, 1)[0]).all()

    def lost(_: torch.device) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(calibration, "synchronize", lost)
    with pytest.raises(torch.AcceleratorError, match="illegal"):
        calibration.calibrate(decoder)


def captured(decoder: HFDecoder, n: int = 2) -> CachedSequence:
    """A sequence with graphs of one row, two and four."""
    stream = prefilled_sequence(decoder, torch.arange(20), 100)
    stream.cache.prepare(step_shapes(n + 2))
    return stream


@torch.inference_mode()
def test_a_dropped_cache_and_decoder_leave_nothing_to_the_collector(cuda: FakeCuda):
    decoder = with_graphs(HFDecoder(tiny_llava()))
    gc.collect()
    gc.disable()
    try:
        stream = captured(decoder)
        cache = weakref.ref(stream.cache)
        assert len(FakeGraph.alive) == 3
        del stream
        assert decoder.runner.free == [cache()]  # its graphs wait for the next question
        decoder.runner.destroy_idle_caches()
        assert cache() is None and not FakeGraph.alive
        stream = captured(decoder)
        cache, owner = weakref.ref(stream.cache), weakref.ref(decoder)
        del stream, decoder
        assert owner() is None and cache() is None and not FakeGraph.alive
    finally:
        gc.enable()


@torch.inference_mode()
def test_no_capture_waits_for_the_collector(cuda: FakeCuda):
    """It would walk over all objects of all libraries, 0.2 seconds for every lane."""
    stream = prefilled_sequence(with_graphs(HFDecoder(tiny_llava())), torch.arange(20), 100)
    walks: list[int] = []

    def walked(phase: str, facts: dict[str, int]) -> None:
        walks.append(facts["generation"])

    gc.callbacks.append(walked)
    try:
        stream.cache.prepare(step_shapes(4))
    finally:
        gc.callbacks.remove(walked)
    assert FakeGraph.captured == 3 and 2 not in walks


@torch.inference_mode()
def test_graphs_are_captured_again_after_all_of_a_pool_are_gone(cuda: FakeCuda):
    """A cache of another size replaces an unused one, with its graphs; old ones stay usable."""
    decoder = with_graphs(HFDecoder(tiny_llava()))
    kept = captured(decoder)
    for room in (100, 1000, 2000, 100):
        stream = prefilled_sequence(decoder, torch.arange(20), room)
        stream.cache.prepare(step_shapes(4))
        del stream
        assert len(decoder.runner.free) == 1 and len(FakeGraph.alive) == 6
    hidden = kept.score(embedded(kept, [1]), chain(0))
    assert torch.isfinite(hidden).all()
    del kept
    decoder.runner.destroy_idle_caches()
    assert not FakeGraph.alive
    captured(decoder)


def in_pools() -> int:
    """Graphs that take memory."""
    return sum(pool.uses for pool in FakeGraph.pools.values())


@torch.inference_mode()
def test_a_fault_during_a_capture_leaves_a_device_that_can_capture(cuda: FakeCuda):
    """Steps that the device refuses to capture, or lacks memory for, run without; other faults are
    raised.
    """
    decoder = with_graphs(HFDecoder(tiny_llava()))
    stream, whole = captured(decoder), decoder.decode
    calls = 0

    def failing(fault: Exception | None) -> Callable[[ForwardInput], torch.Tensor]:
        def decode(call: ForwardInput) -> torch.Tensor:
            nonlocal calls
            calls += 1
            hidden = whole(call)
            if calls == 2:  # the first only warms up
                if fault is not None:
                    raise fault
                hidden.nonzero()
            return hidden

        return decode

    lost = torch.AcceleratorError("CUDA error: misaligned address")
    for fault in (ValueError("a fault of Python's"), lost):
        calls, decoder.decode = 0, failing(fault)
        with pytest.raises(type(fault)):
            stream.cache.prepare(step_shapes(16))
        assert {shape.rows for shape in stream.cache.steps} == {1, 2, 4}
        assert decoder.runner.refused is None and in_pools() == 3
    full = torch.AcceleratorError("CUDA error: out of memory")
    for fault in (torch.OutOfMemoryError("too little"), full):
        calls, decoder.decode = 0, failing(fault)
        decoder.runner.free.append(GraphCache(decoder.runner, decoder, 1, 512))
        stream.cache.prepare(step_shapes(8))
        assert stream.cache.steps.pop(StepShape(8, (), 0)).graph is None
        assert decoder.runner.refused is None and not decoder.runner.free and in_pools() == 3
    calls, decoder.decode = 0, failing(None)
    stream.cache.prepare(step_shapes(16))
    assert decoder.runner.refused == "CUDA error: operation not permitted when stream is capturing"
    decoder.decode = whole
    told = {shape.rows: step.graph is not None for shape, step in stream.cache.steps.items()}
    assert told == {1: True, 2: True, 4: True, 8: False, 16: False}
    assert torch.isfinite(score(stream, bush(9, random.Random(0)))).all()
    assert cuda.current is cuda.default and not any(p.underway for p in FakeGraph.pools.values())
    assert in_pools() == 3 and gc.isenabled()
    decoder.runner.refused = None
    stream.cache.prepare(step_shapes(32))
    assert stream.cache.steps[StepShape(32, (), 0)].graph is not None


def test_graphs_that_are_kept_for_one_answer_must_pay_within_it():
    """A GPU that is lent: capturing six graphs takes as long as 60 steps save here."""
    same = torch.ones(2, 2)
    eager, fixed = (
        calibration._TrialResult(0.05, 0.04, same),
        calibration._TrialResult(0.22, 0.02, same),
    )
    said = calibration._why_graphs_not_worth(eager, fixed, 50)
    assert said == "graphs would take 0.6 s to capture and save 0.5 s"
    assert calibration._why_graphs_not_worth(eager, fixed, 70) is None


def test_what_exact_steps_cost_is_measured(monkeypatch):
    now, score = 0.0, CachedSequence.score

    def timed(stream: CachedSequence, *asked: Any, min_rows: int | None = None) -> torch.Tensor:
        nonlocal now
        now += 1.0 if min_rows is None else 1.4
        return score(stream, *asked, min_rows=min_rows)

    monkeypatch.setattr(CachedSequence, "score", timed)
    monkeypatch.setattr(calibration.time, "perf_counter", lambda: now)
    decoder = with_graphs(HFDecoder(tiny_llava(kv_heads=2)))
    assert calibration.exact_overhead(decoder, 4) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("cost", "may_decline", "stays"), [(0.42, True, False), (0.42, False, True), (0.03, True, True)]
)
def test_exact_steps_that_cost_ar_much_on_a_gpu_are_given_up(
    cost: float, may_decline: bool, stays: bool, monkeypatch
):
    place = SimpleNamespace(device=torch.device("cuda:0"), dtype=torch.bfloat16, fixed=False)
    vlm: Any = SimpleNamespace(
        name="t", decoder=place, vocabulary=None, release_caches=lambda: None
    )
    target, said = VLMTarget(vlm, batch_invariant=True), []
    target.min_invariant_rows = 4
    monkeypatch.setattr(calibration, "exact_overhead", lambda *_: cost)
    nothing: Any = None
    models = Models(target, {}, {})
    loaded = LoadedPair(nothing, models, nothing, nothing, nothing, {}, may_decline)
    loaded.calibrate(said.append)
    assert target.min_invariant_rows == (4 if stays else None)
    assert ("42%" in said[-1]) != stays


def test_calibration_and_exact_trials_leave_no_graphs(cuda: FakeCuda):
    decoder = with_graphs(HFDecoder(tiny_llava(kv_heads=2)))
    calibration.calibrate(decoder)
    assert not FakeGraph.alive and FakeGraph.captured > 0
    decoder.fixed = True
    target = VLMTarget(VLM(tiny_llava(kv_heads=2), "tiny", backend="graphs"), batch_invariant=True)
    assert target.min_invariant_rows is not None  # how many, decides the processor
    target.vlm.release_caches()
    assert not FakeGraph.alive


@pytest.mark.parametrize("method", ["chain", "eagle2", "dream", "dflash"])
def test_whole_races_in_graphs_are_the_same(method: str, cuda: FakeCuda, monkeypatch):
    """With prompts of two lengths: graphs are replayed, and replaced by others."""
    # Our own kernels run only on processors: without matrices there are no layers of theirs.
    for name in ("pack_floats", "pack_integers"):
        monkeypatch.setattr(kernels, name, lambda *_: None)
    said = []
    for models in both_backends(tiny_llava(layers=4)).values():
        said.append([])
        for pictures in (1, 40):
            shared = SharedPrefill(ask(models.target, tiny_prompt(pictures), max_new_tokens=8))
            lanes = [Lane(n, build_parts(choose(n), models), shared) for n in ("ar", method)]
            records = [one for one in race(lanes) if isinstance(one, Round)]
            said[-1] += sorted((r.lane, r.index, str(r.tokens)) for r in records)
    assert said[0] == said[1] and FakeGraph.captured
