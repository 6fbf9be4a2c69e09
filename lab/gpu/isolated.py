"""Runs the parts of a report one after the other, each in a process of its own: whatever ends it,
rows that were made stay, and the step that was running is left out of a second try.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
UNKNOWN: Row = {"lossless": None, "identical_to_ar": None}
"""Of a step that did not end."""
PRELOADED = [
    *("specvl_demo.decoders", "tests.shared.zoo", "transformers.generation.utils"),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("qwen2_5_vl", "llava")),
]
"""Imported before a process is forked for each part; threads do not survive a fork."""
QUIET_S = 90.0
"""Seconds after which a process that says nothing is taken to hang."""
SPARE_S = 5.0
"""Seconds without which no part is begun."""


class Setting(NamedTuple):
    """What every part is told: where models lie, whether sizes are those for any machine, and by
    when, on the monotonic clock, it must end.
    """

    folder: Path
    tiny: bool
    end: float = math.inf


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
    """One part of the report, in a process of its own.

    Attributes:
        run: Yields rows, without named steps.
        plan: What it does, with the seconds that each should take on an H200.
    """

    title: str
    run: Run
    plan: Sequence[tuple[str, float]] = ()


@dataclass
class Outcome:
    """The result of a part: its rows, and why it is not whole (None if it is)."""

    part: str
    rows: list[Row] = field(default_factory=list)
    fault: str | None = None
    seconds: float = 0.0


def planned(parts: Sequence[Part], limit_s: float) -> str:
    """Return what will be done, when it should begin, and what will probably be left out."""
    lines, at = [], 0.0
    for part in parts:
        for name, seconds in part.plan:
            late = "  left out if nothing is faster" if at + seconds > limit_s else ""
            lines.append(f"{at:5.0f} s  {name}{late}")
            at += seconds
    return "\n".join([*lines, f"{at / 60:.1f} minutes on an H200, of {limit_s / 60:g}", ""])


def run(
    parts: list[Part], setting: Setting, limit_s: float, tell: Callable[[str], None]
) -> Iterator[list[Outcome]]:
    """Run all parts, and yield the outcomes so far with every row. limit_s: seconds for all."""
    end = time.monotonic() + limit_s
    if not setting.tiny:
        setting = setting._replace(end=end)
    outcomes: dict[str, Outcome] = {}
    for part in parts:
        begun = time.monotonic()
        outcome = outcomes.setdefault(part.title, Outcome(part.title))
        if end - begun < SPARE_S:
            outcome.fault = "Left out: the time was used up."
        else:
            tell(part.title)
            for aside in _tried(part, setting, end, outcome):
                table = outcomes.setdefault(aside.part, Outcome(aside.part))
                table.rows.append(aside.row)
                table.fault = table.fault or aside.row.get("fault")
                yield list(outcomes.values())
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
            outcome.rows.append({"method": step, "fault": fault, **UNKNOWN})
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
        quiet = math.inf if setting.tiny else QUIET_S
        while receiver.poll(max(0.0, min(quiet, end - time.monotonic()))):
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
