"""Refusals: errors with a sentence for people, and tables of what leads to which."""

import json
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


def read_table(table: str) -> list[tuple[dict[str, Any], str]]:
    """The lines of a table: an object in JSON, two spaces or more, a part of a sentence."""
    rows = (line.split("  ", 1) for line in table.strip().splitlines())
    return [(json.loads(fields), part.strip()) for fields, part in rows]
