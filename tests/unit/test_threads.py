"""Threads of steps beside other programs, and which processes only show the race."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from specvl_demo import waiting_threads
from specvl_demo.pairs.machine import MachineLoad
from specvl_demo.serving import threads
from specvl_demo.ui.serve.watching import watcher_pids
from tests.shared.server import run_python


@pytest.mark.parametrize(
    ("n", "n_cores", "others", "used"),
    [
        (2, 2, 0.0, 2),
        (2, 2, 0.17, 2),
        (2, 2, 0.25, 1),  # half of one core, whose other half is a thread of ours
        (2, 2, 1.0, 1),
        (1, 2, 0.5, 1),
        (2, 8, 0.25, 2),  # six cores are free
        (8, 8, 0.25, 6),
        (16, 16, 0.5 / 16, 15),
        (2, 64, 1.0, 1),
    ],
)
def test_threads_give_way_to_busy_programs(n: int, n_cores: int, others: float, used: int):
    assert threads.fitting_threads(n, n_cores, others) == used


def test_threads_that_wait_soon_sleep_unless_the_user_says_otherwise():
    """Told by the library itself, which reads the environment when torch is loaded."""
    for given, spins in (("pop('{}', None)", waiting_threads.N_SPINS), ("update({}='7')", "7")):
        change = f"import os; os.environ.{given.format(waiting_threads.SPINS)}"
        code = f"{change}; import specvl_demo, torch; torch.ones(2)"
        done = run_python("-c", code, OMP_DISPLAY_ENV="verbose")
        assert done.returncode == 0, done.stderr
        if waiting_threads.SPINS not in done.stderr:
            pytest.skip("torch's threads are not GCC's here")
        assert f"{waiting_threads.SPINS} = '{spins}'" in done.stderr


def test_only_a_load_that_lasts_counts_and_an_old_look_says_nothing_about_now():
    look = threads._LoadWatch()
    looks = ((0.1, 0.9, 0.0), (0.5, 0.9, 0.0), (0.5, 0.2, 0.2), (0.5, 0.9, 0.2), (0.5, 0.8, 0.8))
    for seconds, others, found in (*looks, (0.1, 0.1, 0.8)):
        look._load = SimpleNamespace(seconds=seconds, others_share=lambda others=others: others)
        assert look.others_share() == found
    look._load = SimpleNamespace(seconds=3600.0, others_share=lambda: 0.9)
    assert look.others_share() == 0.0


def test_a_child_that_has_ended_is_no_load():
    """As one that decoded a picture for the race that begins."""
    load = MachineLoad()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert load._seconds_since_start()[1] >= 0.25


def test_all_threads_are_used_again_when_others_are_done(monkeypatch):
    now = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        share = 0.5
        monkeypatch.setattr(threads._LOAD_WATCH, "others_share", lambda: share)
        monkeypatch.setattr("os.cpu_count", lambda: 2)
        with threads.fitted_threads() as fit:
            fit()
            assert torch.get_num_threads() == 1
            share = 0.0
            fit()
            assert torch.get_num_threads() == 2
            share = 0.5
            fit()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(now)


BUSY = (
    "import socket, sys, time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
    " end = time.time() + 20\nwhile time.time() < end: pass"
)


@contextmanager
def visitor() -> Iterator[tuple[subprocess.Popen, int]]:
    """A busy process of this machine that holds a connection, and the port of its end."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        process = subprocess.Popen([sys.executable, "-c", BUSY, str(server.getsockname()[1])])
        try:
            connection, (_, port) = server.accept()
            with connection:
                yield process, port
        finally:
            process.kill()
            process.wait()


def test_a_browser_on_this_machine_is_found_by_its_connection_and_is_no_other_program():
    with visitor() as (process, port):
        found = watcher_pids("127.0.0.1", port)
        if process.pid not in found:
            pytest.skip("this system does not tell whose a connection is")
        assert os.getpid() in found
        load = MachineLoad([process.pid])
        time.sleep(0.6)
        watching = load.watchers_share()
        assert watching is not None and watching > 0.02
        assert MachineLoad().watchers_share() is None


def test_a_browser_elsewhere_is_not_looked_for():
    assert watcher_pids("192.0.2.7", 443) == watcher_pids(None, None) == (os.getpid(),)
