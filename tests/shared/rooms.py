"""The rooms of the package, who imports whom of them, and the names of its classes: read off the
source.
"""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

from specvl_demo.places import ROOT

FILES = sorted(
    [
        *(ROOT / "specvl_demo").rglob("*.py"),
        *(ROOT / "recipes").glob("*.py"),
        *(ROOT / "recipes" / "drafters").glob("*.py"),
        ROOT / "app.py",
    ]
)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module a file imports, at the top or inside a function, as dotted names."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def uses(path: Path, package: str) -> bool:
    return any(name == package or name.startswith(package + ".") for name in imports(path))


def inside(path: Path, *places: str) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return any(name == at or (at.endswith("/") and name.startswith(at)) for at in places)


LAYERS = (
    ("places", "native", "torchvision_schemas", "waiting_threads"),
    ("records", "media", "ui.messages"),
    ("options",),
    ("core", "report", "pairs"),
    ("decoders", "question"),
    ("vlm",),
    ("methods",),
    ("serving",),
    ("compare",),
    ("cli",),
    ("__main__", "ui.serve"),
    ("ui.page",),
    ("ui.launch",),
    ("ui.command",),
    ("recipes",),
)
"""Rooms from the bottom up; the drawing in docs/structure.md. Arrows go down, or stay in a room."""


def room_of(module: str) -> tuple[str, int] | None:
    """The room of a dotted name below the package, and its layer; None for the package itself."""
    for layer, rooms in enumerate(LAYERS):
        for room in rooms:
            if f"{module}.".startswith((f"specvl_demo.{room}.", f"{room}.")):
                return room, layer
    return None


@cache
def arrows() -> set[tuple[str, str]]:
    """(importer, imported) for every two rooms of which one imports the other."""
    pairs = set()
    for path in FILES:
        importer = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for room in {room_of(name) for name in imports(path)}:
            if importer and room and room[0] != importer[0]:
                pairs.add((importer[0], room[0]))
    return pairs


def doubled() -> dict[str, int]:
    """Class names of the package that more than one class has."""
    package = [path for path in FILES if inside(path, "specvl_demo/")]
    nodes = [node for path in package for node in ast.walk(parsed(path))]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return {name: n for name, n in sorted(names.items()) if n > 1}
