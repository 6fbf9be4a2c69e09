"""Upright 8-bit RGB pictures from the bytes of files.

Given bytes and limits, returns PIL images. The size is checked after the header is read and before
any pixel is. Visitors' files are decoded in a separate process (`worker`), which ends at whatever
Pillow raises about a broken file.
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageOps, features

from specvl_demo.media.files import NAME, Limits, MediaError, check_size


@dataclass(frozen=True)
class VideoFrames:
    """Upright RGB frames sampled from a clip, in order, and the seconds at which each is shown."""

    frames: tuple[Image.Image, ...] = field(repr=False)
    times_s: tuple[float, ...] = ()


Visual = Image.Image | VideoFrames


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


def open_picture(data: bytes, kind: str, limits: Limits) -> Image.Image:
    """Open a file of this format: its header is read and its size checked, but no pixel is decoded.

    Raises:
        MediaError: If it is beyond the limits.
    """
    if kind == "AVIF" and not features.check("avif"):
        raise MediaError(
            f"{NAME} is AVIF, which this machine cannot decode; send PNG, JPEG or WebP."
        )
    # Each pass costs as much as the whole picture and may be a few bytes long.
    if kind == "JPEG" and (n_scans := count_scans(data)) > limits.max_scans:
        raise MediaError(
            f"{NAME} is encoded in {n_scans} passes over its pixels; at most"
            f" {limits.max_scans} are accepted."
        )
    image = Image.open(io.BytesIO(data), formats=(kind.upper(),))
    check_size(*image.size, limits)
    return image


def decoded(image: Image.Image) -> Image.Image:
    """Return an opened picture upright in RGB; the first frame of an animation."""
    image.load()
    with contextlib.suppress(Exception):  # of a broken EXIF block; the picture itself is whole
        image = ImageOps.exif_transpose(image)
    return to_rgb(image)


# A marker: 0xFF and a code. 0xFF00 is a pixel byte; D0 to D7 and 01 have no payload.
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
_MOST_SEGMENTS = 10_000
"""64 MB are a thousand full segments."""
_MOST_FILL = 2**16
"""Bytes before the pixels that belong to no segment, which the library reads one by one."""


def count_scans(data: bytes) -> int:
    """Count a JPEG's passes over its pixels, by its markers up to the end of the image (ISO
    10918-1, annex B).

    Data inside a segment, such as a thumbnail, or after the end, such as a camera's clip, does not
    count.

    Raises:
        ValueError: If there are more segments, or more bytes between them, than any file needs.
    """
    scans, at, fill = 0, 2, 0
    for _ in range(_MOST_SEGMENTS):
        found = _MARKER.search(data, at)
        fill += (found.start() if found else len(data)) - at if scans == 0 else 0
        if fill > _MOST_FILL:
            break
        if found is None or data[found.start() + 1] == 0xD9:
            return scans
        scans += data[found.start() + 1] == 0xDA
        at = found.end() + max(2, int.from_bytes(data[found.end() : found.end() + 2], "big"))
    raise ValueError("too many segments, or too many bytes between them")
