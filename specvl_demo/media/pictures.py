"""Upright 8-bit RGB pictures from the bytes of files, and their fit into a square.

Given bytes and limits, gives PIL images. The size is checked after the header is read and before a pixel is.
"""

from __future__ import annotations

import io
import os
import struct
import threading
import warnings
import zlib
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageOps

from specvl_demo.media.files import (
    CLIP_FORMATS,
    PICTURE_FORMATS,
    Limits,
    MediaError,
    check_size,
    read,
    sniff,
    unsupported,
)


@dataclass(frozen=True)
class Picture:
    """One upright RGB picture."""

    name: str
    format: str
    image: Image.Image = field(repr=False)


# What Pillow's decoders raise on broken input, as found by feeding them broken files.
_DECODE_FAULTS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    IndexError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
# Opening reads the header alone; the lock is for the warning filter, which Python keeps per process.
_HEADER_LOCK = threading.Lock()


def _upright(image: Image.Image) -> Image.Image:
    """Turn by the EXIF orientation; a broken EXIF block turns nothing."""
    try:
        return ImageOps.exif_transpose(image)
    except _DECODE_FAULTS:
        return image


def to_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB from any Pillow mode: 16-bit and float greys are scaled, transparency is laid on white."""
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image, dtype=np.float64)
        if image.mode == "F":
            top = 1.0 if values.size and values.min() >= 0 and values.max() <= 1 else 255.0
        else:
            top = 65535.0
        grey = np.clip(values * (255.0 / top), 0, 255).round().astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, rgba).convert("RGB")
    return image.convert("RGB")


def decode_picture(data: bytes, name: str, limits: Limits | None = None) -> Picture:
    """An upright RGB picture from a file's bytes; the first frame of an animation. Raises MediaError."""
    limits = limits or Limits()
    kind = sniff(data[:32])
    if kind not in PICTURE_FORMATS:
        if kind in CLIP_FORMATS:
            raise MediaError(f"{name} is a clip ({kind}), not a picture: send it as a clip.")
        raise unsupported(name, kind)
    try:
        image = _open(data, kind)
        check_size(name, *image.size, limits)
        image.load()
        return Picture(name, kind, to_rgb(_upright(image)))
    except MediaError:
        raise
    except Image.DecompressionBombError:
        raise MediaError(
            f"{name} declares far more than {limits.max_pixels / 1e6:.0f} million pixels, the most accepted."
        ) from None
    except _DECODE_FAULTS:
        raise MediaError(f"{name} is damaged or cut short: its {kind} data cannot be decoded.") from None


def _open(data: bytes, kind: str) -> Image.Image:
    """Read the header alone, by the one decoder that the content asks for."""
    Image.init()  # Pillow's decoders register on first use
    with _HEADER_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about large sizes: `check_size` has the say
        return Image.open(io.BytesIO(data), formats=(kind.upper(),))


def load_picture(path: str | os.PathLike[str], limits: Limits | None = None) -> Picture:
    """`decode_picture` for a file."""
    limits = limits or Limits()
    path, data = read(path, limits)
    return decode_picture(data, path.name, limits)


def is_animated(data: bytes, kind: str) -> bool:
    try:
        return getattr(_open(data, kind), "is_animated", False)
    except _DECODE_FAULTS:
        return False


def edge_colour(image: Image.Image) -> tuple[int, int, int]:
    """The median colour of the outermost pixels of an RGB image: a ground that hides the bars around it."""
    pixels = np.asarray(image)
    rim = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    return tuple(int(v) for v in np.median(rim, axis=0))


def letterbox(image: Image.Image, side: int, ground: str | tuple[int, int, int] = "edge") -> Image.Image:
    """The whole image in a `side`×`side` square, centred, scaled to fit, never cropped.

    `ground`: "edge" (the median colour of the rim), "neutral" (mid grey), or an RGB triple.
    """
    if side < 1:
        raise ValueError(f"letterbox needs a side of at least 1 pixel, not {side}.")
    if isinstance(ground, str):
        if ground not in ("edge", "neutral"):
            raise ValueError(
                f"letterbox knows the grounds 'edge', 'neutral' or an RGB triple, not {ground!r}."
            )
        ground = edge_colour(image) if ground == "edge" else (128, 128, 128)
    scale = side / max(image.size)
    width, height = (max(1, round(v * scale)) for v in image.size)
    inner = (
        image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BICUBIC)
    )
    if inner.size == (side, side):
        return inner
    square = Image.new("RGB", (side, side), ground)
    square.paste(inner, ((side - width) // 2, (side - height) // 2))
    return square
