"""The real page, queue and worker process over the echoing engine: what load and faults are tested on.

python tests/robustness/echo_app.py --port P [--waiting N] [--limit S] [--grace S] [--slow FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

NOTED_S = 0.005


def note_slow_steps(path: Path) -> None:
    """Have every step of an event loop that computes for longer than NOTED_S written down: processor seconds
    of its thread, so that other programs on the machine do not count, and what it was."""
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        before = time.thread_time()
        run(handle)
        spent = time.thread_time() - before
        if spent > NOTED_S:
            with path.open("a") as file:
                file.write(f"{spent:.4f} {handle!r}\n")

    asyncio.Handle._run = timed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--waiting", type=int, default=16)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--grace", type=float, default=60.0)
    parser.add_argument("--slow", type=Path, help="where every long step of an event loop becomes a line")
    options = parser.parse_args()
    if options.slow:
        note_slow_steps(options.slow)
    # Here, not above: the process that computes imports this file, and is to stay light.
    from gradio.utils import get_upload_folder

    from specvl_demo.ui.page import catalog
    from specvl_demo.ui.page.app import build, launch_settings
    from specvl_demo.ui.page.handlers import Behaviour
    from specvl_demo.ui.serve.queue import Queue
    from specvl_demo.ui.serve.workers import ProcessWorker
    from tests.robustness import echo

    worker = ProcessWorker(None, echo.engine)
    queue = Queue(worker, options.waiting, options.limit, options.grace)
    behaviour = Behaviour(catalog.describe("pocket"), queue, [Path(get_upload_folder())])
    page = build(behaviour)
    page.launch(server_name="127.0.0.1", server_port=options.port, quiet=True, **launch_settings(behaviour))


if __name__ == "__main__":
    main()
