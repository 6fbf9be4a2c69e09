"""Clocks and memory counters of a device.

A clock splits a round into phases without synchronizing the device for each.
"""

from __future__ import annotations

import resource
import sys
from itertools import pairwise

import torch

from specvl_demo.core.types import Stopwatch


class CudaClock(Stopwatch):
    """For CUDA: events in the stream, read once per round, with the waits for the host."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)

    def start(self) -> None:
        self._events: list[tuple[str | None, torch.cuda.Event]] = []
        self.lap(None)

    def lap(self, phase: str | None) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        self._events.append((phase, event))

    def read(self) -> dict[str, float]:
        self._events[-1][1].synchronize()
        laps: dict[str, float] = {}
        for (_, before), (phase, after) in pairwise(self._events):
            if phase is not None:
                laps[phase] = laps.get(phase, 0.0) + before.elapsed_time(after) / 1e3
        return laps


def clock_for(device: torch.device) -> Stopwatch:
    """Return the stopwatch that suits a device."""
    return CudaClock(device) if device.type == "cuda" else Stopwatch()


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle, so that the host's clock is correct."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory of torch on a CUDA device, graphs included; else the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
