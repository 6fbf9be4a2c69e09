"""Measures how large the repository is, and how tangled: the figures of its own budget.

    python -m lab.size

Counts lines of the files that git tracks (formatted at 100 columns, including comments and blank
lines), rooms and arrows between them by the layers of `tests/contract/test_imports.py`, class names
used for more than one class, and places where the type checker is overruled.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.contract.test_imports import ROOT, arrows, doubled

BUDGET = {
    "specvl_demo": 23_000,
    "tests": 17_500,
    "lab": 3_500,
    "recipes": 5_700,
    "scripts": 8_400,
    "styles": 3_150,
}
"""Lines of Python in each folder, and of the page's scripts and style sheets."""
PAGE = {"scripts": ".js", "styles": ".css"}


def tracked() -> list[Path]:
    """Return the files of the repository that git tracks."""
    said = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in said.stdout.splitlines() if (ROOT / name).is_file()]


def lines(files: list[Path], folder: str, suffix: str) -> int:
    return sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in files
        if path.suffix == suffix and path.relative_to(ROOT).parts[0] == folder
    )


def main() -> int:
    files = tracked()
    counts = {name: lines(files, name, ".py") for name in BUDGET if name not in PAGE}
    counts |= {name: lines(files, "specvl_demo", suffix) for name, suffix in PAGE.items()}
    rows = [f"{name:12} {n:7,} of {BUDGET[name]:,} lines" for name, n in counts.items()]
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
