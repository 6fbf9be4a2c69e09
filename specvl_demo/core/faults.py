"""What a fault says about the device. Told by names and words, so that torch need not be there."""

from __future__ import annotations


def loses_device(fault: BaseException) -> bool:
    """Whether this process can no longer use its GPU after a fault.

    CUDA then answers every later call with an error. It survives a graph's capture that was
    refused, and a lack of memory.
    """
    lines = str(fault).splitlines() or [""]
    if type(fault).__name__ == "OutOfMemoryError" or "captur" in lines[0].lower():
        return False
    return type(fault).__name__ == "AcceleratorError" or (
        isinstance(fault, RuntimeError) and "CUDA error" in lines[0]
    )


def cause(fault: BaseException) -> str:
    """Return a fault's first line, or its class."""
    lines = str(fault).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(fault).__name__
