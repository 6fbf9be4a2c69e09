"""Brings the page up: catalog, worker, desk, behaviour, Blocks, launch.

Given an address and the pair to start with; returns when the server is stopped.
"""

from __future__ import annotations

import random
import secrets
from pathlib import Path
from typing import Any

from gradio.utils import get_upload_folder

from specvl_demo.training import scenes
from specvl_demo.ui import catalog, workers
from specvl_demo.ui.behaviour import Behaviour
from specvl_demo.ui.desk import Desk
from specvl_demo.ui.page import build, launch_settings
from specvl_demo.ui.workers import Cluster


def serve(host: str, port: int, pair: str, share: bool, cluster: Cluster | None = None) -> None:
    """Serve the page on an address of this machine; `share` opens a public tunnel besides."""
    known = catalog.describe(pair)
    worker = workers.make(pair, cluster or Cluster())
    try:
        folders = [Path(get_upload_folder()), catalog.EXAMPLES]
        behaviour = Behaviour(
            known, catalog.panel, Desk(worker), folders, draw_scene, catalog.example_files()
        )
        page = build(behaviour)
        page.launch(server_name=host, server_port=port, share=share, **launch_settings())
    finally:
        worker.close()


def draw_scene(description: Any) -> tuple[Path, dict[str, Any]]:
    """A scene drawn into a file from its JSON description, and that description.

    None draws any scene, {"seed": n} always the same one for the same n.
    """
    if description is None or (isinstance(description, dict) and "seed" in description):
        rng = random.Random(None if description is None else str(description["seed"]))
        description = scenes.scene_to_json(scenes.random_scene(rng, rng.randint(3, 6)))
    scene = scenes.scene_from_json(description)
    folder = Path(get_upload_folder()) / secrets.token_hex(16)
    folder.mkdir(parents=True)
    path = folder / "scene.png"
    scenes.draw(scene).save(path)
    return path, scenes.scene_to_json(scene)
