"""From files to pictures and clips, in processes of their own under a hard time limit.

Given paths and limits. Whatever a file does to a decoder, this process goes on and says what
happened. Pictures of one request share a process, each MP4, WebM or AVI has its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, Literal

from PIL import Image

from specvl_demo import places
from specvl_demo.media.files import (
    CLIP_FORMATS,
    NAME,
    PICTURE_FORMATS,
    Limits,
    MediaError,
    examine,
    shown,
)
from specvl_demo.media.pictures import VideoFrames, Visual

Want = Literal["picture", "clip", "any"]
Item = tuple[Path, str, Want]

_HEADER_BYTES = 2**20
# All that a decoder needs of the environment: no token, no proxy, no path of anybody's.
_KEPT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "PYTHONUTF8",
    "SYSTEMROOT",
)
_QUIET = {
    "OPENCV_LOG_LEVEL": "SILENT",
    "OPENCV_FFMPEG_LOGLEVEL": "-8",
    "OPENCV_FFMPEG_CAPTURE_OPTIONS": "protocol_whitelist;file",
    "OMP_NUM_THREADS": "1",
}


def load_media(
    images: Sequence[str | os.PathLike[str]] = (),
    clips: Sequence[str | os.PathLike[str]] = (),
    n_frames: int = 8,
    limits: Limits | None = None,
) -> tuple[list[Image.Image], list[VideoFrames]]:
    """All pictures and clips of one request: upright RGB pictures, of an animation the first frame,
    and `n_frames` uniformly sampled frames of every clip, or all it has. An animated GIF or WebP
    may be either.

    MediaError, also where the decoder crashes, runs out of memory or out of `limits.decode_s`
    seconds.
    """
    wanted = [*((path, "picture") for path in images), *((path, "clip") for path in clips)]
    found = _load(wanted, n_frames, limits)
    return found[: len(images)], found[len(images) :]


def load_any(
    paths: Sequence[str | os.PathLike[str]], n_frames: int = 8, limits: Limits | None = None
) -> list[Visual]:
    """Pictures and clips, whatever the files turn out to be; an animation counts as a clip if it
    moves.
    """
    return _load([(path, "any") for path in paths], n_frames, limits)


def _load(
    wanted: Sequence[tuple[str | os.PathLike[str], Want]], n_frames: int, limits: Limits | None
) -> list[Visual]:
    limits = limits or Limits()
    if len(wanted) > limits.max_items:
        raise MediaError(
            f"{len(wanted)} pictures and clips were sent; at most {limits.max_items} are accepted."
        )
    if n_frames < 1:
        raise MediaError(f"A clip needs at least one sampled frame, not {n_frames}.")
    items = [_checked(path, want, limits) for path, want in wanted]
    until = time.monotonic() + limits.decode_s
    found: dict[int, Visual] = {}
    for group in _groups(items):
        decoded = _decode([items[at] for at in group], n_frames, limits, until)
        found |= dict(zip(group, decoded, strict=True))
    return [found[at] for at in range(len(items))]


def _checked(path: str | os.PathLike[str], want: Want, limits: Limits) -> Item:
    """The file, by its first bytes, is what it was sent as."""
    path, kind = examine(path, limits)
    name = shown(path.name)
    if kind not in PICTURE_FORMATS and kind not in CLIP_FORMATS:
        named = f"is {kind.rstrip('?')}, which is not supported" if kind else None
        what = named or "is neither a picture nor a clip known here"
        raise MediaError(f"{name} {what}; send {', '.join(PICTURE_FORMATS)}, MP4, WebM or AVI.")
    if want == "clip" and kind not in CLIP_FORMATS:
        raise MediaError(f"{name} is a still picture ({kind}), not a clip: send it as a picture.")
    if want == "picture" and kind not in PICTURE_FORMATS:
        raise MediaError(f"{name} is a clip ({kind}), not a picture: send it as a clip.")
    return path, kind, want


def _groups(items: Sequence[Item]) -> list[list[int]]:
    """Which files share a process: all that Pillow reads."""
    together = [at for at, (_, kind, _) in enumerate(items) if kind in PICTURE_FORMATS]
    alone = [[at] for at, (_, kind, _) in enumerate(items) if kind not in PICTURE_FORMATS]
    return [together, *alone] if together else alone


def _decode(items: Sequence[Item], n_frames: int, limits: Limits, until: float) -> list[Visual]:
    """One process for these files; it is killed at the deadline `until`."""
    seconds = max(0.0, until - time.monotonic())
    job = {
        "items": [
            {"path": str(path.resolve()), "kind": kind, "want": want} for path, kind, want in items
        ],
        "n_frames": n_frames,
        "limits": asdict(limits),
        "seconds": seconds,
    }
    try:
        child = subprocess.Popen(
            [sys.executable, "-B", "-m", f"{__package__}.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=places.ROOT,
            env={name: os.environ[name] for name in _KEPT if name in os.environ} | _QUIET,
        )
    except OSError as fault:
        raise MediaError(
            f"{shown(items[0][0].name)} could not be decoded: no decoder process"
            f" ({fault.strerror})."
        ) from None
    late = threading.Event()

    def end() -> None:
        late.set()
        child.kill()

    clock = threading.Timer(seconds, end)
    clock.start()
    with child:
        try:
            _hand_over(child.stdin, json.dumps(job).encode() + b"\n")
            return [_read(child.stdout, path, kind, limits, late) for path, kind, _ in items]
        finally:
            clock.cancel()
            child.kill()  # before waiting for it: a refusal need not wait for the files behind it


def _hand_over(pipe: BinaryIO, job: bytes) -> None:
    """The pipe stays open: a decoder ends when whoever started it does."""
    try:
        pipe.write(job)
        pipe.flush()
    except OSError:  # it has ended already: reading will say so
        with suppress(OSError):
            pipe.close()


def _read(pipe: BinaryIO, path: Path, kind: str, limits: Limits, late: threading.Event) -> Visual:
    """The next file's answer: a header line, then its pixels."""
    name = shown(path.name)
    try:
        header = json.loads(pipe.readline(_HEADER_BYTES))
    except ValueError:
        header = {}
    if "error" in header:
        raise MediaError(header["error"].replace(NAME, name))
    frames = []
    for width, height in header.get("sizes", []):
        pixels = pipe.read(width * height * 3)
        if len(pixels) < width * height * 3:
            frames = []
            break
        frames.append(Image.frombytes("RGB", (width, height), pixels))
    if late.is_set():
        raise MediaError(f"{name} took longer than {limits.decode_s:g} seconds to decode.")
    if not frames:
        raise MediaError(f"{name} is damaged: its {kind} data stopped the decoder.")
    return (
        VideoFrames(tuple(frames), tuple(header["times_s"])) if "times_s" in header else frames[0]
    )
