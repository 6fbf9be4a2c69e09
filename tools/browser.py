"""The browser that the page's tests drive: the system's, else one that Playwright has fetched.

    python -m tools.browser     install one if none starts

Uses the system's package manager if it needs no password (root, or sudo without one), else
Playwright. If neither works, the page's tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from playwright.sync_api import Error, Playwright, sync_playwright

# Inside the environment, so that a home folder which cannot be written is no matter.
os.environ.setdefault("PLAYWRIGHT_BROWSERS_PATH", "0")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
MISSING = "no browser starts here: the tests of the page are skipped"
PATIENCE_S = 600


def find(play: Playwright) -> str | None:
    """The first browser here that really starts: a package's stub, or one that lacks libraries,
    does not.
    """
    for path in (*map(shutil.which, NAMES), play.chromium.executable_path):
        if path and Path(path).exists():
            with suppress(Error):
                play.chromium.launch(executable_path=path, args=FLAGS).close()
                return path
    return None


def found() -> bool:
    with sync_playwright() as play:
        return find(play) is not None


def ways() -> list[tuple[str, list[list[str]]]]:
    """How a browser can be had here, in order: a name, and the commands."""
    rights = [] if os.geteuid() == 0 else ["sudo", "-n"]
    allowed = not rights or (bool(shutil.which("sudo")) and run([[*rights, "true"]]))
    playwright = [sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]
    if not allowed or not shutil.which("apt-get"):
        return [("Playwright", [playwright])]
    quick = ["-q", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20"]
    apt = [*rights, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *quick]
    return [
        ("apt", [[*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", "chromium"]]),
        ("Playwright", [[*playwright, "--with-deps"]]),
    ]


def run(commands: list[list[str]]) -> bool:
    """Whether all commands end well. They say nothing: a download that fails would fill the
    screen.
    """
    try:
        for command in commands:
            subprocess.run(command, timeout=PATIENCE_S, capture_output=True, check=True)
        return True
    except (OSError, subprocess.SubprocessError):
        return False


def main() -> None:
    if found():
        return
    for name, commands in ways():
        print(f"Installing Chromium for the tests of the page, by {name}: about 100 MB", flush=True)
        if run(commands) and found():
            return
    print(f"Not possible: {MISSING}.", flush=True)


if __name__ == "__main__":
    main()
