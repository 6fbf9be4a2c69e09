"""What a server holds while it runs: memory, threads and open files of its processes, and how they
grow.

Given the process that serves, looks at it and at what it has started. Knows nothing of what they
do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class Sample:
    """One look. rss: bytes by process id."""

    at: float
    rss: dict[int, int]
    threads: int
    files: int


def look(pid: int) -> Sample:
    """The process and all that it has started, now."""
    rss, threads, files = {}, 0, 0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            with process.oneshot():
                rss[process.pid] = process.memory_info().rss
                threads += process.num_threads()
                files += process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
        except psutil.Error:  # it has just ended
            rss.pop(process.pid, None)
    return Sample(time.monotonic(), rss, threads, files)


def listening(port: int) -> int | None:
    """The process on this machine that listens on a port; None where it cannot be seen."""
    try:
        found = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    pids = [one.pid for one in found if one.status == psutil.CONN_LISTEN and one.laddr.port == port]
    return next((pid for pid in pids if pid is not None), None)


def growth(samples: Sequence[Sample], settled_at: float) -> dict[str, Any]:
    """How memory developed after `settled_at` (monotonic seconds).

    Counted are the processes that were there throughout; decoders of clips come and go. start_mb
    and end_mb are medians of the first and the last fifth, slope_mb_per_min is that of a
    least-squares line. All None where there are too few samples to say.
    """
    after = [sample for sample in samples if sample.at >= settled_at]
    unknown = dict.fromkeys(("start_mb", "end_mb", "growth", "slope_mb_per_min"))
    blank: dict[str, Any] = unknown | {"processes": 0}
    if len(after) < 10:
        return blank
    steady = set.intersection(*(set(one.rss) for one in after))
    if not steady:
        return blank
    sums = [sum(one.rss[pid] for pid in steady) / 2**20 for one in after]
    fifth = len(sums) // 5
    start, end = statistics.median(sums[:fifth]), statistics.median(sums[-fifth:])
    minutes = [(one.at - after[0].at) / 60 for one in after]
    slope = statistics.linear_regression(minutes, sums).slope
    return {
        "start_mb": round(start, 1),
        "end_mb": round(end, 1),
        "growth": round(end / start - 1, 4),
        "slope_mb_per_min": round(slope, 2),
        "processes": len(steady),
    }
