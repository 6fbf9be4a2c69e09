"""Holds what the code stores to nouns: `checkpoint`, `rows`, `max_depth`, never `one` or `found`.

    python -m tools.names            what `make lint` runs
    python -m tools.names --lower    writes down how few there are now

Counted are assignments, parameters, loop variables, attributes and definitions by the words of
`VAGUE`. A file that tools/names.json does not name may have none; the others may have no more than
it says. A file that moves takes its number along: `--lower` writes what there is, if the sum has
not risen.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = Path(__file__).with_suffix(".json")
FOLDERS = ("specvl_demo", "tests", "lab", "recipes", "tools", "examples")
VAGUE = {"one", "found", "known", "kept", "own", "wanted", "most", "shown", "told", "said", "asked"}
"""Pronouns and participles: they say that there is something, and not what."""


def stored(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every name that the code gives to something, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.ExceptHandler | ast.alias):
            name = node.name if isinstance(node, ast.ExceptHandler) else node.asname
            if name:
                yield name, node.lineno


def vague(source: str) -> list[tuple[str, int]]:
    """Return the stored names of a file that are no nouns, in the order of its lines."""
    names = ((name, line) for name, line in stored(ast.parse(source)) if name.strip("_") in VAGUE)
    return sorted(names, key=lambda place: place[1])


def main(arguments: list[str]) -> int:
    ceilings: dict[str, int] = json.loads(CEILINGS.read_text())
    counts: dict[str, int] = {}
    problems = []
    for path in sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        places = vague(path.read_text(encoding="utf-8"))
        if places:
            counts[name] = len(places)
        if len(places) > ceilings.get(name, 0):
            listed = ", ".join(f"{word} (line {line})" for word, line in places)
            problems.append(f"{name}: {len(places)} of at most {ceilings.get(name, 0)}: {listed}")
    if "--lower" in arguments and sum(counts.values()) <= sum(ceilings.values()):
        CEILINGS.write_text(json.dumps(counts, indent=1) + "\n")
    elif problems:
        lines = "\n".join(problems)
        sys.stderr.write(f"Names that do not say what they hold; use the noun:\n{lines}\n")
        return 1
    package = sum(count for name, count in counts.items() if name.startswith("specvl_demo/"))
    sys.stdout.write(f"{sum(counts.values())} vague names, {package} of them in the package.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
