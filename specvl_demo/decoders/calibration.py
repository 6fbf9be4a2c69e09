"""Eager steps or steps of fixed shapes: both are tried on what is at hand, and the faster ones stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch
from torch import Tensor

from specvl_demo.core.tree import TreeShape, chain, shape_of
from specvl_demo.decoders.fixed_shapes import StaticDecoder
from specvl_demo.decoders.proof import random_ids, started
from specvl_demo.decoders.timing import settle

TIE_NATS = 0.05
"""Two tokens so close in logits are a tie that rounding decides."""
PROMPT, _REPEATS = 100, 5
_SHAPES = (chain(0), shape_of((-1, 0, 0, 1, 1, 2, 2, 3)))
"""An AR step, a small tree."""
MOST_NODES = max(len(shape) for shape in _SHAPES)


@dataclass(frozen=True)
class Trial:
    """Seconds of a step and a tree, eager and in fixed shapes. agree: whether both chose the same tokens.

    fault: what went wrong in fixed shapes, in a line.
    """

    eager_s: float
    fixed_s: float
    agree: bool
    fault: str | None = None

    @property
    def reason(self) -> str | None:
        """Why eager steps stay, in a sentence; None where fixed ones do."""
        if self.fault is not None:
            return f"Steps are launched one by one: graphs of them failed ({self.fault})."
        if not self.agree:
            return "Steps are launched one by one: graphs of them chose other tokens here."
        if self.fixed_s > self.eager_s:
            return (
                f"Steps are launched one by one: {self.eager_s * 1e3:.1f} ms for a step and a tree, "
                f"{self.fixed_s * 1e3:.1f} ms as graphs."
            )
        return None


class Switched(Protocol):
    """Runs steps of fixed shapes while this is set."""

    fixed: bool

    @property
    def device(self) -> torch.device: ...


Scorer = Callable[[TreeShape], Tensor]
"""The logits [nodes, V] of a tree behind some rows."""


def calibrate(decoder: StaticDecoder) -> Trial:
    """Try both on random tokens, and set `decoder.fixed` to what is faster, equal, and works."""

    def begin() -> Scorer:
        ids = random_ids(decoder, PROMPT + MOST_NODES)
        stream = started(decoder, ids[:PROMPT]).fork(PROMPT + len(ids))

        def scored(shape: TreeShape) -> Tensor:
            tokens = ids[PROMPT : PROMPT + len(shape)]
            return decoder.logits(stream.score(decoder.embed(tokens)[None], shape))[0]

        return scored

    return tried(decoder, begin)


@torch.inference_mode()
def tried(switched: Switched, begin: Callable[[], Scorer]) -> Trial:
    """Try both on what `begin` gives, and leave what is faster, equal, and works."""
    switched.fixed = False
    eager_s, truth = _timed(switched.device, begin())
    switched.fixed = True
    try:
        fixed_s, said = _timed(switched.device, begin())
        trial = Trial(eager_s, fixed_s, _agree(truth, said))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as fault:
        trial = Trial(eager_s, 0.0, False, (str(fault).splitlines() or [type(fault).__name__])[0][:200])
    switched.fixed = trial.reason is None
    return trial


def _timed(device: torch.device, scored: Scorer) -> tuple[float, Tensor]:
    """Median seconds of all shapes once, and their logits [nodes, V]."""
    said = torch.cat([scored(shape) for shape in _SHAPES])
    times = []
    for _ in range(_REPEATS):
        settle(device)
        begun = time.perf_counter()
        for shape in _SHAPES:
            scored(shape)
        settle(device)
        times.append(time.perf_counter() - begun)
    return median(times), said


def _agree(truth: Tensor, said: Tensor) -> bool:
    """Whether the tokens chosen are the same, ties aside."""
    truth = truth.float()
    chosen = truth.gather(-1, said.argmax(-1, keepdim=True))[:, 0]
    return bool((truth.amax(-1) - chosen <= TIE_NATS).all())
