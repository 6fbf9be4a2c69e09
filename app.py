"""Serve the page: `python app.py [--host H] [--port P] [--pair ID] [--share]`. Importing it does nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the page's server."""
    parser = argparse.ArgumentParser(description="Watch vision-language models decode, side by side.")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    parser.add_argument("--port", type=int, default=7860)
    parser.add_argument("--pair", default="pocket", metavar="ID", help="the pair a visitor starts with")
    parser.add_argument("--share", action="store_true", help="also open a public tunnel to this page")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Build the page and serve it until it is stopped."""
    options = parse(argv)
    # Here, not above: --help answers at once, and the decoding process, which imports this file, is light.
    from specvl_demo.ui.serve import serve  # noqa: PLC0415

    serve(options.host, options.port, options.pair, options.share)


if __name__ == "__main__":
    main()
