"""The command line as a script uses it, in this process: what it prints, why it refuses."""

import json
from typing import Any

from specvl_demo.__main__ import main


def run_json(capsys: Any, line: str, *words: str) -> dict[str, Any]:
    """What a command prints: words separated by spaces, then words that hold some."""
    assert main([*line.split(), *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: Any, line: str, *words: str) -> str:
    """What a command that cannot be done says."""
    assert main([*line.split(), *words]) == 2
    return capsys.readouterr().err
