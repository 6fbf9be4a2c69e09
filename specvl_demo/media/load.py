"""From files to pictures and clips, in a separate process under a hard time limit.

Given paths and limits. Whatever a file does to a decoder, this process continues and reports what
happened, and it checks everything that a decoder returns. The files of one request share a process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Literal, cast

from PIL import Image

from specvl_demo import places
from specvl_demo.media.files import (
    CLIP_FORMATS,
    NAME,
    PICTURE_FORMATS,
    Limits,
    MediaError,
    examine,
    printable,
    shown,
)
from specvl_demo.media.pictures import VideoFrames, Visual

Want = Literal["picture", "clip", "any"]
Item = tuple[Path, str, Want]

DECODER = "SPECVL_CLIPS"
"""Names the decoder of MP4, WebM and AVI: opencv, or decord if it is installed."""
NO_ANSWER = (
    "{name} is damaged or cut short: its {kind} data cannot be decoded.",
    "{name} could not be decoded: the system ended its decoder, for want of memory or of processor"
    " time. Send it again.",
)
"""Why a decoder gave no answer: it raised or crashed, or the system ended it."""
_HEADER_BYTES = 2**20
_SAID = 300
"""Characters of a decoder's error that are passed on."""
# All that a decoder needs of the environment: no token, no proxy, no path of a user.
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
    "OMP_NUM_THREADS": "1",
}


def load_media(
    images: Sequence[str | os.PathLike[str]] = (),
    clips: Sequence[str | os.PathLike[str]] = (),
    n_frames: int = 8,
    limits: Limits | None = None,
) -> tuple[list[Image.Image], list[VideoFrames]]:
    """Return all pictures and clips of one request.

    Pictures are upright RGB, of an animation the first frame; of every clip, `n_frames` uniformly
    sampled frames, or all if it has fewer. An animated GIF or WebP may be either.

    Raises:
        MediaError: Also if the decoder crashes, or runs out of memory or out of `limits.decode_s`
            seconds.
    """
    wanted: list[tuple[str | os.PathLike[str], Want]] = [(path, "picture") for path in images]
    wanted += [(path, "clip") for path in clips]
    found = _load(wanted, n_frames, limits)
    pictures, frames = found[: len(images)], found[len(images) :]
    return cast(list[Image.Image], pictures), cast(list[VideoFrames], frames)


def load_any(
    paths: Sequence[str | os.PathLike[str]], n_frames: int = 8, limits: Limits | None = None
) -> list[Visual]:
    """Return pictures and clips, whatever the files turn out to be; a GIF or WebP is a clip if
    animated.
    """
    return _load([(path, "any") for path in paths], n_frames, limits)


def _load(
    wanted: Sequence[tuple[str | os.PathLike[str], Want]], n_frames: int, limits: Limits | None
) -> list[Visual]:
    limits = limits or Limits()
    if len(wanted) > limits.max_items:
        raise MediaError(
            f"{len(wanted)} pictures and clips were sent, but at most {limits.max_items} are"
            " accepted."
        )
    if n_frames < 1:
        raise MediaError(f"A clip needs at least one sampled frame, not {n_frames}.")
    items = [_checked(path, want, limits) for path, want in wanted]
    return _decode(items, n_frames, limits) if items else []


def _checked(path: str | os.PathLike[str], want: Want, limits: Limits) -> Item:
    """Check that the file's first bytes match what it was sent as."""
    path, kind = examine(path, limits)
    name = shown(path.name)
    if kind not in PICTURE_FORMATS and kind not in CLIP_FORMATS:
        named = f"is {kind.rstrip('?')}, which is not supported" if kind else None
        what = named or "is neither a picture nor a clip in a known format"
        raise MediaError(f"{name} {what}; send {', '.join(PICTURE_FORMATS)}, MP4, WebM or AVI.")
    if want == "clip" and kind not in CLIP_FORMATS:
        raise MediaError(f"{name} is a still picture ({kind}), not a clip: send it as a picture.")
    if want == "picture" and kind not in PICTURE_FORMATS:
        raise MediaError(f"{name} is a clip ({kind}), not a picture: send it as a clip.")
    return path, kind, want


def _decode(items: Sequence[Item], n_frames: int, limits: Limits) -> list[Visual]:
    """Decode these files in one process, which is killed after `limits.decode_s` seconds."""
    decoder = _clip_decoder(items)
    job = {
        "items": [
            {"path": str(path.resolve()), "kind": kind, "want": want, "clips": decoder}
            for path, kind, want in items
        ],
        "n_frames": n_frames,
        "limits": asdict(limits),
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
            f"{shown(items[0][0].name)} could not be decoded: the decoder process did not start"
            f" ({fault.strerror})."
        ) from None
    late = threading.Event()

    def end() -> None:
        late.set()
        child.kill()

    clock = threading.Timer(limits.decode_s, end)
    clock.start()
    with child:
        assert child.stdin and child.stdout  # both are pipes
        try:
            _hand_over(child.stdin, json.dumps(job).encode() + b"\n")
            return [_read(child, item, n_frames, limits, late) for item in items]
        finally:
            clock.cancel()
            child.kill()  # before waiting for it: an error need not wait for the remaining files


def _clip_decoder(items: Sequence[Item]) -> str:
    """Return the decoder for these files if they are clips: OpenCV unless the environment names
    decord.
    """
    named = os.environ.get(DECODER, "opencv")
    if all(kind in PICTURE_FORMATS for _, kind, _ in items):
        return "opencv"
    if named not in ("opencv", "decord"):
        raise MediaError(f"{DECODER} must be opencv or decord, not {printable(named)}.")
    if named == "decord" and find_spec("decord") is None:
        raise MediaError(
            f"{DECODER} is decord, which is not installed: pip install 'specvl-demo[clips]', or"
            f" unset {DECODER}."
        )
    return named


def _hand_over(pipe: IO[bytes], job: bytes) -> None:
    """Send the job; the pipe stays open, since a decoder ends when its parent does."""
    try:
        pipe.write(job)
        pipe.flush()
    except OSError:  # it has ended already, which reading will report
        with suppress(OSError):
            pipe.close()


def _read(
    child: subprocess.Popen[bytes],
    item: Item,
    n_frames: int,
    limits: Limits,
    late: threading.Event,
) -> Visual:
    """Read the next file's result from its decoder: a header line, then its pixels."""
    path, kind, _ = item
    name = shown(path.name)
    pipe = child.stdout
    assert pipe
    try:
        header = json.loads(pipe.readline(_HEADER_BYTES))
    except (ValueError, RecursionError):
        header = None
    if isinstance(header, dict) and isinstance(header.get("error"), str):
        raise MediaError(printable(header["error"])[:_SAID].replace(NAME, name))
    frames: list[Image.Image] = []
    if _believable(header, item, n_frames, limits):
        for width, height in header["sizes"]:
            pixels = pipe.read(width * height * 3)
            if len(pixels) < width * height * 3:
                frames = []
                break
            frames.append(Image.frombytes("RGB", (width, height), pixels))
    if late.is_set():
        raise MediaError(f"{name} took longer than {limits.decode_s:g} seconds to decode.")
    if not frames:
        raise MediaError(NO_ANSWER[_killed(child)].format(name=name, kind=kind))
    if (times := header.get("times_s")) is None:
        return frames[0]
    return VideoFrames(tuple(frames), tuple(times))


def _killed(child: subprocess.Popen[bytes]) -> bool:
    """Whether the system ended a decoder: for want of memory, or of processor time."""
    with suppress(subprocess.TimeoutExpired):
        return child.wait(0.2) == -signal.SIGKILL
    return False


def _believable(header: Any, item: Item, n_frames: int, limits: Limits) -> bool:
    """Whether a decoder's header answers the request within the limits.

    It must be one picture, or at most `n_frames` small frames with a time each. A file may have
    taken its decoder over.
    """
    _, kind, want = item
    if not isinstance(header, dict) or not isinstance(sizes := header.get("sizes"), list):
        return False
    for size in sizes:
        if not isinstance(size, list) or [type(side) for side in size] != [int, int]:
            return False
    if (times := header.get("times_s")) is None:
        if want == "clip" or kind not in PICTURE_FORMATS or len(sizes) != 1:
            return False
        width, height = sizes[0]
        return width >= 1 and height >= 1 and width * height <= limits.max_pixels
    return (
        want != "picture"
        and kind in CLIP_FORMATS
        and isinstance(times, list)
        and 1 <= len(times) == len(sizes) <= n_frames
        and all(type(at) in (int, float) and 0 <= at <= limits.max_clip_s for at in times)
        and all(1 <= side <= limits.max_frame_side for size in sizes for side in size)
    )
