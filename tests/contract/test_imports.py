"""Who may import whom, read off the source: the arrows of docs/structure.md. And programs that
import other libraries first, also where these fail by themselves.
"""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.shared.rooms import FILES, ROOT, arrows, doubled, imports, inside, room_of, uses
from tests.shared.server import run_python

RULES = {
    "gradio": ("specvl_demo/ui/",),
    "transformers": (
        "specvl_demo/decoders/",
        "specvl_demo/vlm/",
        "recipes/",
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
def test_packages_are_imported_only_where_they_belong(path: Path):
    for package, places in RULES.items():
        assert inside(path, *places) or not uses(path, package), f"{package} is outside {places}"
    for place, packages in LIGHT.items():
        if inside(path, place):
            used = [package for package in packages if uses(path, package)]
            assert not used, f"{place} must not import {used}"


KERNEL_CALLERS = {"packed_linear.py", "layer_stack.py"}
"""The seam of our own kernels: a product, and layers with what drafts chains by them."""


def test_only_two_modules_call_our_own_kernels():
    calling = {path.name for path in FILES if uses(path, "specvl_demo.decoders.kernels")}
    assert calling == KERNEL_CALLERS


APART = {
    "specvl_demo/": ("tests", "lab", "recipes"),
    "tests/": ("lab", "recipes"),
    "lab/": ("tests",),
    "recipes/": ("tests", "lab"),
    "tests/shared/": ("tests",),
}
"""Folders, and those that nothing in them may import, but for what `tests.shared` has for all."""


@pytest.mark.parametrize("folder", APART)
def test_folders_that_stand_side_by_side_keep_apart(folder: str):
    for path in (ROOT / folder).rglob("*.py"):
        names = {name for name in imports(path) if not f"{name}.".startswith("tests.shared.")}
        used = [name for name in names if name.partition(".")[0] in APART[folder]]
        assert not used, f"{path} imports {used}"
    programs = [path for path in FILES if inside(path, "recipes/")]
    assert not [path for path in programs if uses(path, "tests")], "only their tests may"


FOR_RECIPES = """
__main__ cli.parse core.highest core.sampling core.tree core.types decoders.backend
decoders.calibration decoders.sequence methods.dream methods.eagle3 methods.heads.blocks
methods.heads.features methods.heads.files options pairs pairs.base_weights pairs.fingerprints
pairs.fitting pairs.machine pairs.on_disk question serving.custom serving.loaded serving.loader
vlm.efficientnet_lite vlm.eight_bits vlm.encoder vlm.photo_assembly vlm.prompts vlm.shared_drafter
vlm.target
"""
"""The surface of the package for those who make weights, sorted: modules whose public names the
recipes take. One more enters here, on purpose; one that none of them takes any more leaves.
"""


def test_recipes_take_public_names_of_the_modules_that_are_for_them():
    taken = set()
    for path in FILES:
        if inside(path, "recipes/"):
            names = {name for name in imports(path) if name.startswith("specvl_demo.")}
            private = [name for name in names if "._" in name and "__main__" not in name]
            assert not private, f"{path} imports {private}"
            taken |= {name if is_module(name) else name.rpartition(".")[0] for name in names}
    listed = [f"specvl_demo.{name}" for name in FOR_RECIPES.split()]
    assert sorted(taken - {"specvl_demo"}) == listed


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_no_arrow_goes_up():
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


def reachable(drawing: str, room: str) -> set[str]:
    """Return what the arrows of a drawing lead to from a room, itself included."""
    below = defaultdict(set)
    for own, other in re.findall(r"^  (\w+)(?:\[.*\])? --> (\w+)", drawing, re.M):
        below[own].add(other)
    reached, waiting = {room}, [room]
    while waiting:
        rooms = below[waiting.pop()] - reached
        reached |= rooms
        waiting += rooms
    return reached


def test_the_drawing_has_every_arrow():
    """A room imports only what can be reached from it in the drawing of docs/structure.md."""
    drawing = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    for own, other in arrows():
        assert drawn(other) in reachable(drawing, drawn(own)), (
            f"{own} imports {other}: draw it in docs/structure.md"
        )


SCRIPTS = ROOT / "specvl_demo" / "ui" / "assets" / "js"
DOM = re.compile(r"document\.(?!baseURI)|\bwindow\.|querySelector|from '[^']*dom\.js'")


def test_the_drawing_of_the_scripts_has_every_arrow_and_only_views_touch_the_page():
    drawing = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    for path in SCRIPTS.rglob("*.js"):
        source = path.read_text(encoding="utf-8")
        folder = path.relative_to(SCRIPTS).parts[0].removesuffix(".js")
        for name in re.findall(r"^(?:import|export)[^;]*? from '([^']+)';", source, re.M):
            other = (path.parent / name).resolve()
            assert other.is_file(), f"{path.name} imports {name}, which is not there"
            room = other.relative_to(SCRIPTS).parts[0]
            assert room in reachable(drawing, folder), f"{path.name} imports {name}: draw it"
        assert folder in ("main", "saved", "views") or not DOM.search(source), (
            f"{path.name} touches the DOM"
        )


def drawn(room: str) -> str:
    """A room's name in the drawing."""
    return "cli" if room == "__main__" else room.removeprefix("ui.")


DEVICES = (
    "recipes/",
    "specvl_demo/decoders/",
    "specvl_demo/vlm/",
    "specvl_demo/pairs/fitting.py",
    "specvl_demo/pairs/machine.py",
)
"""Where a device may be named."""


DEVICE = re.compile(r"""\.cuda\(|(?<![!=]= )["']cuda(:\d+)?["']""")
"""A call, or a string that torch takes for a GPU. To ask `device.type == "cuda"` is none."""


def test_device_literals_stay_in_decoders_vlm_and_registry():
    named = ["x.cuda()", "x.to('cuda')", "x.to(device='cuda:1')", "x.type == 'cuda'", "'cudas'"]
    assert [bool(DEVICE.search(line)) for line in named] == [True, True, True, False, False]
    for path in FILES:
        found = DEVICE.search(path.read_text(encoding="utf-8"))
        assert inside(path, *DEVICES) or not found, f"{path} names a device: {found}"


@pytest.mark.slow
def test_the_process_of_the_page_does_not_import_what_loads_models():
    """Its worker does; importing it twice would add two seconds to the start, and 100 MB."""
    code = (
        "import sys, specvl_demo.ui.launch; bad = {'transformers.modeling_utils',"
        " 'specvl_demo.serving.loader'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr


def test_no_two_classes_have_one_name():
    assert doubled() == {}


@pytest.mark.parametrize("paper", ["tabed", "sage", "lvspec", "hivis", "dream"])
def test_a_papers_name_stands_in_few_files(paper: str):
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
def test_processors_can_be_imported_whatever_was_imported_before(first: str):
    """A torchvision whose operators do not load fails until this package is imported."""
    code = (
        f"from contextlib import suppress\n{first}\nimport specvl_demo\n"
        "from transformers import AutoProcessor, LlavaForConditionalGeneration"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
