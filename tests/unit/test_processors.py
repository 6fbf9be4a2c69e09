"""Our own kernels compute the same bits on every processor: a program (`kernels_bits.c`) prints a
hash of every kind of result, and is built for all kinds of processors that can be run here.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from specvl_demo.native import build_kernels
from specvl_demo.native.build_kernels import LEVELS, SOURCE, Level

PROGRAM = Path(__file__).with_name("kernels_bits.c")
CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
BUILT_FOR_RUNNING = tuple(flag for flag in build_kernels.FLAGS if flag not in ("-fPIC", "-shared"))

pytestmark = pytest.mark.skipif(build_kernels._compiler() is None, reason="no C compiler")


def hashes(level: Level, folder: Path) -> list[str]:
    """Return the lines that the program prints, built for a level."""
    program, run = folder / level.name, []
    compiler = build_kernels._compiler()
    assert compiler is not None
    if platform.machine() not in level.machines:
        if not (shutil.which(CROSS) and shutil.which(EMULATOR)):
            pytest.skip(f"{CROSS} and {EMULATOR} are not installed")
        compiler, run = CROSS, [EMULATOR, "-cpu", "max"]
    elif not build_kernels._features().issuperset(level.features.split()):
        pytest.skip(f"this processor is no {level.name}")
    options = (*BUILT_FOR_RUNNING, *level.options.split(), f'-DKERNELS="{SOURCE}"')
    if run:
        options += ("-static",)
    command = [compiler, *options, "-o", str(program), str(PROGRAM), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([*run, str(program)], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


@cache
def expected() -> list[str]:
    return PROGRAM.with_suffix(".txt").read_text().splitlines()


# Each is compiled for some seconds.
QUICK = ("avx2",)
CASES = [
    pytest.param(level, id=level.name, marks=() if level.name in QUICK else pytest.mark.slow)
    for level in LEVELS
]


@pytest.mark.parametrize("level", CASES)
def test_every_processor_computes_the_same_bits(level: Level, tmp_path: Path) -> None:
    found = hashes(level, tmp_path)
    assert len(found) == len(expected())
    assert [line for line in found if line not in expected()] == []
