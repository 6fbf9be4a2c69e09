"""Upright 8-bit RGB pictures from the bytes of files, and their fit into a square.

Given bytes and limits, returns PIL images. The size is checked after the header is read and before
any pixel is. Visitors' files are decoded in a separate process (`worker`), which calls
`decode_picture`.
"""

from __future__ import annotations

import io
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageOps, features

from specvl_demo.media.files import Limits, MediaError, check_size


@dataclass(frozen=True)
class VideoFrames:
    """Upright RGB frames sampled from a clip, in order, and the seconds at which each is shown."""

    frames: tuple[Image.Image, ...] = field(repr=False)
    times_s: tuple[float, ...] = ()


Visual = Image.Image | VideoFrames


# What Pillow's decoders raise on broken input, as found by feeding them broken files.
_DECODE_FAULTS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    KeyError,
    IndexError,
    AttributeError,
    AssertionError,
    RuntimeError,
    ArithmeticError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
# Opening reads only the header; the lock protects the warning filter, which Python keeps per
# process.
_HEADER_LOCK = threading.Lock()


def _upright(image: Image.Image) -> Image.Image:
    """Rotate by the EXIF orientation; a broken EXIF block is ignored."""
    try:
        return ImageOps.exif_transpose(image)
    except _DECODE_FAULTS:
        return image


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to 8-bit RGB: 16-bit and float greys are scaled, transparency becomes
    white.
    """
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image).astype(np.float32)
        if image.mode == "F":
            top = 1.0 if values.size and values.min() >= 0 and values.max() <= 1 else 255.0
        else:
            top = 65535.0
        values *= 255.0 / top
        grey = np.clip(values, 0, 255, out=values).round().astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        ground = Image.new("RGB", rgba.size, (255, 255, 255))
        ground.paste(rgba, mask=rgba)
        return ground
    return image.convert("RGB")


def decode_picture(data: bytes, kind: str, name: str, limits: Limits) -> Image.Image:
    """Return an upright RGB picture from the bytes of a file of this format; the first frame of an
    animation.

    Raises:
        MediaError: If it cannot be decoded or is beyond the limits.
    """
    if kind == "AVIF" and not features.check("avif"):
        raise MediaError(
            f"{name} is AVIF, which this machine cannot decode; send PNG, JPEG or WebP."
        )
    image = open_picture(data, kind, name, limits)
    with _faults_told(name, kind, limits):
        image.load()
        return to_rgb(_upright(image))


def open_picture(data: bytes, kind: str, name: str, limits: Limits) -> Image.Image:
    """Open a picture: its header is read and its declared size checked, but no pixel is decoded."""
    _check_declared(data, kind, name, limits)
    with _faults_told(name, kind, limits):
        image = _open(data, kind)
    check_size(name, *image.size, limits)
    return image


@contextmanager
def _faults_told(name: str, kind: str, limits: Limits) -> Iterator[None]:
    try:
        yield
    except Image.DecompressionBombError:
        raise MediaError(
            f"{name} declares far more than {limits.max_pixels / 1e6:.0f} million pixels, the"
            " limit."
        ) from None
    except _DECODE_FAULTS:
        raise _damaged(name, kind) from None


def _damaged(name: str, kind: str) -> MediaError:
    return MediaError(f"{name} is damaged or cut short: its {kind} data cannot be decoded.")


def _check_declared(data: bytes, kind: str, name: str, limits: Limits) -> None:
    """Check what must be known before the library opens a file at all."""
    if kind == "JPEG":
        # Every pass of a progressive file costs as much as the whole picture and may be a few bytes
        # long.
        n_scans = count_scans(data)
        if n_scans is None:
            raise _damaged(name, kind)
        if n_scans > limits.max_scans:
            raise MediaError(
                f"{name} is encoded in {n_scans} passes over its pixels; at most"
                f" {limits.max_scans} are accepted."
            )
    if kind == "WebP" and data[12:16] == b"VP8X" and len(data) >= 30:
        # The library allocates two canvases when it opens the file, before its size can be read.
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        check_size(name, width, height, limits)


# A marker: 0xFF and a code. 0xFF00 is a pixel byte; D0 to D7 and 01 have no payload.
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")


_MOST_SEGMENTS = 10_000
"""64 MB are a thousand full segments."""
_MOST_FILL = 2**16
"""Bytes before the pixels that belong to no segment, which the library reads one by one."""


def count_scans(data: bytes) -> int | None:
    """Count a JPEG's passes over its pixels, by its markers up to the end of the image (ISO
    10918-1, annex B).

    Data inside a segment, such as a thumbnail, or after the end, such as a camera's clip, does not
    count. Returns None if there are more segments, or more bytes between them, than any file needs.
    """
    scans, at, fill = 0, 2, 0
    for _ in range(_MOST_SEGMENTS):
        found = _MARKER.search(data, at)
        fill += (found.start() if found else len(data)) - at if scans == 0 else 0
        if fill > _MOST_FILL:
            return None
        if found is None or data[found.start() + 1] == 0xD9:
            return scans
        scans += data[found.start() + 1] == 0xDA
        at = found.end() + max(2, int.from_bytes(data[found.end() : found.end() + 2], "big"))
    return None


def _open(data: bytes, kind: str) -> Image.Image:
    """Read only the header, with the one decoder that fits the content."""
    Image.init()  # Pillow's decoders register on first use
    with _HEADER_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about large sizes, which `check_size` decides
        return Image.open(io.BytesIO(data), formats=(kind.upper(),))


def is_animated(data: bytes, kind: str, limits: Limits) -> bool:
    """Whether a GIF or WebP is animated; False if it cannot be opened."""
    try:
        return getattr(open_picture(data, kind, "", limits), "is_animated", False)
    except _DECODE_FAULTS:  # MediaError among them
        return False
