"""Upright 8-bit RGB pictures from the bytes of files. The size is checked after the header is read
and before any pixel is. Visitors' files are decoded in a separate process (`worker`).
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from PIL import Image, ImageCms, ImageFile, ImageOps, features

from specvl_demo.media.files import NAME, Limits, MediaError, check_size


@dataclass(frozen=True)
class VideoFrames:
    """Upright RGB frames sampled from a clip, in order, and the seconds at which each is shown.

    info: As a picture's, what is remarkable about its file.
    """

    frames: tuple[Image.Image, ...] = field(repr=False)
    times_s: tuple[float, ...] = ()
    info: dict[str, str] = field(default_factory=dict, compare=False, repr=False)


Visual = Image.Image | VideoFrames
Curve = Literal["hlg", "pq"]
"""How brightness is coded for HDR screens."""
TO_BT709 = np.array(
    [[1.6605, -0.1246, -0.0182], [-0.5876, 1.1329, -0.1006], [-0.0728, -0.0083, 1.1187]], np.float32
)
"""BT.2020's primaries in those of sRGB (ITU-R BT.2087), for rows of colours."""
DEPTHS = [2.0**bits - 1 for bits in (8, 10, 12, 14, 16)]
"""The largest values of greys in 16 bits: what they hold decides."""
MOST_MISSING = 0.1  # choice: browsers show any beginning, which would be described as the whole
"""Share of its rows that may be blank in a picture whose file ends too early."""


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to 8-bit RGB: deep greys are scaled, transparency becomes white."""
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image).astype(np.float32)
        if image.mode == "F":
            top = 1.0 if values.size and values.min() >= 0 and values.max() <= 1 else 255.0
        else:  # sensors of 12 bits, for example, are stored in 16
            top = next((t for t in DEPTHS if values.max(initial=0) <= t), DEPTHS[-1])
        values *= 255.0 / top
        grey = np.clip(values, 0, 255, out=values).round().astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        ground = Image.new("RGB", rgba.size, (255, 255, 255))
        ground.paste(rgba, mask=rgba)
        return ground
    return image.convert("RGB")


def open_picture(data: bytes, kind: str) -> Image.Image:
    """Open a file of this format: header and size are checked, but no pixel is decoded."""
    if kind == "AVIF" and not features.check("avif"):
        raise MediaError(f"{NAME} is AVIF, which this machine cannot decode: send PNG or JPEG.")
    # Each pass costs as much as the whole picture and may be a few bytes long.
    if kind == "JPEG" and (n_scans := count_scans(data)) > Limits.max_scans:
        raise MediaError(
            f"{NAME} is encoded in {n_scans} passes over its pixels; at most"
            f" {Limits.max_scans} are accepted."
        )
    image = Image.open(io.BytesIO(data), formats=(kind.upper(),))
    width, height = image.size
    if kind == "JPEG" and Limits.max_pixels < width * height <= Limits.max_jpeg_pixels:
        # Telephones write 48 million pixels and more; a JPEG can be read at a part of its size.
        part = next(n for n in (2, 4, 8) if width * height <= n**2 * Limits.max_pixels or n == 8)
        image.draft(image.mode, (width // part, height // part))
    check_size(*image.size)
    return image


def decode_picture(image: Image.Image) -> Image.Image:
    """Return an opened picture upright in sRGB; the first frame of an animation."""
    if image.info.get("default_image"):
        image.seek(1)  # before it comes the picture for programs that show no animation
    image.load()
    with contextlib.suppress(Exception):  # of a broken EXIF block; the picture itself is whole
        image = ImageOps.exif_transpose(image)
    return to_rgb(_to_srgb(image))


def decode_incomplete(image: Image.Image, kind: str) -> Image.Image:
    """Do the same if the file ends too early, as browsers do; EOFError if too much is missing.

    Rows that never came are grey in a JPEG, else 0; one whose passes end early is only coarser.
    """
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    image.load()
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    blank = np.isin(np.asarray(image), (127, 128) if kind == "JPEG" else 0)
    if blank.reshape(image.height, -1).all(1).mean() > MOST_MISSING:
        raise EOFError
    return decode_picture(image)


def _to_srgb(image: Image.Image) -> Image.Image:
    """Return a picture with a colour profile in the colours that a browser shows, with its
    transparency; as it is if it has none, or a broken one.
    """
    stored = image.info.get("icc_profile")
    if not stored or image.mode.startswith(("I", "F")):
        return image
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(stored))
        if image.mode == "RGB" and _is_srgb(profile):
            return image
        alpha = image.convert("RGBA").getchannel("A") if image.has_transparency_data else None
        if image.mode not in ("RGB", "CMYK", "L", "LAB"):
            image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
        srgb = ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, profile, srgb, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError):
        return image
    assert converted is not None  # not in place
    if alpha is not None:
        converted.putalpha(alpha)
    return converted


def _is_srgb(profile: ImageCms.ImageCmsProfile) -> bool:
    """Whether a profile of RGB is sRGB, up to rounding; most are."""
    steps = np.array([0, 64, 128, 192, 255], np.uint8)
    colours = Image.fromarray(np.stack(np.meshgrid(steps, steps, steps), -1).reshape(1, -1, 3))
    srgb = ImageCms.createProfile("sRGB")
    mapped = ImageCms.profileToProfile(colours, profile, srgb, outputMode="RGB")
    return bool(np.abs(np.asarray(mapped, int) - np.asarray(colours, int)).max() <= 3)


def hdr_to_srgb(image: Image.Image, curve: Curve) -> Image.Image:
    """Map a frame from HLG or PQ (ITU-R BT.2100) to sRGB: reference white, 203 cd/m², to white.

    # choice: what is brighter is white too; a curve that keeps highlights would darken the rest.
    """
    signal = np.arange(256) / 255
    if curve == "pq":
        power = signal ** (1 / 78.84375)
        light = np.maximum(power - 0.8359375, 0) / (18.8515625 - 18.6875 * power)
        light = light ** (1 / 0.1593017578125) * 10_000 / 203
    else:
        bent = (np.exp((signal - 0.55991073) / 0.17883277) + 0.28466892) / 12
        light = np.where(signal <= 0.5, signal**2 / 3, bent) ** 1.2 * 1000 / 203
    linear = (light.astype(np.float32)[np.asarray(image)] @ TO_BT709).clip(0, 1)
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return Image.fromarray((srgb * 255).round().astype(np.uint8))


# A marker: 0xFF and a code. 0xFF00 is a pixel byte; D0 to D7 and 01 have no payload.
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
_MOST_SEGMENTS = 10_000
"""64 MB are a thousand full segments."""
_MOST_FILL = 2**16
"""Bytes before the pixels that belong to no segment, which the library reads one by one."""


def count_scans(data: bytes) -> int:
    """Count a JPEG's passes over its pixels, by its markers up to the end of the image (ISO
    10918-1, annex B), without a thumbnail's or what a camera appends.

    Raises ValueError if there are more segments, or bytes between them, than any file needs.
    """
    scans = 0
    at = 2
    fill = 0
    for _ in range(_MOST_SEGMENTS):
        marker = _MARKER.search(data, at)
        fill += (marker.start() if marker else len(data)) - at if scans == 0 else 0
        if fill > _MOST_FILL:
            break
        if marker is None or data[marker.start() + 1] == 0xD9:
            return scans
        scans += data[marker.start() + 1] == 0xDA
        at = marker.end() + max(2, int.from_bytes(data[marker.end() : marker.end() + 2], "big"))
    raise ValueError("too many segments, or too many bytes between them")
