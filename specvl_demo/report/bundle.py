"""The page's scripts and styles as they go into a file that opens without a server: one script, one
sheet. Given the folder of the page's files; knows their imports and nothing else of them.
"""

from __future__ import annotations

import re
from pathlib import Path

from specvl_demo.places import PACKAGE

PAGE = PACKAGE / "ui" / "assets"
SHEETS = [
    PAGE / "css" / f"{name}.css" for name in ("theme", "frame", "ask", "race", "views", "play")
]
"""In the order in which a later one wins."""
_IMPORT = re.compile(r"^import (?:\{([^}]*)\}|\* as (\w+)) from '([^']+)';$", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const|let) (\w+))", re.MULTILINE)
_EXPORT_LIST = re.compile(r"^export \{([^}]*)\};$", re.MULTILINE)
_COMMENT = re.compile(r"^ *(?:/\*.*?\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)


def bundle_scripts(entry: Path) -> str:
    """Return a script with all that it imports, directly or not, as one script."""
    modules = {}

    def add(path: Path) -> str:
        """Add a script after those that it imports, and return the name of what it exports."""
        name = "_" + re.sub(r"\W", "_", path.relative_to(entry.parent).with_suffix("").as_posix())
        if path in modules:
            return name

        def bind(match: re.Match[str]) -> str:
            names = match[2] or "{" + match[1].replace(" as ", ": ") + "}"
            return f"const {names} = {add((path.parent / match[3]).resolve())};"

        source = _COMMENT.sub("", path.read_text("utf-8"))
        exported = [match[2] for match in _EXPORT.finditer(source)]
        exported += [match[1] for match in _EXPORT_LIST.finditer(source)]
        body = _EXPORT_LIST.sub("", _EXPORT.sub(r"\1", _IMPORT.sub(bind, source)))
        modules[path] = (
            f"const {name} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();\n"
        )
        return name

    add(entry.resolve())
    return "".join(modules.values())
