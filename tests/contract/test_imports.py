"""Who may import whom, read off the source: the arrows of docs/structure.md. And programs that
import other libraries first, also where these fail by themselves.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def uses(path: Path, package: str) -> bool:
    return any(name == package or name.startswith(package + ".") for name in imports(path))


def inside(path: Path, *places: str) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return any(
        name == place or (place.endswith("/") and name.startswith(place)) for place in places
    )


RULES = {
    "gradio": ("specvl_demo/ui/",),
    "transformers": (
        *("specvl_demo/decoders/", "specvl_demo/vlm/", "recipes/"),
        "specvl_demo/compare/peers.py",
    ),
    "lab": (),
}
"""What may be imported only in these places."""
LIGHT = {
    "specvl_demo/records.py": ("torch", "gradio", "numpy", "PIL"),
    "specvl_demo/report/": ("torch", "gradio", "numpy", "PIL"),
    "specvl_demo/core/": ("json", "PIL", "cv2"),
    "specvl_demo/media/": ("torch",),
}
"""What may not be imported here. LAYERS says who imports whom of this repository."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_arrows(path: Path) -> None:
    for package, places in RULES.items():
        assert inside(path, *places) or not uses(path, package), (
            f"{package} is imported outside {places}"
        )
    for place, packages in LIGHT.items():
        if inside(path, place):
            used = [package for package in packages if uses(path, package)]
            assert not used, f"{place} must not import {used}"


KERNEL_CALLERS = {"packed_linear.py", "layer_stack.py"}
"""The seam of our own kernels: a product, and layers with what drafts chains by them."""


def test_only_two_modules_call_our_own_kernels() -> None:
    calling = {path.name for path in FILES if uses(path, "specvl_demo.decoders.kernels")}
    assert calling == KERNEL_CALLERS


def test_recipes_take_only_public_names() -> None:
    """They are a project of their own, which only meets what the package offers."""
    for path in FILES:
        if inside(path, "recipes/"):
            private = [name for name in imports(path) if "._" in name and "__main__" not in name]
            assert not private, f"{path} imports {private}"


LAYERS = (
    ("places", "native", "torchvision_schemas"),
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
    found = set()
    for path in FILES:
        own = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        others = {room_of(name) for name in imports(path)}
        found |= {(own[0], room[0]) for room in others if own and room and room[0] != own[0]}
    return found


def test_no_arrow_goes_up() -> None:
    """So there is no circle. Only the package's public names, loaded on demand, look up."""
    for path in FILES:
        own = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if own is None:
            assert path.name in ("__init__.py", "app.py"), f"{path} is in no room of LAYERS"
            continue
        for name in imports(path):
            other = room_of(name)
            if other is not None and other[0] != own[0]:
                assert other[1] < own[1], f"{path} ({own[0]}) must not import {name} ({other[0]})"


def test_the_drawing_has_every_arrow() -> None:
    """A room imports only what can be reached from it in the drawing of docs/structure.md."""
    drawing = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    below: dict[str, set[str]] = defaultdict(set)
    for own, other in re.findall(r"^  (\w+)(?:\[.*\])? --> (\w+)", drawing, re.M):
        below[own].add(other)
    for own, other in arrows():
        reached, waiting = {drawn(own)}, [drawn(own)]
        while waiting:
            found = below[waiting.pop()] - reached
            reached |= found
            waiting += found
        assert drawn(other) in reached, f"{own} imports {other}: draw it in docs/structure.md"


def drawn(room: str) -> str:
    """A room's name in the drawing."""
    return "cli" if room == "__main__" else room.removeprefix("ui.")


DEVICES = (
    *("recipes/", "specvl_demo/decoders/", "specvl_demo/vlm/"),
    *("specvl_demo/pairs/fitting.py", "specvl_demo/pairs/machine.py"),
)
"""Where a device may be named."""


DEVICE = re.compile(r"""\.cuda\(|(?<![!=]= )["']cuda(:\d+)?["']""")
"""A call, or a string that torch takes for a GPU. To ask `device.type == "cuda"` is none."""


def test_device_literals_stay_in_decoders_vlm_and_registry() -> None:
    named = ["x.cuda()", "x.to('cuda')", "x.to(device='cuda:1')", "x.type == 'cuda'", "'cudas'"]
    assert [bool(DEVICE.search(line)) for line in named] == [True, True, True, False, False]
    for path in FILES:
        found = DEVICE.search(path.read_text(encoding="utf-8"))
        assert inside(path, *DEVICES) or not found, f"{path} names a device: {found}"


@pytest.mark.slow
def test_the_process_of_the_page_does_not_import_what_loads_models() -> None:
    """Its worker does; importing it twice would add two seconds to the start, and 100 MB."""
    code = (
        "import sys, specvl_demo.ui.launch; bad = {'transformers.modeling_utils',"
        " 'specvl_demo.serving.loader'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def doubled() -> dict[str, int]:
    """Class names of the package that more than one class has."""
    package = [path for path in FILES if inside(path, "specvl_demo/")]
    nodes = [node for path in package for node in ast.walk(parsed(path))]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return {name: n for name, n in sorted(names.items()) if n > 1}


def test_no_two_classes_have_one_name() -> None:
    assert doubled() == {}


@pytest.mark.parametrize("paper", ["tabed", "sage", "lvspec", "hivis", "dream"])
def test_a_papers_name_stands_in_few_files(paper: str) -> None:
    """Its own file, the claims of the papers, what lists the pairs and draws the page's diagrams,
    and one more: the rest is generic.
    """
    sources = [*(ROOT / "specvl_demo").rglob("*.py"), *(ROOT / "specvl_demo").rglob("*.js")]
    word = re.compile(rf"\b{paper}\b", re.IGNORECASE)
    named = [
        str(path.relative_to(ROOT))
        for path in sources
        if word.search(path.read_text(encoding="utf-8"))
    ]
    assert f"specvl_demo/methods/{paper}.py" in named and len(named) <= 5, named


BEFORE = (
    "import transformers",
    "with suppress(ImportError): from transformers import AutoProcessor",
    "with suppress(ImportError, RuntimeError): import torchvision",
)


@pytest.mark.slow
@pytest.mark.parametrize("first", BEFORE)
def test_processors_can_be_imported_whatever_was_imported_before(first: str) -> None:
    """A torchvision whose operators do not load fails until this package is imported."""
    code = (
        f"from contextlib import suppress\n{first}\nimport specvl_demo\n"
        "from transformers import AutoProcessor, LlavaForConditionalGeneration"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
