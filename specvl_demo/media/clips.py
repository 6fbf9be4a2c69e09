"""Frames of clips and animations, with the times at which they are shown.

Reads containers with OpenCV, or decord, and animations with Pillow; refuses by what a container
declares, and again by what it holds. OpenCV and decord are imported where they are used: `worker`
loads them only for the files that need them.
"""

from __future__ import annotations

import bisect
import io
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from specvl_demo.media.files import NAME, Limits, MediaError, check_size
from specvl_demo.media.pictures import Curve, hdr_to_srgb, to_rgb

if TYPE_CHECKING:
    from cv2 import VideoCapture

READ_THROUGH = 2_000
"""Frames up to which a clip is read from end to end; beyond it, seeking is many times faster."""
HEAD = 64 * 2**10
"""Bytes at a file's beginning, in which Matroska and WebM have their description."""
EDIT_MS = 250
"""Milliseconds that seeking may land before the last frame of a clip without an edit list."""
TRANSFER = b"\x55\xba\x81"
"""TransferCharacteristics, before a byte."""
Frame = tuple[np.ndarray, float]
"""A picture, and the seconds at which it is shown."""


def check(width: int, height: int, n_frames: int, duration_s: float | None) -> None:
    """Refuse by what the container declares, before a frame is decoded."""
    check_size(width, height)
    if n_frames > Limits.max_clip_frames:
        raise MediaError(
            f"{NAME} declares {n_frames} frames; at most {Limits.max_clip_frames} are accepted."
        )
    if duration_s is not None and duration_s > Limits.max_clip_s:
        raise MediaError(
            f"{NAME} lasts {duration_s:.0f} seconds; at most {Limits.max_clip_s:.0f} are accepted."
        )


def choose_frames(times: Sequence[float], n: int) -> list[tuple[int, float]]:
    """Return (frame, seconds) of `n` moments, evenly spread from the first frame's to the last's;
    every frame at its own time if there are fewer.

    times: When each frame begins to be shown, in order. A moment has the frame that is shown then,
    or one that begins within half a usual interval of it, whose own time is then the moment. So a
    screen that stood still for a while fills several moments, as it would for a watcher.
    """
    if len(times) <= n:
        return list(enumerate(times))
    if n == 1:
        return [(len(times) // 2, times[len(times) // 2])]
    near = sorted(b - a for a, b in itertools.pairwise(times))[(len(times) - 1) // 2] / 2
    frames = []
    for i in range(n):
        moment = times[0] + (times[-1] - times[0]) * i / (n - 1)
        frame = max(0, bisect.bisect_right(times, moment + near) - 1)
        frames.append((frame, times[frame] if moment - times[frame] <= near else moment))
    return frames


class ReadableFile(io.BufferedIOBase):
    """An open file that OpenCV may read: an exception in its callbacks would end the process. It
    must be kept as long as the clip is open.
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


def open_clip(source: ReadableFile, packets: bool = False) -> VideoCapture:
    """Open the clip from its first byte on, since no path is visible here.

    packets: Give packets as they are stored, which takes no time, instead of frames.
    """
    import cv2

    source.seek(0)
    how = [cv2.CAP_PROP_FORMAT, -1] if packets else []
    return cv2.VideoCapture(source, cv2.CAP_FFMPEG, how)  # type: ignore[call-overload]  # any reader


class StreamInfo(NamedTuple):
    """What a container says of its clip.

    Attributes:
        codec: Its four letters.
        times: When each frame begins to be shown, in order, in seconds.
        rate: Frames per second, if it declares a possible one.
        aspect: Width of a pixel of an upright frame over its height.
        curve: "hlg" or "pq" if its brightness is coded for HDR screens.
    """

    codec: str
    times: list[float]
    rate: float | None
    aspect: float
    curve: Curve | None


def probe(source: ReadableFile) -> StreamInfo:
    """Check what the container declares, with OpenCV, and read the times of its packets.

    Raises MediaError beyond the limits.
    """
    import cv2

    video = open_clip(source, packets=True)
    if not video.isOpened():
        raise MediaError(f"{NAME} is damaged or has no video stream that can be decoded.")
    fps = video.get(cv2.CAP_PROP_FPS)
    count = video.get(cv2.CAP_PROP_FRAME_COUNT)
    width = int(video.get(cv2.CAP_PROP_FRAME_WIDTH))
    height = int(video.get(cv2.CAP_PROP_FRAME_HEIGHT))
    num = video.get(cv2.CAP_PROP_SAR_NUM)
    den = video.get(cv2.CAP_PROP_SAR_DEN)
    aspect = num / den if num > 0 and den > 0 else 1.0
    # A pixel is as wide as it is stored, but frames are turned upright.
    if int(video.get(cv2.CAP_PROP_ORIENTATION_META)) % 180 == 90:
        aspect = 1 / aspect
    rate = fps if math.isfinite(fps) and 0 < fps < 1000 else None
    n_frames = int(count) if math.isfinite(count) and count > 0 else 0
    check(*stretched(width, height, aspect), n_frames, n_frames / rate if rate else None)
    codec = int(video.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little").decode("latin-1")
    times = repair_times(sorted(_frame_times(video)), n_frames / rate if rate else None)
    source.seek(0)
    head = source.read(HEAD)
    depth = int(video.get(cv2.CAP_PROP_CODEC_PIXEL_FORMAT)) >> 24
    # Screens for HDR take more than 8 bits; in them a chance match is unlikely.
    curve = hdr_curve(_extradata(video), head) if depth in (10, 12) else None
    return StreamInfo(codec, times, rate, aspect, curve)


def shown_times(source: ReadableFile, times: list[float]) -> list[float]:
    """Return when each frame that a player shows begins: the times of the packets, unless an edit
    list hides some of them, which is seen from the last one and makes the clip be read through.
    """
    import cv2

    video = open_clip(source)
    moment = 1000 * max(times, default=0.0)
    reached = video.set(cv2.CAP_PROP_POS_MSEC, moment) and video.grab()
    if reached and video.get(cv2.CAP_PROP_POS_MSEC) > moment - EDIT_MS:
        return times
    return repair_times(list(_frame_times(open_clip(source))), None) or times


def _frame_times(video: VideoCapture) -> Iterator[float]:
    """Yield the seconds of all that can be grabbed, frames or packets."""
    import cv2

    seen = 0
    while video.grab():
        yield video.get(cv2.CAP_PROP_POS_MSEC) / 1000
        seen += 1
        if seen > Limits.max_clip_frames:
            raise MediaError(f"{NAME} has more than {Limits.max_clip_frames} frames, the limit.")


def _extradata(video: VideoCapture) -> bytes:
    """Return what the container stores for the decoder."""
    import cv2

    try:
        ok, data = video.retrieve(flag=int(video.get(cv2.CAP_PROP_CODEC_EXTRADATA_INDEX)))
    except cv2.error:
        return b""  # it stores nothing
    return data.tobytes() if ok and data is not None else b""


def hdr_curve(stored: bytes, head: bytes) -> Curve | None:
    """Return the curve of HDR screens that a clip names; None if it names another.

    Searches what is stored for the decoder for primaries of BT.2020 (9), a curve (16 or 18, ITU-T
    H.273) and its matrix (9) in a row, which parameter sets of HEVC have at any bit and MP4's vpcC
    at a byte; and the head of a Matroska file for its element.
    """
    bits = bin(int.from_bytes(b"\1" + stored, "big"))[3:]
    curves: dict[int, Curve] = {16: "pq", 18: "hlg"}
    for code, name in curves.items():
        if f"{9:08b}{code:08b}{9:08b}" in bits or TRANSFER + bytes([code]) in head:
            return name
    return None


def read_by_opencv(source: ReadableFile, times: list[float], n: int) -> tuple[list[Frame], int]:
    """Return n frames, and the number of all, of a clip whose packets have these times.

    A clip of up to READ_THROUGH frames is read from end to end, and once more if it has another
    number of frames than packets. In a longer one each moment is sought.
    """
    if len(times) > READ_THROUGH:
        return _seek_frames(source, times, choose_frames(times, n)), len(times)
    frames, seen = _read_through(source, choose_frames(times, n))
    if len(seen) != len(times):
        times = repair_times(seen, None)
        frames, seen = _read_through(source, choose_frames(times, n))
    return frames, len(seen)


def _read_through(
    source: ReadableFile, moments: Sequence[tuple[int, float]]
) -> tuple[list[Frame], list[float]]:
    """Return the frames of the moments, and the times of all."""
    pictures: dict[int, np.ndarray | None] = dict.fromkeys(frame for frame, _ in moments)
    video = open_clip(source)
    times = []
    for number, at in enumerate(_frame_times(video)):
        times.append(at)
        if number in pictures:
            pictures[number] = _retrieve_frame(video)
    frames = [(picture, at) for frame, at in moments if (picture := pictures[frame]) is not None]
    return frames, times


def _seek_frames(
    source: ReadableFile, times: Sequence[float], moments: Sequence[tuple[int, float]]
) -> list[Frame]:
    import cv2

    frames = []
    video = open_clip(source)
    for frame, moment in moments:
        if video.set(cv2.CAP_PROP_POS_MSEC, 1000 * times[frame]) and video.grab():
            picture = _retrieve_frame(video)
            at = video.get(cv2.CAP_PROP_POS_MSEC) / 1000
            if picture is not None:
                frames.append((picture, moment if moment > times[frame] else at))
    return frames


def _retrieve_frame(video: VideoCapture) -> np.ndarray | None:
    """Decode the frame that was grabbed."""
    import cv2

    ok, frame = video.retrieve()
    return cv2.cvtColor(frame, cv2.COLOR_BGR2RGB) if ok else None


def read_by_decord(source: ReadableFile, times: list[float], n: int) -> tuple[list[Frame], int]:
    """Do the same with decord, if the user chose it: it indexes the packets and seeks exactly.

    Nothing is returned of a clip that it cannot read, or that has other frames for it.
    """
    import decord

    source.seek(0)
    try:
        video = decord.VideoReader(source, ctx=decord.cpu(0), num_threads=1)
        if len(video) != len(times):
            return [], 0
        chosen, moments = zip(*choose_frames(times, n))
        return [*zip(video.get_batch(chosen).asnumpy(), moments)], len(video)
    # The first is decord's own exception class.
    except (decord.DECORDError, RuntimeError, ValueError, IndexError):
        return [], 0


def read_by_pillow(image: Image.Image, n: int) -> tuple[list[Frame], int, float | None]:
    """Return n frames of an animation, whose times are sums of delays, the number of all, and the
    duration.
    """
    n_source = getattr(image, "n_frames", 1)
    if n_source < 2:
        raise MediaError(f"{NAME} is a still picture, not a clip: send it as `image`.")
    check(*image.size, n_source, None)
    # Mostly all delays are equal; otherwise it is read again.
    frames_read = {frame for frame, _ in choose_frames(range(n_source), n)}
    while True:
        pictures = {}
        times = []
        clock_s = 0.0
        for index in range(n_source):
            image.seek(index)
            check_size(*image.size)  # a frame of a GIF may be larger than the first
            image.load()  # WebP has a frame's duration only once it is decoded
            if index in frames_read:
                pictures[index] = np.asarray(to_rgb(image))
            times.append(clock_s)
            clock_s += float(image.info.get("duration", 0) or 0) / 1000
        moments = choose_frames(times if clock_s else range(n_source), n)
        if (frames_read := {frame for frame, _ in moments}) <= pictures.keys():
            break
    frames = [(pictures[frame], at if clock_s else 0.0) for frame, at in moments]
    return frames, n_source, clock_s or None


def read_clip(source: BinaryIO, decoder: str, n: int) -> tuple[dict, list]:
    """Return the header of a clip and n of its frames, by the decoder of this name."""
    readable = ReadableFile(source)
    stream = probe(readable)
    table = shown_times(readable, stream.times)
    frames: list[Frame] = []
    # decord takes every clip's colours for those of BT.601, which HDR's are not.
    if decoder == "decord" and stream.curve is None:
        frames, n_source = read_by_decord(readable, table, n)
    if not frames:
        frames, n_source = read_by_opencv(readable, table, n)
    if not frames:
        cause = "is AV1, which"
        if stream.codec != "AV01":
            cause = f"is damaged, or has a codec ({stream.codec}) that"
        raise MediaError(
            f"{NAME} {cause} cannot be decoded here; convert it to H.264 (ffmpeg -i IN"
            " -c:v libx264 -pix_fmt yuv420p OUT.mp4)."
        )
    duration_s = n_source / stream.rate if stream.rate else None
    return pack_clip(frames, n_source, duration_s, stream.aspect, stream.curve)


def stretched(width: int, height: int, aspect: float) -> tuple[int, int]:
    """Return the size of a frame with square pixels."""
    return (round(width * aspect), height) if aspect > 1 else (width, round(height / aspect))


def pack_clip(
    frames: list[Frame],
    n_source: int,
    duration_s: float | None,
    aspect: float = 1.0,
    curve: Curve | None = None,
) -> tuple[dict, list]:
    """Return the header of a clip and its frames as a screen shows them, scaled down."""
    times = repair_times([at for _, at in frames], duration_s)
    height, width = frames[0][0].shape[:2]
    # Now with the real values.
    longest = max(times[-1], duration_s or 0.0)
    check(*stretched(width, height, aspect), n_source, longest)
    side = Limits.max_frame_side
    return {"times_s": times}, [shrink_frame(frame, side, aspect, curve) for frame, _ in frames]


def repair_times(times: list[float], duration_s: float | None) -> list[float]:
    """Return times in seconds that never decrease and start at 0 or later: if a file's own do not,
    evenly spread over its duration, or over one second.
    """
    sound = all(map(math.isfinite, times)) and all(at >= 0 for at in times[:1])
    still = len(times) > 1 and times[0] == times[-1]
    if not sound or still or any(b < a for a, b in itertools.pairwise(times)):
        step = (duration_s or 1.0) / len(times)
        times = [i * step for i in range(len(times))]
    return [round(t, 6) for t in times]


def shrink_frame(frame: np.ndarray, side: int, aspect: float, curve: Curve | None) -> Image.Image:
    image = Image.fromarray(np.ascontiguousarray(frame))
    if aspect != 1.0:
        image = image.resize(stretched(*image.size, aspect), Image.Resampling.BICUBIC)
    image.thumbnail((side, side), Image.Resampling.BICUBIC)
    return hdr_to_srgb(image, curve) if curve else image
