"""What there is to run on: cores, memory, GPUs, and whether the hub may be asked.

Given nothing, looks at the machine and at what of it this process may use: a container is often lent less
than its host has. Knows no models.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Machine:
    """What there is to run on. gpus: name and bytes of memory of each CUDA device that torch can use."""

    n_cpus: int
    memory_bytes: int
    cpu: str
    gpus: tuple[tuple[str, int], ...] = ()
    offline: bool = False

    @property
    def device(self) -> str:
        """Where something small goes: the first GPU, else the processor."""
        return "cuda:0" if self.gpus else "cpu"

    @property
    def title(self) -> str:
        """The machine in a few words."""
        gpus = ", ".join(f"{name} ({gb(size)})" for name, size in self.gpus)
        return f"{self.n_cpus} CPU cores ({self.cpu}), {gb(self.memory_bytes)} memory" + (
            f", {gpus}" if gpus else ""
        )


def detect() -> Machine:
    """This machine. Imports torch only where its build could use a GPU."""
    import psutil  # noqa: PLC0415 - records and traces are read where it is not installed

    gpus: tuple[tuple[str, int], ...] = ()
    if not metadata.version("torch").endswith("+cpu"):
        import torch  # noqa: PLC0415 - seconds, for a verdict that often needs none of it

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        found = [torch.cuda.get_device_properties(index) for index in range(count)]
        gpus = tuple((one.name, one.total_memory) for one in found)
    lent_bytes = lent(_GROUPS, _OWN_GROUP)[1]
    return Machine(
        n_cpus=cores(),
        memory_bytes=min(psutil.virtual_memory().total, lent_bytes or 2**62),
        cpu=platform.machine(),
        gpus=gpus,
        offline=offline(),
    )


def cores() -> int:
    """Processor cores that this process was lent, at least 1."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = lent(_GROUPS, _OWN_GROUP)[0]
    return max(1, min(seen, round(share) if share else seen))


def offline() -> bool:
    """Whether the hub's own variable forbids to ask it."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def lent(groups: Path, own: Path) -> tuple[float | None, int | None]:
    """Cores and bytes of memory that a container's limits leave to this process; None where nothing does.

    groups: where control groups are mounted. own: the file that names this process's.
    """
    cpus: list[float] = []
    memory: list[int] = []
    for folder in _folders(groups, own):
        quota, period = (_words(folder / "cpu.max") + ["", ""])[:2]
        if quota.isdigit() and period.isdigit():
            cpus.append(int(quota) / int(period))
        memory += [int(word) for word in _words(folder / "memory.max") if word.isdigit()]
    # The older layout keeps every kind of limit in a tree of its own; -1 or a number near 2^63 is no limit.
    old = [_words(groups / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if all(words and words[0].isdigit() for words in old):
        cpus.append(int(old[0][0]) / int(old[1][0]))
    older = (int(word) for word in _words(groups / "memory" / "memory.limit_in_bytes") if word.isdigit())
    memory += [limit for limit in older if limit < 2**62]
    return min(cpus, default=None), min(memory, default=None)


def gb(size: float) -> str:
    """Bytes as people say them."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"


def _folders(groups: Path, own: Path) -> Iterator[Path]:
    """This process's control group and all above it; each may set a limit."""
    yield groups
    for line in _lines(own):
        if line.startswith("0::/"):
            parts = [part for part in line[4:].split("/") if part and part != ".."]
            for depth in range(1, len(parts) + 1):
                yield groups.joinpath(*parts[:depth])


def _words(path: Path) -> list[str]:
    lines = _lines(path)
    return lines[0].split() if lines else []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
