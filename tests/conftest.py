"""Shared by the app's tests: a family of tiny random models in the shape of the pocket pair.

The drafter is the target with noise on its weights, so that it is right often but not always.
"""

import asyncio
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

# What somebody fetched must not change recorded answers: the photo pair is tested where a test asks
# for its weights.
os.environ["SPECVL_CACHE"] = f"{tempfile.gettempdir()}/specvl-tests-empty"

import pytest
import torch

from specvl_demo.core.types import Prompt
from specvl_demo.places import ROOT
from tests.shared.server import server
from tests.shared.tiny import ask, ids_of, noisy, run_lane, tiny_llava


def second_try(why: str) -> pytest.MarkDecorator:
    """Mark a test that may fail without a fault, for the reason given; a second failure counts.

    The summary names every test that needed it.
    """
    assert why
    return pytest.mark.flaky(reruns=1, reruns_delay=5)


FIRST = ("tests/page/", "tests/robustness/")
"""Where the longest groups are: begun last, one would run on when all others have ended."""
RACE = ("test_explained", "test_race", "test_views")
"""Files about half of the tests of the made-up page are in."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests of one file in one process, those of the made-up page in two, each with a server
    and a browser, and all that need the real page in another. The longest come first; see the
    Makefile.
    """
    for item in items:
        fixtures, group = set(getattr(item, "fixturenames", ())), item.path.stem
        if "served" in fixtures:
            group = "served"
        elif fixtures & {"url", "visit"}:
            group = "page, the race" if group in RACE else "page, the rest"
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collections: engines collect after every load and
    every fault, and would walk over all libraries each time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_event_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let tests without a browser run event loops: once playwright has started, it keeps one
    running in this thread, in which `asyncio.run` would fail.
    """
    if "playwright" in request.fixturenames:
        yield
        return
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """`python app.py` as people start it, for all tests that need it: its address and process."""
    with server(ROOT / "app.py", tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture
def unrounded(monkeypatch) -> None:
    """Heads keep their weights' precision, as they do on processors without integer products."""
    monkeypatch.setattr("specvl_demo.decoders.kernels.pack_integers", lambda weight, bits: None)


@pytest.fixture(scope="session")
def saved_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random pair on disk, which nobody changes."""
    from tests.shared.pocketlike import save_pair

    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def llava() -> torch.nn.Module:
    return tiny_llava()


@pytest.fixture(scope="session")
def target(llava: torch.nn.Module) -> object:
    from specvl_demo.vlm.encoder import VLM
    from specvl_demo.vlm.target import VLMTarget

    return VLMTarget(VLM(llava, "tiny target"))


@pytest.fixture(scope="session")
def small(llava: torch.nn.Module) -> object:
    from specvl_demo.vlm.encoder import VLM

    return VLM(noisy(llava, 0.05), "tiny drafter")


@pytest.fixture(scope="session")
def models(target: object, small: object) -> object:
    from specvl_demo.methods.base import Models

    return Models(
        target, {"small": small}, {"newline": (5,), "caption": (6, 7), "describe": (8, 9, 10)}
    )


@pytest.fixture(scope="session")
def answers(models: object) -> Callable[..., tuple[list[int], list[object]]]:
    """Run one method by itself and return (ids, records)."""
    from specvl_demo.methods.base import build_parts, choose

    def run(
        method: str, prompt: Prompt, settings: dict[str, object] | None = None, **changes: object
    ) -> tuple[list[int], list[object]]:
        parts = build_parts(choose(method, settings), models)
        records = run_lane(parts, ask(models.target, prompt, **changes))
        return ids_of(records), records

    return run
