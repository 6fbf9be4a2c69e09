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
from specvl_demo.cli.parse import Parser, number, whole
from specvl_demo.ui.page import startup
from specvl_demo.ui.serve import zerogpu


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the page's server. ValueError with a sentence where they make no sense."""
    parser = Parser(prog="app.py", description="Watch vision-language models decode, side by side.")
    # Spaces say through the environment where to listen, and can be told there what to serve.
    given = os.environ.get
    parser.add_argument(
        "--host",
        default=given("GRADIO_SERVER_NAME", "127.0.0.1"),
        help="address to listen on (default: this machine only)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=given("GRADIO_SERVER_PORT", "7860"),
        help="port to listen on (default: GRADIO_SERVER_PORT, else 7860)",
    )
    parser.add_argument(
        "--pair",
        default=given("SPECVL_PAIR"),
        metavar="ID",
        help="the pair a visitor starts with (default: photo where its weights are, else pocket)",
    )
    parser.add_argument(
        "--workers",
        type=whole(1, 1024),
        default=1,
        metavar="N",
        help="runs computed at once, through Ray (default: 1)",
    )
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="the Ray cluster to compute on (default: one on this machine)"
    )
    parser.add_argument(
        "--gpus-each", type=number(0, 64), metavar="G", help="GPUs of each worker, 0.5 to share one"
    )
    parser.add_argument(
        "--waiting",
        type=whole(0, 10_000),
        default=16,
        metavar="N",
        help="visitors that may wait at once (default: 16)",
    )
    parser.add_argument(
        "--limit",
        type=number(1, 86_400),
        default=300.0,
        metavar="S",
        help="seconds a run may compute (default: 300)",
    )
    parser.add_argument(
        "--login-file",
        metavar="F",
        help="who may see the page, a line of user:password each (or SPECVL_LOGIN, SPECVL_LOGIN_FILE)",
    )
    parser.add_argument(
        "--hosts",
        default=given("SPECVL_HOSTS", ""),
        metavar="NAMES",
        help="names the page may be asked for under, with commas; .example.org for all below it, * for any "
        "(default: this machine's own where --host is local, else any)",
    )
    parser.add_argument("--share", action="store_true", help="also open a public tunnel to this page")
    return parser.parse_args(argv)


def _port(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(
            f"must be between 1 and 65535, not {text!r}; GRADIO_SERVER_PORT counts where it is not given"
        )
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Build the page and serve it until it is stopped; gives the exit code, 2 where it cannot be served."""
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
    # A folder of its own: what is old in it is removed, and other apps of Gradio share the usual one.
    name = f"specvl-demo-{os.getuid()}" if hasattr(os, "getuid") else "specvl-demo"
    os.environ.setdefault("GRADIO_TEMP_DIR", str(Path(tempfile.gettempdir(), name)))
    # Here, not above: --help answers at once, and the decoding process, which imports this file, is light.
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
