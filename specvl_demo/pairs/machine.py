"""What there is to run on: cores, memory, GPUs, and whether the hub may be contacted, as far as a
container's limits leave them to this process.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import msgspec

from specvl_demo import __version__, places
from specvl_demo.native import build_kernels

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
LOOK_S = 120.0
"""How many seconds a process may take to import torch and look for devices."""


GPU_SHARE = "SPECVL_GPU_SHARE"
"""Environment variable: the part of each GPU's memory that is this process's."""


class Gpu(NamedTuple):
    """A CUDA device. capability: its compute capability, for which torch was `built`, or not."""

    name: str
    memory_bytes: int
    capability: tuple[int, int] = (8, 0)
    built: bool = True


@dataclass(frozen=True)
class Machine:
    """What a machine has for models: processors, memory and GPUs."""

    n_cpus: int
    memory_bytes: int
    cpu: str
    gpus: tuple[Gpu, ...] = ()
    offline: bool = False
    kernels: bool = False
    """Whether our own kernels run on its processor."""
    per_call: bool = False
    """Whether its GPU is lent for one call at a time, so that loading computes nothing on it."""
    no_gpu: str = "there is no GPU that torch can use"
    """Why, if it has none."""

    @property
    def title(self) -> str:
        cores = f"{self.n_cpus} CPU core" + ("s" if self.n_cpus != 1 else "")
        gpus = [f"{gpu.name} ({gb(gpu.memory_bytes)})" for gpu in self.gpus]
        return ", ".join([f"{cores} ({self.cpu})", f"{gb(self.memory_bytes)} memory", *gpus])


def detect_machine() -> Machine:
    """Return this machine, without importing torch or touching devices in this process."""
    import psutil  # noqa: PLC0415 - records and traces can be read without it

    bytes_allowed = container_limits(_GROUPS, _OWN_GROUP)[1]
    usable = gpus()
    return Machine(
        n_cpus=n_cores(),
        memory_bytes=min(psutil.virtual_memory().total, bytes_allowed or 2**62),
        cpu=platform.machine(),
        gpus=usable,
        offline=offline(),
        kernels=build_kernels.can_build(places.cache()),
        per_call=on_zerogpu(),
        no_gpu="" if usable else why_no_gpu(),
    )


def gpus() -> tuple[Gpu, ...]:
    """Return the CUDA devices in torch's order, with this process's share of their memory; none if
    torch was built for none of them.
    """
    share = float(os.environ.get(GPU_SHARE, 1))
    cards = [gpu._replace(memory_bytes=int(gpu.memory_bytes * share)) for gpu in _all_gpus()]
    return tuple(cards) if any(card.built for card in cards) else ()


def why_no_gpu() -> str:
    """Return why torch can use no GPU of this machine, as a part of a sentence."""
    torch = f"PyTorch {metadata.version('torch')}"
    if cards := _all_gpus():
        kind = ".".join(map(str, cards[0].capability))
        return f"{torch} was not built for {cards[0].name} (compute capability {kind})"
    driver = _driver()
    if not driver:
        return Machine.no_gpu
    if torch.endswith("+cpu"):
        return f"{torch} is a build without CUDA, though there is a GPU ({driver})"
    return (
        f"{torch} cannot use the GPU ({driver}): update its driver, or set TORCH_INDEX to the index"
        " of a PyTorch for an older CUDA and run make again"
    )


@cache
def _driver() -> str:
    """Return the first card and its driver's version, as the driver tells them; empty if there is
    none, or if CUDA is told to see none.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return ""
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=LOOK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    name, _, version = answer.stdout.partition("\n")[0].rpartition(", ")
    return f"{name}, driver {version}"


def _all_gpus() -> tuple[Gpu, ...]:
    """Return the CUDA devices that the driver shows to torch.

    A separate process looks, once: torch's context takes half a gigabyte of the first device. If
    this process has one already, or `spaces` stands in for a ZeroGPU Space's devices, it asks
    torch.
    """
    if metadata.version("torch").endswith("+cpu"):
        return ()
    torch = sys.modules.get("torch")
    if on_zerogpu() or (torch is not None and torch.cuda.is_initialized()):
        return _torch_gpus()
    return _gpus_by_process()


@cache
def _gpus_by_process() -> tuple[Gpu, ...]:
    code = f"import json; from {__name__} import _torch_gpus; print(json.dumps(_torch_gpus()))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=LOOK_S,
            check=True,
            env=places.import_env(os.environ),
        )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=tuple[Gpu, ...])
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError, IndexError):
        return ()  # a driver too old for this torch, or none: the processor is used


def _torch_gpus() -> tuple[Gpu, ...]:
    """Return torch's devices; touches them."""
    import torch  # noqa: PLC0415 - seconds

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cards = [torch.cuda.get_device_properties(index) for index in range(count)]
    forms = torch.cuda.get_arch_list()
    return tuple(
        Gpu(card.name, card.total_memory, kind := (card.major, card.minor), is_built(kind, forms))
        for card in cards
    )


def is_built(capability: tuple[int, int], forms: Sequence[str]) -> bool:
    """Whether torch runs on such a card. forms: What it was built in: "sm_86" is machine code, for
    cards of the same major number, "compute_90" is compiled by the driver. AMD's have other names.
    """
    card = 10 * capability[0] + capability[1]
    parts = [form.partition("_") for form in forms if "_" in form]
    built = [(kind, int(number.rstrip("af"))) for kind, _, number in parts]
    return not built or any(
        number <= card and (kind == "compute" or number // 10 == capability[0])
        for kind, number in built
    )


class MachineLoad:
    """How much of the machine other processes use, from now on.

    watchers: Processes that show what this one computes: no others, see `watchers_share`.
    """

    def __init__(self, watchers: Sequence[int] = ()) -> None:
        self._watchers = tuple(watchers)
        self._start = self._read_clocks()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start[0]

    def others_share(self) -> float | None:
        """Return their share of all cores since the start, 0 to 1; None while it is too early."""
        wall, spent, watched, busy = self._seconds_since_start()
        return self._share(busy - spent - watched, wall)

    def watchers_share(self) -> float | None:
        """Return the share of the watchers in the same way; None without any."""
        wall, _, watched, _ = self._seconds_since_start()
        return self._share(watched, wall) if self._watchers else None

    def _seconds_since_start(self) -> tuple[float, ...]:
        return tuple(now - then for now, then in zip(self._read_clocks(), self._start))

    @staticmethod
    def _share(seconds: float, wall: float) -> float | None:
        return None if wall < 0.2 else min(1.0, max(0.0, seconds) / wall / (os.cpu_count() or 1))

    def _read_clocks(self) -> tuple[float, float, float, float]:
        """Return seconds: of the wall clock, of this process and the children it has waited for on
        all cores, of the watchers, of all processes.
        """
        import psutil  # noqa: PLC0415 - as in `detect_machine`

        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        children = os.times()
        spent = time.process_time() + children.children_user + children.children_system
        return time.perf_counter(), spent, computed_s(self._watchers), sum(times) - idle - guests


def computed_s(processes: Sequence[int]) -> float:
    """Return the seconds that these processes have computed, without those that are gone."""
    import psutil  # noqa: PLC0415 - as in `detect_machine`

    seconds = 0.0
    for number in processes:
        with suppress(psutil.Error):
            times = psutil.Process(number).cpu_times()
            seconds += times.user + times.system
    return seconds


def n_cores() -> int:
    """Return how many processor cores this process may use, at least 1."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(seen, round(container_limits(_GROUPS, _OWN_GROUP)[0] or seen)))


def on_zerogpu() -> bool:
    """Whether this is a Space to which a GPU is lent for one call at a time."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def offline() -> bool:
    """Whether the hub's own environment variable forbids contacting it."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def container_limits(groups: Path, memberships: Path) -> tuple[float | None, int | None]:
    """Return the cores and bytes of memory that a container's limits leave to this process, each
    None if unlimited.

    groups: Where control groups are mounted. memberships: The file that names this process's.
    """
    named = (line[4:] for line in _read_text(memberships).splitlines() if line.startswith("0::/"))
    parts = [part for part in next(named, "").split("/") if part and part != ".."]
    cpus = []
    memory = []
    for depth in range(len(parts) + 1):  # each group above it may set a limit too
        group = groups.joinpath(*parts[:depth])
        quota, period = [*_read_text(group / "cpu.max").split(), "", ""][:2]
        if quota.isdigit() and period.isdigit():
            cpus.append(int(quota) / int(period))
        memory += [int(word) for word in _read_text(group / "memory.max").split() if word.isdigit()]
    return min(cpus, default=None), min(memory, default=None)


def gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def processor_name() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)", text, re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of this package and of the libraries that compute."""
    names = ("torch", "transformers")
    return {"specvl_demo": __version__} | {name: metadata.version(name) for name in names}


@cache
def git_commit() -> str | None:
    """Return the commit of this checkout, with a plus if files differ from it; None outside one."""
    if not (places.ROOT / ".git").exists() or shutil.which("git") is None:
        return None
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = head and _git("status", "--porcelain", "--untracked-files=no", "--", "specvl_demo")
    return f"{head}+" if changed else head or None


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=places.ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
