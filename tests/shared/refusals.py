"""Refusals: errors with a sentence for people."""

from collections.abc import Callable
from typing import Any

import pytest


def refuses(sentence: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Check that a call raises ValueError, and that its sentence has this pattern."""
    with pytest.raises(ValueError, match=sentence):
        call(*arguments, **options)
