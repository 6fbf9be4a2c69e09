"""Measures how large the repository is, and how tangled: the figures of its own budget.

    python -m lab.size

Counts lines of the files that git tracks (formatted at 100 columns, including comments and blank
lines; with the tests those of the page's scripts), rooms and arrows
between them by the layers of `tests/shared/rooms.py`, class names used for more than one class, and
places where the type checker is overruled.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from specvl_demo.places import ROOT
from tests.shared.rooms import arrows, doubled

BUDGET = {
    "specvl_demo": 23_000,
    "tests": 17_500,
    "lab": 3_500,
    "recipes": 5_700,
    "scripts": 8_400,
    "styles": 3_150,
}
"""Lines of Python in each folder, and of the page's scripts and style sheets."""
COUNTED = {
    **{name: [(name, ".py")] for name in ("specvl_demo", "lab", "recipes")},
    "tests": [("tests", ".py"), ("tests", ".js")],
    "scripts": [("specvl_demo", ".js")],
    "styles": [("specvl_demo", ".css")],
}
"""Folder and suffix of what a row counts."""


def tracked() -> list[Path]:
    """Return the files of the repository that git tracks."""
    said = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in said.stdout.splitlines() if (ROOT / name).is_file()]


def lines(files: list[Path], folder: str, suffix: str) -> int:
    """Return how many lines a folder has in files of a kind."""
    return sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in files
        if path.suffix == suffix and path.relative_to(ROOT).parts[0] == folder
    )


def main() -> int:
    files = tracked()
    rows = [
        f"{name:12} {sum(lines(files, *kind) for kind in COUNTED[name]):7,} of {limit:,} lines"
        for name, limit in BUDGET.items()
    ]
    between = arrows()
    rooms = {room for arrow in between for room in arrow}
    overruled = sum(
        path.read_text(encoding="utf-8").count("# type: " + "ignore")
        for path in files
        if path.suffix == ".py"
    )
    rows += [
        f"{len(rooms)} rooms, {len(between)} arrows between them",
        f"{overruled} places overrule the type checker",
        f"class names with several classes: {doubled() or 'none'}",
    ]
    sys.stdout.write("\n".join(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
