"""Refusals: errors with a sentence for people."""

from collections.abc import Callable
from typing import Any

import pytest


def refuses(sentence: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Check that a call raises ValueError, with a sentence on one line that has this pattern, which
    is returned.
    """
    with pytest.raises(ValueError, match=sentence) as refusal:
        call(*arguments, **options)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)
