"""Brings the page up: catalog, worker, desk, behaviour, Blocks, launch.

Given an address, the pair to start with and who may come in; returns when the server is stopped.
"""

from __future__ import annotations

import io
import random
import secrets
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradio.utils import get_upload_folder
from starlette.middleware import Middleware

from specvl_demo.training import scenes
from specvl_demo.ui import catalog, words, workers
from specvl_demo.ui.behaviour import Behaviour
from specvl_demo.ui.desk import Desk
from specvl_demo.ui.gate import Gate, has_room
from specvl_demo.ui.page import MOST_BYTES, build, launch_settings
from specvl_demo.ui.workers import Cluster

SESSIONS = 64
"""Visits whose state Gradio keeps, the newest; this page keeps none of its own there."""


def serve(
    host: str,
    port: int,
    pair: str,
    share: bool,
    cluster: Cluster | None = None,
    logins: Sequence[tuple[str, str]] = (),
    max_waiting: int = 16,
    limit_s: float = 300.0,
) -> None:
    """Serve the page on an address of this machine; `share` opens a public tunnel besides.

    logins: (user, password) of who may see it; none: everybody. max_waiting and limit_s: see Desk.
    ValueError with a sentence, or OSError, where it cannot be.
    """
    if threading.current_thread() is threading.main_thread():
        # The first process of a container ignores SIGTERM unless it is handled; elsewhere nothing would be
        # given back.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    known = catalog.describe(pair)
    worker = workers.make(pair, cluster or Cluster())
    try:
        folders = [Path(get_upload_folder()), catalog.EXAMPLES]
        desk = Desk(worker, max_waiting, limit_s)
        behaviour = Behaviour(known, catalog.panel, desk, folders, draw_scene, catalog.example_files())
        page = build(behaviour)
        try:
            page.launch(
                server_name=host, server_port=port, share=share, auth=list(logins) or None, **settings()
            )
        except OSError as fault:
            raise ValueError(words.CANNOT_LISTEN.format(host=host, port=port)) from fault
    finally:
        worker.close()


def settings() -> dict[str, Any]:
    """How a page is launched that strangers can reach: nothing open that it does not need, nothing kept."""
    return launch_settings() | {
        "enable_monitoring": False,  # it would show everybody who asked what, and how often
        "mcp_server": False,
        "state_session_capacity": SESSIONS,
        "app_kwargs": {
            "middleware": [Middleware(Gate, folder=Path(get_upload_folder()), most_bytes=MOST_BYTES)]
        },
    }


def draw_scene(description: Any) -> tuple[Path, dict[str, Any]]:
    """A scene drawn into a file from its JSON description, and that description.

    None draws any scene, {"seed": n} always the same one for the same n. ValueError with a sentence where it
    is none, or where there is no room for it.
    """
    if description is None or (isinstance(description, dict) and "seed" in description):
        rng = random.Random(None if description is None else str(description["seed"]))
        description = scenes.scene_to_json(scenes.random_scene(rng, rng.randint(3, 6)))
    try:
        scene = scenes.scene_from_json(description)
    except (TypeError, AttributeError, KeyError):  # it came over the network and may be anything
        raise ValueError(words.NO_SCENE) from None
    drawn = io.BytesIO()
    scenes.draw(scene).save(drawn, "PNG")
    uploads = Path(get_upload_folder())
    if not has_room(uploads, len(drawn.getbuffer())):
        raise ValueError(words.DISK_FULL)
    path = uploads / secrets.token_hex(16) / "scene.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(drawn.getbuffer())
    return path, scenes.scene_to_json(scene)
