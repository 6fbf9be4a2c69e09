"""`python app.py` that writes down how late its event loop is: what every visitor waits besides.

    python lab/serving/late_app.py --late FILE [options of app.py]

Every 10 ms something is due in the loop of the web server; by how many milliseconds it came too
late is a line of the file. That counts other programs on the machine too; the long steps of the
loop, by processor seconds, become lines of FILE.steps.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn

from specvl_demo.__main__ import main

EVERY_S, AT_ONCE = 0.01, 100
NOTED_S = 0.005


async def note(path: Path) -> None:
    loop, late = asyncio.get_running_loop(), []
    while True:
        due = loop.time() + EVERY_S
        await asyncio.sleep(EVERY_S)
        late.append(f"{1000 * (loop.time() - due):.2f}\n")
        if len(late) >= AT_ONCE:
            with path.open("a") as file:
                file.writelines(late)
            late.clear()


def note_slow_steps(path: Path) -> None:
    """Have every step of an event loop that computes for longer than NOTED_S written down:
    processor seconds of its thread, so that other programs on the machine do not count, and what it
    was."""
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        before = time.thread_time()
        run(handle)
        spent = time.thread_time() - before
        if spent > NOTED_S:
            with path.open("a") as file:
                file.write(f"{spent:.4f} {handle!r}\n")

    asyncio.Handle._run = timed


def steps(late: Path) -> Path:
    """Where the long steps are written."""
    return late.with_suffix(".steps")


def serve() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--late", type=Path, required=True)
    asked, options = parser.parse_known_args()
    note_slow_steps(steps(asked.late))
    real, tasks = uvicorn.Server.startup, []

    async def startup(self: uvicorn.Server, sockets: Any = None) -> None:
        await real(self, sockets)
        tasks.append(asyncio.create_task(note(asked.late)))

    uvicorn.Server.startup = startup  # type: ignore[method-assign]
    return main(["serve", *options])


if __name__ == "__main__":
    sys.exit(serve())
