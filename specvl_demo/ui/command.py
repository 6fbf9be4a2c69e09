"""`serve`: checks logins and the pair, then starts the page. Imports Gradio only then, so that the
decoding process, which imports the command line again, stays light.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from specvl_demo import pairs, places
from specvl_demo.options import split_names
from specvl_demo.serving import choosing
from specvl_demo.ui.page import startup
from specvl_demo.ui.serve import zerogpu

FRAME = re.compile(r"\*|(https?://)?(\*\.)?[\w.-]+(:\d+)?")
"""A site as a browser's security policy names it."""


def serve(options: argparse.Namespace) -> int:
    """Serve the page until it is stopped; ValueError if it cannot be served."""
    # The first process of a container would ignore SIGTERM until the page is up.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, startup.exit_process)
    zerogpu.import_spaces()
    logins = startup.read_logins(options.login_file)
    if os.environ.get("SPACE_ID") and options.pair in (None, "photo"):
        # `make demo` did not run there. Run in a separate process, since this one needs no torch.
        command = [sys.executable, "-m", "specvl_demo", "fetch", "photo"]
        subprocess.run(command, check=False, env=places.import_env(os.environ))
    pair = pairs.find(options.pair) if options.pair else choosing.default_pair()
    # A separate folder: old files in it are removed, and other Gradio apps share the default one.
    folder = Path(tempfile.gettempdir(), f"specvl-demo-{os.getuid()}")
    os.environ.setdefault("GRADIO_TEMP_DIR", str(folder))
    from specvl_demo.ui import launch  # noqa: PLC0415 - see above
    from specvl_demo.ui.serve import workers  # noqa: PLC0415

    resources = options.workers, options.cluster, options.gpus_each
    make = partial(workers.make_worker, pair.id, *resources)
    # A Space is shown in a frame, there and where others embed it.
    frames = read_frames(options.frames) or (["*"] if os.environ.get("SPACE_ID") else [])
    hosts = split_names(options.hosts.lower())
    where = options.host, options.port, pair.id, options.share
    try:
        launch.serve_page(*where, make, logins, options.waiting, options.limit, hosts, frames)
    except OSError as reason:
        raise ValueError(str(reason)) from None
    return 0


def read_frames(listed: str) -> list[str]:
    """Return the sites that may frame the page; ValueError if one is none."""
    sites = split_names(listed.lower())
    if bad := [site for site in sites if not FRAME.fullmatch(site)]:
        raise ValueError(
            f"--frames needs names such as example.org or https://*.example.org, not {bad[0]!r}."
        )
    return sites
