"""Runs the parts of a report one after the other, each in a process of its own: whatever ends it,
rows that were made stay, and the step that was running is left out of a second try.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
PRELOADED = [
    *("specvl_demo.decoders", "tests.shared.zoo", "transformers.generation.utils"),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("qwen2_5_vl", "llava")),
]
"""Imported before a process is forked for each part; threads do not survive a fork."""
SPARE_S = 5.0
"""Seconds without which no part is begun."""


class Setting(NamedTuple):
    """What every part is told: where models lie, and whether sizes are those for any machine."""

    folder: Path
    tiny: bool


class Started(NamedTuple):
    """A step of a part begins; if the process ends during it, it is to blame."""

    name: str


class Aside(NamedTuple):
    """A row for the table of another part."""

    part: str
    row: Row


class Fault(NamedTuple):
    """Why a part ended early, in a sentence."""

    text: str


Message = Row | Started | Aside | Fault
Run = Callable[[Setting, frozenset[str]], Iterator[Message]]


@dataclass(frozen=True)
class Part:
    """One part of the report, of limit_s seconds in all. run: Yields rows, without named steps."""

    title: str
    run: Run
    limit_s: float = 60.0


@dataclass
class Outcome:
    """The result of a part: its rows, and why it is not whole (None if it is)."""

    part: str
    rows: list[Row] = field(default_factory=list)
    fault: str | None = None
    seconds: float = 0.0


def run(
    parts: list[Part], setting: Setting, limit_s: float, tell: Callable[[str], None]
) -> Iterator[list[Outcome]]:
    """Run all parts, and yield the outcomes so far after each. limit_s: seconds for all."""
    end = time.monotonic() + limit_s
    outcomes: dict[str, Outcome] = {}
    for part in parts:
        begun = time.monotonic()
        outcome = outcomes.setdefault(part.title, Outcome(part.title))
        # Sizes for any machine may meet any machine: there only all parts together have a limit.
        left = end - begun if setting.tiny else min(part.limit_s, end - begun)
        if left < SPARE_S:
            outcome.fault = "Left out: the time was used up."
        else:
            tell(part.title)
            for aside in _tried(part, setting, begun + left, outcome):
                outcomes.setdefault(aside.part, Outcome(aside.part)).rows.append(aside.row)
        outcome.seconds = time.monotonic() - begun
        yield list(outcomes.values())


def _tried(part: Part, setting: Setting, end: float, outcome: Outcome) -> Iterator[Aside]:
    """Run a part, again without the step at which its process ended; yield rows of other parts."""
    finished: set[str] = set()
    while True:
        step, fault = None, None
        for message in _messages(part.run, setting, frozenset(finished), end):
            if isinstance(message, Started):
                if step is not None:
                    finished.add(step)
                step = message.name
            elif isinstance(message, Aside):
                yield message
            elif isinstance(message, Fault):
                fault = message.text
            else:
                outcome.rows.append(message)
                outcome.fault = outcome.fault or message.get("fault")
        if fault is None:
            return
        outcome.fault = outcome.fault or fault
        if step is None or end - time.monotonic() < SPARE_S:
            return
        if not (outcome.rows and outcome.rows[-1].get("method") == step):
            unknown = {"lossless": None, "identical_to_ar": None}
            outcome.rows.append({"method": step, "fault": fault, **unknown})
        finished.add(step)


def _messages(run: Run, setting: Setting, without: frozenset[str], end: float) -> Iterator[Message]:
    """Yield what a part says in a process of its own, and a fault if it is ended early."""
    known = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    if "forkserver" in known:
        context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, run, setting, without), daemon=True)
    process.start()
    sender.close()
    try:
        while receiver.poll(max(0.0, end - time.monotonic())):
            yield receiver.recv()
        yield Fault("Ended: it took too long.")
    except EOFError:
        process.join(5)
        if process.exitcode:
            yield Fault(f"Its process ended with code {process.exitcode}.")
    finally:
        process.kill()
        process.join()
        receiver.close()


def _work(sender: Connection, run: Run, setting: Setting, without: frozenset[str]) -> None:
    try:
        for message in run(setting, without):
            sender.send(message)
    except Exception as fault:  # noqa: BLE001 - reported, and this process ends
        sender.send(Fault(sentence(fault)))
        sender.close()
        sys.exit(0)


def sentence(fault: BaseException) -> str:
    """Return a fault on one line."""
    return f"{type(fault).__name__}: {' '.join(str(fault).split())[:300]}"
