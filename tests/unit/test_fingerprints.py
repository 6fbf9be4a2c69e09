"""Weights have a name that changes with them, whatever else lies beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from specvl_demo import fingerprints
from specvl_demo.pairs import Checkpoint


def test_a_folder_is_named_by_its_weights(tmp_path: Path) -> None:
    assert fingerprints.of_folder(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = fingerprints.of_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert fingerprints.of_folder(tmp_path) == first
    assert fingerprints.of(Checkpoint(str(tmp_path), 1.0, "", local=True)) == first
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert first is not None and fingerprints.of_folder(tmp_path) not in (None, first)


def test_many_blocks_are_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"0123456789")
    whole = fingerprints.of_folder(tmp_path)
    monkeypatch.setattr(fingerprints, "BLOCK", 3)
    assert fingerprints.of_folder(tmp_path) == whole
