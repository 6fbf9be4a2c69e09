"""Runs the page's own scripts outside a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "specvl_demo" / "ui" / "assets" / "js"


def node() -> str | None:
    """A JavaScript engine: the system's, or the one the browser tests bring."""
    try:
        import playwright
    except ImportError:
        return shutil.which("node")
    ours = Path(playwright.__file__).parent / "driver" / "node"
    return str(ours) if ours.exists() else shutil.which("node")


needs_node = pytest.mark.skipif(
    node() is None, reason="needs a JavaScript engine: node, or playwright's own"
)


def run(folder: Path, body: str, data: Any) -> Any:
    """Return the result of `body` for `data`: statements of a function (data, load); load returns a
    script by name.
    """
    for script in SCRIPTS.glob("*.js"):
        shutil.copy(script, folder / script.name)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "run.mjs").write_text(
        "import { readFileSync } from 'node:fs';\nconst load = (name) => import(new URL(name,"
        f" import.meta.url));\nconst f = async (data, load) => {{ {body}"
        " };\nprocess.stdout.write(JSON.stringify(await f(JSON.parse(readFileSync(0, 'utf8')),"
        " load)));\n"
    )
    done = subprocess.run(
        [str(node()), "run.mjs"],
        input=json.dumps(data).encode(),
        cwd=folder,
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)
