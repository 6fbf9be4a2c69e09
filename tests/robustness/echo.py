"""An engine whose answer tells whose question it was, and which fails in the ways it is asked to: no model.

A question is words of the form key=value: rounds=5 who=17 each=0.2 fail=die at=3, or hold=F at=3: the fourth
round lasts until the file F is there. Every round computed is a line in the file that ECHO_LEDGER names, so
that a test can count what was computed and not only what came.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from specvl_demo.records import Asked, Token, Totals
from specvl_demo.ui.serve.child import Compute, Tell
from specvl_demo.ui.serve.jobs import Job
from tests.page.light import begin, round_

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
    yield {"k": "begin", "record": replace(begin(), max_new_tokens=4096, notes=Asked(job.question))}
    totals = Totals()
    for index in range(int(asked.get("rounds", 3))):
        if ended():
            yield {"k": "end", "record": _end(totals, "cancelled")}
            return
        time.sleep(float(asked.get("each", 0)))
        if index == at:
            _fail(asked.get("fail"))
            while "hold" in asked and not Path(asked["hold"]).exists():
                time.sleep(0.02)
        record = replace(round_(index), tokens=[Token(token(who, index), f"{who} ", "target")])
        totals = totals.plus(record)
        _note(f"{who} {index}")
        yield {"k": "round", "record": record}
    yield {"k": "end", "record": _end(totals, "length")}


def _end(totals: Totals, stop: str) -> Any:
    from specvl_demo.records import End

    return End("ar", stop, totals, None)


def _note(line: str) -> None:
    if os.environ.get(LEDGER):
        with Path(os.environ[LEDGER]).open("a") as file:
            file.write(line + "\n")


def _fail(how: str | None) -> None:
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raise":
        raise KeyError("a mistake of ours")
    elif how == "hang":
        time.sleep(10_000)
