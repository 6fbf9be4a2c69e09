"""Refusals: errors with a sentence for people."""

from collections.abc import Callable
from typing import Any

import pytest


def refuses(sentence: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Check that a call raises ValueError, and that its sentence, which it returns, is one line and
    has this pattern.
    """
    with pytest.raises(ValueError, match=sentence) as refusal:
        call(*arguments, **options)
    said = str(refusal.value)
    assert "\n" not in said
    return said
