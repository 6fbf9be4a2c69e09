"""What code that a file brought into the decoding process can reach: nothing.

No exploit: a program starts as a decoder does, seals itself as a decoder does, and then tries.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specvl_demo.media import sandbox
from specvl_demo.places import ROOT

SECRET = "canary-of-the-starter"
TRIES = """
import ctypes, json, mmap, os, signal, socket, sys, threading
from pathlib import Path
from specvl_demo.media import sandbox, worker

folder, doors, user = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)
if user:  # here, not before: it may not be allowed to start this Python
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
if os.fork():
    sys.exit(os.wait()[1] != 0)
upload, starter, old = folder / "upload.png", os.getppid(), os.uname().machine == "x86_64"
parent, kept = os.open(folder, os.O_RDONLY), socket.socket()
listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
worker.limit_resources(30)
worker.load_decoders([{"kind": "MP4", "want": "clip", "clips": "opencv"}])
if doors is not None:
    sandbox.mechanisms = lambda: doors
sealed = sandbox.seal_process()

def syscall(number, *words):
    if libc.syscall(number, *words) < 0:
        raise OSError(ctypes.get_errno(), "refused")

def send():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))

TRIES = {
    "a socket": socket.socket,
    "a datagram": send,
    "a pair of sockets": socket.socketpair,
    "an address": lambda: kept.connect(("127.0.0.1", port)),
    "a program": lambda: os.execv("/bin/true", ["true"]),
    "a process": lambda: os.fork() or os._exit(0),
    "a signal to the starter": lambda: os.kill(starter, 0),
    "a signal to its group": lambda: os.killpg(0, 0),
    "another upload": upload.read_bytes,
    "a list of uploads": lambda: os.listdir(folder),
    "a list of uploads held open": lambda: os.listdir(parent),
    "a new file": lambda: (folder / "new").touch(),
    "removal": upload.unlink,
    "removal beside a folder held open": lambda: os.unlink("upload.png", dir_fd=parent),
    "truncation": lambda: os.truncate(upload, 0),
    "another name": lambda: upload.rename(folder / "other"),
    "a link": lambda: os.link(upload, folder / "other"),
    "a symbolic link": lambda: os.symlink(upload, folder / "other"),
    "a folder": lambda: (folder / "made").mkdir(),
    "rights of a file": lambda: upload.chmod(0o777),
    "the starter's environment": lambda: Path(f"/proc/{starter}/environ").read_bytes(),
    "the starter's memory": lambda: open(f"/proc/{starter}/mem", "rb"),
    "its own environment's file": lambda: Path("/proc/self/environ").read_bytes(),
    "a file in memory": lambda: os.memfd_create("x"),
    "another user namespace": lambda: syscall(272 if old else 97, 1 << 28),
    "tracing": lambda: syscall(101 if old else 117, 16, starter, 0, 0),
    "a ring of calls": lambda: syscall(425, 8, ctypes.create_string_buffer(256)),
    "a descriptor of the starter": lambda: syscall(434, starter, 0),
    "its own limits": lambda: __import__("resource").setrlimit(4, (0, 0)),
}
reached = []
for what, attempt in TRIES.items():
    try:
        attempt()
        reached.append(what)
    except (OSError, ValueError):
        pass
threads = []
thread = threading.Thread(target=threads.append, args=(1,))
thread.start()
thread.join()
with mmap.mmap(-1, 1 << 20) as memory:
    memory[0] = 1
print(json.dumps({"sealed": sealed, "tried": len(TRIES), "reached": reached, "threads": threads}))
"""
READS = """
import ctypes, os, sys
from specvl_demo.media import sandbox
user = int(sys.argv[1])
os.setgid(user)
os.setuid(user)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a change of user closes it, a start opens it
for close in (lambda: None, sandbox.keep_private):
    close()
    if os.fork() == 0:
        for what in ("environ", "mem"):
            try:
                print(what, len(open(f"/proc/{os.getppid()}/{what}", "rb").read(1)))
            except PermissionError:
                print(what, "refused")
            except OSError:  # memory was opened: its first page is nobody's
                print(what, 1)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""
needs_doors = pytest.mark.skipif(
    sandbox.SECCOMP not in sandbox.mechanisms(), reason="this system offers no seccomp"
)
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
NOBODY = 65534
USERS = [
    pytest.param(0, id="this user"),
    pytest.param(NOBODY, id="a user without rights", marks=is_root),
]


def run(program: str, *words: object) -> str:
    """The output of a program of Python whose environment holds a secret."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, *map(str, words)],
        cwd=ROOT,
        env={"SECRET": SECRET},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def uploads(tmp_path: Path) -> Path:
    """A folder with a visitor's upload that any user may change."""
    folder = tmp_path / "uploads"
    folder.mkdir()
    (folder / "upload.png").write_bytes(b"somebody's")
    for path in (folder, folder / "upload.png"):
        path.chmod(0o777)
    for path in (tmp_path, *list(tmp_path.parents)[:3]):
        path.chmod(0o755)
    return folder


@needs_doors
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "doors", [None, [sandbox.SECCOMP]], ids=["as here", "seccomp without Landlock"]
)
def test_code_in_the_decoder_reaches_nothing(uploads: Path, user: int, doors: list[str] | None):
    """Neither network, programs, processes nor files, also without Landlock; threads are left."""
    found = json.loads(run(TRIES, uploads, json.dumps(doors), user))
    assert found["sealed"] == (doors or sandbox.mechanisms())
    assert found["reached"] == [] and found["tried"] == 29
    assert found["threads"] == [1]
    assert (uploads / "upload.png").read_bytes() == b"somebody's"
    assert [path.name for path in uploads.iterdir()] == ["upload.png"]


@pytest.mark.skipif(sandbox.LANDLOCK not in sandbox.mechanisms(), reason="needs Landlock")
def test_landlock_by_itself_closes_the_files(uploads: Path):
    """What then remains open is what the page reports at its start."""
    found = json.loads(run(TRIES, uploads, json.dumps([sandbox.LANDLOCK]), 0))
    shut = ("another upload", "removal", "truncation", "a program", "the starter's environment")
    assert not set(shut) & set(found["reached"]) and "a datagram" in found["reached"]


@pytest.mark.skipif(sys.platform != "linux", reason="a matter of Linux")
@is_root
def test_page_and_engine_cannot_be_read_by_their_own_user():
    """Not even by a program that was never sealed; before they ask for it they can."""
    open_, closed = ["environ 1", "mem 1"], ["environ refused", "mem refused"]
    assert run(READS, NOBODY).splitlines() == open_ + closed


def test_what_a_system_lacks_is_one_sentence(monkeypatch):
    for doors, said in {
        (): "no seccomp",
        (sandbox.LANDLOCK,): "no seccomp",
        (sandbox.SECCOMP,): None,
    }.items():
        monkeypatch.setattr(sandbox, "mechanisms", lambda doors=doors: list(doors))
        told = sandbox.weakness()
        assert told is None if said is None else said in told and told.endswith(".")
    monkeypatch.undo()
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    assert sandbox.mechanisms() == []


def test_the_filter_of_each_processor_lists_its_calls_once():
    """The same calls in the same order on both; x86-64 has three old ones besides."""
    intel, arm = (sandbox._MACHINES[name] for name in ("x86_64", "aarch64"))
    assert len(intel.allowed) == len(set(intel.allowed)) == len(arm.allowed) + 3
    for machine in (intel, arm):
        steps = sandbox.seccomp_program(machine)
        assert len(steps) % 8 == 0 and len(steps) // 8 <= 4096
        assert not {machine.clone, machine.clone3, machine.seccomp} & set(machine.allowed)
