"""Mends a fault of transformers 5.23, which builds no Gemma 4 assistant."""

from __future__ import annotations

from typing import Any


def mend() -> None:
    """Let assistants be built; no effect where the library builds them, or knows none."""
    import transformers  # noqa: PLC0415 - its models load when they are asked for

    config: Any = getattr(transformers, "Gemma4TextConfig", None)
    said = getattr(config, "kv_sharing_modes", None)
    if not isinstance(said, property) or getattr(said.fget, "mended", False):
        return
    read: Any = said.fget

    def modes(self: Any) -> list[str | None]:
        all_read = self.num_kv_shared_layers == self.num_hidden_layers
        return ["reuse"] * self.num_hidden_layers if all_read else read(self)

    modes.mended = True  # type: ignore[attr-defined]
    config.kv_sharing_modes = property(modes)
