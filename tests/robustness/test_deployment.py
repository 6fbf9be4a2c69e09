"""What stands open to strangers, who may come in, what is written where, and what a wrong version says."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import app
from specvl_demo.ui.page import startup
from specvl_demo.ui.serve import workers
from tests.page.conftest import ROOT
from tests.robustness.support import asks, get, sentence, server
from tests.robustness.visitor import Turned, Visitor

DOCKERFILE = (ROOT / "Dockerfile").read_text()
SECRET = "correct-horse-battery"
PROMPT = "what-nobody-else-may-read"

OPEN = ["/", "/config", "/gradio_api/info", "/gradio_api/startup-events", "/theme.css", "/pwa_icon"]
SHUT = [
    "/monitoring",
    "/monitoring/summary",
    "/upload",
    "/nowhere",
    "/pwa_icon/192",
    "/gradio_api/call/nope/event",
    "/gradio_api/deep_link",
    "/gradio_api/dev/reload",
    "/gradio_api/file=http://127.0.0.1:1/",
    "/gradio_api/file=https://example.org/a.png",
    "/gradio_api/file/etc/passwd",
    "/gradio_api/mcp/sse",
    "/gradio_api/proxy=https://example.org/",
    "/gradio_api/runs",
    "/gradio_api/run-history/buckets",
    "/gradio_api/stream/a/0/0/playlist.m3u8",
    "/gradio_api/vibe-code",
    "/gradio_api/custom_component/a/client/component/index.js",
]


def test_a_page_publishes_two_endpoints_and_nothing_more(served: tuple[str, int]) -> None:
    url, _ = served
    told = get(url, "/gradio_api/info").json()
    assert sorted(told["named_endpoints"]) == ["/generate", "/race"] and not told["unnamed_endpoints"]
    for name, first in (("/generate", "method"), ("/race", "methods")):
        names = [one["parameter_name"] for one in told["named_endpoints"][name]["parameters"]]
        assert names[:3] == ["prompt", first, "pair"] and len(names) == 14
    config = get(url, "/config").json()
    public = [one["api_name"] for one in config["dependencies"] if one["api_visibility"] == "public"]
    assert sorted(public) == ["generate", "race"]


@pytest.mark.parametrize("path", OPEN)
def test_what_the_page_needs_is_open(served: tuple[str, int], path: str) -> None:
    assert get(served[0], path).status_code == 200


@pytest.mark.parametrize("path", SHUT)
def test_what_it_does_not_need_is_shut(served: tuple[str, int], path: str) -> None:
    assert get(served[0], path).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        str(ROOT / "app.py"),
        str(ROOT / "assets/pocket/target/config.json"),
        "/proc/self/environ",
    ],
)
def test_no_file_but_the_pages_own_is_served(served: tuple[str, int], path: str) -> None:
    assert get(served[0], f"/gradio_api/file={path}").status_code in (403, 404)


def test_an_upload_is_limited_before_it_is_read(served: tuple[str, int]) -> None:
    connection = http.client.HTTPConnection(served[0].removeprefix("http://"), timeout=60)
    connection.putrequest("POST", "/gradio_api/upload")
    connection.putheader("content-length", str(2**33))
    connection.putheader("content-type", "multipart/form-data; boundary=x")
    connection.endheaders(b"--x")  # the rest never comes: the answer must not wait for it
    said = connection.getresponse()
    assert said.status == 413 and "at most 64 MB" in said.read().decode()
    connection.close()


def test_only_uploads_are_taken_as_files(served: tuple[str, int]) -> None:
    asked = {
        "pair": "pocket",
        "question": "?",
        "methods": [],
        "media": [{"path": "/etc/passwd", "name": "a"}],
    }
    with pytest.raises(Turned, match="was not uploaded here"):
        asyncio.run(asks(served[0], asked))
    asked["media"] = [{"path": 7}]
    assert "no longer on the server" in sentence(asyncio.run(asks(served[0], asked)))


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page behind a login that stands in a file, and where its log is."""
    folder = tmp_path_factory.mktemp("closed")
    logins = folder / "logins.txt"
    logins.write_text(f"ann:{SECRET}\n\nbob:{SECRET}:2\n")
    patch = pytest.MonkeyPatch()
    patch.setenv(startup.LOGIN_FILE, str(logins))
    with server(ROOT / "app.py", folder) as (url, _):
        patch.undo()  # other servers stay open
        yield url, folder / "log.txt"


def test_a_login_closes_everything_but_the_health_check(closed: tuple[str, Path]) -> None:
    url, _ = closed
    assert get(url, "/gradio_api/startup-events").status_code == 200
    for path in ("/config", "/gradio_api/info", "/gradio_api/file=/etc/passwd"):
        assert get(url, path).status_code == 401
    with httpx.Client(base_url=url, trust_env=False) as client:
        for path in ("upload", "queue/join", "call/generate", "component_server"):
            assert client.post(f"/gradio_api/{path}", json={"data": [None] * 14}).status_code == 401


def test_neither_passwords_nor_prompts_are_in_the_log(closed: tuple[str, Path]) -> None:
    url, log = closed

    async def story() -> tuple[list[dict[str, Any]], str]:
        with pytest.raises(Turned, match="Incorrect credentials"):
            await Visitor(url, ("ann", "wrong")).__aenter__()
        async with Visitor(url, ("bob", f"{SECRET}:2")) as bob:
            asked = {"pair": "pocket", "question": PROMPT, "methods": [], "max_new_tokens": 2}
            events = [event async for event in bob.ask(asked)]
            with pytest.raises(Turned) as said:
                await bob.call("generate", {"prompt": PROMPT, "method": "nonsense"})
            return events, str(said.value)

    events, said = asyncio.run(story())
    assert sentence(events) is None and "no method 'nonsense'" in said
    text = log.read_text()
    assert "Running on local URL" in text
    for secret in (SECRET, PROMPT, "wrong"):
        assert secret not in text


# ---------------------------------------------------------------- before it starts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ann:secret", [("ann", "secret")]),
        ("ann:a:b\n\n bob:c \n", [("ann", "a:b"), ("bob", "c")]),
        ("", []),
    ],
)
def test_logins_are_read_from_the_environment(
    text: str, found: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(startup.LOGIN_FILE, raising=False)
    monkeypatch.setenv(startup.LOGIN, text)
    assert startup.logins() == found


@pytest.mark.parametrize("text", [SECRET, f":{SECRET}", f"ann:\n{SECRET}:", "\n \n"])
def test_bad_logins_are_refused_without_being_said(text: str, tmp_path: Path) -> None:
    file = tmp_path / "logins"
    file.write_text(text)
    with pytest.raises(ValueError) as said:
        startup.logins(str(file))
    assert SECRET not in str(said.value) and "login" in str(said.value)
    with pytest.raises(ValueError, match="cannot be read"):
        startup.logins(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", startup.CHECKED)
@pytest.mark.parametrize("version", ["0.1", "99.0", None])
def test_a_wrong_version_is_named_in_one_sentence(
    name: str, version: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = metadata.version

    def told(wanted: str) -> str:
        if wanted != name:
            return real(wanted)
        if version is None:
            raise metadata.PackageNotFoundError(wanted)
        return version

    startup.check_versions(ROOT / "requirements.txt")  # what is installed here fits
    monkeypatch.setattr(metadata, "version", told)
    with pytest.raises(ValueError) as said:
        startup.check_versions(ROOT / "requirements.txt")
    text = str(said.value)
    assert text.startswith(f"{name} {version or 'is not installed'}") and "pip install -r" in text
    assert re.search(rf"needs {name}[<>=]", text) and "\n" not in text
    monkeypatch.setattr(workers, "make", None)
    assert app.main([]) == 2
    assert capsys.readouterr().err == f"{text}\n"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--pair", "nope"], "There is no pair 'nope'; known: photo, pocket,"),
        (["--port", "0"], "--port: must be between 1 and 65535, not '0'"),
        (["--port", "x"], "--port: must be between 1 and 65535, not 'x'"),
        (["--workers", "0"], "--workers: must be between 1 and 1024, not 0"),
        (["--workers", "two"], "--workers: must be a whole number, not 'two'"),
        (["--gpus-each", "-1"], "--gpus-each: must be between 0 and 64, not -1"),
        (["--gpus-each", "half"], "--gpus-each: must be a number, not 'half'"),
        (["--waiting", "-5"], "--waiting: must be between 0 and 10000, not -5"),
        (["--limit", "nan"], "--limit: must be between 1 and 86400, not nan"),
        (["--nonsense"], "Unrecognized arguments: --nonsense"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_sentence(
    asked: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers, "make", None)
    assert app.main(asked) == 2
    told = capsys.readouterr().err
    assert told.startswith(said) and told.count("\n") == 1


def test_a_port_of_the_environment_is_looked_at_like_one_that_was_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers, "make", None)
    monkeypatch.setenv("GRADIO_SERVER_PORT", "http")
    assert app.main([]) == 2
    told = capsys.readouterr().err
    assert "not 'http'" in told and "GRADIO_SERVER_PORT" in told and told.count("\n") == 1
    assert app.parse(["--port", "7000"]).port == 7000
    monkeypatch.setenv("GRADIO_SERVER_PORT", "7001")
    assert app.parse([]).port == 7001


class Nobody:
    """A worker that is never asked."""

    capacity = 1
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Nobody:
    made = Nobody()
    monkeypatch.setattr(workers, "make", lambda *_: made)
    # The test's process keeps its own way of being ended.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return made


def test_a_port_that_is_taken_is_said_in_one_sentence(
    nobody: Nobody, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert app.main(["--host", "127.0.0.1", "--port", str(port)]) == 2
    told = capsys.readouterr().err
    assert f"cannot listen at 127.0.0.1, port {port}" in told and "--port" in told and told.count("\n") == 1
    assert nobody.closed


@pytest.mark.parametrize(
    "fault",
    [ValueError("Several workers need the package ray."), OSError(11, "Resource\ntemporarily unavailable")],
)
def test_a_worker_that_cannot_be_had_is_said_in_one_sentence(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], nobody: Nobody
) -> None:
    def refuse(*_: Any) -> Any:
        raise fault

    monkeypatch.setattr(workers, "make", refuse)
    assert app.main(["--workers", "2"]) == 2
    assert capsys.readouterr().err == " ".join(str(fault).split()) + "\n"


class Asked(OSError):
    """Ray was given an address."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A Ray that finds no cluster; the addresses it was given."""
    given: list[str] = []

    def init(address: str, **_: Any) -> None:
        given.append(address)
        raise Asked("Ray was asked.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return given


@pytest.mark.parametrize(
    ("form", "there"),
    [
        *(
            (form, False)
            for form in ("127.0.0.1:{}", "ray://127.0.0.1:{}", "ray://[::1]:{}", "no such name:{}")
        ),
        *((form, True) for form in ("auto", "local", "127.0.0.1:{}", "ray://127.0.0.1:{}")),
    ],
)
def test_a_cluster_is_looked_for_before_ray_is_asked(
    form: str, there: bool, ray: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody listens Ray is not asked: it would look for minutes."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        if there:
            place.listen()
        address = form.format(place.getsockname()[1])
        assert app.main(["--cluster", address]) == 2
    told = capsys.readouterr().err
    if there:
        assert ray == [address] and told == "Ray was asked.\n"
    else:
        assert f"looked for at {address}, but" in told and "ray start" in told and "--cluster" in told
        assert told.count("\n") == 1 and told.count(". ") == 0 and not ray


def test_a_cluster_that_never_answers_is_waited_for_some_seconds(
    ray: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[tuple[Any, float]] = []

    def silent(place: Any, timeout: float) -> None:
        tried.append((place, timeout))
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", silent)
    assert app.main(["--cluster", "ray://far.example:10001"]) == 2
    ((place, seconds),) = tried
    assert place == ("far.example", 10001) and 1 <= seconds <= 10
    assert "ray://far.example:10001, but the connection failed (timed out)" in capsys.readouterr().err
    assert not ray


def test_no_tunnel_and_no_other_machine_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRADIO_SERVER_NAME", "GRADIO_SHARE"):
        monkeypatch.delenv(name, raising=False)
    options = app.parse([])
    assert options.share is False and options.host == "127.0.0.1" and options.login_file is None


# ---------------------------------------------------------------- the container


def test_the_container_runs_as_a_user_and_says_how_it_is() -> None:
    lines = DOCKERFILE.splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users and users[-1] == "user" and "--uid 1000" in DOCKERFILE
    assert "HEALTHCHECK" in DOCKERFILE and "/gradio_api/startup-events" in DOCKERFILE
    assert "--share" not in DOCKERFILE
    # Nothing is run as root after that but what makes the user.
    before = DOCKERFILE[: DOCKERFILE.index("\nUSER user")]
    assert [line for line in before.splitlines() if line.startswith("RUN")] == [
        "RUN useradd --create-home --uid 1000 user"
    ]


READ_ONLY = """
mount --make-rprivate / && mount -o remount,bind,ro / && mount -t tmpfs -o size=64m tmpfs {tmp} || exit 97
if touch {root}/written 2>/dev/null; then exit 98; fi
exec {python} {script} "$@"
"""


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root can mount a file system read-only"
)
def test_a_read_only_file_system_is_enough(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything is read-only but one small folder for temporary files, which is full later, then read-only
    too; home does not exist."""
    folder = tmp_path_factory.mktemp("readonly")
    writable = folder / "writable"
    writable.mkdir()
    wrapper = folder / "start.py"
    script = READ_ONLY.format(tmp=writable, root=ROOT, python=sys.executable, script=ROOT / "app.py")
    wrapper.write_text(
        "import os, sys\n"
        "env = os.environ | dict(HOME='/nonexistent', HF_HOME='/nonexistent/hub')\n"
        f"env |= dict(TMPDIR={str(writable)!r}, GRADIO_TEMP_DIR={str(writable / 'gradio')!r})\n"
        f"os.execvpe('unshare', ['unshare', '-m', 'sh', '-c', {script!r}, 'sh', *sys.argv[1:]], env)\n"
    )
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("this system gives no mount namespaces")
    clip = (ROOT / "examples" / "clip.webm").read_bytes()

    async def visit(url: str, refused: str | None) -> list[dict[str, Any]]:
        """The events of a question about a scene and a clip; where no file can be kept, about nothing."""
        asked = {"pair": "pocket", "question": "?", "methods": ["sage"], "max_new_tokens": 2}
        async with Visitor(url) as visitor:
            if refused is None:
                asked["media"] = [
                    await visitor.server("scene", {"seed": 1}),
                    await visitor.upload("clip.webm", clip),
                ]
            else:
                with pytest.raises(Turned, match=refused):
                    await visitor.upload("clip.webm", clip)
                assert refused in (await visitor.server("scene", None))["problem"]
            return [event async for event in visitor.ask(asked)]

    with server(wrapper, folder) as (url, pid):
        runs = [asyncio.run(visit(url, None))]
        Path(f"/proc/{pid}/root{writable}/filler").write_bytes(bytes(40 * 2**20))
        runs.append(asyncio.run(visit(url, "disk of this machine is full")))
        remount = ["mount", "-o", "remount,bind,ro", str(writable)]
        subprocess.run(["nsenter", "-t", str(pid), "-m", *remount], check=True)
        runs.append(asyncio.run(visit(url, "folder for uploads cannot be written")))
    for events in runs:
        assert sentence(events) is None and events[-1]["k"] == "done"
        assert len([event for event in events if event["k"] == "end"]) == 2
