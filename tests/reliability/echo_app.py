"""The real page, desk and worker process over the echoing engine: what load and faults are tested on.

python tests/reliability/echo_app.py --port P [--waiting N] [--limit S] [--grace S]
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--waiting", type=int, default=16)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--grace", type=float, default=60.0)
    options = parser.parse_args()
    # Here, not above: the process that computes imports this file, and is to stay light.
    from gradio.utils import get_upload_folder

    from specvl_demo.ui import catalog
    from specvl_demo.ui.behaviour import Behaviour
    from specvl_demo.ui.desk import Desk
    from specvl_demo.ui.page import build
    from specvl_demo.ui.serve import draw_scene, settings
    from specvl_demo.ui.worker import ProcessWorker
    from tests.reliability import echo

    worker = ProcessWorker(None, echo.engine)
    desk = Desk(worker, options.waiting, options.limit, options.grace)
    page = build(
        Behaviour(catalog.describe("pocket"), catalog.panel, desk, [Path(get_upload_folder())], draw_scene)
    )
    page.launch(server_name="127.0.0.1", server_port=options.port, quiet=True, **settings())


if __name__ == "__main__":
    main()
