"""A corpus of bad and odd uploads, made on the spot: every format times every defect we could think
of.

`cases()` gives each with how it may end: `picture`, `clip`, `refused`, or `either` (decoded or
refused, as the damage happens to fall). Seeded, so that everybody tries the same bytes. Run as a
module it tries all of them, each in a decoding process of its own, and prints a table of what
became of them:

    python -m tests.robustness.corpus_files [--start]

The processes are forked from one that has the decoders in memory; --start starts each from nothing,
as a server does, and takes minutes. Long because a defect is a line here, and all lines are one
table.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from struct import pack, unpack
from typing import Any, Literal

import numpy as np
from PIL import Image

from specvl_demo.media import Limits, MediaError, VideoFrames, load, worker
from tests import corpus
from tests.corpus import encode, halves, load_clip, load_picture
from tests.robustness import corpus_cameras

Sent = Literal["image", "video"]
Ends = Literal["picture", "clip", "refused", "either"]
Made = Iterator[tuple[str, bytes, Sent, Ends]]
"""The files of a family: name, content, what it is sent as, how it may end."""


@dataclass(frozen=True)
class Case:
    """One upload: the name it comes under, its bytes, what it is sent as, and how it may end."""

    family: str
    name: str
    data: bytes
    sent_as: Sent
    ends: Ends

    def write(self, folder: Path) -> Path:
        """The file in a folder of its own, so that equal names do not meet."""
        path = folder / self.name
        path.write_bytes(self.data)
        return path


# ----------------------------------------------------------------------------------------------
# pictures


@cache
def pictures() -> dict[str, bytes]:
    """One whole file of every kind of encoding."""
    image = halves()
    # Noise, so that the compressed data is not a few bytes.
    image = Image.blend(image, Image.effect_noise(corpus.SIZE, 80).convert("RGB"), 0.2)
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


def truncated_pictures() -> Made:
    """Cut after a few bytes, in the header, in the middle, one byte before the end."""
    for name, data in pictures().items():
        n = len(data)
        for at in (3, 12, 25, 40, n // 4, n // 2, 3 * n // 4, n - 1):
            # What is missing at the very end may be padding, and of an animation only the first
            # frame counts.
            early = at <= 40 or (at <= n // 2 and not name.startswith("animated"))
            yield f"cut_{at}_{name}", data[:at], "image", "refused" if early else "either"


def empty_files() -> Made:
    """Nothing at all, or nothing but one value, under every ending."""
    pictured, moving = "png jpg webp gif bmp avif heic", "mp4 webm avi mkv mov"
    for ending in (*pictured.split(), *moving.split()):
        sent_as = "video" if ending in moving else "image"
        yield f"empty.{ending}", b"", sent_as, "refused"
        yield f"zeros.{ending}", bytes(5000), sent_as, "refused"
        yield f"ones.{ending}", b"\xff" * 5000, sent_as, "refused"


def lying_names() -> Made:
    """The content decides, never the ending."""
    for name, data in pictures().items():
        for ending in ("mp4", "txt", "exe"):
            yield f"{name}.{ending}", data, "image", "picture"
        moves = name in ("animated.gif", "animated.webp")
        yield f"{name}.avi", data, "video", "clip" if moves else "refused"
    for name, data in clips().items():
        yield f"{name}.jpg", data, "image", "refused"
        yield f"{name}.png", data, "video", "clip"


def declared_sizes() -> Made:
    """Headers that declare what the file does not hold."""
    for width, height in (
        (30_000, 30_000),
        (60_000, 60_000),
        (0, 10),
        (10, 0),
        (6_000, 6_000),
        (20_000, 2),
    ):
        for name, sized in SIZED.items():
            most = 16_383 if name in ("lossy.webp", "lossless.webp") else 60_000
            data = sized(pictures()[name], min(width, most), min(height, most))
            # A GIF's screen is widened by its frames; one without a size still has a picture.
            # A JPEG that is too large is read at a part of its size, what it lacks as grey.
            filled = width == height == 6_000 and name.endswith(".jpg")
            empty = name == "plain.gif" and 0 in (width, height)
            ends: Ends = "either" if filled or empty else "refused"
            yield f"{width}x{height}_{name}", data, "image", ends


def put(data: bytes, at: int, new: bytes) -> bytes:
    """The data with other bytes in one place, counted from the end where it is negative."""
    at %= len(data)
    return data[:at] + new + data[at + len(new) :]


def _sized_png(data: bytes, width: int, height: int) -> bytes:
    return data[:8] + corpus._chunk(b"IHDR", pack(">II", width, height) + data[24:29]) + data[33:]


def _sized_gif(data: bytes, width: int, height: int) -> bytes:
    frame = data.index(b"\x2c", 13 + 3 * 256 if data[10] & 0x80 else 13)
    size = pack("<HH", width, height)
    return put(put(data, 6, size), frame + 5, size)


def _sized_vp8l(data: bytes, width: int, height: int) -> bytes:
    size = max(width, 1) - 1 | max(height, 1) - 1 << 14
    return put(data, 21, pack("<I", unpack("<I", data[21:25])[0] & ~0xFFFFFFF | size))


def _sized_vp8x(data: bytes, width: int, height: int) -> bytes:
    return put(
        data, 24, b"".join((max(side, 1) - 1).to_bytes(3, "little") for side in (width, height))
    )


SIZED: dict[str, Callable[[bytes, int, int], bytes]] = {
    "plain.png": _sized_png,
    "palette.png": _sized_png,
    "plain.jpg": lambda data, w, h: put(data, data.index(b"\xff\xc0") + 5, pack(">HH", h, w)),
    "progressive.jpg": lambda data, w, h: put(data, data.index(b"\xff\xc2") + 5, pack(">HH", h, w)),
    "plain.gif": _sized_gif,
    "plain.bmp": lambda data, w, h: put(data, 18, pack("<ii", w, h)),
    "lossy.webp": lambda data, w, h: put(data, 26, pack("<HH", w, h)),
    "lossless.webp": _sized_vp8l,
    "animated.webp": _sized_vp8x,
    "plain.avif": lambda data, w, h: put(data, data.index(b"ispe") + 8, pack(">II", w, h)),
}
"""Pictures that declare another size than they have."""


def bombs() -> Made:
    """Small files that become large, or that take long."""
    grey, colour = (
        Image.new("L", (6_000, 6_000), 90),
        Image.new("RGB", (5_100, 5_100), (90, 90, 90)),
    )
    quick: dict[str, dict[str, Any]] = {
        "TIFF": {"compression": "tiff_lzw"},
        "WEBP": {"method": 0},
        "AVIF": {"speed": 10},
    }
    for fmt in ("PNG", "GIF", "WEBP", "TIFF", "JPEG", "AVIF"):
        made = grey if fmt in ("PNG", "GIF", "TIFF") else colour
        data = encode(made, fmt, **quick.get(fmt, {}))
        # A JPEG of a telephone's size is read at a part of it.
        yield f"bomb.{fmt.lower()}", data, "image", "picture" if fmt == "JPEG" else "refused"
    allowed = encode(Image.new("L", (5_000, 5_000), 90), "PNG")
    yield "as_large_as_allowed.png", allowed, "image", "picture"
    png = pictures()["plain.png"]
    zeros = zlib.compress(bytes(200 * 2**20), 9)
    for kind, head in ((b"zTXt", b"k\0\0"), (b"iCCP", b"p\0\0"), (b"iTXt", b"k\0\1\0\0\0")):
        chunk = corpus._chunk(kind, head + zeros)
        yield f"{kind.decode()}_bomb.png", png[:33] + chunk + png[33:], "image", "either"
    jpg = encode(Image.new("L", (2_000, 2_000), 128), "JPEG", progressive=True)
    last = jpg.rindex(b"\xff\xda")
    yield "scan_bomb.jpg", jpg[:-2] + jpg[last:-2] * 5_000 + b"\xff\xd9", "image", "refused"
    # Frames of one pixel, a dozen bytes each; a frame that lies far outside the declared screen.
    for name, gif in {"frames_bomb": gif_of([0] * 60_000), "growing": gif_of([0, 60_000])}.items():
        yield f"{name}.gif", gif, "video", "refused"
        yield f"{name}_as_image.gif", gif, "image", "picture"
    wide = _sized_vp8x(pictures()["animated.webp"], 1 << 24, 255)
    yield "canvas_bomb.webp", wide, "image", "refused"
    yield "canvas_bomb.mp4", wide, "video", "refused"
    animated = pictures()["animated.png"]
    at = animated.index(b"acTL") - 4
    million = put(animated, at, corpus._chunk(b"acTL", pack(">II", 1_000_000, 0)))
    yield "million_frames.png", million, "image", "picture"
    yield "entities.svg", _ENTITIES, "image", "refused"


_ENTITIES = (
    b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + i, b"&%c;" % (97 + i) * 10) for i in range(9))
    + b"]><svg>&j;</svg>"
)


def gif_of(places: Sequence[int]) -> bytes:
    """An animation of one-pixel frames, each so far to the right and down."""
    head = b"GIF89a" + pack("<HHBBB", 4, 4, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    pixel = b"\x02\x02\x4c\x01\x00"  # at the smallest code size
    return (
        head
        + b"".join(b"\x2c" + pack("<HHHHB", at, at, 1, 1, 0) + pixel for at in places)
        + b"\x3b"
    )


def thin_pictures() -> Made:
    """One pixel wide, one pixel high, as thin as is still taken."""
    for fmt, most in (
        ("PNG", 60_000),
        ("JPEG", 60_000),
        ("BMP", 60_000),
        ("GIF", 60_000),
        ("WEBP", 16_000),
    ):
        too_thin = ((1, most), (most, 1), (1, 101), (202, 2))
        for size in (*too_thin, (1, 1), (1, 100), (100, 1), (2, 2)):
            data = encode(Image.new("RGB", size, "red"), fmt)
            ends: Ends = "refused" if size in too_thin else "picture"
            yield f"{size[0]}x{size[1]}.{fmt.lower()}", data, "image", ends


def pixel_kinds() -> Made:
    """Everything a pixel can be."""
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
        "upside_down.bmp": SIZED["plain.bmp"](encode(rgb, "BMP"), corpus.SIZE[0], -corpus.SIZE[1]),
        "transparent.gif": encode(rgb.quantize(8), "GIF", transparency=3),
        "rgba.webp": encode(rgb.convert("RGBA"), "WEBP"),
        "rgba.avif": encode(rgb.convert("RGBA"), "AVIF"),
        "grey.avif": encode(rgb.convert("L"), "AVIF"),
    }
    for name, data in kinds.items():
        yield name, data, "image", "picture"
    for name in ("animated.gif", "animated.webp", "animated.png"):
        yield name, pictures()[name], "image", "picture"
    for name in ("animated.gif", "animated.webp"):
        yield name, pictures()[name], "video", "clip"
    yield "animated.png", pictures()["animated.png"], "video", "refused"


def held_by_the_camera() -> Made:
    """The eight ways to hold a camera, and three that are none, in four formats."""
    for fmt in ("JPEG", "PNG", "WEBP", "AVIF"):
        for held in (*range(1, 9), 0, 9, 65_535):
            data = encode(corpus.stored_for(held), fmt, exif=corpus.exif(held))
            ends: Ends = "either" if fmt == "AVIF" and held not in range(1, 9) else "picture"
            yield f"held_{held}.{fmt.lower()}", data, "image", ends


def interlaced_png() -> bytes:
    """Adam7 with seven passes of one grey each; Pillow reads but does not write them."""
    side, rows = 16, b""
    for x, y, dx, dy in (
        *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
        *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
    ):
        rows += (b"\0" + b"\x80" * len(range(x, side, dx))) * len(range(y, side, dy))
    header = corpus._chunk(b"IHDR", pack(">IIBBBBB", side, side, 8, 0, 0, 0, 1))
    return corpus._png([header, corpus._chunk(b"IDAT", zlib.compress(rows))])


def broken_profiles() -> Made:
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
            yield f"icc_{what}.{fmt.lower()}", data, "image", "either"
    for what, body in {
        "noise": rng.randbytes(300),
        "loop": b"MM\0*\0\0\0\x08\0\x01\x87\x69\0\4\0\0\0\1\0\0\0\x08",
    }.items():
        for fmt in ("JPEG", "PNG", "WEBP"):
            data = encode(halves(), fmt, exif=b"Exif\0\0" + body)
            yield f"exif_{what}.{fmt.lower()}", data, "image", "picture"


def other_documents() -> Made:
    """What is no picture and no clip here, under the name of one, sent as either."""
    documents = {
        "vector.svg": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        "page.html": b"<!DOCTYPE html><script>alert(1)</script>",
        "with_bom.html": b"\xef\xbb\xbf <html><script>alert(1)</script>",
        "document.pdf": b"%PDF-1.7\n" + bytes(200),
        "photo.heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(500),
        "photo.heif": b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic" + bytes(500),
        "phone.heic": corpus_cameras.HEIC,
        "motion_photo.heic": corpus_cameras.HEIC + clips()["clip.mp4"],
        "scan.tiff": encode(halves(), "TIFF"),
        "scan_big_endian.tiff": b"MM\0*" + bytes(100),
        "picture.jxl": b"\xff\x0a" + bytes(100),
        "picture.jp2": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(100),
        "icon.ico": encode(halves((32, 32)), "ICO"),
        "drawing.psd": b"8BPS\0\1" + bytes(100),
        "map.ppm": encode(halves(), "PPM"),
        "old.tga": encode(halves(), "TGA"),
        "old.pcx": encode(halves(), "PCX"),
        "archive.zip": zipped("../../etc/cron.d/x"),
        "packed.png.gz": gzip.compress(pictures()["plain.png"]),
        "program": b"\x7fELF" + bytes(100),
        "program.exe": b"MZ" + bytes(100),
        "words.txt": b"only words\n" * 30,
        "script.sh": b"#!/bin/sh\necho boom\n",
        "playlist.m3u8": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        "list.ffconcat": b"ffconcat version 1.0\nfile /etc/passwd\n",
        "session.sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 1 RTP/AVP 96\n",
        "sound.mp3": b"ID3\4" + bytes(300),
        "sound.wav": b"RIFF" + pack("<I", 36) + b"WAVEfmt " + bytes(30),
        "sound.ogg": b"OggS" + bytes(300),
        "sound.flac": b"fLaC" + bytes(300),
        "film.flv": b"FLV\1\5" + bytes(300),
        "film.wmv": b"\x30\x26\xb2\x75\x8e\x66\xcf\x11" + bytes(300),
        "film.mpg": b"\0\0\1\xba" + bytes(300),
        "film.ts": (b"\x47\x40\0\x10" + bytes(184)) * 5,
        "pickle.bin": b"\x80\4\x95cos\nsystem\n(S'true'\ntR.",
    }
    for name, data in documents.items():
        yield f"{name}.jpg", data, "image", "refused"
        yield f"{name}.mp4", data, "video", "refused"


def zipped(name: str) -> bytes:
    """An archive of one file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, "boom")
    return made.getvalue()


def damaged_pictures() -> Made:
    """Random bits flipped, bytes cut out, blocks swapped, check sums wrong."""
    for name, data in pictures().items():
        for seed in range(6):
            rng = random.Random(f"{name}{seed}")
            yield f"damaged_{seed}_{name}", damage(data, rng), "image", "either"
    png = pictures()["plain.png"]
    for kind in (b"IHDR", b"IDAT", b"IEND"):
        at = png.index(kind)
        (size,) = unpack(">I", png[at - 4 : at])
        yield f"wrong_crc_{kind.decode()}.png", put(png, at + 4 + size, bytes(4)), "image", "either"


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


def polyglots() -> Made:
    """A picture that goes on as something else stays a picture, and nothing else."""
    script = b"<script>alert(1)</script>"
    for name in ("plain.png", "plain.jpg", "lossy.webp", "plain.gif", "plain.bmp", "plain.avif"):
        for what, tail in {"html": script, "zip": zipped("a.txt"), "zeros": bytes(9_000)}.items():
            yield f"{what}_behind_{name}", pictures()[name] + tail, "image", "picture"
    png, jpg, gif = (pictures()[f"plain.{e}"] for e in ("png", "jpg", "gif"))
    commented = corpus_cameras.with_segments(jpg, corpus_cameras.segment(0xFE, script))
    yield "script_inside.jpg", commented, "image", "picture"
    text = corpus._chunk(b"tEXt", b"Comment\0" + script)
    yield "script_inside.png", png[:33] + text + png[33:], "image", "picture"
    yield "script.gif", b"GIF89a=1;alert(1);/*" + gif[20:], "image", "either"
    yield "html_before.png", b"<html>" + png, "image", "refused"
    yield "clip_behind.png", png + clips()["clip.mp4"], "image", "picture"
    yield "clip_behind_sent_as_clip.png", png + clips()["clip.mp4"], "video", "refused"
    yield "picture_behind.mp4", clips()["clip.mp4"] + png, "video", "clip"


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


def odd_names() -> Made:
    """The name never matters, whole or broken."""
    for name in NAMES:
        yield name, pictures()["plain.png"], "image", "picture"
        yield name, pictures()["plain.png"][:40], "image", "refused"
    for name in (*NAMES[:20:4], *NAMES[-3:]):
        yield name, clips()["clip.mp4"], "video", "clip"


# -------------------------------------------------------------------------------------------------
# clips


def clip(name: str, codec: str, n_frames: int = 24) -> bytes:
    """A whole file as OpenCV writes it."""
    with tempfile.TemporaryDirectory() as folder:
        return corpus.write_clip(Path(folder) / name, codec, n_frames).read_bytes()


CODECS = {"clip.mp4": "mp4v", "clip.webm": "VP80", "clip.avi": "MJPG", "clip.mkv": "MJPG"}


@cache
def clips() -> dict[str, bytes]:
    """One whole file of every container."""
    return {name: clip(name, codec) for name, codec in CODECS.items()}


def truncated_clips() -> Made:
    """Cut in the header, in the middle, before the end."""
    for name, data in clips().items():
        n = len(data)
        for at in (3, 40, 300, n // 4, n // 2, n - 40):
            yield f"cut_{at}_{name}", data[:at], "video", "refused" if at <= 40 else "either"


def damaged_clips() -> Made:
    """Bits flipped, bytes cut out and put in."""
    for name, data in clips().items():
        for seed in range(6):
            rng = random.Random(f"{name}{seed}")
            yield f"damaged_{seed}_{name}", damage(data, rng), "video", "either"


Change = Callable[[bytes], bytes | None]
"""What a box of an MP4 holds, changed; None: the box is left out."""
HOLDERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"mvex")


def with_box(data: bytes, changed: bytes, change: Change) -> bytes:
    """An MP4 with every box of one kind changed. Its media data comes first, so that offsets
    hold.
    """
    out, at = b"", 0
    while at + 8 <= len(data):
        size, kind = unpack(">I4s", data[at : at + 8])
        size = len(data) - at if size == 0 else max(size, 8)
        body: bytes | None = data[at + 8 : at + size]
        at += size
        if kind in HOLDERS:
            body = with_box(body, changed, change)
        if kind == changed:
            body = change(body)
        if body is not None:
            out += pack(">I4s", len(body) + 8, kind) + body
    return out


def u32(*values: int) -> bytes:
    return pack(f">{len(values)}I", *values)


def becomes(*values: int, more: bytes = b"") -> Change:
    """The box holds these values alone."""
    return lambda _: u32(*values) + more


def holds(at: int, new: bytes) -> Change:
    """The box holds this in one place."""
    return lambda body: put(body, at, new)


BOXES: dict[str, tuple[bytes, Change, Ends]] = {
    "no_moov.mp4": (b"moov", lambda _: None, "refused"),
    "no_mdat.mp4": (b"mdat", lambda _: None, "refused"),
    "no_track.mp4": (b"trak", lambda _: None, "refused"),
    "no_samples.mp4": (b"stsz", lambda body: body[:8] + u32(0), "refused"),
    "four_billion_frames.mp4": (b"stsz", becomes(0, 10, 2**32 - 1), "refused"),
    "four_billion_chunks.mp4": (b"stco", holds(4, u32(2**32 - 1)), "either"),
    "chunks_outside.mp4": (b"stco", lambda body: body[:8] + u32(2**31), "either"),
    "variable_rate.mp4": (b"stts", becomes(0, 3, 8, 512, 8, 2048, 8, 64), "clip"),
    "no_duration.mp4": (b"stts", becomes(0, 1, 24, 0), "either"),
    "endless.mp4": (b"stts", becomes(0, 1, 24, 2**30), "either"),
    "negative_step.mp4": (b"stts", becomes(0, 2, 12, 512, 12, 2**32 - 400), "either"),
    "no_rate.mp4": (b"mdhd", holds(12, u32(0)), "either"),
    "absurd_rate.mp4": (b"mdhd", holds(12, u32(2**31 - 1)), "either"),
    "huge_track.mp4": (b"stsd", holds(8 + 8 + 24, pack(">HH", 60_000, 60_000)), "either"),
    "huge_display.mp4": (b"tkhd", holds(-8, u32(60_000 << 16, 60_000 << 16)), "either"),
    "wrong_codec.mp4": (b"stsd", holds(12, b"avc1"), "either"),
    "unknown_codec.mp4": (b"stsd", holds(12, b"zzzz"), "either"),
    "sound_only.mp4": (b"hdlr", holds(8, b"soun"), "refused"),
    "starts_before_zero.mp4": (b"elst", becomes(0, 1, 2000, 2**32 - 1, 65536), "either"),
    "external_data.mp4": (b"dref", becomes(0, 1, 24, more=b"url \0\0\0\0/etc/passwd\0"), "either"),
}


def strange_mp4s() -> Made:
    """MP4s whose tables lie."""
    whole = clips()["clip.mp4"]
    for name, (kind, change, ends) in BOXES.items():
        yield name, with_box(whole, kind, change), "video", ends
    nested = b"".join(u32(8 * (2_000 - i)) + b"moov" for i in range(2_000))
    yield "million_frames.mp4", corpus.million_frames(whole), "video", "refused"
    yield "nested.mp4", whole[:32] + nested, "video", "refused"
    yield (
        "box_of_size_one.mp4",
        whole[:28] + u32(1) + b"moov" + pack(">Q", 2**63),
        "video",
        "refused",
    )


def strange_clips() -> Made:
    """The same for AVI, WebM and Matroska, and clips of few frames."""
    avi, webm = clips()["clip.avi"], clips()["clip.webm"]
    header, stream, form = (avi.index(kind) + 8 for kind in (b"avih", b"strh", b"strf"))
    gif, webp = pictures()["animated.gif"], pictures()["animated.webp"]

    def says(*changes: tuple[int, ...]) -> bytes:
        """The AVI with numbers changed: (place, number, number, …)."""
        made = avi
        for at, *values in changes:
            made = put(made, at, pack(f"<{len(values)}I", *values))
        return made

    made: dict[str, tuple[bytes, Ends]] = {
        "million_frames.avi": (says((header + 16, 1_000_000), (stream + 32, 1_000_000)), "refused"),
        "no_frames.avi": (says((header + 16, 0), (stream + 32, 0)), "either"),
        "no_rate.avi": (says((header, 0), (stream + 20, 0, 0)), "either"),
        "absurd_rate.avi": (says((stream + 20, 1, 2**31 - 1)), "either"),
        "one_frame_an_hour.avi": (says((stream + 20, 3_600, 1)), "refused"),
        "huge.avi": (says((header + 32, 60_000, 60_000), (form + 4, 60_000, 60_000)), "either"),
        "negative_height.avi": (says((form + 8, 2**32 - 64)), "either"),
        "no_size.avi": (says((header + 32, 0, 0), (form + 4, 0, 0)), "either"),
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
        "no_frame.mp4": (clip("a.mp4", "mp4v", 0) or b"\0", "refused"),
        "still.gif": (pictures()["plain.gif"], "refused"),
        "no_delay.gif": (gif.replace(b"\x21\xf9\x04\x08\x08\0", b"\x21\xf9\x04\x08\0\0"), "clip"),
        "cut.gif": (gif[:-900], "either"),
        "cut.webp": (webp[:-900], "either"),
    }
    for name, codec in list(CODECS.items())[:3]:
        for n_frames in (1, 2):
            made[f"{n_frames}_frame.{name[5:]}"] = (clip(name, codec, n_frames), "clip")
    for name, (data, ends) in made.items():
        yield name, data, "video", ends


def huge_webm(webm: bytes) -> bytes:
    """PixelWidth and PixelHeight as large as their elements hold."""
    for element in (b"\xb0\x81", b"\xba\x81", b"\xb0\x82", b"\xba\x82"):
        if (at := webm.find(element)) >= 0:
            webm = put(webm, at + 2, b"\xff" * (element[1] - 0x80))
    return webm


def fat(filling: bytes) -> bytes:
    """A JPEG with 20 MB behind its first segment."""
    jpg = pictures()["plain.jpg"]
    return jpg[:20] + filling * 20_000_000 + jpg[20:]


def cameras() -> Made:
    """Motion photos, fat blocks of a camera's own, thumbnails: one picture each; real scans are
    counted.
    """
    for name, data in corpus_cameras.layouts():
        yield name, data, "image", "picture"
    for n in (100, 400):
        yield f"scans_{n}.jpg", corpus_cameras.scan_bomb(n), "image", "refused"
    for name, data in {
        "no_end_of_segments.jpg": b"\xff\xd8" + b"\xff\xe0\0\0" * 10_000_000,
        "fill_bytes_alone.jpg": b"\xff\xd8" + b"\xff" * 4_000_000,
        "fill_bytes_before_the_pixels.jpg": fat(b"\xff"),
        "zeros_before_the_pixels.jpg": fat(b"\0"),
        "longer_than_the_file.jpg": b"\xff\xd8\xff\xe1\xff\xff" + b"\xff\xda" * 200,
    }.items():
        yield name, data, "image", "refused"


FAMILIES: dict[str, Callable[[], Made]] = {
    "truncated picture": truncated_pictures,
    "empty": empty_files,
    "lying name": lying_names,
    "declared size": declared_sizes,
    "bomb": bombs,
    "thin": thin_pictures,
    "kind of pixel": pixel_kinds,
    "held by the camera": held_by_the_camera,
    "broken profile": broken_profiles,
    "other document": other_documents,
    "damaged picture": damaged_pictures,
    "polyglot": polyglots,
    "odd name": odd_names,
    "truncated clip": truncated_clips,
    "damaged clip": damaged_clips,
    "strange MP4": strange_mp4s,
    "strange clip": strange_clips,
    "camera layout": cameras,
}


def cases(without: Collection[str] = ()) -> Iterator[Case]:
    """The files of all families but some, in a fixed order; a family at a time, for all are
    large.
    """
    for family in [name for name in FAMILIES if name not in without]:
        yield from [Case(family, *made) for made in FAMILIES[family]()]


def decode_forked() -> None:
    """What a decoding process does, in a fork of this one: under the same limits, but it starts at
    once.
    """
    os.closerange(3, 256)  # one of them would keep whoever forked waiting for a program to begin
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    worker.main()


def attempt(case: Case, folder: Path) -> tuple[str, str]:
    """How a case ends, and what is said."""
    path = case.write(folder)
    try:
        found = (load_picture if case.sent_as == "image" else load_clip)(path)
    except MediaError as refusal:
        return "refused", str(refusal)
    finally:
        path.unlink()
    for image in found.frames if isinstance(found, VideoFrames) else [found]:
        assert image.mode == "RGB" and image.width * image.height <= Limits().max_pixels
    return "clip" if isinstance(found, VideoFrames) else "picture", ""


COLUMNS = ("tried", "picture", "clip", "refused")


def try_all(forked: bool = True) -> dict[str, Any]:
    """{"rows": {family: {"tried", "picture", "clip", "refused", "slowest_s"}}, "wrong": [...],
    "peak_mb"}.

    wrong: cases that ended otherwise than they may, and refusals that are not one clear sentence.
    slowest_s: seconds of computing, the decoding process's and ours.
    """
    if forked:
        import cv2  # noqa: F401 - once, for all children

        load.subprocess.Popen = partial(subprocess.Popen, preexec_fn=decode_forked)
    rows = {family: dict.fromkeys((*COLUMNS, "slowest_s"), 0.0) for family in FAMILIES}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            row, before = rows[case.family], _spent()
            ended, said = attempt(case, Path(folder))
            row["tried"] += 1
            row[ended] += 1
            row["slowest_s"] = max(row["slowest_s"], _spent() - before)
            if case.ends not in (ended, "either"):
                wrong.append(
                    f"{case.family}: {case.name!r} ended as {ended}, not {case.ends} {said}"
                )
            if said and not is_one_sentence(said):
                wrong.append(f"{case.family}: {case.name!r} said {said!r}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"rows": rows, "wrong": wrong, "peak_mb": round(peak)}


def is_one_sentence(said: str) -> bool:
    """On one line, with an end, not long, nothing in it that a terminal would obey."""
    return (
        said.endswith(".")
        and len(said) < 300
        and all(c.isprintable() or c == "\u200d" for c in said)
    )


def _spent() -> float:
    mine, theirs = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return sum(who.ru_utime + who.ru_stime for who in (mine, theirs))


def main() -> None:
    """Try them all and print what became of them, by family; --json for a program."""
    found = try_all(forked="--start" not in sys.argv)
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps(found))
        return
    rows = found["rows"]
    rows["all"] = {column: sum(row[column] for row in rows.values()) for column in COLUMNS}
    sys.stdout.write(f"| family | {' | '.join(COLUMNS)} |\n|---|{'---:|' * len(COLUMNS)}\n")
    for name, row in rows.items():
        sys.stdout.write(f"| {name} | {' | '.join(f'{row[column]:.0f}' for column in COLUMNS)} |\n")
    slowest = max(row.get("slowest_s", 0) for row in rows.values())
    sys.stdout.write(
        f"\nAt most {slowest:.1f} s of CPU and {found['peak_mb']} MB for a file. Wrong endings:\n"
    )
    sys.stdout.writelines(f"{line}\n" for line in found["wrong"])


if __name__ == "__main__":
    main()
