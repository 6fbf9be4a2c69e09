"""Engines without models, which play records, for a page, a queue, a process or an actor over them.

A question is words of the form key=value: rounds=5 who=17 each=0.2 fail=die at=3, or hold=F at=3:
the fourth round lasts until the file F is there, and the file F-ended says that the engine knows
that its run is over. Its answer spells who asked. Every round computed is a line in the file that
ECHO_LEDGER names, so that a test can count what was computed and not only what came.

python tests/page/fake_page.py --port P [--waiting N] [--cluster]    the page over this engine
python tests/page/fake_page.py --port P --folder F [--rate R]        over made-up races, R times as
fast as their clocks (tests/page/made_up.py)

Nothing heavy is imported here: processes that compute import this file.
"""

import argparse
import os
import signal
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from specvl_demo.records import AskedQuestion, End, Round, Token, Totals
from specvl_demo.ui.serve.cluster import JobParcel, RayWorkers
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Worker
from tests.shared import lanes

LEDGER = "ECHO_LEDGER"
Event = dict[str, Any]


BEGIN = lanes.begin(
    "ar",
    title="Autoregressive",
    pair="light",
    max_new_tokens=4096,
    n_prompt=2,
    n_visual=0,
    vision_s=0.0,
    prefill_s=0.0,
)


def token(who: str, index: int) -> int:
    """The id that stands at a place of the answer to a visitor's question."""
    return zlib.crc32(f"{who}/{index}".encode()) % 50_000


def round_(index: int, who: str) -> Round:
    plain = lanes.chain_round(index, 0.08 * (index + 1), "", "", None, "ar", draft_s=0.0)
    return replace(plain, tokens=[Token(token(who, index), f"{who} ", "target")])


def compute(job: Job, ended: Callable[[], bool], tell: Any = None) -> Iterator[Event]:
    """One lane: begin, rounds whose tokens spell who asked, end."""
    words = dict(word.split("=", 1) for word in job.question.words.split() if "=" in word)
    who, at, fault = words.get("who", "nobody"), int(words.get("at", 2)), words.get("fail")
    yield {"k": "begin", "record": replace(BEGIN, notes=AskedQuestion(job.question.words))}
    totals = Totals()
    for index in range(int(words.get("rounds", 3))):
        if ended():
            yield {"k": "end", "record": End("ar", "cancelled", totals, None)}
            return
        time.sleep(float(words.get("each", 0)))
        if index == at:
            _fail(fault)
            while "hold" in words and not Path(words["hold"]).exists():
                if ended():
                    Path(words["hold"] + "-ended").touch()
                time.sleep(0.02)
        record = round_(index, who)
        totals = totals.plus_round(record)
        if os.environ.get(LEDGER):
            with Path(os.environ[LEDGER]).open("a") as ledger:
                ledger.write(f"{who} {index}\n")
        yield {"k": "round", "record": record}
    yield {"k": "end", "record": End("ar", "length", totals, None)}


class AcceleratorError(RuntimeError):
    """As torch's own class is named."""


def _fail(how: str | None) -> None:
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raise":
        raise KeyError("a mistake of ours")
    elif how == "gpu":
        raise AcceleratorError("CUDA error: misaligned address\nCUDA kernel errors might be")
    elif how == "hang":
        time.sleep(10_000)


# Where it is computed: in a process, a thread, an actor.


class Played:
    """Plays the records of a question; nothing is loaded."""

    def __init__(self, first_pair: str | None = None) -> None: ...

    def prepare(self, tell: Any = None) -> None: ...

    events = staticmethod(compute)


def dying(first_pair: str | None) -> Any:
    """An engine that cannot live."""
    sys.exit(7)


class Slow:
    """Loads until a file is there; then every job is answered at once."""

    def __init__(self, go: str | None) -> None:
        self._go = Path(str(go))

    def prepare(self, tell: Callable[[str], None]) -> None:
        self._go.with_name("began").touch()
        while not self._go.exists():
            tell("Reading the weights")
            time.sleep(0.05)

    def events(self, job: Job, ended: Any, tell: Any) -> Iterator[Event]:
        yield {"k": "status", "stage": "prefill"}


class ThreadWorker(Worker):
    """Computes jobs in threads of this process."""

    def __init__(self, compute: Callable[[Job, Callable[[], bool], Any], Iterator[Event]]) -> None:
        self._compute = compute
        self._ends = defaultdict[str, threading.Event](threading.Event)

    def events(self, run: str, job: Job) -> Iterator[Event]:
        yield from self._compute(job, self._ends[run].is_set, None)

    def stop(self, run: str) -> None:
        self._ends[run].set()

    kill = stop

    def close(self) -> None: ...


class LightActor:
    """An actor's engine: says where it runs and which files came with the parcel."""

    def __init__(self, first_pair: str | None) -> None:
        self._stopped: set[str] = set()

    def compute(self, run: str, parcel: JobParcel) -> Iterator[Event]:
        sizes = sorted(len(content) for content in parcel.files.values())
        yield {"k": "status", "stage": "here", "pid": os.getpid(), "files": sizes}
        yield from compute(parcel.job, lambda: run in self._stopped)

    def stop(self, run: str) -> None:
        self._stopped.add(run)

    def wait_until_ready(self) -> bool:
        return True


def started(count: int) -> RayWorkers:
    """Actors of this engine on this machine."""
    # Ray starts its processes with this environment; unset, some of them would look for the
    # network.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    while True:
        try:
            return RayWorkers(count, kind=LightActor)
        except Exception as fault:  # noqa: BLE001 - Ray raises nothing more special
            # Ray gives its own processes half a minute to start, too little on a machine that is
            # very busy.
            if "timed out during startup" not in str(fault):
                raise
            sys.modules["ray"].shutdown()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--waiting", type=int, default=16)
    parser.add_argument(
        "--cluster", action="store_true", help="two actors of Ray compute, on this machine"
    )
    parser.add_argument("--folder", type=Path, help="made-up races, with their files in here")
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--pace", type=float, help="rounds a second, whatever their clocks say")
    options = parser.parse_args()
    # Here, not above: the process that computes imports this file, and is to stay light.
    if options.folder:
        from tests.page import made_up

        made_up.serve(options.port, options.folder.resolve(), options.rate, options.pace)
        return
    from specvl_demo.ui import launch
    from specvl_demo.ui.serve import workers

    def make() -> workers.Worker:
        return started(2) if options.cluster else workers.ProcessWorker(None, Played)

    launch.serve_page("127.0.0.1", options.port, "pocket", False, make, max_waiting=options.waiting)


if __name__ == "__main__":
    main()
