"""A random pair on disk, as the command line and Python use it."""

from pathlib import Path

import pytest

from specvl_demo import pairs
from tests.shared import corpus, pocketlike


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
