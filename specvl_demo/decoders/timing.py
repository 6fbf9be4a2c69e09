"""Clocks and memory counters of a device.

A clock splits a round into phases without synchronizing the device for each. Knows nothing of what
the phases are.
"""

from __future__ import annotations

import resource
import sys
import time

import torch

from specvl_demo.core.types import Stopwatch


class HostClock:
    """For devices that compute synchronously: wall time of the host."""

    def start(self) -> None:
        self._laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._laps[phase] = self._laps.get(phase, 0.0) + now - self._last
        self._last = now

    def skip(self) -> None:
        self._last = time.perf_counter()

    def read(self) -> dict[str, float]:
        return self._laps


class CudaClock:
    """For CUDA: events in the stream, read once per round; the device's waiting for the host is
    included.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)

    def start(self) -> None:
        self._events: list[tuple[str | None, torch.cuda.Event]] = [(None, self._now())]

    def lap(self, phase: str) -> None:
        """Attribute what the stream does since the last lap to this phase."""
        self._events.append((phase, self._now()))

    def skip(self) -> None:
        self._events.append((None, self._now()))

    def read(self) -> dict[str, float]:
        """Return seconds by phase, after waiting for the stream to reach the last lap."""
        self._events[-1][1].synchronize()
        laps: dict[str, float] = {}
        for (_, before), (phase, after) in zip(self._events, self._events[1:], strict=False):
            if phase is not None:
                laps[phase] = laps.get(phase, 0.0) + before.elapsed_time(after) / 1e3
        return laps

    def _now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event


def clock_for(device: torch.device) -> Stopwatch:
    """Return the stopwatch that suits a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle, so that the host's clock is correct."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory that torch took of a CUDA device, pools of graphs included; else that
    of this process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def outside_bytes(device: torch.device) -> int:
    """Return what of a CUDA device is used, but not by torch's allocator: this process's context,
    and other programs; 0 elsewhere.
    """
    if device.type != "cuda":
        return 0
    free, whole = torch.cuda.mem_get_info(device)
    return whole - free - torch.cuda.memory_reserved(device)
