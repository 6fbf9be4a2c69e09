"""The page over an engine without a model: its answers tell whose question it was, it fails when
asked to.

A question is words of the form key=value: rounds=5 who=17 each=0.2 fail=die at=3, or hold=F at=3:
the fourth round lasts until the file F is there, and the file F-ended says that the engine knows
that its run is over. Every round computed is a line in the file that ECHO_LEDGER names, so that a
test can count what was computed and not only what came.

python tests/robustness/echo.py --port P [--waiting N] [--cluster]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from specvl_demo.records import End, Question, Token, Totals
from specvl_demo.ui.serve.child import Compute, Tell
from specvl_demo.ui.serve.jobs import Job
from tests.page import light

LEDGER = "ECHO_LEDGER"


def token(who: str, index: int) -> int:
    """The id that stands at a place of the answer to somebody's question."""
    return zlib.crc32(f"{who}/{index}".encode()) % 50_000


def settings(question: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in question.split() if "=" in word)


def engine(first_pair: str | None) -> Compute:
    return compute


def dying(first_pair: str | None) -> Compute:
    """An engine that cannot live."""
    sys.exit(7)


def compute(job: Job, ended: Callable[[], bool], tell: Tell) -> Iterator[dict[str, Any]]:
    """One lane: begin, rounds whose tokens spell who asked, end."""
    asked = settings(job.question)
    who, at = asked.get("who", "nobody"), int(asked.get("at", 2))
    _fail(asked.get("fail") if at < 0 else None)
    yield {
        "k": "begin",
        "record": replace(light.begin(), max_new_tokens=4096, notes=Question(job.question)),
    }
    totals = Totals()
    for index in range(int(asked.get("rounds", 3))):
        if ended():
            yield {"k": "end", "record": End("ar", "cancelled", totals, None)}
            return
        time.sleep(float(asked.get("each", 0)))
        if index == at:
            _fail(asked.get("fail"))
            while "hold" in asked and not Path(asked["hold"]).exists():
                if ended():
                    Path(asked["hold"] + "-ended").touch()
                time.sleep(0.02)
        record = replace(
            light.round_(index), tokens=[Token(token(who, index), f"{who} ", "target")]
        )
        totals = totals.plus(record)
        _note(f"{who} {index}")
        yield {"k": "round", "record": record}
    yield {"k": "end", "record": End("ar", "length", totals, None)}


class AcceleratorError(RuntimeError):
    """As torch's own class is named."""


def _note(line: str) -> None:
    if os.environ.get(LEDGER):
        with Path(os.environ[LEDGER]).open("a") as file:
            file.write(line + "\n")


def _fail(how: str | None) -> None:
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raise":
        raise KeyError("a mistake of ours")
    elif how == "gpu":
        raise AcceleratorError("CUDA error: misaligned address\nCUDA kernel errors might be")
    elif how == "hang":
        time.sleep(10_000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--waiting", type=int, default=16)
    parser.add_argument(
        "--cluster", action="store_true", help="two actors of Ray compute, on this machine"
    )
    options = parser.parse_args()
    # Here, not above: the process that computes imports this file, and is to stay light.
    from specvl_demo.ui import launch
    from specvl_demo.ui.serve import workers

    def make(*_: object) -> workers.Worker:
        return light.started(2) if options.cluster else workers.ProcessWorker(None, engine)

    workers.make = make
    launch.serve("127.0.0.1", options.port, "pocket", False, max_waiting=options.waiting)


if __name__ == "__main__":
    main()
