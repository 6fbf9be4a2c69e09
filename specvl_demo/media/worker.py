"""Decodes one untrusted clip in a process of its own: a job as JSON in, a JSON header and RGB bytes out.

Started by `clips` only. Limits its own memory and CPU time first: the worst a clip can do is to end it.
A fault it understands goes into the header as `error`; anything else ends it, and the parent says so.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from typing import NoReturn

MEMORY_BYTES = 4 * 2**30


class Refused(Exception):
    """A clip that will not be decoded; carries the rest of the sentence that starts with the file's name."""


def limit_resources(cpu_s: float) -> None:
    """Cap memory and CPU time where the system can (POSIX); elsewhere the wall time alone holds."""
    try:
        import resource
    except ImportError:
        return
    with contextlib.suppress(ValueError, OSError):  # macOS refuses an address-space limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seconds = math.ceil(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def check(width: int, height: int, n_frames: int, duration_s: float | None, limits: dict) -> None:
    """Refuse by what the container declares, before a frame is decoded."""
    if width * height > limits["max_pixels"] or max(width, height) > limits["max_aspect"] * max(
        min(width, height), 1
    ):
        emit({"too_large": [width, height]})
    if n_frames > limits["max_clip_frames"]:
        raise Refused(f"declares {n_frames} frames; at most {limits['max_clip_frames']} are accepted.")
    if duration_s is not None and duration_s > limits["max_clip_s"]:
        raise Refused(f"runs {duration_s:.0f} seconds; at most {limits['max_clip_s']:.0f} are accepted.")


def probe(path: str, limits: dict) -> dict:
    """Size, rate and declared frames from the container's header, by OpenCV."""
    import cv2

    video = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
    if not video.isOpened():
        raise Refused("is damaged or has no video stream that can be decoded.")
    fps, count = video.get(cv2.CAP_PROP_FPS), video.get(cv2.CAP_PROP_FRAME_COUNT)
    facts = {
        "width": int(video.get(cv2.CAP_PROP_FRAME_WIDTH)),
        "height": int(video.get(cv2.CAP_PROP_FRAME_HEIGHT)),
        "fps": fps if math.isfinite(fps) and 0 < fps < 1000 else None,
        "n_frames": int(count) if math.isfinite(count) and count > 0 else 0,
    }
    video.release()
    duration_s = facts["n_frames"] / facts["fps"] if facts["fps"] else None
    check(facts["width"], facts["height"], facts["n_frames"], duration_s, limits)
    return facts


def by_decord(path: str, n: int, sample) -> tuple[list, list[float], int]:
    """Frames, times and the number of source frames; decord indexes the packets, so its count is exact."""
    import decord

    video = decord.VideoReader(path, ctx=decord.cpu(0), num_threads=1)
    picked = sample(len(video), n)
    frames = list(video.get_batch(picked).asnumpy())
    return frames, [float(video.get_frame_timestamp(i)[0]) for i in picked], len(video)


def by_opencv(path: str, facts: dict, n: int, sample, limits: dict) -> tuple[list, list[float], int]:
    """The same by reading through the clip once; where no count is declared, a first pass counts."""
    import cv2

    n_source = facts["n_frames"]
    if not n_source:
        video = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
        while video.grab():
            n_source += 1
            if n_source > limits["max_clip_frames"]:
                raise Refused(f"has more than {limits['max_clip_frames']} frames, the most that is accepted.")
        video.release()
    wanted, frames, times = set(sample(n_source, n)), [], []
    video = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
    for index in range(n_source):
        if not video.grab():
            n_source = index
            break
        if index in wanted:
            ok, frame = video.retrieve()
            if ok:
                frames.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
                times.append(video.get(cv2.CAP_PROP_POS_MSEC) / 1000)
    return frames, times, n_source


def by_pillow(path: str, n: int, sample, limits: dict) -> tuple[list, list[float], int, float | None]:
    """Frames of an animated GIF or WebP with the times their delays add up to, and the whole duration."""
    import numpy as np
    from PIL import Image

    from specvl_demo.media.pictures import to_rgb

    image = Image.open(path, formats=("GIF", "WEBP"))
    check(*image.size, 0, None, limits)
    n_source = getattr(image, "n_frames", 1)
    if n_source < 2:
        raise Refused("is a still picture, not a clip: send it as a picture.")
    check(*image.size, n_source, None, limits)
    picked, frames, times, clock_s = set(sample(n_source, n)), [], [], 0.0
    for index in range(n_source):
        image.seek(index)
        image.load()  # WebP tells a frame's duration only once it is decoded
        if index in picked:
            frames.append(np.asarray(to_rgb(image)))
            times.append(clock_s)
        clock_s += float(image.info.get("duration", 0) or 0) / 1000
    return frames, times, n_source, clock_s or None


def decode(job: dict) -> None:
    """Decode the job's clip and write it out."""
    from specvl_demo.media.clips import sample_indices

    path, n, limits = job["path"], job["n_frames"], job["limits"]
    if job["kind"] in ("GIF", "WebP"):
        frames, times, n_source, duration_s = by_pillow(path, n, sample_indices, limits)
        decoder = "pillow"
    else:
        facts = probe(path, limits)
        try:
            frames, times, n_source = by_decord(path, n, sample_indices)
            decoder = "decord"
        except (
            ImportError,
            RuntimeError,
            ValueError,
            IndexError,
        ):  # no wheel here, or a stream it cannot read
            frames, times, n_source = by_opencv(path, facts, n, sample_indices, limits)
            decoder = "opencv"
        duration_s = n_source / facts["fps"] if facts["fps"] else None
    if not frames:
        raise Refused("holds no frame that can be decoded.")
    shrunk = [shrink(frame, limits["max_frame_side"]) for frame in frames]
    header = {
        "sizes": [image.size for image in shrunk],
        "times_s": [round(t, 6) for t in times],
        "duration_s": duration_s,
        "n_source_frames": n_source,
        "decoder": decoder,
    }
    emit(header, b"".join(image.tobytes() for image in shrunk))


def shrink(frame, side: int):
    """A PIL image of the frame, its longer side at most `side`."""
    import numpy as np
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(frame))
    image.thumbnail((side, side), Image.Resampling.BICUBIC)
    return image


def emit(header: dict, pixels: bytes = b"") -> NoReturn:
    """Write the answer and end at once: decoders may hang in their own clean-up."""
    import os

    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n" + pixels)
    sys.stdout.buffer.flush()
    os._exit(0)


def main() -> None:
    """Read the job from standard input and answer it."""
    job = json.load(sys.stdin)
    limit_resources(job["limits"]["decode_s"])
    try:
        decode(job)
    except Refused as reason:
        emit({"error": str(reason)})
    except MemoryError:
        emit({"error": f"needs more than {MEMORY_BYTES / 2**30:.0f} GB of memory to decode."})


if __name__ == "__main__":
    main()
