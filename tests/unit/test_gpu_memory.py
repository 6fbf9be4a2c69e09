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


class Allocator:
    """Best fit; blocks are split, and merged with free neighbours; only whole segments are given
    back. reserved: Bytes of all segments.
    """

    def __init__(self) -> None:
        self.reserved = 0
        self._segments: list[list[list[int]]] = []
        """Of each its blocks: size, and whether it is used."""

    def allocate(self, size: int) -> tuple[list[list[int]], list[int]]:
        free = [(b[0], s, b) for s in self._segments for b in s if not b[1] and b[0] >= size]
        if not free:
            whole = max(-(-size // (2 * MB)) * 2 * MB, 20 * MB if size < 10 * MB else 0)
            self.reserved += whole
            self._segments.append([[whole, 0]])
            free = [(whole, self._segments[-1], self._segments[-1][0])]
        _, segment, block = min(free, key=lambda item: item[0])
        if block[0] - size > MB:
            at = next(i for i, other in enumerate(segment) if other is block)
            segment.insert(at + 1, [block[0] - size, 0])
            block[0] = size
        block[1] = 1
        return segment, block

    def free(self, held: tuple[list[list[int]], list[int]]) -> None:
        segment, block = held
        block[1] = 0
        merged: list[list[int]] = []
        for size, used in segment:
            if merged and not used and not merged[-1][1]:
                merged[-1][0] += size
            else:
                merged.append([size, used])
        # Blocks in use stay the same objects: they are what holders have.
        in_use = iter([other for other in segment if other[1]])
        segment[:] = [next(in_use) if used else [size, used] for size, used in merged]

    def empty_cache(self) -> None:
        for segment in [s for s in self._segments if not any(used for _, used in s)]:
            self._segments.remove(segment)
            self.reserved -= sum(size for size, _ in segment)


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
            memory.empty_cache()
    assert memory.reserved == pytest.approx(total, rel=0.02)
    assert modeling_utils.caching_allocator_warmup is all_at_once


@pytest.mark.parametrize(
    ("words", "full", "lost"),
    [
        ("CUDA error: out of memory", True, False),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True, False),
        ("CUDA error: no kernel image is available for execution on the device", False, False),
        ("CUDA error: operation not permitted when stream is capturing", False, False),
        ("CUDA error: an illegal memory access was encountered", False, True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`", False, True),
    ],
)
def test_only_what_ends_a_device_is_told_as_its_end(words: str, full: bool, lost: bool):
    for fault in (torch.AcceleratorError(words), RuntimeError(f"{words}\nand more")):
        assert (lacks_memory(fault), loses_device(fault)) == (full, lost)
    assert not loses_device(ValueError(words)) and lacks_memory(MemoryError())
