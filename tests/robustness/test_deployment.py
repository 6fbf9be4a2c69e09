"""What is said before the page starts, and what its container is."""

import signal
import socket
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specvl_demo.__main__ import main
from specvl_demo.cli.parse import parse_arguments
from specvl_demo.places import ROOT
from specvl_demo.ui.page import startup
from specvl_demo.ui.serve import workers
from tests.robustness.support import files_in
from tests.shared.refusals import refuses
from tests.shared.server import run_python

DOCKERFILE = (ROOT / "Dockerfile").read_text()
SECRET = "correct-horse-battery"
Refusal = Callable[..., str]


@pytest.fixture
def refusal(monkeypatch, capsys) -> Refusal:
    """Start the page where it cannot be served: exit code 2 and one line, which it gives."""
    # The test's process keeps its own way of being ended.
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def start(*options: str, make: Any = None) -> str:
        monkeypatch.setattr(workers, "make_worker", make)
        assert main(["serve", *options]) == 2
        told = capsys.readouterr().err
        assert told.endswith("\n") and told.count("\n") == 1
        return told.rstrip("\n")

    return start


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ann:secret", [("ann", "secret")]),
        ("ann:a:b\n\n bob:c \n", [("ann", "a:b"), ("bob", "c")]),
        ("", []),
    ],
)
def test_logins_are_read_from_the_environment(text: str, found: list[tuple[str, str]], monkeypatch):
    monkeypatch.setenv(startup.LOGIN, text)
    assert startup.read_logins() == found


@pytest.mark.parametrize("text", [SECRET, f":{SECRET}", f"ann:\n{SECRET}:", "\n \n"])
def test_bad_logins_are_refused_without_being_said(text: str, tmp_path: Path):
    file = tmp_path / "logins"
    file.write_text(text)
    assert SECRET not in refuses("login", startup.read_logins, str(file))


def test_a_port_of_the_environment_is_checked_like_a_given_one(monkeypatch, refusal: Refusal):
    monkeypatch.setenv("GRADIO_SERVER_PORT", "http")
    assert "not http" in refusal()
    monkeypatch.setenv("GRADIO_SERVER_PORT", "7001")
    assert parse_arguments(["serve"]).port == 7001


def test_a_port_that_is_taken_is_said_in_one_sentence(refusal: Refusal):
    closed = []
    nobody = SimpleNamespace(capacity=1, close=lambda: closed.append(True))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        told = refusal("--host", "127.0.0.1", "--port", port, make=lambda *_: nobody)
    assert f"cannot listen at 127.0.0.1, port {port}" in told and "--port" in told and closed


def test_no_tunnel_and_no_other_machine_by_default(monkeypatch):
    for name in ("GRADIO_SERVER_NAME", "GRADIO_SHARE"):
        monkeypatch.delenv(name, raising=False)
    options = parse_arguments(["serve"])
    assert options.share is False and options.host == "127.0.0.1" and options.login_file is None


# ---------------------------------------------------------------- the container


@pytest.mark.parametrize("name", [".env", "prod.env", "my-logins.txt", ".netrc", "tls.key"])
def test_no_login_comes_into_the_container(name: str):
    """What is ignored is by patterns of a name, at any depth."""
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert any(fnmatch(name, one[3:]) for one in ignored if one.startswith("**/"))


def test_the_container_runs_as_a_user_and_says_how_it_is():
    lines = DOCKERFILE.splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users and users[-1] == "user" and "--uid 1000" in DOCKERFILE
    assert "HEALTHCHECK" in DOCKERFILE and "/gradio_api/startup-events" in DOCKERFILE
    assert "--share" not in DOCKERFILE
    # Nothing is run as root after that but what makes the user.
    served = DOCKERFILE[DOCKERFILE.index("\nFROM $BASE") :]
    before = served[: served.index("\nUSER user")]
    assert [line for line in before.splitlines() if line.startswith("RUN")] == [
        "RUN useradd --create-home --uid 1000 user"
    ]


def test_a_space_gets_no_binary_outside_lfs(tmp_path: Path):
    """The Hub refuses a push that has one."""
    done = run_python(ROOT / "tools" / "publish_space.py", "--dry-run", tmp_path)
    assert done.returncode == 0, done.stderr
    rules = [line.split()[0] for line in (tmp_path / ".gitattributes").read_text().splitlines()]
    binaries = [path for path in files_in(tmp_path) if b"\0" in head(path)]
    assert binaries and not [
        path.name for path in binaries if not any(fnmatch(path.name, rule) for rule in rules)
    ]


def head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4096)
