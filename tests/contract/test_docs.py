"""Documents point at code that exists; the table of methods is the table of the code; the notebook
runs; model cards say their licence; figures of the photo pair are those of their record.
"""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from specvl_demo.methods.base import METHODS, part_name
from specvl_demo.places import ROOT
from tests.shared.server import run_python

sys.path.insert(0, str(ROOT / "tools"))
import figures  # noqa: E402

TEXT = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
EVERY = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
POINTERS = sorted(set(re.findall(r"`([\w/]+\.py): ([\w.]+)`", EVERY)))
assert len(POINTERS) > 25


def names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize(("file", "name"), POINTERS)
def test_every_pointer_leads_somewhere(file: str, name: str):
    place = ROOT if file.startswith("recipes/") else ROOT / "specvl_demo"
    body = ast.parse((place / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = names(body)
        assert part in found, f"{file} has no {name}"
        body = getattr(found[part], "body", [])


def test_the_methods_page_lists_what_the_code_has():
    rows = {
        cells[1].strip(" `"): cells
        for line in TEXT.splitlines()
        if line.startswith("| `") and len(cells := line.split("|")) == 8
    }
    for name, cells in rows.items():
        assert name in METHODS
        assert ("no" in cells[6]) == (not METHODS[name].lossless)
        if METHODS[name].views:
            assert cells[3].strip().replace(" ", "") == part_name(METHODS[name], "views")
    methods = {"tabed", "sage", "specvlm", "lvspec", "fly", "chain", "tree", "ngram", "ar"}
    assert methods <= rows.keys()


@pytest.mark.slow
def test_the_notebook_runs_in_an_empty_folder(tmp_path: Path):
    cells = json.loads((ROOT / "examples" / "specvl.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = run_python("-c", code, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "| sage" in done.stdout and (tmp_path / "race.html").is_file()


CARDS = sorted((ROOT / "assets").glob("*/*/README.md"))


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.parent.relative_to(ROOT).as_posix())
def test_a_card_says_its_licence_and_measured_figures_to_the_hub(card: Path):
    """Weights trained on photographs are never declared as Apache-2.0."""
    _, front, text = card.read_text(encoding="utf-8").split("---\n", 2)
    photo = card.is_relative_to(ROOT / "assets" / "photo")
    assert f"license: {'other' if photo else 'apache-2.0'}\n" in front
    assert ("research and education" in text) == photo
    told = text + (ROOT / "docs" / f"{'photo' if photo else 'pocket'}.md").read_text()
    for value in re.findall(r"value: ([\d.]+)", front):
        assert value in told, value


@pytest.mark.parametrize("path", figures.DOCUMENTS, ids=lambda path: path.name)
def test_marked_figures_are_those_of_the_record(path: Path):
    text = path.read_text(encoding="utf-8")
    assert figures.written(text) == text, "run python tools/figures.py"


def test_no_speed_of_the_photo_pair_stands_without_its_record():
    """Beside a marked figure, every other speed is marked too: none is left over from before."""
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    parts = re.split(r"\n\n|\n\* ", text)
    told = [part for part in parts if re.search(r"<!-- photo\w*: ", part)]
    assert told
    for part in told:
        assert not re.search(r"\d[^\n>]{0,12}(tokens/s| times)", figures.MARKED.sub("", part))


def test_a_part_has_an_interval_where_the_record_has_every_answer():
    record = json.loads((ROOT / "docs" / "photo.json").read_bytes()) | {"timings": []}
    rows = record["rows"][:2]
    assert figures._of_kinds(record, rows, {"describe"})[1]["interval"] is None
    row = {"kind": "describe", "repeat": 1, "tokens": 9, "before_s": 0.0}
    for method, seconds in (("ar", 1.0), ("chain", 0.5)):
        record["timings"] += [row | {"method": method, "seconds": seconds}] * 5
    assert figures._of_kinds(record, rows, {"describe"})[1]["interval"] == [2.0, 2.0]


def test_a_stale_figure_is_found():
    assert figures.written("9.9<!-- photo: ar tau -->") == "1<!-- photo: ar tau -->"
    with pytest.raises(KeyError):
        figures.written("9.9<!-- photo: nothing tau -->")
