"""Uploads: content decides, limits hold before decoding, each ends in a picture or a sentence."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from specvl_demo import media
from specvl_demo.media import Limits, MediaFile, load, load_files
from specvl_demo.media import clips as clip_reader
from specvl_demo.media.files import sniff_format
from specvl_demo.media.pictures import count_scans, hdr_to_srgb, open_picture
from specvl_demo.media.pictures import decode_picture as decoded_picture
from tests.shared import corpus
from tests.shared.corpus import load_clip, load_picture
from tests.shared.refusals import refuses

GOOD = corpus.good_pictures()
CLIPS = Path(__file__).parents[1] / "clips"
"""Made by PyAV as cameras, screen recorders and converters write them: red left, blue right."""


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for name, data in corpus.clips().items():
        (folder / name).write_bytes(data)
    return folder


def decoded(data: bytes) -> Image.Image:
    return decoded_picture(open_picture(data, sniff_format(data)))


def near(pixel: tuple[int, ...], wanted: tuple[int, ...], by: int = 40) -> bool:
    return all(abs(a - b) <= by for a, b in zip(pixel, wanted))


def shows_halves(image: Image.Image) -> bool:
    """Whether it is red on the left and blue on the right."""
    middles = (image.getpixel((image.width * at // 4, image.height // 2)) for at in (1, 3))
    return all(map(near, middles, (corpus.RED, corpus.BLUE)))


@pytest.mark.parametrize("name", GOOD)
def test_whole_pictures_decode_upright_in_rgb(name: str):
    image = decoded(GOOD[name])
    assert (image.mode, image.size) == ("RGB", corpus.SIZE) and shows_halves(image)


def test_greys_of_more_than_8_bits_are_scaled_by_what_they_hold():
    image = decoded(corpus.grey_16bit())
    assert near(image.getpixel((5, 5)), (64, 64, 64), 1)
    assert near(image.getpixel((60, 5)), (191, 191, 191), 1)
    values = np.tile(np.linspace(0, 4095, 64).astype(np.uint16), (48, 1))
    image = decoded(corpus.encode(Image.fromarray(values), "PNG"))
    assert image.getpixel((63, 5)) == (255,) * 3 and near(image.getpixel((32, 5)), (129,) * 3, 2)


def test_transparency_lies_on_white():
    image = decoded(GOOD["alpha.png"])
    assert image.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in corpus.layouts()])
def test_what_a_camera_puts_around_its_picture_is_no_reason_to_refuse_it(data: bytes):
    assert count_scans(data) == 1
    picture = decoded(data)
    assert picture.size == corpus.SIZE and shows_halves(picture)


def test_scans_of_the_picture_itself_are_counted():
    assert count_scans(corpus.scan_bomb()) > 400
    refuses("too many segments", count_scans, b"\xff\xd8" + b"\xff\xe0\0\0" * 20_000)
    plain = corpus.encode(corpus.halves(), "JPEG")
    for filling in (b"\xff", b"\0"):
        assert count_scans(plain[:2] + filling * 1_000 + plain[2:]) == 1
        refuses("too many bytes", count_scans, plain[:2] + filling * 100_000 + plain[2:])


@pytest.fixture(params=["opencv", "decord"])
def decoder(request: pytest.FixtureRequest, monkeypatch) -> str:
    """What decodes clips."""
    if request.param == "decord":
        pytest.importorskip("decord")
    monkeypatch.setenv("SPECVL_CLIPS", request.param)
    return request.param


@pytest.mark.parametrize("name", corpus.CODECS)
def test_clips_are_sampled_evenly_with_times(clips: Path, name: str, decoder: str):
    clip = load_clip(clips / name, n_frames=4)
    assert len(clip.frames) == 4
    assert clip.times_s == pytest.approx((0, 8 / 12, 15 / 12, 23 / 12), abs=0.02)
    reds = [frame.getpixel((20, 30))[0] for frame in clip.frames]
    assert all(abs(red - 255 * i / 23) < 25 for red, i in zip(reds, (0, 8, 15, 23)))


def test_both_decoders_agree_and_turn_phone_clips_upright(clips: Path, tmp_path: Path, monkeypatch):
    """A long clip, which is sought in, gives the same frames as one that is read through."""
    pytest.importorskip("decord")
    path = tmp_path / "turned.mp4"
    path.write_bytes(corpus.turned((clips / "clip.mp4").read_bytes()))
    with path.open("rb") as file:
        source = clip_reader.ReadableFile(file)
        packets = clip_reader.probe(source).times
        by_decord, n = clip_reader.read_by_decord(source, packets, 4)
        by_opencv, n_cv = clip_reader.read_by_opencv(source, packets, 4)
        monkeypatch.setattr(clip_reader, "READ_THROUGH", 20)
        sought, _ = clip_reader.read_by_opencv(source, packets, 4)
    assert n == n_cv == 24
    for (a, at), (b, at_cv), (c, at_c) in zip(by_decord, by_opencv, sought, strict=True):
        assert np.array_equal(b, c) and at_c == pytest.approx(at_cv)
        assert at == pytest.approx(at_cv, abs=0.02)
        assert a.shape == b.shape == (96, 64, 3)
        assert np.abs(a.astype(int) - b.astype(int)).mean() < 4
    last = by_decord[-1][0]
    top, bottom = last[10, 30].tolist(), last[85, 30].tolist()
    assert near(top, (255, 0, 0)) and near(bottom, (0, 0, 255))


def test_a_decoder_ends_with_the_process_that_waits_for_it(tmp_path: Path):
    """It hangs on a file that never comes; the process that started it is killed."""
    never = tmp_path / "never.png"
    os.mkfifo(never)
    held = os.open(never, os.O_RDWR)  # so that it can be opened
    item = {"path": str(never), "kind": "PNG", "want": "picture", "clips": "opencv"}
    asked = {"items": [item], "n_frames": 1}
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
    venv.create(folder, symlinks=True)
    return Path(sysconfig.get_path("scripts", "venv", {"base": str(folder)})) / "python"


def test_a_decoder_imports_from_where_its_parent_does(bare: Path, tmp_path: Path):
    """Whether that is PYTHONPATH, a folder of `pip --target`, or only the parent's `sys.path`."""
    picture = tmp_path / "plain.png"
    picture.write_bytes(GOOD["plain.png"])
    file = f"m.MediaFile({str(picture)!r})"
    asked = f"import specvl_demo.media as m; print(m.load_files([{file}])[0].size)"
    packages = [entry for entry in sys.path if entry]
    for code, path in ((asked, packages), (f"import sys; sys.path += {packages}; {asked}", [])):
        done = subprocess.run(
            [bare, "-c", code],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
        )
        assert (done.stdout.strip(), done.stderr) == (str(corpus.SIZE), "")


def test_what_a_decoder_lacks_is_named_and_no_file_is_blamed(bare: Path, clips: Path, monkeypatch):
    monkeypatch.setattr(load.sys, "executable", str(bare))
    monkeypatch.setattr(load.places, "import_env", lambda environment: environment)
    refuses("clip.mp4 was not opened.*No module named '.*'.*install", load_clip, clips / "clip.mp4")


def test_frames_that_no_packet_tells_of_are_counted(clips: Path, monkeypatch):
    """Up to the most that is accepted; a clip with more is refused with a sentence."""
    with (clips / "clip.webm").open("rb") as file:
        source = clip_reader.ReadableFile(file)
        for told in (0, 23, 25, 1999):
            packets = [number / 12 for number in range(told)]
            frames, n = clip_reader.read_by_opencv(source, packets, 4)
            assert n == 24 and len(frames) == 4
            assert frames[-1][1] == pytest.approx(23 / 12, abs=0.02)
        monkeypatch.setattr(Limits, "max_clip_frames", 20)
        refuses("more than 20 frames, the limit", clip_reader.read_by_opencv, source, [], 4)


@pytest.mark.parametrize(("last_s", "duration_s"), [(9.0, None), (9.0, 0.1), (0.1, 9.0)])
def test_the_longer_of_two_lengths_is_held_against_the_limit(
    last_s: float, duration_s: float | None, monkeypatch
):
    frames = [(np.zeros((4, 4, 3), np.uint8), at) for at in (0.0, last_s)]
    monkeypatch.setattr(Limits, "max_clip_s", 1)
    refuses("9 seconds", clip_reader.pack_clip, frames, 2, duration_s)


def bars(clip: media.VideoFrames, column: int) -> list[int]:
    """The first row of the green bar in each frame."""
    return [(np.asarray(frame)[:, column, 1] > 150).nonzero()[0].min() for frame in clip.frames]


def test_frames_are_chosen_by_the_times_at_which_they_are_shown(decoder: str):
    """A screen recording: a frame each at 0, 3, 6 and 9 s, then sixty in a second. A green bar
    moves down by 80/63 rows a frame."""
    clip = load_clip(CLIPS / "variable.mp4")
    assert clip.times_s == pytest.approx([11 * i / 7 for i in range(8)], abs=0.03)
    wanted = [80 * frame / 63 for frame in (0, 0, 1, 1, 2, 2, 3, 63)]
    assert bars(clip, 80) == pytest.approx(wanted, abs=1.5)


def test_what_an_edit_list_hides_is_not_shown(decoder: str):
    """Of 48 frames a player shows the last 12. The bar moves down by 80/47 rows a frame."""
    clip = load_clip(CLIPS / "trimmed.mp4", n_frames=4)
    assert clip.times_s == pytest.approx([0, 4 / 12, 7 / 12, 11 / 12], abs=0.02)
    assert bars(clip, 40) == pytest.approx([80 * frame / 47 for frame in (36, 40, 43, 47)], abs=2)


def test_a_clip_that_cannot_be_shown_is_named_with_the_way_out():
    refuses(r"interlaced\.mp4 is interlaced.*yadif", load_clip, CLIPS / "interlaced.mp4")
    refuses(r"av1\.mp4 is AV1.*convert it to H\.264", load_clip, CLIPS / "av1.mp4")


def test_pixels_of_a_clip_become_square():
    frame = load_clip(CLIPS / "sar.mp4").frames[0]
    assert frame.size == (320, 96) and shows_halves(frame)


def test_hdr_is_mapped_to_a_usual_screen():
    """By the anchors of ITU-R BT.2408: reference white is 75 % of HLG's signal and 58 % of PQ's."""
    for curve, white in (("hlg", 0.75), ("pq", 0.581)):
        greys = Image.fromarray(np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2))
        mapped = np.asarray(hdr_to_srgb(greys, curve))[0, :, 0].astype(int)
        assert mapped[0] == 0 and (np.diff(mapped) >= 0).all()
        assert mapped[round(255 * white)] >= 252 > mapped[round(255 * white) - 4]
    frame = load_clip(CLIPS / "hlg.mp4").frames[0]  # its red is brighter than reference white
    assert near(frame.getpixel((20, 80)), (255, 0, 0), 8)


@pytest.mark.parametrize("fmt", ["GIF", "WEBP"])
def test_an_animation_is_a_clip_sampled_by_its_delays(fmt: str, tmp_path: Path):
    """Whatever it is called; asked for as a picture, it is its first frame."""
    frames = [Image.new("RGB", (20, 20), (12 * i, 0, 0)) for i in range(20)]
    more = {"save_all": True, "append_images": frames[1:], "duration": [1000] * 3 + [20] * 17}
    path = tmp_path / f"uneven.{fmt.lower()}"
    path.write_bytes(corpus.encode(frames[0], fmt, **more))
    clip = load_clip(path, n_frames=4)
    assert clip.times_s == pytest.approx((0, 1.107, 2.213, 3.32), abs=0.02)
    reds = [frame.getpixel((10, 10))[0] for frame in clip.frames]
    assert reds == pytest.approx([0, 12, 24, 228], abs=8)
    assert isinstance(load_files([MediaFile(str(path))])[0], media.VideoFrames)
    assert isinstance(load_picture(path), Image.Image)


def test_colours_are_those_that_a_browser_shows():
    """A profile whose red and blue are exchanged is applied, under transparency too; sRGB's own
    changes nothing; a broken one is left aside."""
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exchanged = bytearray(srgb)
    tags = {srgb[at : at + 4]: at + 4 for at in range(132, 132 + 12 * srgb[131], 12)}
    red, blue = (slice(tags[name], tags[name] + 8) for name in (b"rXYZ", b"bXYZ"))
    exchanged[red], exchanged[blue] = srgb[blue], srgb[red]
    halves = corpus.halves()
    half = halves.copy()
    half.putalpha(Image.new("L", halves.size, 255))
    half.putpixel((0, 0), (0, 0, 0, 0))
    for image in (halves, half, halves.quantize(8)):
        data = corpus.encode(image, "PNG", icc_profile=bytes(exchanged))
        assert near(decoded(data).getpixel((8, 24)), corpus.RED[::-1])
    clear = decoded(corpus.encode(half, "PNG", icc_profile=bytes(exchanged)))
    assert clear.getpixel((0, 0)) == (255,) * 3
    for harmless in (srgb, srgb[:200]):
        data = corpus.encode(halves, "PNG", icc_profile=harmless)
        assert np.array_equal(np.asarray(decoded(data)), np.asarray(halves))


def test_the_first_frame_of_an_animated_png_is_shown():
    """Not the picture before it, which is for programs that show no animation."""
    frames = [Image.new("RGB", corpus.SIZE, colour) for colour in (corpus.RED, corpus.BLUE)]
    still = Image.new("RGB", corpus.SIZE, "white")
    more = {"save_all": True, "append_images": frames, "default_image": True}
    assert decoded(corpus.encode(still, "PNG", **more)).getpixel((8, 8)) == corpus.RED


def test_a_jpeg_of_a_telephone_is_read_at_a_part_of_its_size(monkeypatch):
    data = corpus.encode(corpus.halves((800, 600)), "JPEG", exif=corpus.exif(1))
    monkeypatch.setattr(Limits, "max_pixels", 100_000)
    monkeypatch.setattr(Limits, "max_jpeg_pixels", 500_000)
    image = decoded_picture(open_picture(data, "JPEG"))
    assert image.size == (200, 150) and shows_halves(image)
    monkeypatch.setattr(Limits, "max_jpeg_pixels", 400_000)
    refuses("800×600", open_picture, data, "JPEG")


@pytest.mark.parametrize(
    ("named", "said"), [("ffmpeg", "must be opencv or decord"), ("decord", "pip install")]
)
def test_a_decoder_that_is_missing_is_one_sentence(clips: Path, named: str, said: str, monkeypatch):
    monkeypatch.setenv("SPECVL_CLIPS", named)
    monkeypatch.setattr(load, "find_spec", lambda _: None)
    refuses(said, load_clip, clips / "clip.mp4")


def test_a_clip_beyond_a_limit_is_refused_and_large_frames_shrink(clips: Path, monkeypatch):
    with (clips / "clip.mp4").open("rb") as file:
        monkeypatch.setattr(Limits, "max_frame_side", 48)
        _, (small, _) = clip_reader.read_clip(file, "opencv", 2)
        for name, unit in (("max_clip_s", "2 seconds"), ("max_pixels", "pixels")):
            monkeypatch.setattr(Limits, name, 1)
            refuses(unit, clip_reader.read_clip, file, "opencv", 2)
    assert small.size == (48, 32)
