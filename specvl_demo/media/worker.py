"""Decodes untrusted files in a separate process: a job as JSON in, for every file a header and RGB
out.

Started only by `load`. Opens its files, loads its decoders and gives up everything else (`sandbox`)
before it decodes one: the worst a file can do is to end the process or to make it return nonsense.
Refusals go into the header as `error`; whatever a decoder raises about a damaged file ends the
process, which the parent reports.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import os
import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from specvl_demo.media import sandbox
from specvl_demo.media.files import (
    CLIP_FORMATS,
    NAME,
    PICTURE_FORMATS,
    READY,
    Limits,
    MediaError,
    check_size,
)

if TYPE_CHECKING:
    from cv2 import VideoCapture
    from numpy import ndarray
    from PIL.Image import Image as Picture

MEMORY_BYTES = 4 * 2**30
READ_THROUGH = 2_000
"""Frames up to which a clip is read from end to end; beyond it, seeking is many times faster."""


def limit_resources(cpu_s: float) -> None:
    """Cap memory and CPU time, and forbid writing files, on POSIX systems.

    Elsewhere only the parent's time limit applies.
    """
    try:
        import resource
    except ImportError:
        return
    with contextlib.suppress(ValueError, OSError):  # macOS refuses an address-space limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seconds = math.ceil(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def check(width: int, height: int, n_frames: int, duration_s: float | None, limits: Limits) -> None:
    """Refuse by what the container declares, before a frame is decoded."""
    check_size(width, height, limits)
    if n_frames > limits.max_clip_frames:
        raise MediaError(
            f"{NAME} declares {n_frames} frames; at most {limits.max_clip_frames} are accepted."
        )
    if duration_s is not None and duration_s > limits.max_clip_s:
        most = f"{limits.max_clip_s:.0f}"
        raise MediaError(f"{NAME} lasts {duration_s:.0f} seconds; at most {most} are accepted.")


def sample_indices(n_source: int, n: int) -> list[int]:
    """Return `n` uniform indices into `n_source` frames, including both ends; all if there are
    fewer.
    """
    if n_source <= n:
        return list(range(n_source))
    if n == 1:
        return [n_source // 2]
    return [round(i * (n_source - 1) / (n - 1)) for i in range(n)]


class Readable(io.BufferedIOBase):
    """An open file that OpenCV may read: an exception in its callbacks would end the process.

    The caller must keep it as long as the clip is open.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def read(self, size: int | None = -1) -> bytes:
        return self._source.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return self._source.seek(offset, whence)
        except (OSError, ValueError):
            return -1


def opened(source: Readable) -> VideoCapture:
    """Open the clip from its first byte on, read through the open file, since no path is visible
    here.
    """
    import cv2

    source.seek(0)
    return cv2.VideoCapture(source, cv2.CAP_FFMPEG, [])  # type: ignore[call-overload]  # any reader


def probe(source: Readable, limits: Limits) -> tuple[float | None, int]:
    """Check what the container declares, with OpenCV; return its rate and number of frames."""
    import cv2

    video = opened(source)
    if not video.isOpened():
        raise MediaError(f"{NAME} is damaged or has no video stream that can be decoded.")
    fps, count = video.get(cv2.CAP_PROP_FPS), video.get(cv2.CAP_PROP_FRAME_COUNT)
    width, height = (
        int(video.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
    )
    rate = fps if math.isfinite(fps) and 0 < fps < 1000 else None
    n_frames = int(count) if math.isfinite(count) and count > 0 else 0
    video.release()
    check(width, height, n_frames, n_frames / rate if rate else None, limits)
    return rate, n_frames


def by_opencv(
    source: Readable, n_source: int, n: int, limits: Limits
) -> tuple[list, list[float], int]:
    """Return frames, their times and the number of frames of a clip that declares `n_source`.

    A clip of up to READ_THROUGH frames is read from end to end, and once more if it has another
    number of frames than it declares. In a longer one each frame is sought: with a variable rate it
    may be a few places from the requested one.
    """
    if n_source > READ_THROUGH:
        return *_sought(source, sample_indices(n_source, n)), n_source
    frames, times, seen = _read_through(source, sample_indices(n_source, n), limits)
    if seen != n_source:
        frames, times, seen = _read_through(source, sample_indices(seen, n), limits)
    return frames, times, seen


def _read_through(
    source: Readable, wanted: Collection[int], limits: Limits
) -> tuple[list, list[float], int]:
    frames: list[ndarray] = []
    times: list[float] = []
    video, seen = opened(source), 0
    while video.grab():
        if seen in wanted:
            _keep(video, frames, times)
        seen += 1
        if seen > limits.max_clip_frames:
            most = limits.max_clip_frames
            raise MediaError(f"{NAME} has more than {most} frames, the limit.")
    return frames, times, seen


def _sought(source: Readable, wanted: Collection[int]) -> tuple[list, list[float]]:
    import cv2

    frames: list[ndarray] = []
    times: list[float] = []
    video = opened(source)
    for index in wanted:
        if video.set(cv2.CAP_PROP_POS_FRAMES, index) and video.grab():
            _keep(video, frames, times)
    return frames, times


def _keep(video: VideoCapture, frames: list, times: list[float]) -> None:
    """Decode the frame that was grabbed."""
    import cv2

    ok, frame = video.retrieve()
    if ok:
        frames.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
        times.append(video.get(cv2.CAP_PROP_POS_MSEC) / 1000)


def by_decord(source: Readable, n: int) -> tuple[list, list[float], int]:
    """Do the same with decord, if the user chose it: it indexes the packets and seeks exactly."""
    import decord

    source.seek(0)
    try:
        video = decord.VideoReader(source, ctx=decord.cpu(0), num_threads=1)
        picked = sample_indices(len(video), n)
        frames = list(video.get_batch(picked).asnumpy())
        return frames, [float(video.get_frame_timestamp(i)[0]) for i in picked], len(video)
    # The first is decord's own exception class.
    except (decord.DECORDError, RuntimeError, ValueError, IndexError):
        raise MediaError(
            f"{NAME} is damaged, or decord cannot read it; unset SPECVL_CLIPS to try OpenCV."
        ) from None


def by_pillow(
    image: Picture, n: int, limits: Limits
) -> tuple[list, list[float], int, float | None]:
    """Return frames of an animated GIF or WebP, their times as the sums of their delays, and the
    duration.
    """
    import numpy as np

    from specvl_demo.media.pictures import to_rgb

    n_source = getattr(image, "n_frames", 1)
    if n_source < 2:
        raise MediaError(f"{NAME} is a still picture, not a clip: send it as a picture.")
    check(*image.size, n_source, None, limits)
    picked, frames, times, clock_s = set(sample_indices(n_source, n)), [], [], 0.0
    for index in range(n_source):
        image.seek(index)
        check_size(*image.size, limits)  # a frame of a GIF may be larger than the first
        image.load()  # WebP has a frame's duration only once it is decoded
        if index in picked:
            frames.append(np.asarray(to_rgb(image)))
            times.append(clock_s)
        clock_s += float(image.info.get("duration", 0) or 0) / 1000
    return frames, times, n_source, clock_s or None


def decode(item: dict, source: BinaryIO, n: int, limits: Limits) -> tuple[dict, list]:
    """Return the header of one file and its pictures: one, or the sampled frames of a clip with
    their `times_s`.
    """
    kind, want = item["kind"], item["want"]
    if kind in PICTURE_FORMATS:
        from specvl_demo.media import pictures

        image = pictures.open_picture(source.read(), kind, limits)
        if want == "any" and kind in CLIP_FORMATS and getattr(image, "is_animated", False):
            want = "clip"
        if want == "clip":
            return clip(*by_pillow(image, n, limits), limits)
        return {}, [pictures.decoded(image)]
    readable = Readable(source)
    rate, n_source = probe(readable, limits)
    if item["clips"] == "decord":
        frames, times, n_source = by_decord(readable, n)
    else:
        frames, times, n_source = by_opencv(readable, n_source, n, limits)
    return clip(frames, times, n_source, n_source / rate if rate else None, limits)


def clip(
    frames: list, times: list[float], n_source: int, duration_s: float | None, limits: Limits
) -> tuple[dict, list]:
    """Return the header of a clip and its frames, scaled down."""
    if not frames:
        raise MediaError(f"{NAME} has no frame that can be decoded.")
    times = ordered(times, duration_s)
    height, width = frames[0].shape[:2]
    # Now with the real values.
    check(width, height, n_source, max(times[-1], duration_s or 0.0), limits)
    return {"times_s": times}, [shrink(frame, limits.max_frame_side) for frame in frames]


def ordered(times: list[float], duration_s: float | None) -> list[float]:
    """Return times in seconds that never decrease and start at 0 or later.

    If a file's own do not, they are spread evenly over its duration, or over one second if it has
    none.
    """
    sound = all(map(math.isfinite, times)) and times[0] >= 0
    if not sound or any(b < a for a, b in itertools.pairwise(times)):
        step = (duration_s or 1.0) / len(times)
        times = [i * step for i in range(len(times))]
    return [round(t, 6) for t in times]


def shrink(frame: ndarray, side: int) -> Picture:
    import numpy as np
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(frame))
    image.thumbnail((side, side), Image.Resampling.BICUBIC)
    return image


def answer(item: dict, source: BinaryIO, n: int, limits: Limits) -> None:
    from PIL import Image

    images: list[Picture] = []
    try:
        header, images = decode(item, source, n, limits)
    except MediaError as refusal:
        header = {"error": str(refusal)}
    except Image.DecompressionBombError:  # from Pillow, before the size could be checked
        most = f"{limits.max_pixels / 1e6:.0f} million pixels"
        header = {"error": f"{NAME} declares far more than {most}, the limit."}
    except MemoryError:
        most = f"{MEMORY_BYTES / 2**30:.0f} GB"
        header = {"error": f"{NAME} needs more than {most} of memory to decode."}
    header["sizes"] = [image.size for image in images]
    out = sys.stdout.buffer
    out.write(json.dumps(header).encode() + b"\n")
    for image in images:
        out.write(image.tobytes())
    out.flush()


def load_decoders(items: Sequence[dict]) -> None:
    """Import everything that decoding these files needs: afterwards no module can be read
    any more.
    """
    from PIL import Image, ImageFile  # noqa: F401

    for item in items:
        if item["kind"] in PICTURE_FORMATS:
            Image.init()
        else:
            import cv2  # noqa: F401

            if item["clips"] == "decord":
                import decord  # noqa: F401


def _end_with_the_reader() -> NoReturn:
    os.read(0, 1)  # nothing else is sent: it returns when the pipe is closed
    os._exit(1)


def main() -> NoReturn:
    """Read the job, open its files, load the decoders, seal the process, and only then decode.

    Ends at once, since decoders may hang in their own clean-up; also when standard input closes
    early, since the results are no longer needed.
    """
    os.set_blocking(2, False)  # decoders may print more than is read of it
    job = json.loads(sys.stdin.buffer.readline())
    limits = Limits(**job["limits"])
    # Decoders compute on several cores, so that a file may take more than the time on the clock.
    limit_resources(limits.decode_s * len(job["items"]))
    with contextlib.ExitStack() as files:
        sources = [files.enter_context(Path(item["path"]).open("rb")) for item in job["items"]]
        load_decoders(job["items"])
        sandbox.seal()
        threading.Thread(target=_end_with_the_reader, daemon=True).start()
        os.write(1, READY)
        for item, source in zip(job["items"], sources, strict=True):
            answer(item, source, job["n_frames"], limits)
    os._exit(0)


if __name__ == "__main__":
    main()
