"""What is let in: routes, hosts, bodies, files, the line between clients, and how all of it
ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from specvl_demo.ui import messages
from specvl_demo.ui.page.endpoints import ARGUMENTS
from specvl_demo.ui.serve import route_filter, uploads
from specvl_demo.ui.serve.jobs import read_job
from specvl_demo.ui.serve.request_check import MOST_CONTAINERS, MOST_PATHS
from specvl_demo.ui.serve.route_filter import JSON_BYTES, RouteFilter
from specvl_demo.ui.serve.uploads import SPARE_BYTES
from tests.robustness.support import WAIT_S, offered

JOIN, UPLOAD = "/gradio_api/queue/join", "/gradio_api/upload"
CALL, BY_NAME = "/gradio_api/call/generate", "/gradio_api/call/v2/generate"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body, as a form's reader does, and says how long it was."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client has gone")
        size, more = size + len(message["body"]), message.get("more_body", False)
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": str(size).encode()})


async def through(door: RouteFilter, method: str, path: str, **what: Any) -> httpx.Response:
    """The answer to one request through a filter."""
    transport = httpx.ASGITransport(door)
    async with httpx.AsyncClient(transport=transport, base_url="http://here:7860") as client:
        return await client.request(method, path, **what)


def ask(
    folder: Path, method: str, path: str, given: Any = app, hosts: Any = ("*",), **what: Any
) -> Any:
    """The answer to one request through the filter of a page with this folder of uploads."""
    door = RouteFilter(given, [folder], 1000, hosts=hosts, arguments=ARGUMENTS)
    return asyncio.run(through(door, method, path, **what))


async def chunks(n: int, size: int) -> AsyncIterator[bytes]:
    for _ in range(n):
        yield b"x" * size


# ---------------------------------------------------------------- routes, hosts, origins


HOSTS = ["localhost", "127.0.0.1", "[::1]", ".example.org"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:7860", 200),
        ("127.0.0.1", 200),
        ("[::1]:7860", 200),
        ("LOCALHOST", 200),
        ("page.example.org", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:7860", 421),
        ("notexample.org", 421),
        ("", 421),
    ],
)
def test_a_page_answers_to_its_own_names(tmp_path: Path, host: str, status: int) -> None:
    assert (
        ask(tmp_path, "GET", "/config", hosts=HOSTS, headers={"host": host}).status_code == status
    )
    assert ask(tmp_path, "GET", "/config", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://here:7860", 200),
        ("https://page.example.org", 200),
        ("http://here:7861", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://here:7860.evil.example", 403),
    ],
)
def test_no_other_site_asks_in_a_visitors_name(
    tmp_path: Path, origin: str | None, status: int
) -> None:
    headers = {"origin": origin} if origin else {}
    for hosts in (("*", ".example.org"), ("here", ".example.org")):
        answer = ask(tmp_path, "POST", UPLOAD, hosts=hosts, headers=headers, content=b"x")
        assert answer.status_code == status


def test_every_answer_says_what_a_browser_may_do_with_it(tmp_path: Path) -> None:
    for answer in (ask(tmp_path, "GET", "/"), ask(tmp_path, "GET", "/nowhere")):
        policy = answer.headers["content-security-policy"]
        assert (
            "frame-ancestors 'self' https://huggingface.co" in policy
            and "object-src 'none'" in policy
        )
        assert answer.headers["x-content-type-options"] == "nosniff"


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize("path", [JOIN, CALL, "/gradio_api/component_server", "/gradio_api/cancel"])
@pytest.mark.parametrize("declared", [True, False])
def test_a_body_is_cut_off_as_it_comes(tmp_path: Path, path: str, declared: bool) -> None:
    read = []

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(4000):
            read.append(1)
            yield b"[" * 10_000

    content = b"x" * (JSON_BYTES + 1) if declared else endless()
    answer = ask(tmp_path, "POST", path, content=content)
    assert answer.status_code == 413 and "at most" in answer.json()["detail"]
    assert len(read) * 10_000 < JSON_BYTES + 50_000


def test_an_upload_is_cut_off_as_it_comes(tmp_path: Path) -> None:
    """Sent in chunks, without a size, or with less declared than comes."""
    most = 1000 + route_filter.FORM_BYTES
    assert ask(tmp_path, "POST", UPLOAD, content=chunks(most // 8, 8)).text == str(most // 8 * 8)
    answer = ask(tmp_path, "POST", UPLOAD, content=chunks(most // 8 + 1, 8))
    assert answer.status_code == 413 and "at most" in answer.json()["detail"]


FILE = {"path": "{folder}/a.png"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", messages.NOT_JSON),
        (b"[1]", messages.NOT_JSON),
        (b'{"data": NaN}', messages.NOT_JSON),
        (b"\xff\xfe", messages.NOT_JSON),
        ({"data": [[]] * (MOST_CONTAINERS + 1)}, "too many parts"),
        ({"data": [0] * 300_000}, "too many parts"),
        ({"data": [{"path": "{folder}/x"}] * (MOST_PATHS + 1)}, "At most"),
        (b'{"data":' * 40 + b"1" + b"}" * 40, "nested too deeply"),
        (b'{"data":' * 5000 + b"1" + b"}" * 5000, messages.NOT_JSON),
        ({"data": [{"path": "/etc/passwd"}]}, "was not uploaded here"),
        ({"event_data": {"media": [{"path": "x"}]}}, "was not uploaded here"),
        ({"data": [{"path": "https://example.org/a.png"}]}, "was not uploaded here"),
        ({"data": [{"path": "{folder}/../../x"}]}, "was not uploaded here"),
        ({"data": [{"path": "a/" * 100_000}]}, "was not uploaded here"),
        ({"data": [{"path": "{folder}/a\0b"}]}, "was not uploaded here"),
    ],
)
def test_a_body_is_looked_at_before_anybody_works_on_it(
    tmp_path: Path, body: Any, said: str
) -> None:
    content = (
        body
        if isinstance(body, bytes)
        else json.dumps(body).replace("{folder}", str(tmp_path)).encode()
    )
    answer = ask(tmp_path, "POST", JOIN, content=content)
    assert answer.status_code == 400 and said in answer.json()["detail"]
    assert str(Path.cwd()) not in answer.text


def test_a_body_that_is_taken_reaches_the_app_whole(tmp_path: Path) -> None:
    whole = {"event_data": {"question": "{[" * 9000, "media": [{"path": f"{tmp_path}/a.png"}] * 8}}
    content = json.dumps(whole).encode()
    assert ask(tmp_path, "POST", JOIN, content=content).text == str(len(content))


def test_arguments_are_all_known(tmp_path: Path) -> None:
    assert (
        ask(tmp_path, "POST", CALL, json={"data": [None] * len(ARGUMENTS["race"])}).status_code
        == 200
    )
    assert ask(tmp_path, "POST", BY_NAME, json={"prompt": "?"}).status_code == 200
    for data in ({}, {"data": ["?"]}, {"data": [None] * 11}, {"data": {"prompt": "?"}}):
        assert "all 14 arguments" in ask(tmp_path, "POST", CALL, json=data).json()["detail"]
    assert (
        "no argument 'imgae'" in ask(tmp_path, "POST", BY_NAME, json={"imgae": 1}).json()["detail"]
    )


def test_faults_of_the_libraries_are_told_in_our_sentences(tmp_path: Path) -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("/secret/place")

    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 422, "headers": []})
        await send({"type": "http.response.body", "body": b"/secret/place"})

    for given, status in ((fails, 500), (refuses, 422)):
        answer = ask(tmp_path, "GET", "/config", given)
        assert (
            answer.status_code == status and answer.json()["detail"] == messages.BY_STATUS[status]
        )


# ---------------------------------------------------------------- what is asked


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"media": ["/path"]}, "Pictures and clips must be .* not text"),
        ({"media": [None]}, "not null"),
        ({"media": 5}, "not a number"),
        ({"media": "scene.png"}, "not text"),
        ({"history": "before"}, "history must be a list .* not text"),
        ({"history": [1]}, "not a number"),
        ({"methods": "ar"}, "methods must be a list .* not text"),
        ({"settings": "gamma=5"}, "Settings must be an object"),
        ({"settings": {"gamma": 5}}, "Settings must be an object"),
        ({"settings": {"ar": {"gamma": [1]}}}, "The setting 'gamma' must be .* not a list"),
        ({"settings": {"nope": {}}}, "no method 'nope'"),
        ({"max_new_tokens": 1.5}, "token limit must be a whole number, got 1.5"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"seed": 10**5000}, "seed must be a number .* got 'a number of more than 12 digits'"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"dtype": "float8"}, "dtype is one of float32, bfloat16, float16, got 'float8'"),
        ({"dtype": 0}, "dtype is one of .* got 0"),
        ({"quantised": ["4bit"]}, "packing of weights is one of none, 8bit, 4bit, got 'a list'"),
        ({"picture_detail": 0}, "picture detail must be a number from 0.05 to 25"),
    ],
)
def test_nothing_of_a_wrong_kind_is_dropped_in_silence(
    tmp_path: Path, asked: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        read_job(
            {"pair": "p", "question": "?", "methods": ["ar"], **asked}, [offered("p")], [tmp_path]
        )
    assert len(str(refused.value)) < 300


def test_a_single_file_is_taken_as_a_list_of_one(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    asked = {"pair": "p", "question": "?", "media": {"path": str(tmp_path / "a.png")}}
    assert read_job(asked, [offered("p")], [tmp_path]).media == (str(tmp_path / "a.png"),)


# ---------------------------------------------------------------- uploads


def test_old_uploads_go_whoever_left_them(tmp_path: Path) -> None:
    for name, hours in (("old", 3), ("new", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(b"x" * 100)
        at = time.time() - hours * 3600
        os.utime(tmp_path / name / "a.png", (at, at))
        os.utime(tmp_path / name, (at, at))
    assert uploads.sweep(tmp_path) == 100
    assert [path.name for path in tmp_path.iterdir()] == ["new"] and (
        tmp_path / "new" / "a.png"
    ).exists()


async def uploading(folder: Path, size: int | None, room: int = 10_000, path: str = UPLOAD) -> int:
    """The status of an upload of so many declared bytes; None: as many as come."""
    door = RouteFilter(app, [folder], most_bytes=5000, room=room)
    declared = (
        {"content": chunks(0, 0)} if size is None else {"headers": {"content-length": str(size)}}
    )
    return (await through(door, "POST", path, **declared)).status_code


@pytest.mark.parametrize("path", [UPLOAD, f"{UPLOAD}/"])
def test_uploads_are_refused_before_they_are_read_when_there_is_no_room(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(size: int | None, room: int = 10_000, free: int = SPARE_BYTES + 10_000) -> int:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))
        return asyncio.run(uploading(tmp_path, size, room, path))

    (tmp_path / "older").write_bytes(b"x" * 6000)
    assert status(3000) == 200
    assert status(5000) == 507  # all together would be more than there is room for
    assert status(3000, free=SPARE_BYTES + 2000) == 507  # the disk itself is full
    assert status(10**9, room=10**10, free=10**10) == 413
    assert status(None) == 507  # undeclared: as large as may be
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    assert status(3000) == 507 and uploads.refusal(tmp_path / "later", 1) == messages.NOT_KEPT


def test_an_upload_that_goes_while_all_are_counted_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A visitor leaves in the middle of the look: the next one is answered, by what is still
    there.
    """
    for name in ("mine", "gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(b"x" * 6000)
    real = Path.lstat

    def look(path: Path) -> Any:
        if path.parent.name == "gone":
            path.unlink()
        return real(path)

    monkeypatch.setattr(Path, "lstat", look)
    assert asyncio.run(uploading(tmp_path, 3000)) == 200
    assert not (tmp_path / "gone" / "a.png").exists()


def test_nobody_waits_while_uploads_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, go_on = threading.Event(), threading.Event()

    def slow(*_: Any) -> None:
        counting.set()
        assert go_on.wait(WAIT_S)

    monkeypatch.setattr(uploads, "refusal", slow)

    async def story() -> None:
        upload = asyncio.create_task(uploading(tmp_path, 3000))
        while not counting.is_set():
            await asyncio.sleep(0.01)
        other = await through(RouteFilter(app, [tmp_path], most_bytes=5000), "GET", "/config")
        assert other.status_code == 200 and not upload.done()
        go_on.set()
        assert await upload == 200

    asyncio.run(story())
