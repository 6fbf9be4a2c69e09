"""JPEG files laid out as cameras and phones lay them out: what stands around the one picture in
them.

Every file is built here by hand, segment by segment (ISO 10918-1, annex B).
"""

from __future__ import annotations

import base64
import random
import struct
import zlib
from collections.abc import Iterator

from tests import corpus
from tests.corpus import encode, halves

SCAN = b"\xff\xda"
"""Begins a scan; this many of them in what is no part of the image must not matter."""
CLIP_BYTES = 9_000_000
HEIC = zlib.decompress(
    base64.b85decode(
        b"c-muNV30{GsVvAy%}izhg51nBLl8SRGck>UfiWyMwIq=N0u(b+a*CjAhJwuG5(YG&l$nzcHpIn&fe{FSfUycfgJg"
        b"kNIWsda4a@_HiUK*QOi*4%S+XIB$ybnBk_%UIEwiAg07!4oEJ)4=(iK2u&Wy|;p$T9`avvD}{QdERfq|bn0jNX5f"
        b"su#t|9_AIW{?VI5R%))<d6uI)OKQIM3Y&d(8xONm8a&qJSHg~4v^3Z5W(S)1XR!N!g#P~gOUT#8sX&poT9wsoC=^"
        b"YF9TZxP)H=RxF8kkHwP#dD9EhH1PL&6Z~#qX5YH^gg#{llL|7V`m|1{Kt=yDEQ0U2NFs^5j;3}T3E?fWKNbu(m?$"
        b"&(K|Ff6LO|1SM-E9s4xRp$|"
    )
)
"""A whole picture of 64 by 64 pixels as phones keep theirs (HEVC in HEIF)."""


def segment(marker: int, content: bytes) -> bytes:
    """One marker segment: its length counts itself."""
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    """A JPEG with segments right behind its start."""
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def clip(n: int = CLIP_BYTES) -> bytes:
    """Something like a phone's clip, full of what would begin a scan."""
    noise = random.Random(7).randbytes(n // 1000)
    return (
        struct.pack(">I", 24)
        + b"ftypmp42\0\0\0\0mp42isom"
        + (noise + SCAN) * (n // (len(noise) + 2))
    )


def layouts() -> Iterator[tuple[str, bytes]]:
    """(name, file): each holds one picture that anybody can open."""
    plain = encode(halves(), "JPEG", quality=90)
    thumbnail = encode(halves((48, 32)), "JPEG")
    motion = (
        b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description '
        b'GCamera:MotionPhoto="1" GCamera:MotionPhotoVersion="1"/></x:xmpmeta>'
    )
    yield "motion_photo_google.jpg", with_segments(plain, segment(0xE1, motion)) + clip()
    samsung = b"\0\0\x30\x0a\x10\0\0\0MotionPhoto_Data" + clip() + b"SEFH\x6a\0\0\0\1\0\0\0SEFT"
    yield "motion_photo_samsung.jpg", plain + samsung
    # Thumbnails: in Exif, in a maker's block that is spread over segments, and previews behind the
    # end.
    exif = b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + thumbnail
    yield "thumbnail_in_exif.jpg", with_segments(plain, segment(0xE1, exif))
    yield "preview_behind_the_end.jpg", plain + thumbnail * 150
    yield "many_thumbnails.jpg", with_segments(plain, *[segment(0xE2, thumbnail)] * 150)
    # Blocks of 13 MB that are spread over as many segments as it takes.
    fat = random.Random(8).randbytes(60_000) + SCAN * 10
    yield "fat_maker_notes.jpg", with_segments(plain, *[segment(0xEB, fat)] * 215)
    yield "fat_exif.jpg", with_segments(plain, *[segment(0xE1, b"Exif\0\0" + fat)] * 215)
    depth = segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0" + fat)
    yield "depth_map.jpg", with_segments(plain, *[depth] * 40)
    # What a sloppy writer may do, and decoders pass over.
    yield "filled.jpg", plain.replace(b"\xff\xdb", b"\xff" * 500 + b"\xff\xdb", 1)
    yield "comments.jpg", with_segments(plain, *[segment(0xFE, SCAN * 20_000)] * 20)
    yield "restarts.jpg", encode(halves(), "JPEG", restart_marker_blocks=1)
    yield (
        "turned_by_the_camera.jpg",
        encode(corpus.stored_for(6), "JPEG", exif=corpus.exif(6)) + clip(500_000),
    )


def scan_bomb(n: int = 400) -> bytes:
    """A progressive JPEG that goes over its pixels that often: real scans, a few bytes each."""
    whole = encode(halves(), "JPEG", progressive=True)
    last = whole.rindex(SCAN)
    return whole[:last] + whole[last:-2] * n + whole[-2:]
