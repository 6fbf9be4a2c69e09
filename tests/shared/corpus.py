"""Pictures and clips made on the spot, for the tests of everything that takes uploads.

First whole ones, whose right decoding is known: left half red, right half blue. Then bad and odd
ones, a file a format and defect, and files laid out as cameras lay them out: `cases()` gives each
with how it may end: `picture`, `clip`, `refused`, or `either` (decoded or refused, as the damage
happens to fall). Seeded, so that everybody tries the same bytes. Run as a module it tries all of
them, each in a decoding process of its own, and prints what ended otherwise.
"""

import io
import json
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from struct import pack, unpack
from typing import Literal

import numpy as np
from PIL import Image

from specvl_demo.media import Limits, MediaError, MediaFile, VideoFrames, load, load_files, worker

RED, BLUE = (220, 30, 30), (30, 40, 220)
SIZE = (64, 48)


def halves(size: tuple[int, int] = SIZE) -> Image.Image:
    """Left half red, right half blue."""
    image = Image.new("RGB", size, RED)
    image.paste(BLUE, (size[0] // 2, 0, size[0], size[1]))
    return image


def load_picture(path: str | Path) -> Image.Image:
    return load_files([MediaFile(str(path), "picture")])[0]


def load_clip(path: str | Path, n_frames: int = 8) -> VideoFrames:
    return load_files([MediaFile(str(path), "clip")], n_frames)[0]


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
    # Pillow's numbers of what undoes the orientations 2 to 8.
    undo = (0, 3, 1, 5, 2, 6, 4)
    return (
        halves().transpose(Image.Transpose(undo[orientation - 2])) if orientation > 1 else halves()
    )


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
    files |= {f"animated.{f.lower()}": encode(rgb, f, **moving) for f in ("PNG", "WEBP", "GIF")}
    files |= {
        "palette.bmp": encode(rgb.quantize(8), "BMP"),
        "palette_alpha.png": encode(rgb.quantize(8), "PNG", transparency=7),
        "alpha.png": encode(clear, "PNG"),
        "cmyk.jpg": encode(rgb.convert("CMYK"), "JPEG", quality=95),
        "lying.mp4": encode(rgb, "PNG"),
        "16bit_rgb.png": _png_16bit(np.asarray(rgb).astype(np.uint16) * 257),
    }
    for held in range(1, 9):
        files[f"exif{held}.jpg"] = encode(
            stored_for(held), "JPEG", quality=95, subsampling=0, exif=exif(held)
        )
    return files


def grey_16bit() -> bytes:
    """A 16-bit grey PNG: left half a quarter of full scale, right half three quarters."""
    width, height = SIZE
    values = np.full((height, width), 16_384, np.uint16)
    values[:, width // 2 :] = 49_152
    return encode(Image.fromarray(values), "PNG")


def write_clip(path: Path, codec: str = "mp4v", n_frames: int = 24) -> Path:
    """A clip of `halves`, its red growing frame by frame, written by OpenCV."""
    import cv2

    width, height = 96, 64
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 12.0, (width, height))
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


@cache
def pictures() -> dict[str, bytes]:
    """One whole file of every kind of encoding."""
    image = halves()
    # Noise, so that the compressed data is not a few bytes.
    image = Image.blend(image, Image.effect_noise(SIZE, 80).convert("RGB"), 0.2)
    moving = [image.rotate(90 * i) for i in range(1, 4)]
    animated = {"save_all": True, "append_images": moving, "duration": 80}
    return {
        "plain.jpg": encode(image, "JPEG"),
        "lossy.webp": encode(image, "WEBP"),
        **{f"plain.{fmt.lower()}": encode(image, fmt) for fmt in ("PNG", "GIF", "BMP", "AVIF")},
        **{
            f"animated.{fmt.lower()}": encode(image, fmt, **animated)
            for fmt in ("PNG", "GIF", "WEBP")
        },
    }


def clip(name: str, codec: str, n_frames: int = 24) -> bytes:
    """A whole file as OpenCV writes it."""
    with tempfile.TemporaryDirectory() as folder:
        return write_clip(Path(folder) / name, codec, n_frames).read_bytes()


CODECS = {"clip.mp4": "mp4v", "clip.webm": "VP80", "clip.avi": "MJPG", "clip.mkv": "MJPG"}


@cache
def clips() -> dict[str, bytes]:
    """One whole file of every container."""
    return {name: clip(name, codec) for name, codec in CODECS.items()}


def put(data: bytes, at: int, new: bytes) -> bytes:
    """The data with other bytes in one place, counted from the end where it is negative."""
    at %= len(data)
    return data[:at] + new + data[at + len(new) :]


def damage(data: bytes, seed: str) -> bytes:
    """Bits flipped, bytes cut out and put in, somewhere."""
    rng, made = random.Random(seed), bytearray(data)
    for _ in range(8):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    at = rng.randrange(len(made))
    made[at : at + 30] = rng.randbytes(rng.randrange(60))
    return bytes(made)


def broken() -> Made:
    """Every format: cut, damaged, under a wrong name, with a tail, as what it is not."""
    for name, data in pictures().items():
        yield f"cut_{name}", data[:40], "image", "refused"
        yield f"damaged_{name}", damage(data, name), "image", "either"
        yield f"{name}.exe", data + b"<script>alert(1)</script>", "image", "picture"
        moves = name in ("animated.gif", "animated.webp")
        yield f"{name}.avi", data, "video", "clip" if moves else "refused"
    for name, data in clips().items():
        yield f"cut_{name}", data[:40], "video", "refused"
        yield f"half_{name}", data[: len(data) // 2], "video", "either"
        yield f"damaged_{name}", damage(data, name), "video", "either"
        yield f"{name}.jpg", data, "image", "refused"
        yield f"{name}.png", data, "video", "clip"
    for name in ("empty.png", "empty.mp4"):
        yield name, b"", "video" if name.endswith("mp4") else "image", "refused"


def _sized_png(data: bytes, width: int, height: int) -> bytes:
    return data[:8] + _chunk(b"IHDR", pack(">II", width, height) + data[24:29]) + data[33:]


def _sized_gif(data: bytes, width: int, height: int) -> bytes:
    frame = data.index(b"\x2c", 13 + 3 * 256 if data[10] & 0x80 else 13)
    size = pack("<HH", width, height)
    return put(put(data, 6, size), frame + 5, size)


SIZED = {
    "plain.png": _sized_png,
    "plain.jpg": lambda data, w, h: put(data, data.index(b"\xff\xc0") + 5, pack(">HH", h, w)),
    "plain.gif": _sized_gif,
    "plain.bmp": lambda data, w, h: put(data, 18, pack("<ii", w, h)),
    "lossy.webp": lambda data, w, h: put(data, 26, pack("<HH", min(w, 16_383), min(h, 16_383))),
    "plain.avif": lambda data, w, h: put(data, data.index(b"ispe") + 8, pack(">II", w, h)),
}
"""Pictures that declare another size than they have."""


def too_large() -> Made:
    """Headers that declare what the file does not hold, thin pictures, files that become large."""
    for name, sized in SIZED.items():
        yield f"declared_{name}", sized(pictures()[name], 30_000, 30_000), "image", "refused"
    yield "no_width.png", _sized_png(pictures()["plain.png"], 0, 10), "image", "refused"
    for fmt in ("PNG", "JPEG", "BMP", "GIF", "WEBP"):
        data = encode(Image.new("RGB", (1, 101), "red"), fmt)
        yield f"thin.{fmt.lower()}", data, "image", "refused"
    for fmt, mode in (("PNG", "L"), ("GIF", "L"), ("JPEG", "RGB")):
        data = encode(Image.new(mode, (6_000, 6_000)), fmt)
        # A JPEG of a telephone's size is read at a part of it.
        yield f"bomb.{fmt.lower()}", data, "image", "picture" if fmt == "JPEG" else "refused"
    allowed = encode(Image.new("L", (5_000, 5_000), 90), "PNG")
    yield "as_large_as_allowed.png", allowed, "image", "picture"
    png, zeros = pictures()["plain.png"], zlib.compress(bytes(200 * 2**20), 9)
    for kind, head in ((b"zTXt", b"k\0\0"), (b"iCCP", b"p\0\0")):
        chunk = _chunk(kind, head + zeros)
        yield f"{kind.decode()}_bomb.png", png[:33] + chunk + png[33:], "image", "either"
    # Frames of one pixel, a dozen bytes each; a frame that lies far outside the declared screen.
    for name, gif in {"frames_bomb": gif_of([0] * 60_000), "growing": gif_of([0, 60_000])}.items():
        yield f"{name}.gif", gif, "video", "refused"
    animated = pictures()["animated.png"]
    at = animated.index(b"acTL") - 4
    million = put(animated, at, _chunk(b"acTL", pack(">II", 1_000_000, 0)))
    yield "million_frames.png", million, "image", "picture"
    fat = pictures()["plain.jpg"]
    yield "scans.jpg", scan_bomb(), "image", "refused"
    yield "no_end_of_segments.jpg", b"\xff\xd8" + b"\xff\xe0\0\0" * 10_000_000, "image", "refused"
    yield "zeros_inside.jpg", fat[:20] + bytes(20_000_000) + fat[20:], "image", "refused"


def gif_of(places: Sequence[int]) -> bytes:
    """An animation of one-pixel frames, each so far to the right and down."""
    head = b"GIF89a" + pack("<HHBBB", 4, 4, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    pixel = b"\x02\x02\x4c\x01\x00"  # at the smallest code size
    return (
        head
        + b"".join(b"\x2c" + pack("<HHHHB", at, at, 1, 1, 0) + pixel for at in places)
        + b"\x3b"
    )


def other_documents() -> Made:
    """What is no picture and no clip here, under the name of one, sent as either."""
    documents = {
        "vector.svg": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        "document.pdf": b"%PDF-1.7\n" + bytes(200),
        "phone.heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(500),
        "scan.tiff": encode(halves(), "TIFF"),
        "playlist.m3u8": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
    }
    for name, data in documents.items():
        yield f"{name}.jpg", data, "image", "refused"
        yield f"{name}.mp4", data, "video", "refused"


NAMES = (
    "--help",
    "$(reboot).png",
    "..%2f..%2fetc%2fpasswd",
    "{name}{0}%s.png",
    "escape\x1b[2J\x1b]0;title\x07\n.png",
    "right-to-left \u202egnp.exe",
    "x" * 240 + ".png",
    "half\udcff\udcfe.png",  # bytes that are no UTF-8, as the system hands them over
)


def odd_names() -> Made:
    """The name never matters, whole or broken."""
    for name in NAMES:
        yield name, pictures()["plain.png"], "image", "picture"
        yield name, pictures()["plain.png"][:40], "image", "refused"


Change = Callable[[bytes], bytes | None]
"""What a box of an MP4 holds, changed; None: the box is left out."""
HOLDERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"mvex")


def with_box(data: bytes, changed: bytes, change: Change) -> bytes:
    """An MP4 with every box of one kind changed. Media data comes first, so that offsets hold."""
    out, at = b"", 0
    while at + 8 <= len(data):
        size, kind = unpack(">I4s", data[at : at + 8])
        size = len(data) - at if size == 0 else max(size, 8)
        body = data[at + 8 : at + size]
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


BOXES = {
    "no_moov.mp4": (b"moov", lambda _: None, "refused"),
    "no_samples.mp4": (b"stsz", lambda body: body[:8] + u32(0), "refused"),
    "four_billion_frames.mp4": (b"stsz", becomes(0, 10, 2**32 - 1), "refused"),
    "variable_rate.mp4": (b"stts", becomes(0, 3, 8, 512, 8, 2048, 8, 64), "clip"),
    "negative_step.mp4": (b"stts", becomes(0, 2, 12, 512, 12, 2**32 - 400), "either"),
    "huge_track.mp4": (b"stsd", holds(8 + 8 + 24, pack(">HH", 60_000, 60_000)), "either"),
    "sound_only.mp4": (b"hdlr", holds(8, b"soun"), "refused"),
    "external_data.mp4": (b"dref", becomes(0, 1, 24, more=b"url \0\0\0\0/etc/passwd\0"), "either"),
}


def strange_clips() -> Made:
    """MP4, AVI, WebM and GIF whose tables lie, and clips of few frames."""
    mp4, webm, avi = (clips()[f"clip.{ending}"] for ending in ("mp4", "webm", "avi"))
    for name, (kind, change, ends) in BOXES.items():
        yield name, with_box(mp4, kind, change), "video", ends
    nested = b"".join(u32(8 * (2_000 - i)) + b"moov" for i in range(2_000))
    header, stream = (avi.index(kind) + 8 for kind in (b"avih", b"strh"))
    million = pack("<I", 1_000_000)
    gif = pictures()["animated.gif"]
    made = {
        "million_frames.mp4": (million_frames(mp4), "refused"),
        "nested.mp4": (mp4[:32] + nested, "refused"),
        "million.avi": (put(put(avi, header + 16, million), stream + 32, million), "refused"),
        "one_frame_an_hour.avi": (put(avi, stream + 20, pack("<II", 3_600, 1)), "refused"),
        "sound_only.avi": (avi.replace(b"vids", b"auds"), "refused"),
        "sound_only.webm": (webm.replace(b"\x83\x81\x01", b"\x83\x81\x02"), "refused"),
        "unknown_codec.webm": (webm.replace(b"V_VP8", b"V_XXX"), "refused"),
        "only_magic.webm": (b"\x1aE\xdf\xa3" * 50, "refused"),
        "no_frame.mp4": (clip("a.mp4", "mp4v", 0) or b"\0", "refused"),
        "one_frame.webm": (clip("a.webm", "VP80", 1), "clip"),
        "no_delay.gif": (gif.replace(b"\x21\xf9\x04\x08\x08\0", b"\x21\xf9\x04\x08\0\0"), "clip"),
    }
    for name, (data, ends) in made.items():
        yield name, data, "video", ends


SCAN = b"\xff\xda"
"""Begins a scan; this many of them in what is no part of the image must not matter."""
CLIP_BYTES = 9_000_000


def segment(marker: int, content: bytes) -> bytes:
    """One marker segment: its length counts itself."""
    return pack(">BBH", 0xFF, marker, len(content) + 2) + content


def with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    """A JPEG with segments right behind its start."""
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def phone_clip(n: int = CLIP_BYTES) -> bytes:
    """Something like a phone's clip, full of what would begin a scan."""
    noise = random.Random(7).randbytes(n // 1000)
    return pack(">I", 24) + b"ftypmp42\0\0\0\0mp42isom" + (noise + SCAN) * (n // (len(noise) + 2))


def layouts() -> Iterator[tuple[str, bytes]]:
    """(name, file): each holds one picture that anybody can open."""
    plain = encode(halves(), "JPEG", quality=90)
    thumbnail = encode(halves((48, 32)), "JPEG")
    motion = (
        b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description '
        b'GCamera:MotionPhoto="1" GCamera:MotionPhotoVersion="1"/></x:xmpmeta>'
    )
    yield "motion_photo_google.jpg", with_segments(plain, segment(0xE1, motion)) + phone_clip()
    # Thumbnails in a maker's block that is spread over segments.
    yield "many_thumbnails.jpg", with_segments(plain, *[segment(0xE2, thumbnail)] * 150)
    # A block of 13 MB that is spread over as many segments as it takes.
    fat = random.Random(8).randbytes(60_000) + SCAN * 10
    yield "fat_maker_notes.jpg", with_segments(plain, *[segment(0xEB, fat)] * 215)
    # What a sloppy writer may do, and decoders pass over.
    yield "filled.jpg", plain.replace(b"\xff\xdb", b"\xff" * 500 + b"\xff\xdb", 1)
    yield "restarts.jpg", encode(halves(), "JPEG", restart_marker_blocks=1)
    turned_photo = encode(stored_for(6), "JPEG", exif=exif(6))
    yield "turned_by_the_camera.jpg", turned_photo + phone_clip(500_000)


def scan_bomb() -> bytes:
    """A progressive JPEG that goes over its pixels 400 times: real scans, a few bytes each."""
    whole = encode(halves(), "JPEG", progressive=True)
    last = whole.rindex(SCAN)
    return whole[:last] + whole[last:-2] * 400 + whole[-2:]


FAMILIES = {
    "broken": broken,
    "too large": too_large,
    "other document": other_documents,
    "odd name": odd_names,
    "strange clip": strange_clips,
}


def cases() -> Iterator[Case]:
    """The files of all families, in a fixed order."""
    for family, made in FAMILIES.items():
        yield from (Case(family, *file) for file in made())


def decode_forked() -> None:
    """What a decoding process does, in a fork of this one: same limits, but it starts at once."""
    os.closerange(3, 256)  # one of them would keep whoever forked waiting for a program to begin
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    worker.main()


def attempt(case: Case, folder: Path) -> tuple[str, str]:
    """How a case ends, and what is said."""
    path = folder / case.name
    path.write_bytes(case.data)
    try:
        found = (load_picture if case.sent_as == "image" else load_clip)(path)
    except MediaError as refusal:
        return "refused", str(refusal)
    finally:
        path.unlink()
    for image in found.frames if isinstance(found, VideoFrames) else [found]:
        assert image.mode == "RGB" and image.width * image.height <= Limits.max_pixels
    return "clip" if isinstance(found, VideoFrames) else "picture", ""


def is_one_sentence(said: str) -> bool:
    """On one line, with an end, not long, nothing in it that a terminal would obey."""
    return (
        said.endswith(".")
        and len(said) < 300
        and all(c.isprintable() or c == "\u200d" for c in said)
    )


def main() -> None:
    """Try them all and print, as JSON, how many there were, which ended otherwise than they may or
    were refused in something else than one clear sentence, and what the largest process took.
    """
    import cv2  # noqa: F401 - once, for all that are forked

    load.subprocess.Popen = partial(subprocess.Popen, preexec_fn=decode_forked)
    tried, wrong = list(cases()), []
    with tempfile.TemporaryDirectory() as folder:
        for case in tried:
            ended, said = attempt(case, Path(folder))
            if case.ends not in (ended, "either") or not is_one_sentence(said or "."):
                wrong.append(f"{case.family}: {case.name!r} is {ended}, not {case.ends}: {said}")
    peak_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    sys.stdout.write(json.dumps({"tried": len(tried), "wrong": wrong, "peak_mb": peak_kb / 1024}))


if __name__ == "__main__":
    main()
