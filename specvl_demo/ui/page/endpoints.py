"""The page as an API: `generate` and `race`, with the fields of the command line.

Files are sent as uploaded file data. All yield null while they wait and compute, so that a program
that disconnects frees the machine, and finally the answer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from inspect import Parameter, Signature
from typing import Any

import gradio as gr

from specvl_demo.options import (
    DETAIL,
    IGNORE_EOS_HELP,
    MAX_NEW_TOKENS_SERVED,
    OF_ANSWERS,
    STOP_HELP,
    split_names,
)
from specvl_demo.records import JsonObject, validate_trace
from specvl_demo.report import tables
from specvl_demo.ui import messages
from specvl_demo.ui.page.handlers import Caller, PageHandlers
from specvl_demo.ui.serve.queue import BEAT_S

File = JsonObject

_PREFIX = f"What answers begin with, in at most {MAX_NEW_TOKENS_SERVED} bytes; `text` follows it."
TAKEN = {
    "prompt": (str, "", "The question; empty for a description of what is shown."),
    "method": (str, "chain", "The name of a method; `ar` for the target without a drafter."),
    "methods": (str, "ar,chain", "Names of methods, comma-separated; `ar` always runs."),
    "pair": (str, "pocket", "The id of a target with its drafters; refusals list the known ones."),
    "image": (list[File] | File | None, None, "An uploaded picture, or a list of them."),
    "video": (list[File] | File | None, None, "An uploaded clip, or a list of them."),
    **{option.name: (type(option.default), option.default, option.help) for option in OF_ANSWERS},
    "logit_bias": (dict | None, None, "Added to the logits of tokens, by id: -100 to 100."),
    "stop": (list[str] | str | None, None, f"A list of {STOP_HELP}."),
    "ignore_eos": (bool, False, f"{IGNORE_EOS_HELP.capitalize()}."),
    "system": (str, "", "A system prompt, if the model supports one."),
    "settings": (dict | None, None, "Parameters by name; for `race`, by method and name."),
    "dtype": (str, "", "Weights in float32, bfloat16 or float16; empty for what fits the machine."),
    "quantised": (str, "", "The target's weights: none, 8bit or 4bit; empty for what fits."),
    DETAIL.name: (float | None, None, DETAIL.help),
    "answer_prefix": (str, "", _PREFIX),
}
"""The arguments of the endpoints: type, default and description."""
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "generate": tuple(name for name in TAKEN if name != "methods"),
    "race": tuple(name for name in TAKEN if name != "method"),
}


def publish_endpoints(handlers: PageHandlers) -> None:
    """Publish the endpoints in the Blocks that are being built, with descriptions of arguments."""
    blocks = gr.context.Context.root_block
    for name, about in messages.ENDPOINTS.items():
        function = _make_endpoint(handlers, name)
        made = gr.api(function, api_name=name, api_description=about, concurrency_limit=None)
        event = blocks.fns[made["id"]]
        # Descriptions of arguments can be given nowhere else, the open Blocks found nowhere else.
        for argument, part in zip(ARGUMENTS[name], event.inputs, strict=True):
            part.label, part._api_info["additional_description"] = argument, TAKEN[argument][2]
        event.outputs[0].label = "answer"


def _make_endpoint(
    handlers: PageHandlers, name: str
) -> Callable[..., AsyncIterator[JsonObject | None]]:
    """Return the function that is published."""
    taken = {argument: TAKEN[argument][:2] for argument in ARGUMENTS[name]}

    async def endpoint(*given: Any) -> AsyncIterator[JsonObject | None]:
        *values, request = given
        caller = Caller(client=request.client.host)
        payload = _page_payload(name, dict(zip(taken, values, strict=True)))
        records = []
        last = 0.0
        try:
            stream = handlers.stream_records(payload, name == "race", caller)
            async with aclosing(stream) as running:
                async for some in running:
                    records += some
                    if time.monotonic() - last > BEAT_S:
                        last = time.monotonic()
                        yield None
        except ValueError as fault:
            raise gr.Error(str(fault), print_exception=False) from None
        lanes = validate_trace(records)
        yield {"lanes": tables.lane_rows(lanes)} if name == "race" else tables.lane_row(lanes[0])

    arguments = {**taken, "request": (gr.Request, None)}
    parameters = [
        Parameter(argument, Parameter.POSITIONAL_OR_KEYWORD, default=start)
        for argument, (_, start) in arguments.items()
    ]
    # Gradio reads names and defaults from the signature, types of arguments from the annotations.
    gives = AsyncIterator[JsonObject | None]
    signature = Signature(parameters, return_annotation=gives)
    endpoint.__signature__ = signature  # type: ignore[attr-defined]  # as functools.wraps sets it
    kinds = {argument: kind for argument, (kind, _) in arguments.items()}
    endpoint.__annotations__ = {**kinds, "return": gives}
    return endpoint


def _page_payload(name: str, given: JsonObject) -> JsonObject:
    """Return a program's arguments with its methods and their settings as a page sends them."""
    settings = given["settings"]
    if name == "generate":
        methods = [given["method"]]
        settings = {str(given["method"]): settings} if isinstance(settings, dict) else settings
    else:
        methods = given["methods"]
        methods = split_names(methods) if isinstance(methods, str) else methods
    return {**given, "methods": methods, "settings": settings}
