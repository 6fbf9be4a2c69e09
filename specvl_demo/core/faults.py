"""What a fault says about the device. Told by names and words, so that torch need not be there."""

from __future__ import annotations

_NO_MEMORY = ("out of memory", "alloc_failed", "not enough memory", "can't allocate memory")
"""Words of faults without a class of their own: of graphs, libraries on a GPU, and a CPU."""
_SURVIVED = ("captur", "no kernel image")
"""Words of faults after which CUDA answers other calls: a graph refused, a card of another kind."""


def lacks_memory(fault: BaseException) -> bool:
    """Whether a device or the machine had too little memory for something; both survive that."""
    if isinstance(fault, MemoryError) or type(fault).__name__ == "OutOfMemoryError":
        return True
    message = cause(fault).lower()
    return isinstance(fault, RuntimeError) and any(words in message for words in _NO_MEMORY)


def loses_device(fault: BaseException) -> bool:
    """Whether this process can no longer use its GPU after a fault: CUDA then answers every later
    call with an error.
    """
    message = cause(fault)
    if lacks_memory(fault) or any(words in message.lower() for words in _SURVIVED):
        return False
    return type(fault).__name__ == "AcceleratorError" or (
        isinstance(fault, RuntimeError) and "CUDA error" in message
    )


def cause(fault: BaseException) -> str:
    """Return a fault's first line, or its class."""
    lines = str(fault).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(fault).__name__
