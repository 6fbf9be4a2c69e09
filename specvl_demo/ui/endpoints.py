"""The page as a program sees it: `generate` and `race`, with the fields of the command line.

Given the page's behaviour, gives the functions that Gradio publishes. Files come as uploaded file data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from specvl_demo.report import tables
from specvl_demo.ui.behaviour import Behaviour

File = dict[str, Any]


def endpoints(behaviour: Behaviour) -> dict[str, Callable[..., Any]]:
    """The published functions by name."""

    async def generate(
        prompt: str = "",
        method: str = "chain",
        pair: str = "pocket",
        image: list[File] | None = None,
        video: list[File] | None = None,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        system: str = "",
        settings: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        asked = _asked(locals(), [method])
        asked["settings"] = {method: settings or {}}
        lanes = await _lanes(behaviour, asked, baseline=False)
        return _first(tables.lane_row(lanes[0]), tables.GENERATE_FIELDS)

    async def race(
        prompt: str = "",
        methods: str = "ar,chain",
        pair: str = "pocket",
        image: list[File] | None = None,
        video: list[File] | None = None,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        system: str = "",
        settings: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        asked = _asked(locals(), [name.strip() for name in methods.split(",") if name.strip()])
        lanes = await _lanes(behaviour, asked, baseline=True)
        fields = (*tables.GENERATE_FIELDS, *tables.RACE_FIELDS)
        return {"lanes": [_first(row, fields) for row in tables.lane_rows(lanes)]}

    return {"generate": generate, "race": race}


def _asked(given: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """A program's arguments as a page would send them."""
    same = ("pair", "max_new_tokens", "temperature", "top_p", "seed", "system", "settings")
    media = [*(given["image"] or []), *(given["video"] or [])]
    return {key: given[key] for key in same} | {"question": given["prompt"], "methods": names, "media": media}


async def _lanes(behaviour: Behaviour, asked: dict[str, Any], baseline: bool) -> list[Any]:
    try:
        return await behaviour.answer(asked, baseline)
    except ValueError as fault:
        raise gr.Error(str(fault), print_exception=False) from None


def _first(row: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in fields}
