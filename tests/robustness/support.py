"""What tests of load, faults and deployment share: a server in a process, visitors at a queue."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import httpx

from specvl_demo import records
from specvl_demo.question import Question
from specvl_demo.records import Record
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Queue
from tests.shared.visitor import Event, Visitor

WAIT_S = 240.0
USUAL_S = 0.05
"""What `slowness` computes takes so long on a usual machine with nothing else to do."""
Got = TypeVar("Got")


def until(look: Callable[[], Got], what: str) -> Got:
    """What `look` gives, once it gives something."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


def slowness() -> float:
    """How many times longer than usual this machine takes now, at least 1: a look of some
    hundredths of a second, by which limits of time grow.
    """
    began = time.perf_counter()
    sum(range(2_000_000))
    return max(1.0, (time.perf_counter() - began) / USUAL_S)


def job(question: str = "rounds=3", **changes: Any) -> Job:
    """A job for a light engine."""
    return Job("light", (("ar", {}),), Question(question), **changes)


class Guest:
    """One visitor at a queue: what came, and a way to wait for some of it."""

    def __init__(self, queue: Queue, asked: Job) -> None:
        self.events: list[Event] = []
        self.times: list[float] = []
        self._queue, self._asked = queue, asked
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._stay()), daemon=True)
        self._thread.start()

    async def _stay(self) -> None:
        async with aclosing(self._queue.events(self._asked)) as running:
            async for _, events in running:
                self.events += events
                self.times += [time.monotonic()] * len(events)
                if self._leaving.is_set():
                    return

    def leave(self) -> None:
        """Go away, as closing the tab does, and return when the queue knows."""
        self._leaving.set()
        self._thread.join(WAIT_S)

    def until(self, kind: str, count: int = 1) -> Event:
        """The count-th event of a kind, once it is there."""

        def look() -> Event | None:
            events = self.of(kind)
            return events[count - 1] if len(events) >= count else None

        return until(look, f"{kind} in {[event['k'] for event in self.events]}")

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["k"] == kind]


def saved(guest: Guest, folder: Path) -> list[Record]:
    """What a visitor can save of a run that failed: a valid trace whose every lane has its end."""
    kept = [event["record"] for event in guest.events if "record" in event]
    records.write_trace(folder / "partial.jsonl", kept)
    lanes = records.validate_trace(
        map(records.loads, (folder / "partial.jsonl").open(encoding="utf-8"))
    )
    ends = [lane.end for lane in lanes]
    # A lane may have been complete before the fault came to another one.
    assert all(end is not None and end.stop in ("error", "length") for end in ends)
    told = [end.message for end in ends if end.stop == "error"]
    assert told == [guest.of("error")[0]["text"]] * len(told) and bool(told) == bool(lanes)
    return kept


def computed(ledger: Path, who: str) -> int:
    """Rounds that the engine really computed for a visitor."""
    return sum(line.split()[0] == who for line in ledger.read_text().splitlines())


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def asks(url: str, asked: Any) -> list[Event]:
    """All events of one visitor's run."""
    async with Visitor(url) as visitor, aclosing(visitor.ask(asked)) as running:
        return [event async for event in running]


def answer(events: list[Event], lane: str = "ar") -> list[tuple[int, str]]:
    """Ids and texts of a lane's tokens, from events as they came over the network."""
    rounds = [event["record"] for event in events if event["k"] == "round"]
    tokens = (token for r in rounds if r["lane"] == lane for token in r["tokens"])
    return [(token["id"], token["text"]) for token in tokens]


def streamed(response: httpx.Response) -> list[Any]:
    """The whole stream of an answer in OpenAI's form."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def fetch(url: str, path: str, method: str = "GET", **what: Any) -> httpx.Response:
    """One request, past any proxy."""
    with httpx.Client(trust_env=False, verify=False, timeout=60) as client:
        return client.request(method, url + path, **what)
