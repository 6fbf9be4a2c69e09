"""Memory of a GPU that there is none of: a model of torch's allocator."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from transformers import PreTrainedModel, modeling_utils

from specvl_demo.core.faults import lacks_memory, loses_device
from specvl_demo.pairs.fitting import LoadPlan
from specvl_demo.vlm import loading, outlines

MB = 2**20


class Segment:
    """Memory of the device, in blocks of which some are free."""

    def __init__(self, size: int) -> None:
        self.size, self.free, self.used = size, [size], 0


class Allocator:
    """Best fit; blocks are split but, unlike torch's, not merged; only whole segments go back."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    def allocate(self, size: int) -> tuple[Segment, int]:
        if not any(size <= block for segment in self.segments for block in segment.free):
            self.segments.append(Segment(-(-size // (2 * MB)) * 2 * MB))
        fits = [(b, i) for i, s in enumerate(self.segments) for b in s.free if b >= size]
        block, at = min(fits)
        segment = self.segments[at]
        segment.free.remove(block)
        segment.free.append(block - size)
        segment.used += 1
        return segment, size

    def free(self, held: tuple[Segment, int]) -> None:
        segment, size = held
        segment.free.append(size)
        segment.used -= 1
        if not segment.used:
            segment.free = [segment.size]

    def reserved(self) -> int:
        """After an `empty_cache`."""
        self.segments = [segment for segment in self.segments if segment.used]
        return sum(segment.size for segment in self.segments)


def weights() -> Iterator[tuple[int, str, int]]:
    """Those of LLaVA-1.5 7B in bfloat16, in the order in which they are loaded."""
    yield from ((-1, name, 2 * 32064 * 4096) for name in ("head", "embeddings"))
    for layer in range(32):
        yield from ((layer, name, 2 * 11008 * 4096) for name in ("down", "gate", "up"))
        yield from ((layer, name, 2 * 4096 * 4096) for name in ("k", "o", "q", "v"))


def test_what_joined_matrices_leave_is_given_back(monkeypatch):
    memory, sizes = Allocator(), {(layer, name): size for layer, name, size in weights()}
    total, held = sum(sizes.values()), {}

    def all_at_once(*_: object) -> None:
        memory.free(memory.allocate(total))

    def from_pretrained(*_: object, **__: object) -> tuple[object, dict[str, list[str]]]:
        modeling_utils.caching_allocator_warmup(MagicMock(), {}, None)
        held.update({name: memory.allocate(size) for name, size in sizes.items()})
        return MagicMock(hf_device_map={}), MagicMock()

    assert "caching_allocator_warmup" in PreTrainedModel._load_pretrained_model.__code__.co_names
    monkeypatch.setattr(modeling_utils, "caching_allocator_warmup", all_at_once)
    library = SimpleNamespace(from_pretrained=from_pretrained)
    for name, stand_in in (("auto_class", library), ("outline_model", None)):
        monkeypatch.setattr(outlines, name, lambda *_, made=stand_in: made)
    monkeypatch.setattr(outlines, "refuse_misfits", lambda *_: None)
    loading.load_model(Path(), LoadPlan("bfloat16", "cuda:0"), "a model")
    for layer in range(32):  # as `LeanDecoder` does
        for parts in (("q", "k", "v"), ("gate", "up")):
            memory.allocate(sum(sizes[layer, part] for part in parts))
            for part in parts:
                memory.free(held.pop((layer, part)))
            memory.reserved()
    assert memory.reserved() == pytest.approx(total, rel=0.02)
    assert modeling_utils.caching_allocator_warmup is all_at_once


@pytest.mark.parametrize(
    ("words", "full", "lost"),
    [
        ("CUDA error: out of memory", True, False),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True, False),
        ("CUDA error: no kernel image is available for execution on the device", False, False),
        ("CUDA error: an illegal memory access was encountered", False, True),
    ],
)
def test_only_what_ends_a_device_is_told_as_its_end(words: str, full: bool, lost: bool):
    for fault in (torch.AcceleratorError(words), RuntimeError(f"{words}\nand more")):
        assert (lacks_memory(fault), loses_device(fault)) == (full, lost)
    assert not loses_device(ValueError(words)) and lacks_memory(MemoryError())
