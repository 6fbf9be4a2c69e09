"""Measures how large the repository is, and how tangled, and holds its size against the budget.

    python -m lab.size

The budget is the table in docs/structure.md. Python is counted in tokens without comments and
layout, so that clear code costs no more than dense code; scripts in bytes without comments. Then:
rooms and arrows between them by the layers of `tests/shared/rooms.py`, class names used for more
than one class, and places where the type checker is overruled. Exits with 1 if a folder exceeds its
budget.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path

from specvl_demo.places import ROOT
from tests.shared.rooms import arrows, doubled

TABLE = ROOT / "docs" / "structure.md"
ROW = re.compile(r"^\| `([\w/]+)`, (\.\w+) \| ([\d,]+) (tokens|bytes|lines) \|$", re.M)
"""A line of the table: a folder, the suffix of the files that count, and the limit."""
COMMENT = re.compile(r"\n?[ \t]*/\*.*?\*/|[ \t]*(?<![:'\"])//[^\n]*", re.S)
"""A comment of a script, where its types stand too, with the line and the space it takes."""
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def tracked() -> list[Path]:
    """Return the files of the repository that git tracks."""
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


def count_tokens(path: Path) -> int:
    """Return the number of Python's tokens in a file, without comments and layout."""
    with path.open("rb") as file:
        return sum(token.type not in LAYOUT for token in tokenize.tokenize(file.readline))


COUNTS: dict[str, Callable[[Path], int]] = {
    "tokens": count_tokens,
    "bytes": lambda path: len(COMMENT.sub("", path.read_text(encoding="utf-8")).encode()),
    "lines": lambda path: len(path.read_text(encoding="utf-8").splitlines()),
}


def main() -> int:
    files, rows, exceeded = tracked(), [], []
    for folder, suffix, limit, unit in ROW.findall(TABLE.read_text(encoding="utf-8")):
        counted = [p for p in files if p.suffix == suffix and p.is_relative_to(ROOT / folder)]
        size = sum(map(COUNTS[unit], counted))
        rows.append(f"{folder + ', ' + suffix:18} {size:8,} of {limit} {unit}")
        excess = size - int(limit.replace(",", ""))
        if excess > 0:
            exceeded.append(f"{folder} has {excess:,} {unit} of {suffix} too many")
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
        *(f"Over budget: {row} (docs/structure.md, Size)." for row in exceeded),
    ]
    sys.stdout.write("\n".join(rows) + "\n")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
