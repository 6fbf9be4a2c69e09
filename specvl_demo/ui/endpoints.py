"""The page as a program sees it: `generate` and `race`, with the fields of the command line.

Given the page's behaviour, gives the functions that Gradio publishes. Files come as uploaded file data. Both
give nothing (null) while they wait and compute, so that a program that hangs up frees the machine, and last
the answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from inspect import Parameter, Signature
from typing import Any

import gradio as gr

from specvl_demo.report import tables
from specvl_demo.report.metrics import Lane
from specvl_demo.ui.behaviour import Behaviour

File = dict[str, Any]
Answer = dict[str, Any]
Endpoint = Callable[..., AsyncIterator[Answer | None]]

AFTER = {
    "pair": (str, "pocket"),
    "image": (list[File] | None, None),
    "video": (list[File] | None, None),
    "max_new_tokens": (int, 160),
    "temperature": (float, 0.0),
    "top_p": (float, 1.0),
    "seed": (int, 0),
    "system": (str, ""),
    "settings": (dict[str, Any] | None, None),
}
"""What both take after the question and the methods: type and standard."""


def endpoints(behaviour: Behaviour) -> dict[str, Endpoint]:
    """The published functions by name."""

    def one(given: dict[str, Any]) -> dict[str, Any]:
        name = str(given["method"])
        return _asked(given, [name], {name: given["settings"]})

    def several(given: dict[str, Any]) -> dict[str, Any]:
        names = [name.strip() for name in str(given["methods"]).split(",") if name.strip()]
        return _asked(given, names, given["settings"])

    def answer(lanes: Sequence[Lane]) -> Answer:
        return _first(tables.lane_row(lanes[0]), tables.GENERATE_FIELDS)

    def answers(lanes: Sequence[Lane]) -> Answer:
        fields = (*tables.GENERATE_FIELDS, *tables.RACE_FIELDS)
        return {"lanes": [_first(row, fields) for row in tables.lane_rows(lanes)]}

    return {
        "generate": _endpoint(behaviour, ("method", "chain"), one, answer, baseline=False),
        "race": _endpoint(behaviour, ("methods", "ar,chain"), several, answers, baseline=True),
    }


def _endpoint(
    behaviour: Behaviour,
    which: tuple[str, str],
    ask: Callable[[dict[str, Any]], dict[str, Any]],
    tell: Callable[[Sequence[Lane]], Answer],
    baseline: bool,
) -> Endpoint:
    """A function that Gradio can publish. which: the name of the argument for methods, and its standard."""
    taken = {"prompt": (str, ""), which[0]: (str, which[1]), **AFTER}

    async def endpoint(*values: Any) -> AsyncIterator[Answer | None]:
        try:
            asked = ask(dict(zip(taken, values, strict=True)))
            async with aclosing(behaviour.answer(asked, baseline)) as answering:
                async for lanes in answering:
                    yield None if lanes is None else tell(lanes)
        except ValueError as fault:
            raise gr.Error(str(fault), print_exception=False) from None

    kind = Parameter.POSITIONAL_OR_KEYWORD
    given = [Parameter(name, kind, default=start, annotation=type_) for name, (type_, start) in taken.items()]
    gives = AsyncIterator[Answer | None]
    endpoint.__signature__ = Signature(given, return_annotation=gives)
    # Gradio reads names and standards from the signature, types from here.
    endpoint.__annotations__ = {name: type_ for name, (type_, _) in taken.items()} | {"return": gives}
    return endpoint


def _asked(given: dict[str, Any], names: list[str], settings: Any) -> dict[str, Any]:
    """A program's arguments as a page would send them."""
    same = ("pair", "max_new_tokens", "temperature", "top_p", "seed", "system")
    media = [file for files in (given["image"], given["video"]) if isinstance(files, list) for file in files]
    said = {"question": given["prompt"], "methods": names, "media": media, "settings": settings}
    return {key: given[key] for key in same} | said


def _first(row: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in fields}
