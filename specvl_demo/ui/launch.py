"""Starts the page: catalog, worker, queue, handlers, Blocks, launch."""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from specvl_demo.media import sandbox
from specvl_demo.places import EXAMPLES
from specvl_demo.ui import messages
from specvl_demo.ui.page import catalog, startup
from specvl_demo.ui.page.app import build_page, launch_settings
from specvl_demo.ui.page.handlers import PageHandlers
from specvl_demo.ui.serve import uploads
from specvl_demo.ui.serve.queue import Queue, Worker
from specvl_demo.ui.serve.route_filter import LOCAL

STOP_S = 2.5
"""Containers are killed ten seconds after they are asked to stop."""


def serve_page(
    host: str,
    port: int,
    pair: str,
    share: bool,
    make: Callable[[], Worker],
    logins: Sequence[tuple[str, str]] = (),
    max_waiting: int = 16,
    limit_s: float = 300.0,
    hosts: Sequence[str] = (),
    frames: Sequence[str] = (),
) -> None:
    """Serve the page on an address of this machine until it is stopped; ValueError if it cannot be.

    Args:
        share: Also open a public tunnel.
        make: Makes what computes.
        logins: (user, password) of the accounts; empty for no login.
        hosts: Host names that the page answers to; empty for this machine's own if `host` is local,
            else any.
        frames: Sites that may show the page in a frame, `*` for any.
    """
    startup.limit_arenas()
    parent = Path(get_upload_folder())
    uploads.sweep_old_files(parent)
    # Its own: another server of this user may get the same files, and remove them.
    folder = parent / secrets.token_hex(8)
    os.environ["GRADIO_TEMP_DIR"] = str(folder)

    def leave() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        startup.exit_process()

    def stop(number: int, _: Any) -> None:
        """End the server, runs first. Visitors still connected after STOP_S are dropped, and what
        is still running is cut off: a cluster's actors would take too long.

        Raises nothing: an exception may get lost where a garbage collection was interrupted.
        """
        signal.signal(number, signal.SIG_IGN)
        last = threading.Timer(STOP_S, leave)
        last.daemon = True
        last.start()
        stopping.put(number)

    stopping = SimpleQueue[int]()
    with closing(make()) as worker:
        if threading.current_thread() is threading.main_thread():
            # Here, not above, since Ray handles them too.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, stop)
        handlers = PageHandlers(
            catalog.build_catalog(pair),
            Queue(worker, max_waiting, limit_s),
            uploads.Uploads(folder),
            [folder, EXAMPLES],
            catalog.example_files(),
        )
        page = build_page(handlers)
        try:
            page.launch(
                server_name=host,
                server_port=port,
                share=share,
                auth=list(logins) or None,
                prevent_thread_lock=True,  # so that runs end before the server does
                **launch_settings(page, handlers, hosts or own_host_names(host, share), frames),
            )
        except OSError as fault:
            raise ValueError(messages.CANNOT_LISTEN.format(host=host, port=port)) from fault
        # Every new connection is held against it.
        page.server.config.limit_concurrency = startup.raise_file_limit() // 2
        sys.stdout.flush()  # Gradio has printed the address, which a container's log should show
        # What was imported stays. A collection that walks over it takes a quarter of a second,
        # in which no visitor is served.
        gc.collect()
        gc.freeze()
        sandbox.keep_private()
        if lacks := sandbox.weakness():
            sys.stderr.write(f"{lacks}\n")
        stopping.get()
    gr.close_all(verbose=False)
    leave()


def own_host_names(host: str, share: bool) -> list[str]:
    """Return the host names of a page at this address. A foreign name that resolves to this machine
    must not open a page that is only for this machine.
    """
    if host not in LOCAL:
        return ["*"]
    return [*LOCAL, ".gradio.live"] if share else [*LOCAL]
