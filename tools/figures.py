"""Writes the figures of the documents from their records.

    python tools/figures.py            rewrite every marked figure
    python tools/figures.py --check    exit code 1, and a line for each that differs from its record

A mark follows its figure: `2.28<!-- photo: chain speedup_vs_ar -->` is a row's column in
docs/photo.json, a report of `bench --json`, and `by_kind.story.tau` a number within a column;
`lossless` instead of a method takes the methods other than AR whose answers are AR's, with `max` or
`min` after the column.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKED = re.compile(r"([\d.]+)(<!-- (\w+): (\S+) (\S+?)(?: (max|min))? -->)")


def figure(record: dict[str, Any], name: str, column: str, most: str | None) -> str:
    """Return a figure with three significant digits, as in the tables; KeyError if the record has
    none.
    """
    rows = record["rows"]
    if name == "lossless":
        own = [row for row in rows if row["method"] in record["settings"]["methods"]]
        chosen = [row for row in own if row["identical_to_ar"] and row["method"] != "ar"]
    else:
        chosen = [row for row in rows if row["method"] == name]
    if not chosen or (len(chosen) > 1 and most is None):
        raise KeyError(f"{name} is {len(chosen)} rows of the record")
    value = (min if most == "min" else max)(_at(row, column) for row in chosen)
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _at(row: dict[str, Any], column: str) -> float:
    """Return a column's number, or one further in: `by_kind.story.tau`."""
    value: Any = row
    for name in column.split("."):
        value = value[name]
    return float(value)


def written(text: str) -> str:
    """Return the text with every marked figure as in its record."""

    def anew(found: re.Match[str]) -> str:
        _, mark, record, name, column, most = found.groups()
        data = json.loads((ROOT / "docs" / f"{record}.json").read_text(encoding="utf-8"))
        return figure(data, name, column, most) + mark

    return MARKED.sub(anew, text)


def main(check: bool) -> int:
    stale = 0
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        now = written(text)
        for old, new in zip(text.splitlines(), now.splitlines(), strict=True):
            if old != new:
                stale += 1
                print(f"{path.relative_to(ROOT)}: {old}\n -> {new}")
        if not check:
            path.write_text(now, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
