"""Tests of a loaded decoder: are its steps batch-invariant, are fixed shapes faster?

Batch-invariant steps (see `batch_invariance`) are tried from every row count on; steps of fixed
shapes (see `graphs`) are compared with eager ones, also for trained heads. Random tokens suffice,
since nothing here depends on their meaning.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from itertools import accumulate
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from specvl_demo import places
from specvl_demo.core.faults import cause
from specvl_demo.core.tree import TreeShape, chain, shape_of
from specvl_demo.core.types import Context
from specvl_demo.decoders import batch_invariance
from specvl_demo.decoders.backend import Backend, LanguageBackend
from specvl_demo.decoders.sequence import CachedSequence, prefill
from specvl_demo.decoders.timing import synchronize
from specvl_demo.records import tie_nats

_PROMPT = 150
_STEPS = 4
_TREES = (2, 3, 5, 7, 9, 13, 26, 61)
"""Of the trial of batch-invariant steps: tokens before, steps, and trees' row counts."""
_SPARE = 300
"""Rows of the cache after those in use, so that its sums are as long as in a real answer."""
_SHAPES = (chain(0), shape_of((-1, 0, 0, 1, 1, 2, 2, 3)))
"""Shapes timed to compare fixed and eager steps: an AR step and a small tree."""
_BEFORE, _REPEATS = 100, 5
_ANSWER = 2048
"""Rows of a cache during an answer about a photograph: exact steps read all of them."""
_CONTEXT = 264
_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 64)
"""Rows in the cache, about a photograph and a question, and of the steps that are timed then."""
_GRAPHS_A_LANE = 6
"""Graphs that a lane captures: most methods meet trees of one row to 32, in steps of two."""
TRIED_ROWS = _BEFORE + max(len(shape) for shape in _SHAPES)
"""Rows of a prompt and of what is scored after it."""


def sample_ids(backend: LanguageBackend, n: int) -> Tensor:
    """Return n tokens [n], always the same ones."""
    rng = random.Random(0)
    return torch.tensor([rng.randrange(backend.vocab) for _ in range(n)], device=backend.device)


def text_context(backend: Backend, rows: Tensor) -> Context:
    """Return a context of only these input rows [n, D] or the embeddings of these tokens [n]."""
    every = torch.arange(len(rows), device=rows.device)
    positions = every if backend.axes == 1 else every.expand(backend.axes, -1)
    text = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    ids, embeds = (rows, backend.embed(rows)) if rows.ndim == 1 else (every, rows)
    return Context("text", ids, text, embeds, positions, len(rows), every)


def prefilled_sequence(backend: Backend, rows: Tensor, room: int = 0) -> CachedSequence:
    """Return a sequence of `text_context`, in a cache of so many rows."""
    return prefill(backend, [text_context(backend, rows)], room).sequence


@torch.inference_mode()
def min_invariant_rows(backend: LanguageBackend) -> int | None:
    """Return the least row count that makes steps batch-invariant, or None if none does.

    Compares logits, keys and values of a path's nodes in random trees bitwise with those of AR
    steps. Costs about a dozen forwards.
    """
    if not backend.new_cache(1, 1).branches:
        return None
    # 1. A prompt, what follows it, and random trees, each with a path that these tokens are put on.
    rng = random.Random(0)
    ids = sample_ids(backend, _PROMPT + batch_invariance.MAX_NODES)
    start = prefilled_sequence(backend, ids[:_PROMPT])
    later = ids[_PROMPT:]
    trees = [_random_tree(rng, size) for size in _TREES]

    def fork() -> CachedSequence:
        sequence = start.fork(start.length + _STEPS + batch_invariance.MAX_NODES + _SPARE)
        sequence.cache.zero_unused()
        return sequence

    def made(sequence: CachedSequence, nodes: Sequence[int], logits: Tensor) -> list[Tensor]:
        """Return the results for nodes after the start: logits [n, V], then keys and values.

        Keys and values [n, 2, 1, heads, width] have a higher precision than the logits and so show
        differences that rounding hides in them.
        """
        rows = [start.length + node for node in nodes]
        layers = range(backend.n_layers)
        return [
            logits,
            *(sequence.cache.layer_buffer(i)[:, :, :, rows].permute(3, 0, 1, 2, 4) for i in layers),
        ]

    # 2. The same tokens decoded in two ways: one after the other, and on a tree's path.

    def by_steps(least: int) -> list[Tensor]:
        """Return the results of AR steps, padded to so many rows."""
        sequence = fork()
        outputs = []
        for token in later[:_STEPS]:
            hidden = sequence.score(backend.embed(token[None])[None], chain(0), min_rows=least)
            outputs.append(backend.logits(hidden)[0, :1])
            sequence.commit_nodes([0])
        return made(sequence, range(_STEPS), torch.cat(outputs))

    @cache
    def by_tree(which: int, rows: int) -> list[Tensor]:
        """Return a tree's results along its path, padded to so many rows."""
        shape, path = trees[which]
        tokens = later.flip(0)[: len(shape)].clone()
        tokens[path] = later[: len(path)]
        sequence = fork()
        hidden = sequence.score(backend.embed(tokens)[None], shape, min_rows=rows)
        return made(sequence, path, backend.logits(hidden)[0, path])

    def agree(which: int, plain: list[Tensor], least: int) -> bool:
        mine = by_tree(which, batch_invariance.padded_rows(_TREES[which], least))
        return all(torch.equal(a, b[: len(a)]) for a, b in zip(mine, plain, strict=True))

    # 3. The least padding with which both have the same bits in every tree. Other kernels' single
    # rows are not tried: they can pass by chance.
    for least in (1,) if backend.batch_invariant else batch_invariance.ROWS:
        plain = by_steps(least)
        if all(agree(which, plain, least) for which in range(len(trees))):
            return least
    return None


def _random_tree(rng: random.Random, size: int) -> tuple[TreeShape, list[int]]:
    """Return a random tree and a path in it, as long as the AR steps or as the tree allows."""
    deep = min(_STEPS, size)
    path = [0, *sorted(rng.sample(range(1, size), deep - 1))]
    parent = [-1, *(rng.randrange(node) for node in range(1, size))]
    for above, node in zip(path, path[1:], strict=False):
        parent[node] = above
    return shape_of(tuple(parent)), path


def calibrate(decoder: LanguageBackend, steps: int | None = None) -> str | None:
    """Compare eager steps with steps of fixed shapes on random tokens; see `pick_faster`."""
    rows = decoder.embed(sample_ids(decoder, TRIED_ROWS))
    return pick_faster(decoder, rows, decoder.logits, steps)


@torch.inference_mode()
def pick_faster(
    backend: Backend, rows: Tensor, logits: Callable[[Tensor], Tensor], steps: int | None = None
) -> str | None:
    """Compare eager steps and steps of fixed shapes on input rows [TRIED_ROWS, D]; set `fixed` if
    fixed shapes work, agree and are faster.

    Args:
        logits: Logits to compare, of hidden states [nodes, D].
        steps: Of a lane, if graphs are kept for no more: they must save what capturing takes.

    Returns:
        Why eager steps are used, in a sentence; None if fixed ones are.

    Raises:
        torch.AcceleratorError: If the device no longer responds after a fault.
    """
    try:
        if steps is None:
            reason = _try_fixed(backend, rows, logits, _REPEATS).drawback
        else:
            trial = _kept_trial(backend, lambda: _try_fixed(backend, rows, logits, 1))
            reason = trial.drawback or trial.why_not_worth(steps)
    except RuntimeError as fault:  # of torch: a capture, or too little memory
        synchronize(backend.device)  # raises if the device is lost
        reason = f"graphs of them failed ({cause(fault)[:200]})"
    # The caches of this trial are of no use to anything else.
    backend.release_caches()
    backend.fixed = reason is None
    return None if reason is None else f"Steps are launched one by one: {reason}."


@torch.inference_mode()
def exact_overhead(decoder: LanguageBackend, min_rows: int) -> float:
    """Return what a batch-invariant AR step costs more than a plain one, as a share of that one.

    min_rows: As in `CachedSequence.score`.
    """
    rows = decoder.embed(sample_ids(decoder, _BEFORE + 1))
    sequence = prefilled_sequence(decoder, rows[:_BEFORE], _ANSWER)
    sequence.cache.zero_unused()

    def step_s(least: int | None) -> float:
        step = partial(_run_step, decoder, sequence, rows[_BEFORE:], least)
        return median(_measure_seconds(decoder.device, step, _REPEATS)[1:])

    return step_s(min_rows) / step_s(None) - 1


@torch.inference_mode()
def row_costs(decoder: LanguageBackend, min_rows: int | None) -> dict[int, float]:
    """Return what a step of so many rows costs, in steps of one row, by rows. The least of a few
    times, which other programs disturb least; no step of more rows counts as cheaper.

    min_rows: As in `CachedSequence.score`.
    """
    rows = decoder.embed(sample_ids(decoder, _CONTEXT + max(_ROWS)))
    sequence = prefilled_sequence(decoder, rows[:_CONTEXT], _CONTEXT + _SPARE)
    sequence.cache.zero_unused()
    least = dict.fromkeys(_ROWS, math.inf)
    for turn in range(1 + _REPEATS):
        for n in _ROWS:
            step = partial(_run_step, decoder, sequence, rows[_CONTEXT : _CONTEXT + n], min_rows)
            *_, seconds = _measure_seconds(decoder.device, step, 0)
            # The first turn may capture graphs.
            least[n] = min(least[n], seconds) if turn else math.inf
    costs = accumulate((least[n] / least[1] for n in _ROWS), max)
    return dict(zip(_ROWS, costs))


def _run_step(
    decoder: LanguageBackend, sequence: CachedSequence, rows: Tensor, min_rows: int | None
) -> Tensor:
    return decoder.logits(sequence.score(rows[None], chain(len(rows) - 1), min_rows=min_rows))


class _TrialResult(NamedTuple):
    """Seconds of all shapes at first and, the median, later; their logits [nodes, V]."""

    first_s: float
    each_s: float
    logits: Tensor


def _time_steps(
    backend: Backend, rows: Tensor, logits: Callable[[Tensor], Tensor], repeats: int
) -> _TrialResult:
    """Compute all shapes once, then so often again."""
    sequence = prefilled_sequence(backend, rows[:_BEFORE], 2 * TRIED_ROWS)
    outputs: list[Tensor] = []

    def score() -> None:
        outputs.clear()
        for shape in _SHAPES:
            x = rows[None, _BEFORE : _BEFORE + len(shape)]
            outputs.append(logits(sequence.score(x, shape)[0]))

    times = _measure_seconds(backend.device, score, repeats)
    return _TrialResult(times[0], median(times[1:]), torch.cat(outputs))


def _measure_seconds(device: torch.device, once: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of a first run, which may capture graphs, and of so many later ones."""
    times = []
    for _ in range(1 + repeats):
        synchronize(device)
        begun = time.perf_counter()
        once()
        synchronize(device)
        times.append(time.perf_counter() - begun)
    return times


class _Trial(NamedTuple):
    """What was found of fixed steps: their drawback, if any, the seconds that each of them saves,
    and those of a lane's captures.
    """

    drawback: str | None
    saved_s: float
    spent_s: float

    def why_not_worth(self, steps: int) -> str | None:
        """Return why graphs would not pay within so many steps of a lane; None if they would."""
        saved_s = self.saved_s * steps
        if saved_s > self.spent_s:
            return None
        return f"graphs would take {self.spent_s:.1f} s to capture and save {saved_s:.1f} s"


def _try_fixed(
    backend: Backend, rows: Tensor, logits: Callable[[Tensor], Tensor], repeats: int
) -> _Trial:
    """Run eager steps, then fixed ones. Raises RuntimeError if the device refuses graphs."""
    backend.fixed = False
    eager = _time_steps(backend, rows, logits, repeats)
    backend.fixed = True
    fixed = _time_steps(backend, rows, logits, repeats)
    if backend.runner.refused is not None:
        raise RuntimeError(backend.runner.refused)
    drawback = _drawback_of_fixed(eager, fixed, tie_nats(str(backend.dtype).removeprefix("torch.")))
    saved_s, first_s = (a - fixed.each_s for a in (eager.each_s, fixed.first_s))
    n = len(_SHAPES)
    return _Trial(drawback, saved_s / n, first_s / n * _GRAPHS_A_LANE)


def _kept_trial(backend: Backend, run: Callable[[], _Trial]) -> _Trial:
    """Return the trial of such a backend from its file, or run it: a device that is lent comes with
    a process that remembers nothing, and each trial takes of a visitor's seconds.
    """
    device = backend.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    of = type(backend).__name__, backend.n_bytes, str(backend.dtype)
    facts = name, torch.__version__, *of, _Trial._fields
    file = places.cache() / f"steps-{sha256(repr(facts).encode()).hexdigest()[:16]}.json"
    with suppress(OSError):
        return _Trial(*json.loads(file.read_text(encoding="utf-8")))
    trial = run()
    with suppress(OSError):  # of a folder that nobody may write: the next call tries again
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(trial), encoding="utf-8")
        part.replace(file)
    return trial


def _drawback_of_fixed(eager: _TrialResult, fixed: _TrialResult, tie_nats: float) -> str | None:
    """Return what is wrong with fixed steps.

    tie_nats: Nats below which two logits are a tie that rounding decides.
    """
    (_, eager_s, truth), (_, fixed_s, outputs) = eager, fixed
    truth = truth.float()
    chosen = truth.gather(-1, outputs.argmax(-1, keepdim=True))[:, 0]
    if not bool((truth.amax(-1) - chosen <= tie_nats).all()):
        return "graphs of them chose other tokens here"
    if fixed_s > eager_s:
        return f"{eager_s * 1e3:.1f} ms for a step and a tree, {fixed_s * 1e3:.1f} ms as graphs"
    return None
