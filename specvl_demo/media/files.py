"""What an uploaded file really is, and whether it is small enough to look at.

Content decides, never the name. Knows the limits and the sentences of refusal; decodes nothing.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path


class MediaError(ValueError):
    """A picture or clip that cannot be used; the message is one sentence for the person who sent it."""


@dataclass(frozen=True)
class Limits:
    """What is accepted. The defaults bound the memory of one request to a few hundred megabytes."""

    max_items: int = 8  # pictures and clips together
    max_bytes: int = 64 * 2**20  # of one file
    max_pixels: int = 25_000_000  # of one picture, or of one frame of a clip
    max_aspect: int = 100  # longer side over shorter side; beyond it nothing is left after resizing
    max_clip_s: float = 600.0
    max_clip_frames: int = 40_000  # declared by the container: ten minutes at 60 a second, and some
    max_frame_side: int = 1280  # sampled frames are shrunk to this before they leave the decoder
    decode_s: float = 30.0  # wall time for one clip, hard


PICTURE_FORMATS = ("PNG", "JPEG", "WebP", "GIF", "BMP", "AVIF")
CLIP_FORMATS = ("MP4", "WebM", "AVI", "GIF", "WebP")


def sniff(head: bytes) -> str | None:
    """The format of a file by its first 32 bytes, or None; with a `?` where it is known but not supported."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if head.startswith(b"BM") and len(head) >= 26:
        return "BMP"
    if head[:4] == b"RIFF":
        return {b"WEBP": "WebP", b"AVI ": "AVI"}.get(head[8:12])
    if head[:4] == b"\x1aE\xdf\xa3":
        return "WebM"
    if head[4:8] == b"ftyp":
        brand = head[8:12]
        if brand in (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"):
            return "HEIC?"
        return "AVIF" if brand in (b"avif", b"avis") else "MP4"
    if head[4:8] in (b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "MP4"
    if head[:4] in (b"II*\0", b"MM\0*"):
        return "TIFF?"
    if head.startswith(b"%PDF"):
        return "PDF?"
    if head.lstrip()[:4].lower() in (b"<svg", b"<?xm", b"<!do", b"<htm"):
        return "SVG or HTML?"
    return None


def read(path: str | os.PathLike[str], limits: Limits) -> tuple[Path, bytes]:
    """The bytes of a regular file within the limit; pipes, devices and folders are refused unopened."""
    path = Path(path)
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise MediaError(f"{path.name or path} is not a file.")
        if info.st_size == 0:
            raise MediaError(f"{path.name} is empty.")
        if info.st_size <= limits.max_bytes:
            with path.open("rb") as file:
                data = file.read(limits.max_bytes + 1)
            if len(data) <= limits.max_bytes:
                return path, data
    except FileNotFoundError:
        raise MediaError(f"There is no file {path}.") from None
    except (OSError, ValueError) as fault:  # ValueError: a zero byte in the name
        if isinstance(fault, MediaError):
            raise
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        raise MediaError(f"{path.name or path} cannot be read: {reason}.") from None
    raise MediaError(
        f"{path.name} is larger than {limits.max_bytes / 2**20:.0f} MB, the most that is accepted."
    )


def unsupported(name: str, kind: str | None) -> MediaError:
    what = (
        f"is {kind.rstrip('?')}, which is not supported"
        if kind
        else "is neither a picture nor a clip known here"
    )
    return MediaError(f"{name} {what}; send {', '.join(PICTURE_FORMATS)}, MP4, WebM or AVI.")


def check_size(name: str, width: int, height: int, limits: Limits) -> None:
    if width < 1 or height < 1:
        raise MediaError(f"{name} declares a size of {width}×{height} pixels.")
    if width * height > limits.max_pixels:
        raise MediaError(
            f"{name} has {width}×{height} pixels; at most {limits.max_pixels / 1e6:.0f} million are accepted."
        )
    if max(width, height) > limits.max_aspect * min(width, height):
        raise MediaError(
            f"{name} is {width}×{height} pixels: too thin to show a model "
            f"(one side more than {limits.max_aspect} times the other)."
        )
