"""docs/adding-a-method.md, done to the letter in processes of its own: the file, the race, the page."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specvl_demo import records

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.S)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "growing.py").write_text(block("python"), encoding="utf-8")
    return folder


def run(command: list[str], place: Path) -> str:
    environment = {**os.environ, "SPECVL_METHODS": "growing.py", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_the_page_run(place: Path) -> None:
    shutil.copy(ROOT / "examples" / "scene.png", place)
    script = block("sh").replace("\\\n", " ")
    lines = [line.split() for line in script.splitlines() if line.startswith("python -m")]
    assert len(lines) == 2
    for line in lines:
        said = run([sys.executable, *line[1:]], place)
        assert "growing" in said
    told = [records.loads(line) for line in (place / "growing.jsonl").open(encoding="utf-8")]
    begins = {r.lane: r for r in told if isinstance(r, records.Begin)}
    begin = begins["growing"]
    assert [chart.id for chart in begin.charts] == ["growing"] and begin.settings["keep"] == 0.3
    rounds = [r for r in told if isinstance(r, records.Round)]
    text = {lane: "".join(t.text for r in rounds if r.lane == lane for t in r.tokens) for lane in begins}
    assert text["growing"] == text["ar"]
    assert any(r.n_accepted > 1 for r in rounds if r.lane == "growing")
    assert all("length" in r.notes for r in rounds if r.lane == "growing")


def test_the_page_offers_it_with_its_parameters(place: Path) -> None:
    code = (
        "import json; from specvl_demo.ui.page import catalog;"
        "shown = catalog.describe('pocket'), catalog.panel('pocket', 'growing', {});"
        "print(json.dumps(shown))"
    )
    described, panel = json.loads(run([sys.executable, "-c", code], place).splitlines()[-1])
    (method,) = [one for one in described["methods"] if one["name"] == "growing"]
    assert method["learn"]["shines"] and method["lossless"]
    assert described["pairs"][0]["methods"]["growing"] is True
    assert {"longest", "keep", "draws", "draft_vocab"} == {param["key"] for param in panel["params"]}
    assert panel["standard"] == "pocket" and panel["params"][0]["max"] == 32
