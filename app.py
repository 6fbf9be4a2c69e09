"""Serve the page: `python app.py [options]`, which `--help` lists. Importing it does nothing."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from specvl_demo import pairs, registry, tuned
from specvl_demo.cli.parse import Parser, add, flag, number, option, whole
from specvl_demo.ui.page import startup
from specvl_demo.ui.serve import zerogpu


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the page's server. ValueError with a sentence where they make no sense."""
    parser = Parser(prog="app.py", description="Watch vision-language models decode, side by side.")
    # Spaces say through the environment where to listen, and can be told there what to serve.
    given = os.environ.get
    host, port = given("GRADIO_SERVER_NAME", "127.0.0.1"), given("GRADIO_SERVER_PORT", "7860")
    options = (
        option("--host", about="address to listen on (default: this machine only)", default=host),
        option(
            "--port",
            about="port to listen on (default: GRADIO_SERVER_PORT, else 7860)",
            type=_port,
            default=port,
        ),
        option(
            "--pair",
            "ID",
            "the pair a visitor starts with (default: photo where its weights are, else pocket)",
            default=given("SPECVL_PAIR"),
        ),
        option(
            "--workers",
            "N",
            "runs computed at once, through Ray (default: 1)",
            type=whole(1, 1024),
            default=1,
        ),
        option(
            "--cluster", "ADDRESS", "the Ray cluster to compute on (default: one on this machine)"
        ),
        option("--gpus-each", "G", "GPUs of each worker, 0.5 to share one", type=number(0, 64)),
        option(
            "--waiting",
            "N",
            "visitors that may wait at once (default: 16)",
            type=whole(0, 10_000),
            default=16,
        ),
        option(
            "--limit",
            "S",
            "seconds a run may compute (default: 300)",
            type=number(1, 86_400),
            default=300.0,
        ),
        option(
            "--login-file",
            "F",
            "who may see the page, a line of user:password each (or SPECVL_LOGIN,"
            " SPECVL_LOGIN_FILE)",
        ),
        option(
            "--hosts",
            "NAMES",
            "names the page may be asked for under, with commas; .example.org for all below it, *"
            " for any (default: this machine's own where --host is local, else any)",
            default=given("SPECVL_HOSTS", ""),
        ),
        flag("--share", "also open a public tunnel to this page"),
    )
    add(parser, options)
    return parser.parse_args(argv)


def _port(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(
            f"must be between 1 and 65535, not {text!r}; GRADIO_SERVER_PORT counts where it is not"
            " given"
        )
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Build the page and serve it until it is stopped; gives the exit code, 2 where it cannot be
    served.
    """
    try:
        _serve(argv)
    except (ValueError, OSError) as reason:
        sys.stderr.write(" ".join(str(reason).split()) + "\n")
        return 2
    except KeyboardInterrupt:  # before there is anything to stop
        return 130
    return 0


def _serve(argv: Sequence[str] | None) -> None:
    zerogpu.prepare()
    options = parse(argv)
    startup.check_versions(Path(__file__).with_name("requirements.txt"))
    logins = startup.logins(options.login_file)
    if os.environ.get("SPACE_ID") and options.pair in (None, "photo"):
        # No `make demo` ran there. In a process of its own: this one needs no torch.
        subprocess.run([sys.executable, "-m", "specvl_demo", "fetch", "photo"], check=False)
    pair = pairs.find(options.pair) if options.pair else registry.default_pair()
    tuned.entry(pair.id)
    # A folder of its own: what is old in it is removed, and other apps of Gradio share the usual
    # one.
    name = f"specvl-demo-{os.getuid()}" if hasattr(os, "getuid") else "specvl-demo"
    os.environ.setdefault("GRADIO_TEMP_DIR", str(Path(tempfile.gettempdir(), name)))
    # Here, not above: --help answers at once, and the decoding process, which imports this file, is
    # light.
    from specvl_demo.ui.launch import serve  # noqa: PLC0415
    from specvl_demo.ui.serve.workers import Cluster  # noqa: PLC0415

    serve(
        options.host,
        options.port,
        pair.id,
        options.share,
        Cluster(options.workers, options.cluster, options.gpus_each),
        logins,
        options.waiting,
        options.limit,
        [name.strip().lower() for name in options.hosts.split(",") if name.strip()],
    )


if __name__ == "__main__":
    sys.exit(main())
