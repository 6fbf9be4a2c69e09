"""docs/adding-a-method.md, executed literally in a separate process: the file, the race,
the page.
"""

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


SCRIPT = """
import contextlib, io, json, sys
from specvl_demo.__main__ import main
from specvl_demo.ui.page import catalog
told = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(words) == 0
    told.append(said.getvalue())
print(json.dumps([told, catalog.describe("pocket"), catalog.panel("pocket", "growing", {})]))
"""


@pytest.mark.slow
def test_the_commands_of_the_page_run_and_the_page_offers_the_method(tmp_path: Path) -> None:
    (tmp_path / "growing.py").write_text(block("python"), encoding="utf-8")
    shutil.copy(ROOT / "examples" / "scene.png", tmp_path)
    script = block("sh").replace("\\\n", " ")
    lines = [
        line.split()[3:] for line in script.splitlines() if line.startswith("python -m specvl_demo")
    ]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(lines)],
        cwd=tmp_path,
        env={**os.environ, "SPECVL_METHODS": "growing.py", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, described, panel = json.loads(done.stdout)
    assert len(said) == 2 and all("growing" in one for one in said)
    told = [records.loads(line) for line in (tmp_path / "growing.jsonl").open(encoding="utf-8")]
    begins = {r.lane: r for r in told if isinstance(r, records.Begin)}
    begin = begins["growing"]
    assert [chart.id for chart in begin.charts] == ["growing"] and begin.settings["keep"] == 0.3
    rounds = [r for r in told if isinstance(r, records.Round)]
    text = {
        lane: "".join(t.text for r in rounds if r.lane == lane for t in r.tokens) for lane in begins
    }
    assert text["growing"] == text["ar"]
    assert any(r.n_accepted > 1 for r in rounds if r.lane == "growing")
    assert all("length" in r.notes for r in rounds if r.lane == "growing")
    (method,) = [one for one in described["methods"] if one["name"] == "growing"]
    assert method["learn"]["shines"] and method["lossless"]
    assert described["pairs"][0]["methods"]["growing"] is True
    assert {"longest", "keep", "draws"} == {param["key"] for param in panel["params"]}
    assert panel["standard"] == "pocket" and panel["params"][0]["max"] == 32
