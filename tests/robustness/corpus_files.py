"""A corpus of bad and odd uploads, made on the spot: every format times every defect we could think of.

`cases()` gives each with how it may end: `picture`, `clip`, `refused`, or `either` (decoded or refused, as
the damage happens to fall). Seeded, so that everybody tries the same bytes. Run as a module it tries all of
them, each in a decoding process of its own, and prints a table of what became of them:

    python -m tests.robustness.corpus_files [--start]

The processes are forked from one that has the decoders in memory; --start starts each from nothing, as a
server does, and takes minutes. Long because a defect is a line here, and all lines are one table.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from PIL import Image

from specvl_demo.media import Limits, MediaError, VideoFrames, load, worker
from tests import corpus
from tests.corpus import encode, halves, load_clip, load_picture
from tests.robustness import corpus_cameras

Ends = Literal["picture", "clip", "refused", "either"]


@dataclass(frozen=True)
class Case:
    """One upload: the name it comes under, its bytes, what it is sent as, and how it may end."""

    family: str
    name: str
    data: bytes
    sent_as: Literal["image", "video"]
    ends: Ends

    def write(self, folder: Path) -> Path:
        """The file in a folder of its own, so that equal names do not meet."""
        path = folder / self.name
        path.write_bytes(self.data)
        return path


def cases() -> list[Case]:
    """All of them, in a fixed order."""
    return [case for family in FAMILIES for case in family()]


# ---------------------------------------------------------------------------------------------- pictures


@cache
def pictures() -> dict[str, bytes]:
    """One whole file of every kind of encoding."""
    image = halves()
    noisy = Image.effect_noise(corpus.SIZE, 80).convert(
        "RGB"
    )  # so that the compressed data is not a few bytes
    image = Image.blend(image, noisy, 0.2)
    moving = [image.rotate(90 * i) for i in range(1, 4)]
    animated = {"save_all": True, "append_images": moving, "duration": 80}
    return {
        "plain.png": encode(image, "PNG"),
        "palette.png": encode(image.quantize(16), "PNG"),
        "plain.jpg": encode(image, "JPEG", quality=90),
        "progressive.jpg": encode(image, "JPEG", quality=90, progressive=True),
        "lossless.webp": encode(image, "WEBP", lossless=True),
        "lossy.webp": encode(image, "WEBP", quality=80),
        "plain.gif": encode(image, "GIF"),
        "plain.bmp": encode(image, "BMP"),
        "plain.avif": encode(image, "AVIF", quality=70),
        "animated.gif": encode(image, "GIF", **animated),
        "animated.webp": encode(image, "WEBP", **animated),
        "animated.png": encode(image, "PNG", **animated),
    }


def truncated_pictures() -> Iterator[Case]:
    """Cut after a few bytes, in the header, in the middle, one byte before the end."""
    for name, data in pictures().items():
        n = len(data)
        for at in (3, 12, 25, 40, n // 4, n // 2, 3 * n // 4, n - 1):
            # What is missing at the very end may be padding, and of an animation only the first frame counts.
            early = at <= 40 or (at <= n // 2 and not name.startswith("animated"))
            yield Case(
                "truncated picture", f"cut_{at}_{name}", data[:at], "image", "refused" if early else "either"
            )


def empty_files() -> Iterator[Case]:
    """Nothing at all, or nothing but one value, under every ending."""
    for ending in ("png", "jpg", "webp", "gif", "bmp", "avif", "heic", "mp4", "webm", "avi", "mkv", "mov"):
        sent_as = "video" if ending in ("mp4", "webm", "avi", "mkv", "mov") else "image"
        yield Case("empty", f"empty.{ending}", b"", sent_as, "refused")
        yield Case("empty", f"zeros.{ending}", bytes(5000), sent_as, "refused")
        yield Case("empty", f"ones.{ending}", b"\xff" * 5000, sent_as, "refused")


def lying_names() -> Iterator[Case]:
    """The content decides, never the ending."""
    for name, data in pictures().items():
        for ending in ("mp4", "txt", "exe"):
            yield Case("lying name", f"{name}.{ending}", data, "image", "picture")
        moves = name in ("animated.gif", "animated.webp")
        yield Case("lying name", f"{name}.avi", data, "video", "clip" if moves else "refused")
    for name, data in clips().items():
        yield Case("lying name", f"{name}.jpg", data, "image", "refused")
        yield Case("lying name", f"{name}.png", data, "video", "clip")


def declared_sizes() -> Iterator[Case]:
    """Headers that declare what the file does not hold."""
    for width, height in ((30_000, 30_000), (60_000, 60_000), (0, 10), (10, 0), (6_000, 6_000), (20_000, 2)):
        for name, patch in SIZE_PATCHES.items():
            data = patch(
                pictures()[name], min(width, LARGEST.get(name, width)), min(height, LARGEST.get(name, height))
            )
            # A GIF's screen is widened by its frames; one without a size still has a picture.
            ends: Ends = "either" if name == "plain.gif" and 0 in (width, height) else "refused"
            yield Case("declared size", f"{width}x{height}_{name}", data, "image", ends)


LARGEST = {"lossy.webp": 16_383, "lossless.webp": 16_383}


def _patch_png(data: bytes, width: int, height: int) -> bytes:
    body = struct.pack(">II", width, height) + data[24:29]
    return data[:16] + body + struct.pack(">I", zlib.crc32(b"IHDR" + body)) + data[33:]


def _patch_jpeg(data: bytes, width: int, height: int) -> bytes:
    at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def _patch_gif(data: bytes, width: int, height: int) -> bytes:
    frame = data.index(b"\x2c", 13 + 3 * 256) if data[10] & 0x80 else data.index(b"\x2c", 13)
    size = struct.pack("<HH", width, height)
    return data[:6] + size + data[10 : frame + 5] + size + data[frame + 9 :]


def _patch_bmp(data: bytes, width: int, height: int) -> bytes:
    return data[:18] + struct.pack("<ii", width, height) + data[26:]


def _patch_vp8(data: bytes, width: int, height: int) -> bytes:
    return data[:26] + struct.pack("<HH", width, height) + data[30:]


def _patch_vp8l(data: bytes, width: int, height: int) -> bytes:
    bits = (
        int.from_bytes(data[21:25], "little") & ~0xFFFFFFF | (max(width, 1) - 1) | (max(height, 1) - 1) << 14
    )
    return data[:21] + bits.to_bytes(4, "little") + data[25:]


def _patch_vp8x(data: bytes, width: int, height: int) -> bytes:
    size = b"".join((max(v, 1) - 1).to_bytes(3, "little") for v in (width, height))
    return data[:24] + size + data[30:]


def _patch_avif(data: bytes, width: int, height: int) -> bytes:
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", width, height) + data[at + 8 :]


SIZE_PATCHES: dict[str, Callable[[bytes, int, int], bytes]] = {
    "plain.png": _patch_png,
    "palette.png": _patch_png,
    "plain.jpg": _patch_jpeg,
    "progressive.jpg": _patch_jpeg,
    "plain.gif": _patch_gif,
    "plain.bmp": _patch_bmp,
    "lossy.webp": _patch_vp8,
    "lossless.webp": _patch_vp8l,
    "animated.webp": _patch_vp8x,
    "plain.avif": _patch_avif,
}


def bombs() -> Iterator[Case]:
    """Small files that become large, or that take long."""
    grey, colour = Image.new("L", (6_000, 6_000), 90), Image.new("RGB", (5_100, 5_100), (90, 90, 90))
    quick: dict[str, dict[str, Any]] = {
        "TIFF": {"compression": "tiff_lzw"},
        "WEBP": {"method": 0},
        "AVIF": {"speed": 10},
    }
    for fmt in ("PNG", "GIF", "WEBP", "TIFF", "JPEG", "AVIF"):
        made = grey if fmt in ("PNG", "GIF", "TIFF") else colour
        data = encode(made, fmt, **quick.get(fmt, {}))
        yield Case("bomb", f"bomb.{fmt.lower()}", data, "image", "refused")
    allowed = encode(Image.new("L", (5_000, 5_000), 90), "PNG")
    yield Case("bomb", "as_large_as_allowed.png", allowed, "image", "picture")
    png = pictures()["plain.png"]
    zeros = zlib.compress(bytes(200 * 2**20), 9)
    for kind, head in ((b"zTXt", b"k\0\0"), (b"iCCP", b"p\0\0"), (b"iTXt", b"k\0\1\0\0\0")):
        chunk = corpus._chunk(kind, head + zeros)
        yield Case("bomb", f"{kind.decode()}_bomb.png", png[:33] + chunk + png[33:], "image", "either")
    jpg = encode(Image.new("L", (2_000, 2_000), 128), "JPEG", progressive=True)
    last = jpg.rindex(b"\xff\xda")
    yield Case("bomb", "scan_bomb.jpg", jpg[:-2] + jpg[last:-2] * 5_000 + b"\xff\xd9", "image", "refused")
    yield Case("bomb", "frames_bomb.gif", gif_of(60_000), "video", "refused")
    yield Case("bomb", "frames_bomb_as_image.gif", gif_of(60_000), "image", "picture")
    yield Case("bomb", "growing.gif", growing_gif(60_000), "video", "refused")
    yield Case("bomb", "growing_as_image.gif", growing_gif(60_000), "image", "picture")
    wide = _patch_vp8x(pictures()["animated.webp"], 1 << 24, 255)
    yield Case("bomb", "canvas_bomb.webp", wide, "image", "refused")
    yield Case("bomb", "canvas_bomb.mp4", wide, "video", "refused")
    million = bytearray(pictures()["animated.png"])
    at = million.index(b"acTL") + 4
    body = struct.pack(">II", 1_000_000, 0)
    million[at : at + 12] = body + struct.pack(">I", zlib.crc32(b"acTL" + body))
    yield Case("bomb", "million_frames.png", bytes(million), "image", "picture")
    yield Case("bomb", "entities.svg", _ENTITIES, "image", "refused")


_ENTITIES = (
    b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + i, b"&%c;" % (97 + i) * 10) for i in range(9))
    + b"]><svg>&j;</svg>"
)
_LZW = b"\x02\x02\x4c\x01\x00"  # one pixel, at the smallest code size


def gif_of(n_frames: int) -> bytes:
    """An animation of one-pixel frames: a dozen bytes each."""
    head = b"GIF89a" + struct.pack("<HHBBB", 4, 4, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return head + (b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + _LZW) * n_frames + b"\x3b"


def growing_gif(side: int) -> bytes:
    """A small first frame, then one that lies far outside the declared screen."""
    head = b"GIF89a" + struct.pack("<HHBBB", 4, 4, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    frames = (b"\x2c" + struct.pack("<HHHHB", at, at, 1, 1, 0) + _LZW for at in (0, side))
    return head + b"".join(frames) + b"\x3b"


def thin_pictures() -> Iterator[Case]:
    """One pixel wide, one pixel high, as thin as is still taken."""
    for fmt, most in (("PNG", 60_000), ("JPEG", 60_000), ("BMP", 60_000), ("GIF", 60_000), ("WEBP", 16_000)):
        for size in ((1, most), (most, 1), (1, 101), (202, 2)):
            data = encode(Image.new("RGB", size, "red"), fmt)
            yield Case("thin", f"{size[0]}x{size[1]}.{fmt.lower()}", data, "image", "refused")
        for size in ((1, 1), (1, 100), (100, 1), (2, 2)):
            data = encode(Image.new("RGB", size, "red"), fmt)
            yield Case("thin", f"{size[0]}x{size[1]}.{fmt.lower()}", data, "image", "picture")


def pixel_kinds() -> Iterator[Case]:
    """Everything a pixel can be; and the eight ways to hold a camera, in three formats."""
    rgb = halves()
    kinds = {
        "1bit.png": encode(rgb.convert("1"), "PNG"),
        "grey.png": encode(rgb.convert("L"), "PNG"),
        "grey_alpha.png": encode(rgb.convert("LA"), "PNG"),
        "grey_16bit.png": corpus.grey_16bit(),
        "rgb_16bit.png": corpus._png_16bit(np.asarray(rgb).astype(np.uint16) * 257),
        "interlaced.png": interlaced_png(),
        "2bit_palette.png": encode(rgb.quantize(3), "PNG", bits=2),
        "palette_transparent.png": encode(rgb.quantize(8), "PNG", transparency=7),
        "rgb_transparent.png": encode(rgb, "PNG", transparency=corpus.RED),
        "rgba.png": encode(rgb.convert("RGBA"), "PNG"),
        "grey.jpg": encode(rgb.convert("L"), "JPEG"),
        "cmyk.jpg": encode(rgb.convert("CMYK"), "JPEG"),
        "subsampled.jpg": encode(rgb, "JPEG", subsampling=2),
        "optimised.jpg": encode(rgb, "JPEG", optimize=True),
        "palette.bmp": encode(rgb.quantize(16), "BMP"),
        "1bit.bmp": encode(rgb.convert("1"), "BMP"),
        "32bit.bmp": encode(rgb.convert("RGBA"), "BMP"),
        "upside_down.bmp": _patch_bmp(encode(rgb, "BMP"), corpus.SIZE[0], -corpus.SIZE[1]),
        "transparent.gif": encode(rgb.quantize(8), "GIF", transparency=3),
        "rgba.webp": encode(rgb.convert("RGBA"), "WEBP"),
        "rgba.avif": encode(rgb.convert("RGBA"), "AVIF"),
        "grey.avif": encode(rgb.convert("L"), "AVIF"),
    }
    for name, data in kinds.items():
        yield Case("kind of pixel", name, data, "image", "picture")
    for fmt in ("JPEG", "PNG", "WEBP", "AVIF"):
        for held in range(1, 9):
            data = encode(corpus.stored_for(held), fmt, exif=corpus.exif(held))
            yield Case("held by the camera", f"held_{held}.{fmt.lower()}", data, "image", "picture")
        for held in (0, 9, 65_535):
            data = encode(halves(), fmt, exif=corpus.exif(held))
            yield Case(
                "held by the camera",
                f"held_{held}.{fmt.lower()}",
                data,
                "image",
                "either" if fmt == "AVIF" else "picture",
            )
    for name in ("animated.gif", "animated.webp", "animated.png"):
        yield Case("kind of pixel", name, pictures()[name], "image", "picture")
    for name in ("animated.gif", "animated.webp"):
        yield Case("kind of pixel", name, pictures()[name], "video", "clip")
    yield Case("kind of pixel", "animated.png", pictures()["animated.png"], "video", "refused")


def interlaced_png() -> bytes:
    """Adam7 with seven passes of one grey each; Pillow reads but does not write them."""
    width, height = 16, 16
    starts = [
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ]
    rows = b""
    for x, y, dx, dy in starts:
        columns, lines = len(range(x, width, dx)), len(range(y, height, dy))
        rows += (b"\0" + b"\x80" * columns) * lines
    header = corpus._chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 1))
    return corpus._png([header, corpus._chunk(b"IDAT", zlib.compress(rows))])


def broken_profiles() -> Iterator[Case]:
    """Colour profiles and EXIF blocks that make no sense leave the picture as it is."""
    rng = random.Random(1)
    profiles = {
        "noise": rng.randbytes(3_000),
        "empty": b"\0",
        "huge": bytes(500_000),
        "cut": b"\0\0\x0c\x48lcms",
    }
    for fmt in ("PNG", "JPEG", "WEBP", "AVIF"):
        for what, profile in profiles.items():
            data = encode(halves(), fmt, icc_profile=profile)
            yield Case("broken profile", f"icc_{what}.{fmt.lower()}", data, "image", "either")
    for what, body in {
        "noise": rng.randbytes(300),
        "loop": b"MM\0*\0\0\0\x08\0\x01\x87\x69\0\4\0\0\0\1\0\0\0\x08",
    }.items():
        for fmt in ("JPEG", "PNG", "WEBP"):
            data = encode(halves(), fmt, exif=b"Exif\0\0" + body)
            yield Case("broken profile", f"exif_{what}.{fmt.lower()}", data, "image", "picture")


def other_documents() -> Iterator[Case]:
    """What is no picture and no clip here, under the name of one, sent as either."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("../../etc/cron.d/x", "boom")
    tiff = encode(halves(), "TIFF")
    documents = {
        "vector.svg": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        "page.html": b"<!DOCTYPE html><script>alert(1)</script>",
        "with_bom.html": b"\xef\xbb\xbf <html><script>alert(1)</script>",
        "document.pdf": b"%PDF-1.7\n" + bytes(200),
        "photo.heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(500),
        "photo.heif": b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic" + bytes(500),
        "scan.tiff": tiff,
        "scan_big_endian.tiff": b"MM\0*" + bytes(100),
        "picture.jxl": b"\xff\x0a" + bytes(100),
        "picture.jp2": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(100),
        "icon.ico": encode(halves((32, 32)), "ICO"),
        "drawing.psd": b"8BPS\0\1" + bytes(100),
        "map.ppm": encode(halves(), "PPM"),
        "old.tga": encode(halves(), "TGA"),
        "old.pcx": encode(halves(), "PCX"),
        "archive.zip": zipped.getvalue(),
        "packed.png.gz": gzip.compress(pictures()["plain.png"]),
        "program": b"\x7fELF" + bytes(100),
        "program.exe": b"MZ" + bytes(100),
        "words.txt": b"only words\n" * 30,
        "script.sh": b"#!/bin/sh\necho boom\n",
        "playlist.m3u8": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        "list.ffconcat": b"ffconcat version 1.0\nfile /etc/passwd\n",
        "session.sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 1 RTP/AVP 96\n",
        "sound.mp3": b"ID3\4" + bytes(300),
        "sound.wav": b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + bytes(30),
        "sound.ogg": b"OggS" + bytes(300),
        "sound.flac": b"fLaC" + bytes(300),
        "film.flv": b"FLV\1\5" + bytes(300),
        "film.wmv": b"\x30\x26\xb2\x75\x8e\x66\xcf\x11" + bytes(300),
        "film.mpg": b"\0\0\1\xba" + bytes(300),
        "film.ts": (b"\x47\x40\0\x10" + bytes(184)) * 5,
        "pickle.bin": b"\x80\4\x95cos\nsystem\n(S'true'\ntR.",
    }
    for name, data in documents.items():
        yield Case("other document", f"{name}.jpg", data, "image", "refused")
        yield Case("other document", f"{name}.mp4", data, "video", "refused")


def damaged_pictures() -> Iterator[Case]:
    """Random bits flipped, bytes cut out, blocks swapped, check sums wrong."""
    for name, data in pictures().items():
        for seed in range(6):
            rng = random.Random(f"{name}{seed}")
            yield Case("damaged picture", f"damaged_{seed}_{name}", damage(data, rng), "image", "either")
    png = pictures()["plain.png"]
    for kind in (b"IHDR", b"IDAT", b"IEND"):
        at = png.index(kind)
        size = struct.unpack(">I", png[at - 4 : at])[0]
        crc = at + 4 + size
        wrong = png[:crc] + bytes(4) + png[crc + 4 :]
        yield Case("damaged picture", f"wrong_crc_{kind.decode()}.png", wrong, "image", "either")


def damage(data: bytes, rng: random.Random) -> bytes:
    """A few random defects, somewhere."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 4, 30))):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.4:
        at = rng.randrange(len(made))
        del made[at : at + rng.randrange(1, 60)]
    if rng.random() < 0.3:
        at = rng.randrange(len(made))
        made[at:at] = rng.randbytes(rng.randrange(1, 60))
    return bytes(made)


def polyglots() -> Iterator[Case]:
    """A picture that goes on as something else stays a picture, and nothing else."""
    script = b"<script>alert(1)</script>"
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("a.txt", "a")
    for name in ("plain.png", "plain.jpg", "lossy.webp", "plain.gif", "plain.bmp", "plain.avif"):
        for what, tail in {"html": script, "zip": zipped.getvalue(), "zeros": bytes(9_000)}.items():
            yield Case("polyglot", f"{what}_behind_{name}", pictures()[name] + tail, "image", "picture")
    png, jpg, gif = (pictures()[f"plain.{e}"] for e in ("png", "jpg", "gif"))
    comment = b"\xff\xfe" + struct.pack(">H", len(script) + 2) + script
    yield Case("polyglot", "script_inside.jpg", jpg[:2] + comment + jpg[2:], "image", "picture")
    text = corpus._chunk(b"tEXt", b"Comment\0" + script)
    yield Case("polyglot", "script_inside.png", png[:33] + text + png[33:], "image", "picture")
    yield Case("polyglot", "script.gif", b"GIF89a=1;alert(1);/*" + gif[20:], "image", "either")
    yield Case("polyglot", "html_before.png", b"<html>" + png, "image", "refused")
    yield Case("polyglot", "clip_behind.png", png + clips()["clip.mp4"], "image", "picture")
    yield Case("polyglot", "clip_behind_sent_as_clip.png", png + clips()["clip.mp4"], "video", "refused")
    yield Case("polyglot", "picture_behind.mp4", clips()["clip.mp4"] + png, "video", "clip")


NAMES = (
    "with space.png",
    " leading and trailing .png",
    "-rf.png",
    "--help",
    "semi;colon&amp|pipe.png",
    "$(reboot).png",
    "`id`.png",
    "quote'\".png",
    "back\\slash.png",
    "..%2f..%2fetc%2fpasswd",
    "percent%s%n%d.png",
    "{name}{0}.png",
    "<img src=x onerror=alert(1)>.png",
    "new\nline.png",
    "tab\tand\rreturn.png",
    "escape\x1b[2J\x1b]0;title\x07.png",
    "bell\x07\x08\x7f.png",
    "right-to-left \u202egnp.exe",
    "isolate\u2066\u2069\u200f.png",
    "שלום עולם.png",
    "مرحبا.png",
    "\N{GRINNING FACE}\N{FAMILY}.png",
    "👩‍👩‍👧.png",
    "zero\u200bwidth\ufeff.png",
    "line\u2028separator.png",
    "combining" + "\u0301" * 60 + ".png",
    "x" * 240 + ".png",
    "é" * 120 + ".png",
    ".hidden",
    "...",
    "CON.png",
    "no ending",
    "many.dots.in.a.row....png",
    "concat:a|b.png",
    "http:example.png",
    "half\udcff\udcfe.png",  # bytes that are no UTF-8, as the system hands them over
)


def odd_names() -> Iterator[Case]:
    """The name never matters, whole or broken."""
    for name in NAMES:
        yield Case("odd name", name, pictures()["plain.png"], "image", "picture")
        yield Case("odd name", name, pictures()["plain.png"][:40], "image", "refused")
    for name in (*NAMES[:20:4], *NAMES[-3:]):
        yield Case("odd name", name, clips()["clip.mp4"], "video", "clip")


# ------------------------------------------------------------------------------------------------- clips


@cache
def clips() -> dict[str, bytes]:
    """One whole file of every container, made by OpenCV."""
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, codec in (
            ("clip.mp4", "mp4v"),
            ("clip.webm", "VP80"),
            ("clip.avi", "MJPG"),
            ("clip.mkv", "MJPG"),
        ):
            made[name] = corpus.write_clip(Path(folder) / name, codec).read_bytes()
    return made


def damaged_clips() -> Iterator[Case]:
    """Cut short, and bits flipped."""
    for name, data in clips().items():
        n = len(data)
        for at in (3, 40, 300, n // 4, n // 2, n - 40):
            ends: Ends = "refused" if at <= 40 else "either"
            yield Case("truncated clip", f"cut_{at}_{name}", data[:at], "video", ends)
        for seed in range(6):
            rng = random.Random(f"{name}{seed}")
            yield Case("damaged clip", f"damaged_{seed}_{name}", damage(data, rng), "video", "either")


def boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The boxes of an MP4 at one level: (kind, body)."""
    at = 0
    while at + 8 <= len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        size = len(data) - at if size == 0 else max(size, 8)
        yield kind, data[at + 8 : at + size]
        at += size


HOLDERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"mvex")


def rebuilt(data: bytes, change: Callable[[bytes, bytes], bytes | None]) -> bytes:
    """An MP4 with boxes changed: (kind, body) -> body, None drops it. Media data is first: offsets hold."""
    out = b""
    for kind, body in boxes(data):
        new = rebuilt(body, change) if kind in HOLDERS else body
        new = change(kind, new)
        if new is not None:
            out += struct.pack(">I4s", len(new) + 8, kind) + new
    return out


def one_box(kind: bytes, change: Callable[[bytes], bytes | None]) -> bytes:
    """The MP4 with every box of one kind changed."""
    return rebuilt(clips()["clip.mp4"], lambda k, body: change(body) if k == kind else body)


def strange_mp4s() -> Iterator[Case]:
    """MP4s whose tables lie."""
    u32 = struct.Struct(">I").pack

    def stts(*entries: tuple[int, int]) -> Callable[[bytes], bytes]:
        return lambda _: u32(0) + u32(len(entries)) + b"".join(u32(n) + u32(d) for n, d in entries)

    def sized(at: int, size: bytes) -> Callable[[bytes], bytes]:
        return lambda body: body[:at] + size + body[at + len(size) :]

    whole = clips()["clip.mp4"]
    large = struct.pack(">HH", 60_000, 60_000)
    made: dict[str, tuple[bytes, Ends]] = {
        "no_moov.mp4": (one_box(b"moov", lambda _: None), "refused"),
        "no_mdat.mp4": (one_box(b"mdat", lambda _: None), "refused"),
        "no_track.mp4": (one_box(b"trak", lambda _: None), "refused"),
        "no_samples.mp4": (one_box(b"stsz", lambda body: body[:8] + u32(0)), "refused"),
        "million_frames.mp4": (corpus.million_frames(whole), "refused"),
        "four_billion_frames.mp4": (one_box(b"stsz", lambda _: u32(0) + u32(10) + u32(2**32 - 1)), "refused"),
        "four_billion_chunks.mp4": (
            one_box(b"stco", lambda body: body[:4] + u32(2**32 - 1) + body[8:]),
            "either",
        ),
        "chunks_outside.mp4": (one_box(b"stco", lambda body: body[:8] + u32(2**31)), "either"),
        "variable_rate.mp4": (one_box(b"stts", stts((8, 512), (8, 2048), (8, 64))), "clip"),
        "no_duration.mp4": (one_box(b"stts", stts((24, 0))), "either"),
        "endless.mp4": (one_box(b"stts", stts((24, 2**30))), "either"),
        "negative_step.mp4": (one_box(b"stts", stts((12, 512), (12, 2**32 - 400))), "either"),
        "no_rate.mp4": (one_box(b"mdhd", sized(12, u32(0))), "either"),
        "absurd_rate.mp4": (one_box(b"mdhd", sized(12, u32(2**31 - 1))), "either"),
        "huge_track.mp4": (one_box(b"stsd", sized(8 + 8 + 24, large)), "either"),
        "huge_display.mp4": (one_box(b"tkhd", lambda body: body[:-8] + u32(60_000 << 16) * 2), "either"),
        "wrong_codec.mp4": (one_box(b"stsd", sized(12, b"avc1")), "either"),
        "unknown_codec.mp4": (one_box(b"stsd", sized(12, b"zzzz")), "either"),
        "sound_only.mp4": (one_box(b"hdlr", sized(8, b"soun")), "refused"),
        "starts_before_zero.mp4": (
            one_box(b"elst", lambda _: u32(0) + u32(1) + u32(2000) + u32(2**32 - 1) + u32(65536)),
            "either",
        ),
        "external_data.mp4": (
            one_box(b"dref", lambda _: u32(0) + u32(1) + u32(12 + 12) + b"url " + u32(0) + b"/etc/passwd\0"),
            "either",
        ),
        "nested.mp4": (
            whole[:32] + b"".join(u32(8 * (2_000 - i)) + b"moov" for i in range(2_000)),
            "refused",
        ),
        "box_of_size_one.mp4": (whole[:28] + u32(1) + b"moov" + struct.pack(">Q", 2**63), "refused"),
    }
    for name, (data, ends) in made.items():
        yield Case("strange MP4", name, data, "video", ends)


def strange_clips() -> Iterator[Case]:
    """The same for AVI, WebM and Matroska, and clips of few frames."""
    avi, webm = clips()["clip.avi"], clips()["clip.webm"]
    header, stream = avi.index(b"avih") + 8, avi.index(b"strh") + 8
    form = avi.index(b"strf") + 8

    def put(data: bytes, at: int, *values: int) -> bytes:
        return data[:at] + struct.pack(f"<{len(values)}I", *values) + data[at + 4 * len(values) :]

    made: dict[str, tuple[bytes, Ends]] = {
        "million_frames.avi": (put(put(avi, header + 16, 1_000_000), stream + 32, 1_000_000), "refused"),
        "no_frames.avi": (put(put(avi, header + 16, 0), stream + 32, 0), "either"),
        "no_rate.avi": (put(put(avi, header, 0), stream + 20, 0, 0), "either"),
        "absurd_rate.avi": (put(avi, stream + 20, 1, 2**31 - 1), "either"),
        "one_frame_an_hour.avi": (put(avi, stream + 20, 3_600, 1), "refused"),
        "huge.avi": (put(put(avi, header + 32, 60_000, 60_000), form + 4, 60_000, 60_000), "either"),
        "negative_height.avi": (put(avi, form + 8, 2**32 - 64), "either"),
        "no_size.avi": (put(put(avi, header + 32, 0, 0), form + 4, 0, 0), "either"),
        "wrong_codec.avi": (avi.replace(b"MJPG", b"H264"), "either"),
        "unknown_codec.avi": (avi.replace(b"MJPG", b"zzzz"), "refused"),
        "sound_only.avi": (avi.replace(b"vids", b"auds"), "refused"),
        "no_index.avi": (avi.replace(b"idx1", b"JUNK"), "either"),
        "playlist_inside.avi": (avi.replace(b"00dc", b"00tx"), "either"),
        "sound_only.webm": (webm.replace(b"\x83\x81\x01", b"\x83\x81\x02"), "refused"),
        "wrong_codec.webm": (webm.replace(b"V_VP8", b"V_VP9"), "either"),
        "unknown_codec.webm": (webm.replace(b"V_VP8", b"V_XXX"), "refused"),
        "unknown_length.webm": (webm[:4] + b"\x01" + b"\xff" * 7 + webm[5:], "either"),
        "huge.webm": (huge_webm(webm), "either"),
        "only_magic.webm": (b"\x1aE\xdf\xa3" * 50, "refused"),
    }
    for n_frames in (1, 2):
        for ending, codec in (("mp4", "mp4v"), ("webm", "VP80"), ("avi", "MJPG")):
            with tempfile.TemporaryDirectory() as folder:
                path = corpus.write_clip(Path(folder) / f"a.{ending}", codec, n_frames)
                made[f"{n_frames}_frame.{ending}"] = (path.read_bytes(), "clip")
    with tempfile.TemporaryDirectory() as folder:
        made["no_frame.mp4"] = (
            corpus.write_clip(Path(folder) / "a.mp4", n_frames=0).read_bytes() or b"\0",
            "refused",
        )
    still = pictures()["plain.gif"]
    made["still.gif"] = (still, "refused")
    made["no_delay.gif"] = (
        pictures()["animated.gif"].replace(b"\x21\xf9\x04\x08\x08\0", b"\x21\xf9\x04\x08\0\0"),
        "clip",
    )
    made["cut.gif"] = (pictures()["animated.gif"][:-900], "either")
    made["cut.webp"] = (pictures()["animated.webp"][:-900], "either")
    for name, (data, ends) in made.items():
        yield Case("strange clip", name, data, "video", ends)


def huge_webm(webm: bytes) -> bytes:
    """PixelWidth and PixelHeight as large as their elements hold."""
    for element in (b"\xb0\x81", b"\xba\x81"):
        at = webm.find(element)
        if at >= 0:
            webm = webm[: at + 2] + b"\xff" + webm[at + 3 :]
    for element in (b"\xb0\x82", b"\xba\x82"):
        at = webm.find(element)
        if at >= 0:
            webm = webm[: at + 2] + b"\xff\xff" + webm[at + 4 :]
    return webm


def cameras() -> Iterator[Case]:
    """Motion photos, fat blocks of a camera's own, thumbnails: one picture each; real scans are counted."""
    for name, data in corpus_cameras.layouts():
        yield Case("camera layout", name, data, "image", "picture")
    for n in (100, 400):
        yield Case("camera layout", f"scans_{n}.jpg", corpus_cameras.scan_bomb(n), "image", "refused")
    for name, data in {
        "no_end_of_segments.jpg": b"\xff\xd8" + b"\xff\xe0\0\0" * 10_000_000,
        "fill_bytes_alone.jpg": b"\xff\xd8" + b"\xff" * 4_000_000,
        "longer_than_the_file.jpg": b"\xff\xd8\xff\xe1\xff\xff" + b"\xff\xda" * 200,
    }.items():
        yield Case("camera layout", name, data, "image", "refused")


FAMILIES: tuple[Callable[[], Iterator[Case]], ...] = (
    truncated_pictures,
    empty_files,
    lying_names,
    declared_sizes,
    bombs,
    thin_pictures,
    pixel_kinds,
    broken_profiles,
    other_documents,
    damaged_pictures,
    polyglots,
    odd_names,
    damaged_clips,
    strange_mp4s,
    strange_clips,
    cameras,
)


class Forked:
    """Stands in for the decoding process: the same code under the same limits, forked instead of started, so
    that many hundred files take seconds. What `load` uses of `subprocess.Popen`."""

    def __init__(self, *_: object, **__: object) -> None:
        hear, self.stdin = _pipe()
        self.stdout, say = _pipe()
        self.pid = os.fork()
        if not self.pid:
            self.stdin.close(), self.stdout.close()
            os.dup2(hear.fileno(), 0), os.dup2(say.fileno(), 1)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
            try:
                worker.main()
            finally:
                os._exit(1)
        hear.close(), say.close()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout):
            with suppress(OSError):
                pipe.close()
        os.waitpid(self.pid, 0)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    read, write = os.pipe()
    return os.fdopen(read, "rb"), os.fdopen(write, "wb")


def attempt(case: Case, folder: Path) -> tuple[str, str]:
    """How a case ends, and what is said."""
    path = case.write(folder)
    try:
        found = (load_picture if case.sent_as == "image" else load_clip)(path)
    except MediaError as refusal:
        return "refused", str(refusal)
    finally:
        path.unlink()
    images = found.frames if isinstance(found, VideoFrames) else [found]
    assert all(
        image.mode == "RGB" and image.size[0] * image.size[1] <= Limits().max_pixels for image in images
    )
    return "clip" if isinstance(found, VideoFrames) else "picture", ""


def try_all(forked: bool = True) -> dict[str, Any]:
    """{"rows": {family: {"tried", "picture", "clip", "refused", "slowest_s"}}, "wrong": [...], "peak_mb"}.

    wrong: cases that ended otherwise than they may, and refusals that are not one clear sentence.
    slowest_s: seconds of computing, the decoding process's and ours.
    """
    if forked:
        import cv2  # noqa: F401 - once, for all children
        import decord  # noqa: F401

        load.subprocess.Popen = Forked
    rows: dict[str, dict[str, float]] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            row = rows.setdefault(
                case.family, dict.fromkeys(("tried", "picture", "clip", "refused", "slowest_s"), 0)
            )
            before = _spent()
            ended, said = attempt(case, Path(folder))
            row["tried"] += 1
            row[ended] += 1
            row["slowest_s"] = max(row["slowest_s"], _spent() - before)
            if case.ends not in (ended, "either"):
                wrong.append(f"{case.family}: {case.name!r} ended as {ended}, not {case.ends} {said}")
            if said and not is_one_sentence(said):
                wrong.append(f"{case.family}: {case.name!r} said {said!r}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"rows": rows, "wrong": wrong, "peak_mb": round(peak)}


def is_one_sentence(said: str) -> bool:
    """On one line, with an end, not long, nothing in it that a terminal would obey."""
    return said.endswith(".") and len(said) < 300 and all(c.isprintable() or c == "\u200d" for c in said)


def _spent() -> float:
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(who.ru_utime + who.ru_stime for who in (mine, theirs))


def main() -> None:
    """Try them all and print what became of them, by family; --json for a program."""
    found = try_all(forked="--start" not in sys.argv)
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps(found))
        return
    rows, columns = found["rows"], ("tried", "picture", "clip", "refused")
    total = {column: sum(row[column] for row in rows.values()) for column in columns}
    total["slowest_s"] = max(row["slowest_s"] for row in rows.values())
    sys.stdout.write(f"| family | {' | '.join(columns)} | slowest, CPU s |\n|---|{'---:|' * 5}\n")
    for name, row in [*rows.items(), ("all", total)]:
        sys.stdout.write(
            f"| {name} | {' | '.join(str(row[c]) for c in columns)} | {row['slowest_s']:.1f} |\n"
        )
    sys.stdout.write(
        f"\nLargest decoding process: {found['peak_mb']} MB. Wrong endings: {len(found['wrong'])}.\n"
    )
    sys.stdout.writelines(f"{line}\n" for line in found["wrong"])


if __name__ == "__main__":
    main()
