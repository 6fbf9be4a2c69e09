"""Builds `kernels.c` with the system's C compiler, once a version and kind of processor.

Needs only the standard library, so that an image without a compiler can take the files from one
that has it: `python build_kernels.py FOLDER` builds them for all processors that might run it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

VARIABLE = "SPECVL_KERNELS"
"""`off` leaves everything to torch, for comparison; the name of a level forbids better ones."""
SOURCE = Path(__file__).with_name("kernels.c")
_HEADER = "vectors.h"
# Sums have the same bits on every processor only if no compiler fuses operations of its own accord.
FLAGS = ("-O2", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared")
# GCC's partial redundancy elimination stores every sum of an inner loop in each of its rounds.
# Clang's OpenMP has threads of its own, which would compete with torch's for the cores.
GCC_FLAGS = ("-fno-tree-pre", "-fopenmp")
COMPILERS = ("cc", "gcc", "clang")
TIMEOUT_S = 60
_PROCESSORS = Path("/proc/cpuinfo")


class CpuLevel(NamedTuple):
    """What a kind of processor can do.

    features: As /proc/cpuinfo names them. options: The compiler's.
    """

    name: str
    machines: tuple[str, ...]
    features: str
    options: str


_X86 = ("x86_64",)
_ARM = ("aarch64", "arm64")
_AVX2, _AVX512 = "avx2 fma f16c", "avx512f avx512bw avx512vl"
_AVX512_OPTIONS = "-mavx512f -mavx512bw -mavx512vl -mfma -mf16c"
_VNNI = f"{_AVX512} avx512_vnni {_AVX2}"
_VNNI_OPTIONS = f"{_AVX512_OPTIONS} -mavx512vnni"
LEVELS = (
    CpuLevel(
        "avx512-amx",
        _X86,
        f"{_VNNI} amx_tile amx_int8",
        f"{_VNNI_OPTIONS} -mamx-tile -mamx-int8",
    ),
    CpuLevel("avx512-vnni", _X86, _VNNI, _VNNI_OPTIONS),
    CpuLevel("avx512", _X86, f"{_AVX512} {_AVX2}", _AVX512_OPTIONS),
    CpuLevel("avx2-vnni", _X86, f"{_AVX2} avx_vnni", "-mavx2 -mfma -mf16c -mavxvnni"),
    CpuLevel("avx2", _X86, _AVX2, "-mavx2 -mfma -mf16c"),
    CpuLevel("arm-dotprod", _ARM, "asimd asimddp", "-march=armv8.2-a+dotprod"),
    CpuLevel("arm", _ARM, "asimd", "-march=armv8-a"),
)
"""The best first."""
_MATRIX_TILES = "amx_tile"
_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18
"""A system call of Linux on x86-64, and what it is asked for."""


def cpu_levels() -> list[CpuLevel]:
    """Return those that this processor has, the best first."""
    named = os.environ.get(VARIABLE, "")
    names = [level.name for level in LEVELS]
    worst = names.index(named) if named in names else 0
    features = _cpu_features()
    return [
        level
        for level in LEVELS[worst:]
        if _runs_on_system(level) and features >= set(level.features.split())
    ]


def library_path(folder: Path, level: CpuLevel) -> Path:
    """Return the path of this version's library in a folder; it may not exist yet."""
    files = SOURCE, Path(__file__).with_name(_HEADER)
    flags = " ".join((*FLAGS, *GCC_FLAGS, level.options))
    version = hashlib.sha256(b"".join(file.read_bytes() for file in files) + flags.encode())
    return folder / f"kernels-{level.name}-{version.hexdigest()[:12]}.so"


def hash_path(built: Path) -> Path:
    """Return the path of the file with a library's hash."""
    return built.with_suffix(".sha256")


def can_build(folder: Path) -> bool:
    """Whether `build` may return a library: the folder has one, or a compiler can make it."""
    if os.environ.get(VARIABLE, "").upper() in ("OFF", "0", "NO", "FALSE"):
        return False
    try:
        made = any(_is_intact(library_path(folder, level)) for level in cpu_levels())
    except OSError:  # the folder of another user
        return False
    return made or (bool(cpu_levels()) and _compiler() is not None)


def build(folder: Path) -> Path:
    """Return the best library, which is built if the folder does not have it whole.

    Raises:
        OSError: If this is no system for it, there is no compiler, or the folder cannot be written.
        subprocess.SubprocessError: If the compiler fails.
    """
    if not can_build(folder):
        raise OSError(
            f"it needs a C compiler ({', '.join(COMPILERS)}), and a processor with AVX2 or 64-bit"
            f" ARM on Linux or macOS; {VARIABLE}=off turns it off"
        )
    *better, last = cpu_levels()
    for level in better:
        try:
            return _build_level(folder, level)
        except subprocess.CalledProcessError:
            continue  # an old compiler does not know every processor
    return _build_level(folder, last)


def _build_level(folder: Path, level: CpuLevel) -> Path:
    built = library_path(folder, level)
    compiler = _compiler()
    if _is_intact(built):
        return built
    if compiler is None:
        raise subprocess.CalledProcessError(1, COMPILERS[0])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as place:
        out = Path(place, built.name)
        command = [compiler, *FLAGS, *level.options.split(), "-o", str(out), str(SOURCE), "-lm"]
        if b"clang" not in _run_command([compiler, "--version"]):
            command += GCC_FLAGS
        _run_command(command)
        hashed = Path(place, "hash")
        hashed.write_text(_file_hash(out))
        # Each in one step: two processes may build at the same time.
        out.replace(built)
        hashed.replace(hash_path(built))
    return built


def _run_command(command: list[str]) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S).stdout


def _runs_on_system(level: CpuLevel) -> bool:
    return sys.platform in ("linux", "darwin") and platform.machine() in level.machines


def _cpu_features() -> set[str]:
    if sys.platform == "darwin":
        return {"asimd", "asimddp"}  # all of Apple's own processors; torch runs on no others
    try:
        lines = _PROCESSORS.read_text().splitlines()
    except OSError:
        return set()
    features = next(
        (set(line.split()) for line in lines if line.startswith(("flags", "Features"))), set()
    )
    return features if _may_use_tiles() else features - {_MATRIX_TILES}


@cache
def _may_use_tiles() -> bool:
    """Ask the kernel, once a process, to keep matrix tiles for its threads; false if it refuses."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    system = ctypes.CDLL(None, use_errno=True)
    return bool(system.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def _file_hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _is_intact(built: Path) -> bool:
    """Return whether the library is as it was built: loading a part of one ends the process."""
    return (
        built.is_file()
        and hash_path(built).is_file()
        and hash_path(built).read_text() == _file_hash(built)
    )


if __name__ == "__main__":
    for level in filter(_runs_on_system, LEVELS):
        _build_level(Path(sys.argv[1]), level)
