"""Uploads from people who mean harm: a right picture or one sentence, soon, and nothing else."""

import asyncio
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from specvl_demo.media import Limits, MediaError, MediaFile, load, load_files
from specvl_demo.question import Question
from specvl_demo.ui import launch
from specvl_demo.ui.page.handlers import Caller, PageHandlers
from specvl_demo.ui.serve import jobs
from specvl_demo.ui.serve.uploads import Uploads
from tests.shared import corpus
from tests.shared.corpus import is_one_sentence, load_picture
from tests.shared.refusals import refuses
from tests.shared.server import run_python


def test_every_upload_of_the_corpus_ends_as_it_may():
    """Each a right picture, a right clip, or one clear sentence, within 800 MB: the largest picture
    that is taken has 25 million pixels, 75 MB, and a few times that while decoded.
    """
    done = run_python("-m", "tests.shared.corpus")
    told = json.loads(done.stdout)
    assert told["wrong"] == [] and told["tried"] > 100 and told["peak_mb"] < 800


def test_a_request_is_decoded_in_order_by_one_process(tmp_path: Path, monkeypatch):
    """Pictures and clips mixed come back in the order they were sent."""
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        load.subprocess, "Popen", lambda *a, **k: started.append(k["env"]) or popen(*a, **k)
    )
    monkeypatch.setenv("HF_TOKEN", "secret")
    names = ["plain.png", "clip.mp4", "animated.gif", "smaller.jpg"]
    files = corpus.pictures() | corpus.clips()
    files["smaller.jpg"] = corpus.encode(corpus.halves((32, 24)), "JPEG")
    for name in names:
        (tmp_path / name).write_bytes(files[name])
    first, clip, animation, last = load_files([MediaFile(str(tmp_path / name)) for name in names])
    assert (first.size, last.size) == (corpus.SIZE, (32, 24))
    assert clip.frames[0].size == (96, 64) != animation.frames[0].size
    assert len(started) == 1
    assert not any("secret" in env.values() or "HF_TOKEN" in env for env in started)


def fake_decoder(folder: Path, monkeypatch, script: str) -> Path:
    """A decoding process that does something else, and a picture for it."""
    program = folder / "decoder"
    program.write_text(f"#!/bin/sh\necho $$ > {folder}/pid\necho ready\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(load.sys, "executable", str(program))
    picture = folder / "a.png"
    picture.write_bytes(corpus.pictures()["plain.png"])
    return picture


def ended(pid: int) -> bool:
    """Whether a process is gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_decoder_that_hangs_is_killed(tmp_path: Path, monkeypatch):
    """It ignores being asked to stop; the time limit holds for all files of a request together."""
    picture = fake_decoder(tmp_path, monkeypatch, "trap '' TERM INT HUP; exec sleep 600")
    began = time.monotonic()
    monkeypatch.setattr(load, "USUAL_START_S", 60)
    monkeypatch.setattr(Limits, "decode_s", 2)
    refuses("longer than 2 seconds", load_files, [MediaFile(str(picture))] * 8)
    # Where starting takes long, decoding may too.
    monkeypatch.setattr(load, "USUAL_START_S", 1e-6)
    monkeypatch.setattr(Limits, "decode_s", 1 / load.SLOWEST)
    refuses("longer than 1 seconds", load_files, [MediaFile(str(picture))])
    assert time.monotonic() - began < 60
    assert ended(int((tmp_path / "pid").read_text()))


def test_a_decoder_that_the_system_ends_blames_no_file(tmp_path: Path, monkeypatch):
    picture = fake_decoder(tmp_path, monkeypatch, "kill -KILL $$")
    refuses("the system ended its decoder.*Send it again", load_files, [MediaFile(str(picture))])


LIES = [
    '"sizes": [[-1, -1]]',
    '"sizes": [[100000, 100000]]',
    '"sizes": [[9, 9], [9, 9]]',
    '"sizes": [[9, true]]',
    '"sizes": {"9": 9}',
    '"sizes": []',
    '"error": 7',
    '"sizes": [[9, 9]], "times_s": [0]',
]
"""What is no answer about one picture."""
CLIP_LIES = [
    '"sizes": [[9, 9]]',
    '"sizes": [[9, 9]], "times_s": [-1]',
    '"sizes": [[9, 9]], "times_s": [NaN]',
    '"sizes": [[9, 9]], "times_s": ["0"]',
    '"sizes": [[9, 9], [9, 9], [9, 9]], "times_s": [0, 1, 2]',
    '"sizes": [[2000, 9]], "times_s": [0]',
]
"""Nor about two frames of a clip: more or larger ones than were asked for, times that are none."""


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        *((f"echo '{{{lie}}}'; exec cat /dev/zero", "picture") for lie in LIES),
        *((f"echo '{{{lie}}}'; exec cat /dev/zero", "clip") for lie in CLIP_LIES),
        ("kill -SEGV $$", "picture"),
        ("exit 3", "picture"),
        ("echo not json", "picture"),
        ("head -c 2000000 /dev/zero | tr '\\0' '['", "picture"),
        ("echo 7", "picture"),
        ("echo '{\"sizes\": [[9, 9]]}'", "picture"),
    ],
)
def test_a_file_whose_decoder_dies_or_lies_is_named_as_damaged(
    tmp_path: Path, monkeypatch, script: str, kind: str
):
    """A crash, an early end, rubbish, too few pixels: the file is named as the culprit."""
    file = fake_decoder(tmp_path, monkeypatch, script)
    if kind == "clip":
        file = tmp_path / "a.gif"
        file.write_bytes(corpus.pictures()["animated.gif"])
    refuses(f"{file.name} is damaged", load_files, [MediaFile(str(file), kind)], 2)


def test_what_a_decoder_says_is_one_short_line(tmp_path: Path, monkeypatch):
    said = json.dumps({"error": "\x1b[2J\n" + "x" * 5000})
    (tmp_path / "said").write_text(said)
    with pytest.raises(MediaError) as refused:
        load_picture(fake_decoder(tmp_path, monkeypatch, f"cat {tmp_path}/said; echo"))
    assert len(str(refused.value)) <= 300 and str(refused.value).isprintable()


def test_bytes_are_counted_before_anything_is_read(tmp_path: Path, monkeypatch):
    """A file of a terabyte costs nothing."""
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(2**40)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("was opened"))
    monkeypatch.setattr(load.subprocess, "Popen", lambda *_, **__: pytest.fail("was decoded"))
    refuses("larger than 64 MB", load_picture, large)


ELSEWHERE = [
    "/dev/zero",
    "/dev/stdin",
    "/proc/self/environ",
    "/proc/self/fd/0",
    "/etc/passwd",
    "/",
    "",
    "a\0b.png",
    "half\ud800.png",
    "file:///etc/passwd",
    "http://127.0.0.1/a.png",
]
"""What is nobody's file: devices, the system's own files, addresses, impossible names."""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's file systems")
def test_what_is_no_file_is_never_opened(tmp_path: Path):
    """Devices, pipes, folders, system files, links that go round, long or impossible names."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "round.png").symlink_to(tmp_path / "round.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    mine = [tmp_path / name for name in ("pipe.png", "round.png", "zero.png", "missing", ".")]
    for path in (*mine, *ELSEWHERE, "x" * 5_000, "../" * 300 + "etc/passwd"):
        with pytest.raises(MediaError) as refused:
            load_picture(path)
        assert is_one_sentence(str(refused.value)), refused.value


def test_the_page_reads_uploads_and_nothing_else(tmp_path: Path):
    """A link that leads out of the folder, a way up, a device, a folder, rubbish: none exist."""
    uploads = tmp_path / "uploads"
    (uploads / "inner").mkdir(parents=True)
    secret = tmp_path / "secret.png"
    mine = uploads / "mine.png"
    for path in (secret, mine):
        path.write_bytes(corpus.pictures()["plain.png"])
    (uploads / "out.png").symlink_to(secret)
    (uploads / "round.png").symlink_to(uploads / "round.png")
    os.mkfifo(uploads / "pipe.png")

    def asked(path: object) -> dict:
        return {"pair": "pocket", "question": "x", "media": [{"path": path, "name": "half\ud800"}]}

    def read(path: object) -> Question:
        return jobs.read_job(asked(path), [uploads]).question

    assert read(str(mine)).paths == [str(mine)]
    assert read(str(uploads / "inner" / ".." / "mine.png")).paths == [str(mine)]
    json.dumps([file.name for file in read(str(mine)).all_media]).encode()
    outside = [
        secret,
        uploads / "out.png",
        uploads / ".." / "secret.png",
        uploads / "round.png",
        uploads,
        uploads / "pipe.png",
        uploads / ("x" * 5_000),
        *ELSEWHERE,
    ]
    for path in [*map(str, outside), None, 7, ["a"], {"path": "/etc/passwd"}, True]:
        refuses("no longer on the server", read, path).encode()  # it can be sent


def test_a_visits_files_go_when_it_ends(tmp_path: Path):
    """What another visit has sent, or a program, stays; other files are not touched."""
    uploads = tmp_path / "uploads"
    names = ("mine", "earlier", "shared", "others", "sent")
    files = {name: uploads / name / "a.png" for name in names}
    for path in [*files.values(), tmp_path / "example.png"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    visits = Uploads(uploads)

    def keep(visit: str, *names: str) -> None:
        visits.hold_files(visit, [str(files[name]) for name in names])

    keep("me", "mine", "shared", "earlier")
    visits.hold_files("me", [str(tmp_path / "example.png"), "a\0", str(uploads)])
    keep("you", "shared")
    visits.release_bytes(1, "you", [str(files["others"])])  # which is not asked about yet
    visits.release_bytes(1, "me", [str(files["sent"])])
    visits.release_bytes(1, None, [str(files["sent"])])
    visits.release_bytes(1, "me", [str(files["others"])])
    visits.release_files("me")
    assert files["sent"].exists()
    assert not files["mine"].parent.exists() and not files["earlier"].exists()
    others = (files["shared"], files["others"], tmp_path / "example.png")
    assert all(path.exists() for path in others)
    visits.release_files("you")
    visits.release_files("you")
    visits.release_files(None)
    assert list(uploads.iterdir()) == [files["sent"].parent] and (tmp_path / "example.png").exists()


def test_a_comparison_keeps_the_files_that_the_last_one_had_too(tmp_path: Path):
    """Of the same address; a file that is gone all the same is named as its sender named it."""
    path = tmp_path / "content" / "p1.png"
    path.parent.mkdir()
    corpus.halves().save(path)
    sent = [{"path": str(path), "name": "mine.png"}]
    lines = json.dumps({"question": "?", "image": "mine.png"})
    payload = {"pair": "pocket", "methods": ["chain"], "lines": lines, "files": sent}
    serving = PageHandlers({}, None, Uploads(tmp_path), [tmp_path])
    for visit in "ab":
        made = serving.start_bench(payload, Caller(visit, "one address"))
    assert path.exists()
    serving.uploads.release_files(made["bench"])
    assert not path.exists()
    (job,) = serving.benches.find(made["bench"]).jobs
    opening = serving._open_files(Caller("b"), job)
    refuses(r"^mine\.png is no longer on the server", asyncio.run, opening)


def test_servers_of_one_user_keep_apart(tmp_path: Path, monkeypatch):
    """Or one would remove the other's files, whose paths tell their content."""
    folders = []

    def stop(serving: PageHandlers) -> None:
        folders.append(serving.uploads.folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "build_page", stop)
    for _ in range(2):
        monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
        with ThreadPoolExecutor() as aside:  # where no signals are handled
            serve = aside.submit(launch.serve_page, "127.0.0.1", 0, "pocket", False, Mock)
        assert isinstance(serve.exception(), KeyboardInterrupt)
    assert len({*folders}) == 2 and {folder.parent for folder in folders} == {tmp_path}
