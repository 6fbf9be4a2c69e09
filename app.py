"""Serve the page: `python app.py [options]`, the same as `specvl-demo serve`; `--help` lists them.

Spaces start this file. Importing it does nothing.
"""

from __future__ import annotations

import sys

from specvl_demo.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
