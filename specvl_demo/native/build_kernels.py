"""Builds `kernels.c` with the system's C compiler, once for each version of it.

Needs only the standard library, so that an image without a compiler can take the file from one that
has it: `python build_kernels.py FOLDER`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VARIABLE = "SPECVL_KERNELS"
"""`off` leaves everything to torch, for comparison; nothing is computed in 8 bits then."""
SOURCE = Path(__file__).with_name("kernels.c")
# GCC's partial redundancy elimination stores every sum of an inner loop in each of its rounds.
FLAGS = ("-O2", "-fno-tree-pre", "-fPIC", "-shared", "-fopenmp")
COMPILERS = ("cc", "gcc", "clang")
TIMEOUT_S = 60


def library(folder: Path) -> Path:
    """Return the path of this version's library in a folder; it may not exist yet."""
    version = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()
    return folder / f"kernels-{version[:12]}.so"


def mark(built: Path) -> Path:
    """Return the path of the file with a library's hash."""
    return built.with_suffix(".sha256")


def is_off() -> bool:
    """Return whether the environment turns our own kernels off."""
    return os.environ.get(VARIABLE, "").upper() in ("OFF", "0", "NO", "FALSE")


def why_not(folder: Path) -> str | None:
    """Return why `build` cannot return a library, as the end of a sentence; None if it may."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"kernels are for Linux on x86_64, not {sys.platform} {platform.machine()}"
    try:
        if not _is_whole(library(folder)) and _compiler() is None:
            return f"no C compiler was found: {', '.join(COMPILERS)}"
    except OSError as fault:  # the folder of another user
        return f"{folder} cannot be read ({fault.strerror})"
    return None


def build(folder: Path) -> Path:
    """Return the library, which is built if the folder does not have it whole.

    Raises:
        OSError: If this is no system for it, there is no compiler, or the folder cannot be written.
        subprocess.SubprocessError: If the compiler fails.
    """
    built = library(folder)
    if _is_whole(built):
        return built
    if reason := why_not(folder):
        raise OSError(reason)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as made:
        out = Path(made, built.name)
        command = [str(_compiler()), *FLAGS, "-o", str(out), str(SOURCE), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
        hashed = Path(made, "hash")
        hashed.write_text(_hash(out))
        # Each in one step: two processes may build at the same time.
        out.replace(built)
        hashed.replace(mark(built))
    return built


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _is_whole(built: Path) -> bool:
    """Return whether the library is as it was built: loading a part of one ends the process."""
    return built.is_file() and mark(built).is_file() and mark(built).read_text() == _hash(built)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
