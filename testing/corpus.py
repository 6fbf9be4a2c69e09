"""Pictures and clips made on the spot, whole and broken, for the tests of everything that takes
uploads.

Every maker returns bytes (or writes a file) whose right decoding is known: left half red, right
half blue.
"""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from specvl_demo.media import Limits, MediaFile, VideoFrames, load_files

RED, BLUE = (220, 30, 30), (30, 40, 220)
SIZE = (64, 48)


def halves(size: tuple[int, int] = SIZE) -> Image.Image:
    """Left half red, right half blue."""
    image = Image.new("RGB", size, RED)
    image.paste(BLUE, (size[0] // 2, 0, size[0], size[1]))
    return image


def load_picture(path: str | Path) -> Image.Image:
    return load_files([MediaFile(str(path), "picture")])[0]


def load_clip(path: str | Path, n_frames: int = 8, limits: Limits | None = None) -> VideoFrames:
    return load_files([MediaFile(str(path), "clip")], n_frames, limits)[0]


def encode(image: Image.Image, fmt: str, **options: object) -> bytes:
    """The image as a file of the format."""
    out = io.BytesIO()
    image.save(out, fmt, **options)
    return out.getvalue()


def exif(orientation: int) -> Image.Exif:
    """EXIF data that says how the camera was held."""
    data = Image.Exif()
    data[0x0112] = orientation
    return data


def stored_for(orientation: int) -> Image.Image:
    """`halves` as a camera stores it when its EXIF says `orientation`."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    return halves().transpose(undo[orientation]) if orientation in undo else halves()


def good_pictures() -> dict[str, bytes]:
    """Files that must decode to red on the left and blue on the right, by name."""
    rgb = halves()
    clear = rgb.convert("RGBA")
    clear.putpixel((0, 0), (0, 0, 0, 0))
    moving = {
        "save_all": True,
        "append_images": [Image.new("RGB", SIZE, (0, 200, 0))],
        "duration": 100,
    }
    files = {f"plain.{fmt.lower()}": encode(rgb, fmt) for fmt in ("PNG", "WEBP", "GIF", "BMP")}
    files |= {
        f"animated.{fmt.lower()}": encode(rgb, fmt, **moving) for fmt in ("PNG", "WEBP", "GIF")
    }
    files |= {
        "palette.bmp": encode(rgb.quantize(8), "BMP"),
        "palette_alpha.png": encode(rgb.quantize(8), "PNG", transparency=7),
        "alpha.png": encode(clear, "PNG"),
        "cmyk.jpg": encode(rgb.convert("CMYK"), "JPEG", quality=95),
        "lying.mp4": encode(rgb, "PNG"),
        "trailing_bytes.png": encode(rgb, "PNG") + b"\0" * 500,
        "16bit_rgb.png": _png_16bit(np.asarray(rgb).astype(np.uint16) * 257),
    }
    for held in range(1, 9):
        files[f"exif{held}.jpg"] = encode(
            stored_for(held), "JPEG", quality=95, subsampling=0, exif=exif(held)
        )
    return files


def grey_16bit(size: tuple[int, int] = SIZE) -> bytes:
    """A 16-bit grey PNG: left half a quarter of full scale, right half three quarters."""
    values = np.full((size[1], size[0]), 16_384, np.uint16)
    values[:, size[0] // 2 :] = 49_152
    return encode(Image.fromarray(values), "PNG")


def write_clip(path: Path, codec: str = "mp4v", n_frames: int = 24, fps: float = 12.0) -> Path:
    """A clip of `halves`, its red growing frame by frame, written by OpenCV."""
    import cv2

    width, height = 96, 64
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), fps, (width, height))
    for index in range(n_frames):
        frame = np.zeros((height, width, 3), np.uint8)
        frame[:, : width // 2] = (0, 0, 255 * index // max(n_frames - 1, 1))
        frame[:, width // 2 :] = (255, 0, 0)
        writer.write(frame)
    writer.release()
    return path


def turned(mp4: bytes) -> bytes:
    """The clip with a display matrix that turns it clockwise by 90 degrees, as phones write it."""
    at = mp4.index(b"tkhd") + 4
    matrix_at = at + 4 + 36  # version and flags, then the fields of version 0 before the matrix
    one, w = 1 << 16, 1 << 30
    matrix = struct.pack(">9i", 0, one, 0, -one, 0, 0, 64 * one, 0, w)
    return mp4[:matrix_at] + matrix + mp4[matrix_at + 36 :]


def million_frames(mp4: bytes) -> bytes:
    """The clip with a sample table that declares a million frames of one size."""
    data = bytearray(mp4)
    at = data.index(b"stsz") + 4
    data[at + 4 : at + 12] = struct.pack(">II", 10, 1_000_000)
    at = data.index(b"stts") + 8
    data[at + 4 : at + 8] = struct.pack(">I", 1_000_000)
    return bytes(data)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _png(chunks: list[bytes]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + _chunk(b"IEND", b"")


def _png_16bit(rgb: np.ndarray) -> bytes:
    """A 16-bit RGB PNG; Pillow reads but does not write them."""
    height, width, _ = rgb.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rgb)
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0))
    return _png([header, _chunk(b"IDAT", zlib.compress(rows))])
