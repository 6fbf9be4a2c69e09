"""Checks the page's scripts by TypeScript and ESLint: neither may find anything.

    python -m tools.scripts            what `make lint` runs

Nothing is built: types stand in comments (JSDoc) and in `*.d.ts`, and browsers load the scripts as
they are. TypeScript is strict in `STRICT`. Needs node.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from specvl_demo.places import PACKAGE

SCRIPTS = PACKAGE / "ui" / "assets" / "js"
RULES = Path(__file__).with_name("eslint.config.mjs")
TYPESCRIPT, ESLINT = "typescript@5.9.3", "eslint@9.39.5"
STRICT = ("state/",)
"""Folders in which every value has a type, and null is told from a value."""
PROBLEM = re.compile(r"^(\S+?)\((\d+),\d+\): error (.*)$", re.M)


def _run_tool(package: str, program: str, *arguments: str | Path) -> str:
    command = ["npx", "--yes", "-p", package, program, *map(str, arguments)]
    done = subprocess.run(command, cwd=SCRIPTS, capture_output=True, text=True)
    if done.returncode not in (0, 1, 2) or done.stderr or done.stdout.startswith("error"):
        raise SystemExit(f"{package} could not run: {done.stderr or done.stdout}")
    return done.stdout


def type_problems() -> list[tuple[str, str]]:
    """Return (file, line and sentence) for all that TypeScript finds, strictly in `STRICT`."""
    return [
        (file, f"{line}: {sentence}")
        for strict in (False, True)
        for file, line, sentence in PROBLEM.findall(
            _run_tool(TYPESCRIPT, "tsc", "-p", "jsconfig.json", "--strict", json.dumps(strict))
        )
        if file.startswith(STRICT) == strict
    ]


def style_problems() -> list[tuple[str, str]]:
    """Return (file, line and sentence) for all that ESLint finds."""
    report = json.loads(_run_tool(ESLINT, "eslint", "-c", RULES, "-f", "json", "."))
    return [
        (
            Path(file["filePath"]).relative_to(SCRIPTS).as_posix(),
            f"{problem['line']}: {problem['message']}",
        )
        for file in report
        for problem in file["messages"]
    ]


def main() -> int:
    if shutil.which("npx") is None:
        sys.stdout.write("The scripts' types and ESLint were left out: there is no node here.\n")
        return 0
    problems = type_problems() + style_problems()
    for file, sentence in problems:
        sys.stderr.write(f"{file}:{sentence}\n")
    sys.stdout.write(f"{len(problems)} problems in the page's scripts.\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
