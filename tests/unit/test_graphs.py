"""Steps return the same in another shape: level by level or at once, several views together or
separately, rows padded and the whole cache under a mask.
"""

import gc
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PretrainedConfig

from specvl_demo import places
from specvl_demo.core.engine import Lane, SharedPrefill, race
from specvl_demo.core.transfer import HostCopy
from specvl_demo.core.tree import TreeShape, chain, shape_of
from specvl_demo.core.types import AuxRequest, Context, Growth, Stopwatch
from specvl_demo.decoders import calibration
from specvl_demo.decoders.calibration import prefilled_sequence
from specvl_demo.decoders.forward import AuxStates, ForwardInput
from specvl_demo.decoders.graph_runner import GraphCache, GraphRunner, round_up_rows
from specvl_demo.decoders.graphs import GraphStep, StepShape, step_shapes
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.decoders.kv_cache import Layout
from specvl_demo.decoders.sequence import CachedSequence, prefill
from specvl_demo.methods.base import Models, build_parts, choose
from specvl_demo.options import Sampling
from specvl_demo.records import Tree, tie_nats
from specvl_demo.serving import session
from specvl_demo.serving.loaded import LoadedPair
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget
from tests.cuda import GPU, FakeCuda, FakeGraph, Launches, graphs_on_the_processor, with_graphs
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


@pytest.mark.parametrize("views", [1, 4])
@torch.inference_mode()
def test_a_tree_fed_level_by_level_says_what_it_says_at_once(views: int):
    vlm = VLM(tiny_llava(kv_heads=2), "m")
    levels, _, _ = prefill(vlm.decoder, contexts_of(vlm)[:views], 400)
    whole = levels.fork(400)
    rng = random.Random(1)
    for size in (1, 6, 3, 70, 9, 2):
        # In order, parents make levels follow one another.
        parent = sorted(rng.randrange(max(0, i - 12), i) for i in range(1, size))
        shape = shape_of((-1, *parent))
        tokens = torch.tensor([rng.randrange(4, VOCAB) for _ in range(size)])
        x = vlm.decoder.embed(tokens).expand(views, -1, -1)
        made = [levels.run_root(x[:, :1])]
        for depth in range(1, shape.depth[-1] + 1):
            nodes = [node for node in range(size) if shape.depth[node] == depth]
            made.append(levels.extend(x[:, nodes], [shape.parent[node] for node in nodes]))
        assert torch.allclose(torch.cat(made, 1), whole.score(x, shape), atol=1e-5)
        path = shape.path(rng.randrange(size))
        whole.commit_nodes(path), levels.commit_nodes(path)


@pytest.mark.parametrize("place", ["cpu", GPU])
@pytest.mark.parametrize("views", [1, 3])
@torch.inference_mode()
def test_a_tree_drafted_in_one_step_is_one_that_is_scored(views: int, place: str):
    vlm = VLM(tiny_llava(kv_heads=2).to(place), "m", backend="graphs")
    decoder, log_probs = vlm.decoder, vlm.decoder.log_probabilities(vlm.vocabulary)
    drafts = prefill(decoder, contexts_of(vlm)[:views], 400).sequence
    scores = drafts.fork(400)
    shape = StepShape(1, (), 0, (Growth(3, (2, (3, 7), 3)), vlm.vocabulary))
    weights = torch.ones(views, device=place)
    for token in (5, 8):
        root = torch.tensor([token], device=place)
        places, ids, _, made = drafts.draft_tree(shape, root, {"weights": weights})
        tokens = torch.cat((root, ids.take(places[1:])))
        tree = shape_of((-1, *(places[1:] // 3).tolist()))
        scored = scores.score(decoder.embed(tokens).expand(views, -1, -1), tree)
        every = log_probs.row_log_probs(scored).transpose(0, 1)
        torch.testing.assert_close(made, every, atol=1e-4, rtol=1e-4)
        drafts.commit_nodes([0]), scores.commit_nodes([0])


LAYERS = (0, 2, 3)


@torch.inference_mode()
def decode(decoder: HFDecoder, rounds: int = 8) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits and layers of trees of many sizes, a path of each kept, drafts in between."""
    sequence = prefilled_sequence(decoder, torch.arange(20, device=decoder.device)).fork(256)
    rng, said, layers = random.Random(3), [], []
    for number in range(rounds):
        shape = bush(rng.choice((1, 2, 3, 5, 9, 17, 33)), rng)
        kept = AuxStates(AuxRequest(layers=LAYERS[: decoder.n_layers])) if number % 2 else None
        said.append(decoder.logits(score(sequence, shape, 5 * number, kept))[0])
        layers += [] if kept is None else [kept.layers[i] for i in sorted(kept.layers)]
        sequence.commit_nodes(shape.path(len(shape) - 1))
        said.append(decoder.logits(sequence.run_root(embedded(sequence, [3, 4, 5])))[0])
        sequence.extend(embedded(sequence, [6, 7]), [0, 0])
        said.append(decoder.logits(sequence.extend(embedded(sequence, [8]), [1]))[0])
        sequence.commit_nodes([0, 1, 3])
    return torch.cat(said), layers


def bush(size: int, rng: random.Random) -> TreeShape:
    return shape_of((-1, *(rng.randrange(i) for i in range(1, size))))


def embedded(sequence: CachedSequence, ids: list[int]) -> torch.Tensor:
    return sequence.backend.embed(torch.tensor([ids], device=sequence.backend.device))


def score(
    sequence: CachedSequence, shape: TreeShape, first: int = 0, kept: AuxStates | None = None
) -> torch.Tensor:
    return sequence.score(embedded(sequence, [first + i for i in range(len(shape))]), shape, kept)


@pytest.fixture(scope="module")
def pairs_of_models() -> dict[str, Models]:
    return both_backends(tiny_llava(layers=4))


KINDS = ("eagle2", "hivis", "dream", "dflash")


def both_backends(model: torch.nn.Module, kinds: tuple[str, ...] = KINDS) -> dict[str, Models]:
    """The same models on ordinary steps and on fixed ones; heads draft on either's target."""
    words = {"newline": (5,), "caption": (6, 7), "describe": (8, 9, 10)}
    found = {}
    for backend in ("hf", "graphs"):
        target = VLMTarget(VLM(model, "target", backend=backend))
        heads = {kind: built(kind, target.decoder) for kind in kinds}
        small = VLM(noisy(model, 0.05), "small", backend=backend)
        found[backend] = Models(target, {"small": small, **heads}, words)
    return found


class RunningClock(Stopwatch):
    """runs: Whether what happens now is charged to a lane."""

    runs = False

    def start(self) -> None:
        super().start()
        RunningClock.runs = True

    def lap(self, phase: str | None) -> None:
        super().lap(phase)
        RunningClock.runs = phase not in ("draft", "other_s", "commit_s")


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "names", ["ar chain tree", "ar tabed sage ngram", "ar eagle2 dream dflash"]
)
def test_a_race_captures_nothing_and_no_clock_runs_while_graphs_are_captured(
    pairs_of_models: dict[str, Models], names: str, exact: bool, monkeypatch
):
    """Warmed up or not: lanes are ready for all their steps before their first round."""
    models = pairs_of_models["graphs"]
    target = VLMTarget(models.target.vlm, batch_invariant=exact)
    loaded = SimpleNamespace(models=replace(models, target=target))
    for owner in (target.vlm, *models.drafters.values()):
        owner.release_caches()
    made, new_step = [], GraphRunner._new_step
    monkeypatch.setattr(VLMTarget, "stopwatch", lambda self: RunningClock())

    def uncharged(*words: Any) -> GraphStep:
        assert not RunningClock.runs
        made.append(words)
        return new_step(*words)

    monkeypatch.setattr(GraphRunner, "_new_step", uncharged)
    request = ask(target, tiny_prompt(2), max_new_tokens=12)
    choices = [choose(name) for name in names.split()]
    session.run_lanes(loaded, request, choices)
    assert made
    shared = SharedPrefill(request)
    running = session.make_lanes(loaded, request, choices, shared)
    session.warm_up(loaded, request, choices, shared)
    made.clear()
    list(race(running))
    assert not made


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
        step.made = -step.made[0], {}

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
    sequence = prefilled_sequence(decoder, torch.arange(20), 100)
    sequence.cache.prepare(step_shapes(n + 2))
    return sequence


@torch.inference_mode()
def test_a_dropped_cache_and_decoder_leave_nothing_to_the_collector(cuda: FakeCuda):
    decoder = with_graphs(HFDecoder(tiny_llava()))
    gc.collect()
    gc.disable()
    try:
        sequence = captured(decoder)
        cache = weakref.ref(sequence.cache)
        assert len(FakeGraph.alive) == 3
        del sequence
        assert decoder.runner.free == [cache()]  # its graphs wait for the next question
        decoder.runner.destroy_idle_caches()
        assert cache() is None and not FakeGraph.alive
        sequence = captured(decoder)
        cache, owner = weakref.ref(sequence.cache), weakref.ref(decoder)
        del sequence, decoder
        assert owner() is None and cache() is None and not FakeGraph.alive
    finally:
        gc.enable()


@torch.inference_mode()
def test_graphs_are_captured_again_after_all_of_a_pool_are_gone(cuda: FakeCuda, monkeypatch):
    """Questions of other lengths find their graphs again while their caches are small; else a cache
    replaces the unused ones. Those in use stay usable. No capture collects garbage: that walks over
    all objects of all libraries.
    """
    monkeypatch.setattr(gc, "collect", lambda: pytest.fail("0.2 s for every lane"))
    decoder = with_graphs(HFDecoder(tiny_llava()))
    kept = captured(decoder)

    def ask(room: int) -> tuple[int, int]:
        sequence = prefilled_sequence(decoder, torch.arange(20), room)
        sequence.cache.prepare(step_shapes(4))
        del sequence
        return len(decoder.runner.free), len(FakeGraph.alive)

    assert [ask(room) for room in (100, 1000, 100, 1000)] == [(1, 6), (2, 9), (2, 9), (2, 9)]
    monkeypatch.setattr("specvl_demo.decoders.graph_runner.KEPT_BYTES", 0)
    assert [ask(room) for room in (2000, 100)] == [(1, 6), (1, 6)]
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
    sequence, whole = captured(decoder), decoder.decode
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
            sequence.cache.prepare(step_shapes(16))
        assert {shape.rows for shape in sequence.cache.steps} == {1, 2, 4}
        assert decoder.runner.refused is None and in_pools() == 3
    full = torch.AcceleratorError("CUDA error: out of memory")
    for fault in (torch.OutOfMemoryError("too little"), full):
        calls, decoder.decode = 0, failing(fault)
        decoder.runner.free.append(GraphCache(decoder.runner, decoder, 1, 512))
        sequence.cache.prepare(step_shapes(8))
        assert sequence.cache.steps.pop(StepShape(8, (), 0)).graph is None
        assert decoder.runner.refused is None and not decoder.runner.free and in_pools() == 3
    calls, decoder.decode = 0, failing(None)
    sequence.cache.prepare(step_shapes(16))
    assert decoder.runner.refused == "CUDA error: operation not permitted when stream is capturing"
    decoder.decode = whole
    told = {shape.rows: step.graph is not None for shape, step in sequence.cache.steps.items()}
    assert told == {1: True, 2: True, 4: True, 8: False, 16: False}
    assert torch.isfinite(score(sequence, bush(9, random.Random(0)))).all()
    assert cuda.current is cuda.default and not any(p.underway for p in FakeGraph.pools.values())
    assert in_pools() == 3 and gc.isenabled()
    decoder.runner.refused = None
    sequence.cache.prepare(step_shapes(32))
    assert sequence.cache.steps[StepShape(32, (), 0)].graph is not None


def test_graphs_that_are_kept_for_one_answer_must_pay_within_it(monkeypatch, tmp_path: Path):
    """A GPU that is lent: capturing six graphs takes as long as 60 steps save here. What one call
    has tried, the next one's process finds in a file.
    """
    monkeypatch.setenv(places.CACHE_VARIABLE, str(tmp_path / "new"))
    results = [calibration._TrialResult(*s, torch.ones(2, 2)) for s in ((0.05, 0.04), (0.22, 0.02))]
    decoder = with_graphs(HFDecoder(tiny_llava()))
    monkeypatch.setattr(calibration, "_time_steps", lambda *_: results.pop(0))
    said = calibration.calibrate(decoder, 50)
    assert said is not None and "graphs would take 0.6 s to capture and save 0.5 s" in said
    assert calibration.calibrate(decoder, 70) is None and decoder.fixed
    with pytest.raises(IndexError):  # tried anew: of another model, or where nothing is lent
        calibration.calibrate(HFDecoder(tiny_llava(layers=5)), 70)
    with pytest.raises(IndexError):
        calibration.calibrate(decoder)


@pytest.mark.parametrize(
    ("weights", "kv_heads", "layers", "sizes"),
    [
        (15.2e9, 4, 28, {300: 2048, 2000: 2048, 2100: 4096, 7000: 8192}),
        (13.5e9, 32, 32, {300: 512, 1340: 1536, 1600: 2048}),
    ],
    ids=["Qwen2.5-VL 7B", "LLaVA-1.5 7B"],
)
def test_photographs_of_other_sizes_find_the_same_graphs(
    weights: float, kv_heads: int, layers: int, sizes: dict[int, int]
):
    """Where a step reads so many weights that some rows more hardly count."""
    layouts = [Layout(torch.device("cpu"), kv_heads, 128)] * layers
    big = SimpleNamespace(layouts=lambda: layouts, n_bytes=weights, dtype=torch.bfloat16)
    assert {rows: round_up_rows(rows, big) for rows in sizes} == sizes


@pytest.mark.parametrize(
    ("cost", "may_decline", "stays"), [(0.42, True, False), (0.42, False, True), (0.03, True, True)]
)
def test_exact_steps_that_cost_ar_much_are_given_up(
    cost: float, may_decline: bool, stays: bool, monkeypatch
):
    place = SimpleNamespace(dtype=torch.bfloat16, fixed=False, batch_invariant=False)
    vlm = SimpleNamespace(name="t", decoder=place, vocabulary=None, release_caches=lambda: None)
    target, said = VLMTarget(vlm, batch_invariant=True), []
    target.min_invariant_rows = 4
    monkeypatch.setattr(calibration, "exact_overhead", lambda *_: cost)
    nothing = None
    models = Models(target, {}, {})
    loaded = LoadedPair(nothing, models, nothing, nothing, nothing, {}, may_decline)
    loaded.calibrate(said.append)
    assert target.min_invariant_rows == (4 if stays else None)
    assert ("42%" in said[-1]) != stays


@pytest.mark.parametrize(
    ("method", "most", "reads"),
    [
        ("ar", 15, 2),
        ("chain", 20, 2),
        ("tree", 25, 2),
        ("tabed", 50, 2),
        ("sage", 41, 3),
        *((head, 30, 2) for head in ("eagle2", "eagle3", "hivis", "dream")),
        ("dflash", 55, 2),
    ],
)
def test_a_round_launches_little_outside_its_graphs_and_seldom_waits(
    method: str, most: int, reads: int, cuda: FakeCuda, monkeypatch
):
    """A launch takes the host of a GPU microseconds; a read waits for the device, and so do a
    stopwatch's times of which nothing later was read.
    """
    counts, tolist, lap, times = [], torch.Tensor.tolist, Stopwatch.lap, Stopwatch.read
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: counts.append("read") or tolist(self))
    monkeypatch.setattr(HostCopy, "_numbers", property(lambda copy: tolist(copy._host)))
    monkeypatch.setattr(Stopwatch, "lap", lambda *a: counts.append("lap") or lap(*a))
    wait = lambda: counts[-1] == "lap" and counts.append("read")  # noqa: E731
    monkeypatch.setattr(Stopwatch, "read", lambda self: wait() or times(self))
    monkeypatch.setattr(VLMTarget, "recomputes", False)
    launches, replay = Launches(), FakeGraph.replay

    def uncounted(graph: FakeGraph) -> None:
        before = launches.n
        replay(graph)
        launches.n = before

    monkeypatch.setattr(FakeGraph, "replay", uncounted)
    models = both_backends(tiny_llava(layers=4), (*KINDS, "eagle3"))["graphs"]
    request = ask(models.target, tiny_prompt(2), max_new_tokens=40, full=False)
    lane = Lane(method, build_parts(choose(method), models), SharedPrefill(request))
    lane.begin()
    lane.step()
    counts.clear()
    with launches:
        lane.step(), lane.step()
    assert 0 < launches.n <= 2 * most and counts.count("read") <= 2 * reads


def paths(tree: Tree) -> list[list[int]]:
    """However its nodes are numbered."""
    shape = shape_of(tuple(tree.parent))
    return sorted([tree.tokens[i] for i in shape.path(node)] for node in range(len(shape)))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("chain", {}),
        ("tree", {"tree_nodes": 9}),
        ("tabed", {"policy": "beam", "beams": 3}),
        ("eagle2", {}),
        ("dream", {}),
        ("dflash", {}),
        ("eagle3", {"theta": 9.0}),
    ],
)
def test_whole_races_in_graphs_are_the_same(
    method: str, settings: dict[str, float], cuda: FakeCuda
):
    """With prompts of two lengths and other settings: graphs are replayed, or others captured."""
    said = []
    for models in both_backends(tiny_llava(layers=8), (*KINDS, "eagle3")).values():
        said.append([])
        for pictures, values in ((1, {}), (40, settings), *[(40, {})] * len(settings)):
            request = ask(models.target, tiny_prompt(pictures), max_new_tokens=8)
            loaded, chosen = SimpleNamespace(models=models), [choose("ar"), choose(method, values)]
            for lane in session.run_lanes(loaded, request, chosen):
                said[-1] += [paths(round_.tree) for round_ in lane.rounds]
    assert said[0] == said[1] and FakeGraph.captured


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("place", [GPU])
def test_every_method_there_says_what_ar_says_on_a_processor(
    place: str, temperature: float, monkeypatch
):
    """By eager steps and by replays; drawn tokens too, with the same seed."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # a tower's convolutions
    kinds, answers = (*KINDS, "eagle3"), []
    names = ("ar", "chain", "tree", "specvlm", "tabed", "sage", "ngram", *kinds)
    for device in ("cpu", place):
        for models in both_backends(tiny_llava(layers=4).to(device), kinds).values():
            request = ask(models.target, tiny_prompt(2), sampling=Sampling(temperature))
            loaded, chosen = SimpleNamespace(models=models), list(map(choose, names))
            answers += [lane.token_ids for lane in session.run_lanes(loaded, request, chosen)]
    assert answers == [answers[0]] * len(answers)


def test_what_libraries_do_not_publish_is_as_it_was():
    """Called on a GPU alone, or set: elsewhere nothing would fail."""
    schema = torch.ops.aten._scaled_dot_product_efficient_attention.default._schema
    names = [argument.name for argument in schema.arguments[:5]]
    assert names == ["query", "key", "value", "attn_bias", "compute_log_sumexp"]
    assert len(schema.returns) == 4
    schema = torch.ops.aten._flash_attention_forward.default._schema
    names = [argument.name for argument in schema.arguments]
    assert names[:7] == ["query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k"]
    assert names[7:10] == ["dropout_p", "is_causal", "return_debug_mask"]
    assert {"scale", "seqused_k", "num_splits"} < {*names}
    assert isinstance(PretrainedConfig._attn_implementation, property)
