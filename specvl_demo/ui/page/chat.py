"""The page for programs that use OpenAI's API: `/v1/chat/completions` and `/v1/models`.

Given the page's behaviour, returns two routes; requests have passed the route filter, and wait in
the page's line. A model is a pair, or `pair/method`; pictures and clips are sent as data URLs. What
is not supported is refused in OpenAI's form, never ignored.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import mimetypes
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from specvl_demo.records import Begin, LaneRecords, Record, Round, validate_trace
from specvl_demo.report import tables
from specvl_demo.ui import messages
from specvl_demo.ui.page import catalog
from specvl_demo.ui.page.endpoints import TAKEN
from specvl_demo.ui.page.handlers import Behaviour, Caller

OWN = {"model", "messages", "stream", "stream_options"}
SAMPLING = {
    "max_completion_tokens": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
}
"""Fields that are options of the page, by their names there; the first one given counts."""
IDLE = {"user", "metadata", "safety_identifier", "prompt_cache_key", "store"}
"""Fields that change nothing in an answer."""
NEUTRAL = {"n": 1, "response_format": {"type": "text"}, "tool_choice": "none", "top_logprobs": 0}
"""Values, besides null, 0, false and empty ones, that request nothing unsupported."""
FINISH = {"eos": "stop", "length": "length"}


class Refusal(Exception):
    """(status, sentence, field): the response in place of a completion."""


@dataclass
class ChatRequest:
    """A request in the page's form. Its files are removed with its caller's connection."""

    model: str
    stream: bool
    with_usage: bool
    question: dict[str, Any]
    caller: Caller


def routes(behaviour: Behaviour) -> list[Route]:
    """Return the two routes."""
    chat = Chat(behaviour)
    return [
        Route("/v1/models", chat.models, methods=["GET"]),
        Route("/v1/chat/completions", chat.completions, methods=["POST"]),
    ]


class Chat:
    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def models(self, _: Request) -> Response:
        """Return every pair that runs here, and every method that it supports."""
        ids = []
        for pair in self._behaviour.catalog["pairs"]:
            if pair["available"]:
                served = [one for one, good in pair["methods"].items() if good is True]
                ids += [pair["id"], *(f"{pair['id']}/{one}" for one in served)]
        data = [{"id": one, "object": "model", "created": 0, "owned_by": "specvl"} for one in ids]
        return JSONResponse({"object": "list", "data": data})

    async def completions(self, request: Request) -> Response:
        """Return an answer, whole or streamed."""
        key = secrets.token_urlsafe(12)
        caller = Caller(None, request.client.host if request.client else None, (key,))
        try:
            question = await asyncio.to_thread(self._read, await request.json(), caller)
            records = self._records(question, request)
            # Refusals arrive with the first event, before an answer has begun.
            first = await anext(records)
        except Refusal as refusal:
            self._behaviour.uploads.leave(key)
            return _refused(refusal)
        if question.stream:
            chunks = _chunks(question, first, records)
            return StreamingResponse(chunks, media_type="text/event-stream")
        heard = list(first)
        try:
            async with aclosing(records):
                async for some in records:
                    heard += some
        except Refusal as refusal:
            return _refused(refusal)
        (lane,) = validate_trace(heard)
        return JSONResponse(_completion(question, lane))

    def _read(self, body: Mapping[str, Any], caller: Caller) -> ChatRequest:
        """Read a request and write its files; raises Refusal if it needs something unsupported."""
        known = {*OWN, *SAMPLING, *IDLE}
        for name, value in body.items():
            if name not in known and value and NEUTRAL.get(name) != value:
                raise Refusal(400, messages.NOT_SERVED.format(name=name[:100]), name)
        model = body.get("model")
        if not isinstance(model, str):
            raise Refusal(400, messages.NO_MODEL, "model")
        pair, _, method = model.partition("/")
        question: dict[str, Any] = {"pair": pair, "methods": [method or TAKEN["method"][1]]}
        for name, asked in SAMPLING.items():
            if body.get(name) is not None:
                question.setdefault(asked, body[name])
        options = body.get("stream_options")
        return ChatRequest(
            model=model,
            stream=body.get("stream") is True,
            with_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
            question=question | self._conversation(body.get("messages"), caller),
            caller=caller,
        )

    def _conversation(self, conversation: Any, caller: Caller) -> dict[str, Any]:
        """Return system prompt, earlier turns and the question, in the page's form."""
        wrong = Refusal(400, messages.NO_MESSAGES, "messages")
        if not isinstance(conversation, list) or not all(
            isinstance(one, Mapping) for one in conversation
        ):
            raise wrong
        roles = [one.get("role") for one in conversation]
        n = next((n for n, role in enumerate(roles) if role not in ("system", "developer")), 0)
        turns = len(roles) - n
        if turns % 2 == 0 or roles[n:] != ["user", *["assistant", "user"] * (turns // 2)]:
            raise wrong
        read = [self._content(one.get("content"), caller) for one in conversation]
        system, asked, answers = read[:n], read[n::2], read[n + 1 :: 2]
        if any(files for _, files in (*system, *answers)):
            raise wrong
        history = [
            {"question": text, "media": files, "answer": answer}
            for (text, files), (answer, _) in zip(asked, answers)
        ]
        return {
            "system": "\n".join(text for text, _ in system),
            "history": history,
            "question": asked[-1][0],
            "media": asked[-1][1],
        }

    def _content(self, content: Any, caller: Caller) -> tuple[str, list[dict[str, Any]]]:
        """Return the text of a message, and its files as the page names them."""
        if isinstance(content, str):
            return content, []
        texts, files = [], []
        for part in content if isinstance(content, list) else [None]:
            kind = part.get("type") if isinstance(part, Mapping) else None
            held = part.get(kind) if isinstance(part, Mapping) and isinstance(kind, str) else None
            if kind == "text" and isinstance(held, str):
                texts.append(held)
            elif kind in ("image_url", "video_url") and isinstance(held, Mapping):
                if held.get("detail") not in (None, "auto"):
                    raise Refusal(400, messages.NOT_SERVED.format(name="detail"), "messages")
                files.append(catalog.file(self._written(held.get("url"), caller)))
            else:
                raise Refusal(400, messages.NO_PART, "messages")
        return "\n".join(texts), files

    def _written(self, url: Any, caller: Caller) -> Path:
        """Write a data URL to a file in the folder of uploads."""
        head, _, data = url.partition(",") if isinstance(url, str) else ("", "", "")
        kind = head.removeprefix("data:").removesuffix(";base64")
        suffix = mimetypes.guess_extension(kind)
        if not head.startswith("data:") or not head.endswith(";base64") or suffix is None:
            raise Refusal(400, messages.NO_DATA_URL, "messages")
        try:
            content = base64.b64decode(data, validate=True)
        except binascii.Error:
            raise Refusal(400, messages.NO_DATA_URL, "messages") from None
        try:
            client, (key,) = caller.client or "", caller.listens
            return self._behaviour.uploads.put(client, key, f"shown{suffix}", content)
        except ValueError as fault:
            raise Refusal(507, str(fault), "messages") from None

    async def _records(
        self, question: ChatRequest, request: Request
    ) -> AsyncGenerator[Sequence[Record], None]:
        """Yield the records as they are made, at least an empty list per second; files are removed
        at the end.
        """
        caller, listeners = question.caller, self._behaviour.listeners
        (key,) = caller.listens
        listeners[key] += 1
        try:
            running = self._behaviour.records(question.question, False, caller)
            async with aclosing(running):
                async for some in running:
                    yield some
                    if await request.is_disconnected():
                        return
        except ValueError as fault:
            # Programs retry after a 503, so it is used only if that helps.
            busy = str(fault) == messages.BUSY.format(waiting=self._behaviour.queue.max_waiting)
            raise Refusal(503 if busy else 400, str(fault), None) from None
        finally:
            del listeners[key]
            self._behaviour.uploads.leave(key)


async def _chunks(
    question: ChatRequest, first: Sequence[Record], records: AsyncGenerator[Sequence[Record], None]
) -> AsyncGenerator[bytes, None]:
    """Yield an answer as server-sent events; a comment is sent while it waits."""
    base = _head(question, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**base, "choices": [choice]})

    heard: list[Record] = []
    async with aclosing(records):
        try:
            yield chunk({"role": "assistant", "content": ""})
            some: Sequence[Record] | None = first
            while some is not None:
                heard += some
                rounds = [one for one in some if isinstance(one, Round)]
                text = "".join(token.text for one in rounds for token in one.tokens)
                yield chunk({"content": text}) if text else b": waiting\n\n"
                some = await anext(records, None)
        except Refusal as refusal:
            yield _event(_error(*refusal.args))
            return
    (lane,) = validate_trace(heard)
    yield chunk({}, _finish(lane))
    if question.with_usage:
        yield _event({**base, "choices": [], "usage": _usage(lane)})
    yield b"data: [DONE]\n\n"


def _completion(question: ChatRequest, lane: LaneRecords) -> dict[str, Any]:
    """Return a whole answer; `specvl` has the other fields of `generate --json`."""
    row = tables.lane_row(lane)
    message = {"role": "assistant", "content": row.pop("text"), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(lane)}
    head = _head(question, "chat.completion")
    return {**head, "choices": [choice], "usage": _usage(lane), "specvl": row}


def _head(question: ChatRequest, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": question.model}


def _finish(lane: LaneRecords) -> str | None:
    return FINISH.get(lane.end.stop) if lane.end else None


def _usage(lane: LaneRecords) -> dict[str, Any]:
    totals = tables.measure(lane).totals
    begin: Begin = lane.begin
    return {
        "prompt_tokens": begin.n_prompt,
        "completion_tokens": totals.n_tokens,
        "total_tokens": begin.n_prompt + totals.n_tokens,
        "completion_tokens_details": {
            "accepted_prediction_tokens": totals.n_accepted,
            "rejected_prediction_tokens": totals.n_drafted - totals.n_accepted,
        },
    }


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def _error(status: int, sentence: str, name: str | None) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": sentence, "type": kind, "param": name, "code": None}}


def _refused(refusal: Refusal) -> Response:
    return JSONResponse(_error(*refusal.args), refusal.args[0])
