"""docs/methods.md points at code that exists, and its table is the table of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from specvl_demo.methods.base import METHODS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
POINTERS = sorted(set(re.findall(r"`([\w/]+\.py): ([\w.]+)`", TEXT)))


def names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize(("file", "name"), POINTERS)
def test_every_pointer_leads_somewhere(file: str, name: str) -> None:
    place = ROOT if file.startswith("recipes/") else ROOT / "specvl_demo"
    body = ast.parse((place / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = names(body)
        assert part in found, f"{file} has no {name}"
        body = getattr(found[part], "body", [])


def test_there_are_pointers() -> None:
    assert len(POINTERS) > 25


def test_the_table_is_the_codes() -> None:
    rows = {
        cells[1].strip(" `"): cells
        for line in TEXT.splitlines()
        if line.startswith("| `") and len(cells := line.split("|")) == 8
    }
    for name, cells in rows.items():
        assert name in METHODS
        assert ("no" in cells[6]) == (not METHODS[name].lossless)
        if METHODS[name].views:
            assert cells[3].strip().replace(" ", "") == METHODS[name].own("views")
    assert {
        "tabed",
        "sage",
        "specvlm",
        "lvspec",
        "fly",
        "chain",
        "tree",
        "ngram",
        "ar",
    } <= rows.keys()
