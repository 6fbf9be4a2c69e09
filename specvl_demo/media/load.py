"""From files to pictures and clips, in a separate process under a hard time limit.

Whatever a file does to a decoder, this process continues and reports what happened, and it checks
everything that a decoder returns.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
from msgspec import Meta, Struct
from PIL import Image

from specvl_demo import places
from specvl_demo.media.files import (
    CLIP_FORMATS,
    NAME,
    PICTURE_FORMATS,
    READY,
    REMARK,
    SLOWEST,
    Limits,
    MediaError,
    MediaFile,
    Want,
    examine_file,
    name_in_words,
    printable,
)
from specvl_demo.media.pictures import VideoFrames, Visual

Item = tuple[Path, str, Want]
Side = Annotated[int, Meta(ge=1)]


class DecoderHeader(Struct):
    """What a decoder says of a file: a refusal, or its pictures' sizes, with times of a clip.

    incomplete: Whether the file ends too early: a part of its picture is blank or coarse, or the
        end of its clip is missing.
    """

    error: str | None = None
    incomplete: bool = False
    sizes: list[tuple[Side, Side]] = []
    times_s: list[Annotated[float, Meta(ge=0)]] | None = None


DECODER = "SPECVL_CLIPS"
"""Names the decoder of MP4, WebM and AVI: opencv, or decord if it is installed."""
NO_ANSWER = (
    "{name} is damaged or cut short: its {kind} data cannot be decoded.",
    "{name} could not be decoded: the system ended its decoder, for want of memory or of processor"
    " time. Send it again.",
)
"""Why a decoder gave no answer: it raised or crashed, or the system ended it."""
NO_START = (
    "{name} was not opened: the process that decodes files did not start ({reason}). The"
    " installation is at fault, not the file."
)
START_S = 120.0
"""So long the process may take to import its decoders, on a slow disk for instance."""
USUAL_START_S = 2.0
"""A machine on which that takes longer is slow or busy: its limit on decoding grows alike."""
_HEADER_BYTES = 2**20
_SAID = 300
"""Characters of a decoder's error that are passed on."""
# All that a decoder needs of the environment besides PYTHONPATH: no token, no proxy.
_KEPT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "PYTHONUTF8",
)
# FFmpeg prints errors on standard error, where `worker` reads them; with a level set for it, OpenCV
# prints them on standard output.
_QUIET = {"OPENCV_LOG_LEVEL": "SILENT", "OMP_NUM_THREADS": "1"}


def load_files(files: Sequence[MediaFile], n_frames: int = 8) -> list[Visual]:
    """Return the pictures and clips of one request.

    Pictures are upright RGB, of an animation the first frame; of every clip, `n_frames` uniformly
    sampled frames, or all if it has fewer. MediaError also if the decoder crashes, or runs out of
    memory or of `Limits.decode_s` seconds.
    """
    items = [_check_file(file.path, file.want) for file in files]
    return _decode_files(items, n_frames) if items else []


def _check_file(path: places.AnyPath, want: Want) -> Item:
    """Check that the file's first bytes match what it was sent as."""
    path, kind = examine_file(path)
    name = name_in_words(path.name)
    if kind not in PICTURE_FORMATS and kind not in CLIP_FORMATS:
        named = f"is {kind.rstrip('?')}, which is not supported" if kind else None
        what = named or "is neither a picture nor a clip in a known format"
        raise MediaError(f"{name} {what}; send {', '.join(PICTURE_FORMATS)}, MP4, WebM or AVI.")
    if want == "clip" and kind not in CLIP_FORMATS:
        raise MediaError(f"{name} is a still picture ({kind}), not a clip: send it as `image`.")
    if want == "picture" and kind not in PICTURE_FORMATS:
        raise MediaError(f"{name} is a clip ({kind}), not a picture: send it as `video`.")
    return path, kind, want


def _decode_files(items: Sequence[Item], n_frames: int) -> list[Visual]:
    """Decode these files in one process, which is killed after `Limits.decode_s` seconds."""
    decoder = _clip_decoder(items)
    first = name_in_words(items[0][0].name)
    job = {
        "items": [
            {"path": str(path.resolve()), "kind": kind, "want": want, "clips": decoder}
            for path, kind, want in items
        ],
        "n_frames": n_frames,
    }
    try:
        child = subprocess.Popen(
            [sys.executable, "-B", "-m", f"{__package__}.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=places.ROOT,
            env=places.import_env({n: os.environ[n] for n in _KEPT if n in os.environ}) | _QUIET,
        )
    except OSError as fault:
        raise MediaError(NO_START.format(name=first, reason=fault.strerror)) from None
    with child:
        try:
            began = time.monotonic()
            with _kill_after(START_S, child) as late:
                _start_decoder(child, job, first, late)
            slowness = (time.monotonic() - began) / USUAL_START_S
            seconds = Limits.decode_s * min(max(1.0, slowness), SLOWEST)
            with _kill_after(seconds, child) as late:
                return [_read_result(child, item, n_frames, seconds, late) for item in items]
        finally:
            child.kill()  # before waiting for it: an error need not wait for the remaining files


@contextmanager
def _kill_after(seconds: float, child: subprocess.Popen[bytes]) -> Iterator[threading.Event]:
    """Kill the process if the block takes longer; the event says so."""
    late = threading.Event()

    def end() -> None:
        late.set()
        child.kill()

    clock = threading.Timer(seconds, end)
    clock.start()
    try:
        yield late
    finally:
        clock.cancel()


def _start_decoder(
    child: subprocess.Popen[bytes], job: dict[str, Any], name: str, late: threading.Event
) -> None:
    """Hand the job over and wait until the process is sealed, its files open. No file is to blame
    yet.
    """
    assert child.stdin and child.stdout and child.stderr  # all are pipes
    _send_job(child.stdin, json.dumps(job).encode() + b"\n")
    if child.stdout.readline(_HEADER_BYTES) == READY:
        return
    if _was_killed(child) and not late.is_set():
        raise MediaError(NO_ANSWER[True].format(name=name))
    child.kill()
    lines = child.stderr.read(_HEADER_BYTES).decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "it ended")
    # What cannot be imported may be told to everybody; another error may name a path.
    reason = last if re.match("ImportError|ModuleNotFoundError", last) else last.partition(":")[0]
    if late.is_set():
        reason = f"it took longer than {START_S:g} seconds"
    raise MediaError(NO_START.format(name=name, reason=printable(reason)[:_SAID]))


def _clip_decoder(items: Sequence[Item]) -> str:
    """Return the decoder for clips: OpenCV unless the environment names decord."""
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


def _send_job(pipe: IO[bytes], job: bytes) -> None:
    """Send the job; the pipe stays open, since a decoder ends when its parent does."""
    try:
        pipe.write(job)
        pipe.flush()
    except OSError:  # it has ended already, which reading will report
        with suppress(OSError):
            pipe.close()


def _read_result(
    child: subprocess.Popen[bytes], item: Item, n_frames: int, seconds: float, late: threading.Event
) -> Visual:
    """Read the next file's result from its decoder: a header line, then its pixels. seconds: After
    which all files are late.
    """
    path, kind, _ = item
    name = name_in_words(path.name)
    pipe = child.stdout
    assert pipe
    try:
        header = msgspec.json.decode(pipe.readline(_HEADER_BYTES), type=DecoderHeader)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        header = DecoderHeader()
    if header.error is not None:
        raise MediaError(printable(header.error)[:_SAID].replace(NAME, name))
    frames: list[Image.Image] = []
    if _is_believable(header, item, n_frames):
        for width, height in header.sizes:
            pixels = pipe.read(width * height * 3)
            if len(pixels) < width * height * 3:
                frames = []
                break
            frames.append(Image.frombytes("RGB", (width, height), pixels))
    if late.is_set():
        raise MediaError(f"{name} took longer than {seconds:.0f} seconds to decode.")
    if not frames:
        raise MediaError(NO_ANSWER[_was_killed(child)].format(name=name, kind=kind))
    times = header.times_s
    visual = frames[0] if times is None else VideoFrames(tuple(frames), tuple(times))
    if header.incomplete:
        visual.info[REMARK] = f"{name} is incomplete: its file ends too early."
    return visual


def _was_killed(child: subprocess.Popen[bytes]) -> bool:
    """Whether the system ended a decoder: for want of memory, or of processor time."""
    with suppress(subprocess.TimeoutExpired):
        return child.wait(0.2) == -signal.SIGKILL
    return False


def _is_believable(header: DecoderHeader, item: Item, n_frames: int) -> bool:
    """Whether a decoder, which a file may have taken over, answers within the limits: by one
    picture, or at most `n_frames` small frames with a time each.
    """
    (_, kind, want), sizes, times = item, header.sizes, header.times_s
    if times is None:
        whole = want != "clip" and kind in PICTURE_FORMATS and len(sizes) == 1
        return whole and math.prod(sizes[0]) <= Limits.max_pixels
    return (
        want != "picture"
        and kind in CLIP_FORMATS
        and 1 <= len(times) == len(sizes) <= n_frames
        and all(at <= Limits.max_clip_s for at in times)
        and all(side <= Limits.max_frame_side for size in sizes for side in size)
    )
