"""Uploads: content decides, limits hold before decoding, every file ends in a picture or a
sentence.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from specvl_demo import media
from specvl_demo.media import Limits, MediaError, load, load_any
from specvl_demo.media.files import sniff
from specvl_demo.media.pictures import count_scans, open_picture
from specvl_demo.media.pictures import decoded as decoded_picture
from tests import corpus
from tests.corpus import load_clip, load_picture
from tests.robustness import corpus_cameras

GOOD = corpus.good_pictures()


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    corpus.write_clip(folder / "clip.mp4")
    corpus.write_clip(folder / "clip.webm", "VP80")
    corpus.write_clip(folder / "clip.avi", "MJPG")
    return folder


def decoded(data: bytes) -> Image.Image:
    return decoded_picture(open_picture(data, sniff(data), Limits()))


def near(pixel: tuple[int, ...], wanted: tuple[int, ...], by: int = 40) -> bool:
    return all(abs(a - b) <= by for a, b in zip(pixel, wanted, strict=True))


@pytest.mark.parametrize("name", GOOD)
def test_whole_pictures_decode_upright_in_rgb(name: str) -> None:
    image = decoded(GOOD[name])
    assert (image.mode, image.size) == ("RGB", corpus.SIZE)
    width, height = image.size
    assert near(image.getpixel((width // 4, height // 2)), corpus.RED)
    assert near(image.getpixel((3 * width // 4, height // 2)), corpus.BLUE)


def test_16_bit_grey_keeps_its_range() -> None:
    image = decoded(corpus.grey_16bit())
    assert near(image.getpixel((5, 5)), (64, 64, 64), 1)
    assert near(image.getpixel((60, 5)), (191, 191, 191), 1)


def test_transparency_lies_on_white() -> None:
    image = decoded(GOOD["alpha.png"])
    assert image.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    "data", [pytest.param(data, id=name) for name, data in corpus_cameras.layouts()]
)
def test_what_a_camera_puts_around_its_picture_is_no_reason_to_refuse_it(data: bytes) -> None:
    assert count_scans(data) == 1
    picture = decoded(data)
    assert picture.size == corpus.SIZE
    assert near(picture.getpixel((8, 24)), corpus.RED) and near(
        picture.getpixel((56, 24)), corpus.BLUE
    )


def test_scans_of_the_picture_itself_are_counted() -> None:
    assert count_scans(corpus_cameras.scan_bomb(400)) > 400
    with pytest.raises(ValueError, match="too many segments"):
        count_scans(b"\xff\xd8" + b"\xff\xe0\0\0" * 20_000)
    plain = corpus.encode(corpus.halves(), "JPEG")
    for filling in (b"\xff", b"\0"):
        assert count_scans(plain[:2] + filling * 1_000 + plain[2:]) == 1
        with pytest.raises(ValueError, match="too many bytes"):
            count_scans(plain[:2] + filling * 100_000 + plain[2:])


@pytest.mark.parametrize("decoder", ["opencv", "decord"])
@pytest.mark.parametrize("name", ["clip.mp4", "clip.webm", "clip.avi"])
def test_clips_are_sampled_uniformly_with_their_times(
    clips: Path, name: str, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if decoder == "decord":
        pytest.importorskip("decord")
    monkeypatch.setenv("SPECVL_CLIPS", decoder)
    clip = load_clip(clips / name, n_frames=4)
    assert len(clip.frames) == 4
    assert clip.times_s == pytest.approx((0, 8 / 12, 15 / 12, 23 / 12), abs=0.02)
    reds = [frame.getpixel((20, 30))[0] for frame in clip.frames]
    assert all(abs(red - 255 * i / 23) < 25 for red, i in zip(reds, (0, 8, 15, 23), strict=True))


def test_a_short_clip_gives_all_its_frames(tmp_path: Path) -> None:
    clip = load_clip(corpus.write_clip(tmp_path / "short.mp4", n_frames=3), n_frames=8)
    assert len(clip.frames) == 3


def test_both_decoders_agree_and_turn_a_phone_clip_upright(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long clip, which is sought in, gives the same frames as one that is read through."""
    from specvl_demo.media import worker as media_worker

    pytest.importorskip("decord")

    path = tmp_path / "turned.mp4"
    path.write_bytes(corpus.turned((clips / "clip.mp4").read_bytes()))
    limits = Limits()
    with path.open("rb") as file:
        source = media_worker.Readable(file)
        _, declared = media_worker.probe(source, limits)
        by_decord, times, n = media_worker.by_decord(source, 4)
        by_opencv, times_cv, n_cv = media_worker.by_opencv(source, declared, 4, limits)
        monkeypatch.setattr(media_worker, "READ_THROUGH", 20)
        sought, times_sought, _ = media_worker.by_opencv(source, declared, 4, limits)
    assert times_sought == times_cv and all(map(np.array_equal, sought, by_opencv))
    assert n == n_cv == 24 and times == pytest.approx(times_cv, abs=0.02)
    for a, b in zip(by_decord, by_opencv, strict=True):
        assert a.shape == b.shape == (96, 64, 3)
        assert np.abs(a.astype(int) - b.astype(int)).mean() < 4
    top, bottom = by_decord[-1][10, 30].tolist(), by_decord[-1][85, 30].tolist()
    assert near(top, (255, 0, 0)) and near(bottom, (0, 0, 255))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_decoder_ends_with_the_process_that_waits_for_it(tmp_path: Path) -> None:
    """It hangs on a file that never comes; the process that started it is killed."""
    os.mkfifo(tmp_path / "never.png")
    held = os.open(tmp_path / "never.png", os.O_RDWR)  # so that it can be opened
    item = {
        "path": str(tmp_path / "never.png"),
        "kind": "PNG",
        "want": "picture",
        "clips": "opencv",
    }
    asked = {"items": [item], "n_frames": 1, "limits": vars(Limits())}
    command = [sys.executable, "-m", "specvl_demo.media.worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as decoder:
        decoder.stdin.write(json.dumps(asked).encode() + b"\n")
        decoder.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            decoder.wait(2)
        decoder.stdin.close()
        assert decoder.wait(60) == 1
    os.close(held)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without packages."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=os.name != "nt")
    return Path(sysconfig.get_path("scripts", "venv", {"base": str(folder)})) / "python"


def test_a_decoder_imports_from_where_its_parent_does(bare: Path, tmp_path: Path) -> None:
    """Whether that is PYTHONPATH, a folder of `pip --target`, or only the parent's `sys.path`."""
    picture = tmp_path / "plain.png"
    picture.write_bytes(GOOD["plain.png"])
    asked = f"import specvl_demo.media as m; print(m.load_media([{str(picture)!r}])[0][0].size)"
    packages = [entry for entry in sys.path if entry]
    for code, path in ((asked, packages), (f"import sys; sys.path += {packages}; {asked}", [])):
        done = subprocess.run(
            [bare, "-c", code],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
        )
        assert (done.stdout.strip(), done.stderr) == (str(corpus.SIZE), "")


def test_what_a_decoder_lacks_is_named_and_no_file_is_blamed(
    bare: Path, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load.sys, "executable", str(bare))
    monkeypatch.setattr(load.places, "importing", lambda environment: environment)
    with pytest.raises(MediaError, match="clip.mp4 was not opened.*No module named '.*'.*install"):
        load_clip(clips / "clip.mp4")


def test_frames_that_no_header_declares_are_counted(clips: Path) -> None:
    """Up to the most that is accepted; a clip with more is refused with a sentence."""
    from specvl_demo.media import worker as media_worker

    with (clips / "clip.webm").open("rb") as file:
        source = media_worker.Readable(file)
        for declared in (0, 23, 25, 1999):
            frames, times, n = media_worker.by_opencv(source, declared, 4, Limits())
            assert n == 24 and len(frames) == 4 and times[-1] == pytest.approx(23 / 12, abs=0.02)
        with pytest.raises(MediaError, match="more than 20 frames, the limit"):
            media_worker.by_opencv(source, 0, 4, Limits(max_clip_frames=20))


def test_an_animation_is_a_clip_with_the_times_of_its_delays(tmp_path: Path) -> None:
    red, green, blue = (Image.new("RGB", (40, 30), c) for c in ("red", "lime", "blue"))
    for fmt in ("GIF", "WEBP"):
        path = tmp_path / f"moving.{fmt.lower()}"
        path.write_bytes(
            corpus.encode(
                red, fmt, save_all=True, append_images=[green, blue], duration=[100, 300, 200]
            )
        )
        clip = load_clip(path)
        assert clip.times_s == pytest.approx((0, 0.1, 0.4))
        assert near(clip.frames[1].getpixel((20, 15)), (0, 255, 0))
        assert isinstance(load_any([path])[0], media.VideoFrames)
        assert isinstance(load_picture(path), Image.Image)


def test_kinds_are_told_apart(clips: Path, tmp_path: Path) -> None:
    still = tmp_path / "still.mp4"
    still.write_bytes(GOOD["plain.png"])
    with pytest.raises(MediaError, match="still picture"):
        load_clip(still)
    with pytest.raises(MediaError, match="is a clip"):
        load_picture(clips / "clip.mp4")
    unmoved = tmp_path / "unmoved.gif"
    unmoved.write_bytes(GOOD["plain.gif"])
    with pytest.raises(MediaError, match="still picture"):
        load_clip(unmoved)
    assert [
        isinstance(found, media.VideoFrames) for found in load_any([clips / "clip.mp4", unmoved])
    ] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("named", "said"), [("ffmpeg", "must be opencv or decord"), ("decord", "pip install")]
)
def test_a_decoder_that_is_not_here_is_one_sentence(
    clips: Path, named: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECVL_CLIPS", named)
    monkeypatch.setattr(load, "find_spec", lambda _: None)
    with pytest.raises(MediaError, match=said):
        load_clip(clips / "clip.mp4")


def test_clip_limits(clips: Path) -> None:
    with pytest.raises(MediaError, match="pixels"):
        load_clip(clips / "clip.mp4", limits=Limits(max_pixels=1000))
    with pytest.raises(MediaError, match="2 seconds"):
        load_clip(clips / "clip.mp4", limits=Limits(max_clip_s=1))
    small = load_clip(clips / "clip.mp4", 2, Limits(max_frame_side=48))
    assert small.frames[0].size == (48, 32)
