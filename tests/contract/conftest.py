"""A random pair on disk, as the command line and Python use it, and a deep target for heads."""

from pathlib import Path

import pytest

from specvl_demo import pairs
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget
from tests.shared import corpus, pocketlike
from tests.shared.tiny import tiny_llava


@pytest.fixture(scope="session")
def deep() -> VLMTarget:
    """A target of eight layers: enough for three distinct ones to be read."""
    return VLMTarget(VLM(tiny_llava(layers=8), "deep"))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Assets with a random pair, a picture, a clip and broken files."""
    folder = tmp_path_factory.mktemp("place")
    pocketlike.save_pair(folder / "pocket")
    corpus.halves((200, 100)).save(folder / "a.png")
    corpus.write_clip(folder / "c.mp4")
    (folder / "broken.png").write_bytes(corpus.encode(corpus.halves(), "PNG")[:100])
    (folder / "words.png").write_text("not a picture")
    return folder


@pytest.fixture
def assets(place: Path, monkeypatch) -> Path:
    """The same in place of the shipped pair, in the current folder."""
    monkeypatch.setattr(pairs, "ASSETS", place)
    monkeypatch.chdir(place)
    return place
