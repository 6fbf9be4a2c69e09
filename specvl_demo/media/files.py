"""What an uploaded file really is, by its content, and whether it is small enough to decode."""

from __future__ import annotations

import os
import stat
import unicodedata
from pathlib import Path
from typing import Literal, NamedTuple

from specvl_demo.places import AnyPath

Want = Literal["picture", "clip", "any"]


class MediaError(ValueError):
    """A picture or clip that cannot be used; the message is a sentence for its sender."""


class Limits:
    """What is accepted of a file; how many files a question may have is told in `question`."""

    max_bytes = 64 * 2**20  # of one file
    max_pixels = 25_000_000  # of one picture, or of one frame of a clip
    max_jpeg_pixels = 178_000_000  # of one that is read at a part of its size, as Pillow opens
    max_aspect = 100  # longer side over shorter side; a thinner picture vanishes when resized
    max_scans = 100  # of a JPEG over its pixels: cameras write 1, progressive files about 10
    max_clip_s = 600.0
    max_clip_frames = 40_000  # declared by the container: ten minutes at 60 a second, and some
    max_frame_side = 1280  # sampled frames are shrunk to this before they leave the decoder
    decode_s = 30.0  # wall time for all files of one request, hard


class MediaFile(NamedTuple):
    """A picture or clip in a file that was not read yet; `name` is its sender's.

    want: What it must be; a GIF or WebP may be either, and of any is a clip if animated.
    """

    path: str
    want: Want = "any"
    name: str = ""


PICTURE_FORMATS = ("PNG", "JPEG", "WebP", "GIF", "BMP", "AVIF")
CLIP_FORMATS = ("MP4", "WebM", "AVI", "GIF", "WebP")
HEAD_BYTES = 32
PLACE = "\ufdd0"
"""Marks, in a question's text, where each of its pictures and clips stands, in order; without as
many marks, they all stand before the text. Unicode keeps this code for a program's own use: nobody
types or pastes it.
"""
NAME = "{name}"
"""Placeholder for a file's name in the decoding process, which does not know how to show it."""
REMARK = "remark"
"""Name, in the `info` of a picture or clip, of a sentence on what is wrong with its file."""
READY = b"ready\n"
"""What the decoding process says once it holds all that it needs, before it decodes anything."""
SLOWEST = 5.0
"""How much longer than usual decoding may take where even its start took that much longer."""
_NAME_CHARACTERS = 80

_STARTS = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"BM": "BMP",
    b"\x1aE\xdf\xa3": "WebM",
    b"II*\0": "TIFF?",
    b"MM\0*": "TIFF?",
    b"%PDF": "PDF?",
}
"""Formats by the first bytes of a file; those with a `?` are only named in the error."""


def sniff_format(head: bytes) -> str | None:
    """Return the format by a file's first 32 bytes, with a `?` if it is not supported."""
    if head[:4] == b"RIFF":
        return {b"WEBP": "WebP", b"AVI ": "AVI", b"WAVE": "sound?"}.get(head[8:12])
    if head[4:8] == b"ftyp":
        return _format_by_brand(head)
    if head[4:8] in (b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "MP4"
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:4].lower() in (b"<svg", b"<?xm", b"<!do", b"<htm"):
        return "SVG or HTML?"
    return next((kind for start, kind in _STARTS.items() if head.startswith(start)), None)


def _format_by_brand(head: bytes) -> str:
    brand = head[8:12]
    others = head[16:]
    if brand in (b"avif", b"avis") or (brand in (b"mif1", b"msf1") and b"avif" in others):
        return "AVIF"
    if brand in (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"):
        return "HEIC?"
    return "MP4"


def printable(text: str) -> str:
    """Return the text without control characters and marks of reading direction."""
    joiner = "\N{ZERO WIDTH JOINER}"  # part of many emoji
    return "".join(
        (
            c
            if c == joiner or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
            else "\N{REPLACEMENT CHARACTER}"
        )
        for c in text
    )


def name_in_words(path: AnyPath) -> str:
    """Return a file's name for use in a sentence: printable, and not longer than a line."""
    name = printable(os.fspath(path))
    if len(name) <= _NAME_CHARACTERS:
        return name
    return f"{name[: _NAME_CHARACTERS // 2]}…{name[-_NAME_CHARACTERS // 2 + 1 :]}"


def examine_file(path: AnyPath) -> tuple[Path, str | None]:
    """Return a regular file within the byte limit, and its format; anything else is not opened."""
    if not os.fspath(path):
        raise MediaError("The name of a file is empty.")
    if str(path).startswith(("http://", "https://")):
        raise MediaError(f"{name_in_words(path)} is an address: download the file first.")
    path = Path(path)
    name = name_in_words(path.name or path)
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise MediaError(f"{name} is not a file.")
        if info.st_size == 0:
            raise MediaError(f"{name} is empty.")
        if info.st_size > Limits.max_bytes:
            raise MediaError(f"{name} is larger than {Limits.max_bytes / 2**20:.0f} MB, the limit.")
        with path.open("rb") as file:
            return path, sniff_format(file.read(HEAD_BYTES))
    except FileNotFoundError:
        raise MediaError(f"There is no file {name_in_words(path)}.") from None
    except MediaError:
        raise
    except (OSError, ValueError) as fault:  # ValueError: a zero byte in the name
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        raise MediaError(f"{name} cannot be read: {reason}.") from None


def check_size(width: int, height: int) -> None:
    """Raise MediaError if a declared size in pixels is beyond the limits."""
    if width < 1 or height < 1:
        raise MediaError(f"{NAME} declares a size of {width}×{height} pixels.")
    if width * height > Limits.max_pixels:
        raise MediaError(
            f"{NAME} has {width}×{height} pixels; at most {Limits.max_pixels / 1e6:.0f} million are"
            " accepted."
        )
    if max(width, height) > Limits.max_aspect * min(width, height):
        raise MediaError(
            f"{NAME} is {width}×{height} pixels, too thin for a model: the longer side may be at"
            f" most {Limits.max_aspect} times the other."
        )
