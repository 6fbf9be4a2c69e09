"""What is let in: routes, hosts, bodies, files, clients in line, and how all of it ends."""

import asyncio
import errno
import json
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gradio as gr
import httpx
import pytest
from gradio.route_utils import upload_fn
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse

from specvl_demo.places import EXAMPLES
from specvl_demo.report.figure import CHOSEN
from specvl_demo.ui import messages
from specvl_demo.ui.command import read_frames
from specvl_demo.ui.page import catalog, handlers
from specvl_demo.ui.page.handlers import Caller, PageHandlers
from specvl_demo.ui.serve import route_filter, uploads
from specvl_demo.ui.serve.route_filter import JSON_BYTES, MAX_CONTAINERS, MAX_PATHS, RouteFilter
from specvl_demo.ui.serve.uploads import SPARE_BYTES, Uploads
from tests.robustness.support import WAIT_S, files_in
from tests.shared.refusals import refuses

JOIN, UPLOAD = "/gradio_api/queue/join", "/gradio_api/upload"
CALL = "/gradio_api/call/generate"


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
    transport = httpx.ASGITransport(door, client=(what.pop("client", "10.0.0.1"), 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://here:7860") as client:
        return await client.request(method, path, **what)


def door(folder: Path, given: Any = app, room: int = 10_000, **site: Any) -> RouteFilter:
    """The filter of a page with this folder of uploads, which takes files of 5,000 bytes."""
    kept = site.pop("kept", None) or Uploads(folder, room)
    known = {
        "events": frozenset([2]),
        "components": frozenset([7]),
        "arguments": {"generate": ("prompt", "method")},
    }
    return RouteFilter(given, kept, [folder], 5000, **known, **site)


def ask(folder: Path, method: str, path: str, given: Any = app, **what: Any) -> Any:
    """The answer to one request through the filter of a page with this folder of uploads."""
    site = {key: what.pop(key) for key in ("hosts", "frames", "admitted", "places") if key in what}
    return asyncio.run(through(door(folder, given, 10**6, **site), method, path, **what))


async def chunks(n: int, size: int) -> AsyncIterator[bytes]:
    for _ in range(n):
        yield b"x" * size


# ---------------------------------------------------------------- routes, hosts, origins


@pytest.mark.parametrize(
    ("host", "status"),
    [
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
def test_a_page_answers_to_its_own_names(tmp_path: Path, host: str, status: int):
    names, headers = ["localhost", "127.0.0.1", "[::1]", ".example.org"], {"host": host}
    assert ask(tmp_path, "GET", "/config", hosts=names, headers=headers).status_code == status
    assert ask(tmp_path, "GET", "/config", headers=headers).status_code == 200


OWN = ("*", ".example.org")
LOCAL = ("127.0.0.1", "localhost", "[::1]", ".gradio.live")


@pytest.mark.parametrize(
    ("hosts", "host", "origin", "status"),
    [
        (OWN, "here:7860", None, 200),
        (OWN, "here:7860", "http://here:7860", 200),
        (("here", ".example.org"), "here:7860", "https://page.example.org", 200),
        (OWN, "here:7860", "http://here:7861", 403),
        (OWN, "here:7860", "null", 403),
        (("here",), "here:7860", "http://here:7860.evil.example", 403),
        # Another port of this machine is another site, under whatever name it asks.
        (LOCAL, "127.0.0.1:7801", "http://[::1]:7801", 200),
        (LOCAL, "127.0.0.1:7801", "http://localhost:9999", 403),
        (LOCAL, "127.0.0.1:7801", "http://localhost", 403),
    ],
)
def test_no_other_site_asks_in_a_visitors_name(
    tmp_path: Path, hosts: tuple[str, ...], host: str, origin: str | None, status: int
):
    headers = {"host": host, **({"origin": origin} if origin else {})}
    answer = ask(tmp_path, "POST", UPLOAD, hosts=hosts, headers=headers, content=b"x")
    assert answer.status_code == status


async def headers_told(scope: Any, receive: Any, send: Any) -> None:
    """Says which headers and which path it was asked with."""
    told = {key.decode(): value.decode() for key, value in scope["headers"]}
    await JSONResponse(told | {"path": scope["path"]})(scope, receive, send)


def test_a_forwarded_name_counts_where_it_is_one_of_the_pages_own(tmp_path: Path):
    def forwarded(host: str, hosts: Any) -> str | None:
        headers = {"x-forwarded-host": host, "x-gradio-server": "http://evil.example"}
        answer = ask(tmp_path, "GET", "/config", headers_told, hosts=hosts, headers=headers).json()
        assert "x-gradio-server" not in answer
        return answer.get("x-forwarded-host")

    assert forwarded("evil.example", ("*",)) is None
    assert forwarded("evil.example", ("*", "page.example")) is None
    assert forwarded("page.example", ("*", "page.example")) == "page.example"


def test_without_a_login_there_is_the_form_and_the_health_check(tmp_path: Path):
    def status(method: str, path: str) -> int:
        admitted = {"admitted": lambda _: False}
        return ask(tmp_path, method, path, content=b"{", **admitted).status_code

    for path in ("/", "/theme.css", "/assets/a.js", "/gradio_api/startup-events"):
        assert status("GET", path) == 200
    assert status("POST", "/login") == 200
    shut = ("heartbeat/x", "user", "token", "app_id", "queue/status", "file=page/js/main.js")
    for path in (*(f"/gradio_api/{one}" for one in shut), "/config", "/nowhere", "/logout"):
        assert status("GET", path) == 401
    for path in (JOIN, CALL, UPLOAD, "/gradio_api/cancel"):
        assert status("POST", path) == 401  # its body is not looked at


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((JOIN, {"fn_index": n}) for n in (-1, 5, 10**6, 2**63, None, "2", 2.5)),
        *(("/gradio_api/component_server", {"component_id": n}) for n in (-1, 8, None, [7])),
    ],
)
def test_what_does_not_exist_is_not_here(tmp_path: Path, caplog: Any, path: str, body: Any):
    answer = ask(tmp_path, "POST", path, json=body)
    assert answer.status_code == 404 and answer.json()["detail"] == messages.NOT_FOUND
    assert not caplog.records


def test_a_call_with_some_of_its_arguments_is_told_to_name_them(tmp_path: Path):
    part, whole = (ask(tmp_path, "POST", CALL, json={"data": ["x"] * n}) for n in (1, 2))
    assert part.status_code == 400 and "by name" in part.text and whole.status_code == 200
    wrong = ask(tmp_path, "POST", "/gradio_api/call/v2/generate", json={"metod": "sage"})
    assert "`metod` is not known" in wrong.text


@pytest.mark.parametrize("path", ["/assets/" + "a" * 256, "/assets/" + "a/" * 600])
def test_names_that_no_file_can_have_are_not_here(tmp_path: Path, path: str):
    assert ask(tmp_path, "GET", path).status_code == 404


def test_every_answer_says_what_a_browser_may_do_with_it(tmp_path: Path):
    for answer in (ask(tmp_path, "GET", "/"), ask(tmp_path, "GET", "/nowhere")):
        policy = answer.headers["content-security-policy"]
        assert policy.endswith("; frame-ancestors 'self'") and "object-src 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_who_a_browser_may_let_frame_the_page(tmp_path: Path):
    """The named sites, or any; no name adds to the policy."""
    frames = read_frames("A.org, https://*.b.org:8000,*")
    policy = ask(tmp_path, "GET", "/", frames=frames).headers["content-security-policy"]
    assert policy.endswith("; frame-ancestors 'self' a.org https://*.b.org:8000 *")
    for bad in ("a.org; script-src *", "a.org 'unsafe'", "javascript:x"):
        refuses("--frames needs names", read_frames, bad)


def test_gradios_queue_would_look_a_thousand_times_a_second():
    """What the page sets to less is still there."""
    with gr.Blocks() as page:
        assert page._queue.sleep_when_free == 0.001


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize("path", [JOIN, CALL, "/gradio_api/component_server", "/gradio_api/cancel"])
@pytest.mark.parametrize("declared", [True, False])
def test_a_body_is_cut_off_as_it_comes(tmp_path: Path, path: str, declared: bool):
    read = []

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(4000):
            read.append(1)
            yield b"[" * 10_000

    content = b"x" * (JSON_BYTES + 1) if declared else endless()
    answer = ask(tmp_path, "POST", path, content=content)
    assert answer.status_code == 413 and "at most" in answer.json()["detail"]
    assert len(read) * 10_000 < JSON_BYTES + 50_000


@pytest.mark.parametrize("path", [JOIN, UPLOAD, "/login"])
def test_a_body_that_stops_in_the_middle_is_not_waited_for(tmp_path: Path, monkeypatch, path: str):
    monkeypatch.setattr(route_filter, "BODY_S", 0.05)

    async def stalled() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    began = time.monotonic()
    answer = ask(tmp_path, "POST", path, content=stalled())
    assert answer.status_code >= 400 and not list(tmp_path.iterdir())
    assert time.monotonic() - began < 25


def test_an_upload_is_cut_off_as_it_comes(tmp_path: Path):
    """Sent in chunks, without a size, or with less declared than comes."""
    most = 5000 + route_filter.FORM_BYTES
    assert ask(tmp_path, "POST", UPLOAD, content=chunks(most // 8, 8)).text == str(most // 8 * 8)
    answer = ask(tmp_path, "POST", UPLOAD, content=chunks(most // 8 + 1, 8))
    assert answer.status_code == 413 and "at most" in answer.json()["detail"]


ELSEWHERE = [
    "/etc/passwd",
    "https://example.org/a.png",
    "{folder}/../../x",
    "a/" * 100_000,
    "{folder}/a\0b",
]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b"[1]", messages.NOT_JSON),
        (b'{"data": NaN}', "not valid JSON: unexpected character"),
        (b"\xff\xfe", "not valid UTF-8"),
        ({"data": [[]] * (MAX_CONTAINERS + 1)}, "too many parts"),
        ({"data": [0] * 300_000}, "too many parts"),
        ({"data": [{"path": "{folder}/x"}] * (MAX_PATHS + 1)}, "at most"),
        (b'{"data":' * 40 + b"1" + b"}" * 40, "nested too deeply"),
        (b'{"data":' * 5000 + b"1" + b"}" * 5000, "not valid JSON"),
        ({"event_data": {"media": [{"path": "x"}]}}, "in this request is not here"),
        *(({"data": [{"path": path}]}, "in this request is not here") for path in ELSEWHERE),
    ],
)
def test_a_body_is_checked_before_it_is_read(tmp_path: Path, body: Any, said: str):
    if not isinstance(body, bytes):
        body = json.dumps(body).replace("{folder}", str(tmp_path)).encode()
    answer = ask(tmp_path, "POST", JOIN, content=body)
    assert answer.status_code == 400 and said in answer.json()["detail"]
    assert str(Path.cwd()) not in answer.text


def test_a_body_that_is_taken_reaches_the_app_whole(tmp_path: Path):
    whole = {"event_data": {"question": "{[" * 9000, "media": [{"path": f"{tmp_path}/a.png"}] * 8}}
    whole |= {"fn_index": 2}
    content = json.dumps(whole).encode()
    assert ask(tmp_path, "POST", JOIN, content=content).text == str(len(content))


def test_faults_of_the_libraries_come_as_our_sentences(tmp_path: Path):
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("/secret/place")

    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 422, "headers": []})
        await send({"type": "http.response.body", "body": b"/secret/place"})

    for given, status in ((fails, 500), (refuses, 422)):
        answer = ask(tmp_path, "GET", "/config", given)
        assert answer.status_code == status
        assert answer.json()["detail"] == messages.BY_STATUS[status]


# ---------------------------------------------------------------- uploads


def test_old_uploads_are_removed(tmp_path: Path):
    """Those that a server has left too, which had a folder of its own."""
    for name, hours in (("server/old", 3), ("new", 1)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.png").write_bytes(b"x" * 100)
        for path in (tmp_path / name / "a.png", tmp_path / name):
            os.utime(path, (time.time() - hours * 3600,) * 2)
    (tmp_path / "cut").write_bytes(b"x")
    os.utime(tmp_path / "cut", (time.time() - 10_000,) * 2)
    (left,) = uploads.sweep_old_files(tmp_path)
    assert left.path == tmp_path / "new" / "a.png" and left.size == 100
    assert not (tmp_path / "server" / "old" / "a.png").exists() and left.path.exists()
    assert not (tmp_path / "cut").exists()
    uploads.Uploads(tmp_path).hold_files("me", [str(left.path)])
    assert left.path.stat().st_mtime > time.time() - 1000  # it is asked about: its age begins anew


async def uploading(
    folder: Path, size: int | None, kept: Uploads | None = None, path: str = UPLOAD
) -> int:
    """The status of an upload of so many declared bytes; None: as many as come."""
    declared = (
        {"content": chunks(0, 0)} if size is None else {"headers": {"content-length": str(size)}}
    )
    return (await through(door(folder, kept=kept), "POST", path, **declared)).status_code


def lies(folder: Path, name: str, size: int, age_s: float = 0) -> Path:
    """A file among the uploads."""
    path = folder / name / "a.png"
    path.parent.mkdir()
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


@pytest.mark.parametrize("path", [UPLOAD, f"{UPLOAD}/"])
def test_uploads_are_refused_unread_when_there_is_no_room(path: str, tmp_path: Path, monkeypatch):
    """What a visit has asked about is not removed for anybody."""

    def status(size: int | None, room: int = 10_000, free: int = SPARE_BYTES + 10_000) -> int:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))
        kept = Uploads(tmp_path, room)
        kept.hold_files("visit", [str(older)])
        return asyncio.run(uploading(tmp_path, size, kept, path))

    older = lies(tmp_path, "older", 6000)
    assert status(3000) == 200
    assert status(5000) == 507  # all together would be more than there is room for
    assert status(3000, free=SPARE_BYTES + 2000) == 507  # the disk itself is full
    assert status(10**9, room=10**10, free=10**10) == 413
    assert status(None) == 507  # undeclared: as large as may be
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    assert status(3000) == 507 and older.exists()
    assert Uploads(tmp_path / "later").reserve_bytes(1) == messages.NOT_KEPT


def test_the_oldest_file_that_is_not_used_makes_room(tmp_path: Path):
    kept = Uploads(tmp_path, room=10_000)
    used, oldest, newer = (
        lies(tmp_path, name, 3000, age) for name, age in (("a", 90), ("b", 60), ("c", 30))
    )
    kept.hold_files("visit", [str(used)])
    assert kept.reserve_bytes(3000) is None
    assert used.exists() and not oldest.exists() and newer.exists()
    assert kept.reserve_bytes(5000) == messages.DISK_FULL  # the 3,000 that come count
    assert newer.exists()  # nothing is removed in vain
    kept.release_bytes(3000, None)
    assert kept.reserve_bytes(5000) is None and not newer.exists()


def test_an_upload_that_is_cut_leaves_no_file(tmp_path: Path, caplog: Any):
    """Through Gradio's own reader of forms; and what it keeps belongs to the visit that sent it."""

    async def gradio(scope: Any, receive: Any, send: Any) -> None:
        form = upload_fn(Request(scope, receive), tmp_path, 5000, None)
        try:
            paths, _, _ = await form
        except MultiPartException as fault:
            await PlainTextResponse(fault.message, 400)(scope, receive, send)
        else:
            await JSONResponse(paths)(scope, receive, send)

    part = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\nAAAA'
    kept, sent = Uploads(tmp_path), []
    filter_ = door(tmp_path, gradio, kept=kept)
    headers = {"content-type": "multipart/form-data; boundary=b"}
    cut = [{"type": "http.request", "body": part, "more_body": True}, {"type": "http.disconnect"}]
    scope = {"type": "http", "method": "POST", "path": UPLOAD, "client": ("10.0.0.1", 1)}
    scope["headers"] = [(b"host", b"here"), (b"content-type", headers["content-type"].encode())]

    async def receive() -> Any:
        return cut.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(filter_(scope, receive, send))
    assert list(tmp_path.iterdir()) == [] and not caplog.records and not cut
    whole = through(
        filter_, "POST", f"{UPLOAD}?visit=me", headers=headers, content=part + b"\r\n--b--\r\n"
    )
    (path,) = asyncio.run(whole).json()
    assert kept.is_held(path, "me") and not kept.is_held(path, "you")
    assert [one.name for one in tmp_path.iterdir()] == [Path(path).parent.name]
    kept.release_files("me")
    assert list(tmp_path.iterdir()) == []


def refusal(serving: PageHandlers, path: str, caller: Caller) -> str:
    """Why a race is not shared."""
    return refuses("", serving.export_race, {"path": path}, caller)


def test_a_race_is_shared_within_its_visit(tmp_path: Path, monkeypatch):
    """From a trace that this client uploaded, into its folder, one at a time, until it leaves."""
    kept = Uploads(tmp_path)
    shipped = next(EXAMPLES.glob("*.trace.jsonl"))
    trace = tmp_path / "content" / "race.jsonl"
    trace.parent.mkdir()
    trace.write_bytes(shipped.read_bytes())
    for visit in ("visit", "another"):
        kept.release_bytes(0, visit, [str(trace)])
    serving = PageHandlers({}, None, kept, [tmp_path, EXAMPLES])
    me = Caller("visit", "me")

    for path, caller in ((shipped, me), (trace, Caller("other", "you"))):
        assert refusal(serving, str(path), caller) == messages.NO_FILE.format(name="The race")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, SPARE_BYTES))
        assert refusal(serving, str(trace), me) == messages.DISK_FULL
    for number, said in ((errno.ENOSPC, messages.DISK_FULL), (errno.EROFS, messages.NOT_KEPT)):
        with monkeypatch.context() as patch:
            fault = OSError(number, os.strerror(number))
            patch.setattr(Path, "write_bytes", Mock(side_effect=fault))
            assert refusal(serving, str(trace), me) == said
    monkeypatch.setattr(handlers, "READING_S", 0.0)
    with serving._reading:
        assert refusal(serving, str(trace), me) == messages.SHARING
    assert files_in(tmp_path) == [trace] and not list(EXAMPLES.glob("*.html"))
    made = serving.export_race({"path": str(trace)}, me)["url"].removeprefix("gradio_api/file=")
    assert Path(made).read_text().startswith("<!doctype html>")
    assert Path(made).parent.parent == tmp_path and len(files_in(tmp_path)) == 2
    for example in (None, "tree"):
        payload = {"path": str(trace), "as": "figure", "example": example}
        made = serving.export_race(payload, me)["url"].removeprefix("gradio_api/file=")
        drawn = Path(made).read_text()
        assert drawn.startswith("<svg") and (CHOSEN[:28] in drawn) is bool(example)
    kept.release_files("visit")
    assert files_in(tmp_path) == [trace]


def test_a_trace_that_was_uploaded_is_compared_as_an_example_is(tmp_path: Path):
    """What is no trace, or was not uploaded, has a sentence instead."""
    comparisons = {tile["id"]: tile["compared"] for tile in catalog.example_entries()}
    scene, sent = EXAMPLES / "scene.trace.jsonl", tmp_path / "sent" / "race.trace.jsonl"
    visits = Uploads(tmp_path)
    serving, me = PageHandlers({}, None, visits, [tmp_path]), Caller("visit", "me")
    for content, expected in ((scene.read_text(), comparisons["scene"]), ("{}", None)):
        sent.parent.mkdir(exist_ok=True)
        sent.write_text(content)
        visits.release_bytes(0, "visit", [str(sent)])
        with nullcontext() if expected else pytest.raises(ValueError, match="line 1"):
            assert serving.compare_trace(str(sent), me) == expected
    for foreign in (None, [], str(scene)):
        refuses("no longer on the server", serving.compare_trace, foreign, me)
        assert scene.exists()


def test_an_upload_that_goes_while_all_are_counted_is_no_fault(tmp_path: Path, monkeypatch):
    """A visitor leaves in the middle of the look: the next is answered, by what is there."""
    for name in ("mine", "gone"):
        lies(tmp_path, name, 6000)
    real = Path.lstat

    def look(path: Path) -> Any:
        if path.parent.name == "gone":
            path.unlink()
        return real(path)

    monkeypatch.setattr(Path, "lstat", look)
    assert asyncio.run(uploading(tmp_path, 3000)) == 200
    assert not (tmp_path / "gone" / "a.png").exists()


def test_other_requests_are_answered_while_uploads_are_counted(tmp_path: Path, monkeypatch):
    counting, go_on = threading.Event(), threading.Event()

    def slow(*_: Any) -> list:
        counting.set()
        assert go_on.wait(WAIT_S)
        return []

    monkeypatch.setattr(uploads, "sweep_old_files", slow)

    async def story() -> None:
        upload = asyncio.create_task(uploading(tmp_path, 3000))
        while not counting.is_set() and not upload.done():
            await asyncio.sleep(0.01)
        assert not upload.done()
        other = await through(door(tmp_path), "GET", "/config")
        assert other.status_code == 200 and not upload.done()
        go_on.set()
        assert await upload == 200

    asyncio.run(story())
