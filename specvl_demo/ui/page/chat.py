"""The page for programs that use OpenAI's API: `/v1/chat/completions` and `/v1/models`.

A model is a pair, or `pair/method`; pictures and clips are sent as data URLs. What would change an
answer and is not supported is refused in OpenAI's form, never ignored.
"""

from __future__ import annotations

import asyncio
import base64
import re
import reprlib
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from specvl_demo import question
from specvl_demo.media.files import PLACE, MediaError, MediaFile
from specvl_demo.methods import base
from specvl_demo.options import (
    FIRST,
    FURTHER,
    LOGPROBS,
    MAX_NEW_TOKENS_SERVED,
    MIN_NEW_TOKENS,
    NEW_TOKENS,
    REPETITION_PENALTY,
    SEED,
    TOP_K,
    Option,
)
from specvl_demo.records import JsonObject, LaneRecords, Record, Round, validate_trace
from specvl_demo.report import tables
from specvl_demo.ui import messages
from specvl_demo.ui.page import catalog
from specvl_demo.ui.page.endpoints import TAKEN
from specvl_demo.ui.page.handlers import Caller, PageHandlers
from specvl_demo.ui.serve.response import RefusedRequest, openai_error

OWN = {"model", "messages", "stream", "stream_options", "logprobs"}
SAMPLING: dict[str, Option] = {
    "max_completion_tokens": NEW_TOKENS,
    "max_tokens": NEW_TOKENS,
    "min_tokens": MIN_NEW_TOKENS,
    "repeat_penalty": REPETITION_PENALTY,
    "top_logprobs": LOGPROBS,
    **{option.name: option for option in (*FIRST, *FURTHER) if option is not NEW_TOKENS},
}
"""Fields that are options of the page; the first one given counts."""
PASSED = ("stop", "logit_bias", "ignore_eos")
"""Fields that are read as those of the page."""
SYSTEM = ("system", "developer")
TALKING = ("user", "assistant")
"""Roles of a conversation's messages: those of its beginning, and the others."""
IDLE = {
    "cache_prompt",
    "keep_alive",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "reasoning_effort",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
}
"""Fields that change nothing in an answer of models without tools and without hidden reasoning."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "length_penalty": (1,),
    "typical_p": (1,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "skip_special_tokens": (True,),
}
"""Values, besides null, that request nothing unsupported."""
NOTHING: tuple[Any, ...] = (0, "", [], {})
"""Such values, and false, of all other fields."""


def routes(handlers: PageHandlers) -> list[Route]:
    chat = ChatApi(handlers)
    return [
        Route("/v1/models", chat.models, methods=["GET"]),
        Route("/v1/models/{name:path}", chat.model, methods=["GET"]),
        Route("/v1/chat/completions", chat.completions, methods=["POST"]),
    ]


@dataclass
class ChatApi:
    """What answers at `/v1`, over the handlers that the page itself has: its queue and its limits
    hold for programs too.
    """

    handlers: PageHandlers

    async def models(self, _: Request) -> Response:
        """Return every pair that runs here, and every method that it supports."""
        entries = list(map(_model_entry, self._model_names()))
        return JSONResponse({"object": "list", "data": entries})

    async def model(self, request: Request) -> Response:
        """Return one of them."""
        name = request.path_params["name"]
        if name not in self._model_names():
            sentence = messages.NO_SUCH_MODEL.format(name=name[:100])
            return _refusal_response(RefusedRequest(404, sentence, "model"))
        return JSONResponse(_model_entry(name))

    def _model_names(self) -> list[str]:
        ids = []
        for pair in self.handlers.catalog["pairs"]:
            if pair["available"]:
                methods = [name for name, verdict in pair["methods"].items() if verdict is True]
                ids += [pair["id"], *(f"{pair['id']}/{name}" for name in methods)]
        return ids

    async def completions(self, request: Request) -> Response:
        """Return an answer, whole or streamed."""
        key = secrets.token_urlsafe(12)
        caller = Caller(key, request.client.host if request.client else None)
        try:
            body = await request.json()
            payload = await asyncio.to_thread(self._page_payload, body, caller)
            records = self._stream_records(payload, caller, request)
            # Refusals arrive with the first event, before an answer has begun.
            first = await anext(records)
            if body.get("stream") is True:
                chunks = _stream_chunks(body, first, records)
                return StreamingResponse(chunks, media_type="text/event-stream")
            heard = list(first)
            async with aclosing(records):
                async for some in records:
                    heard += some
        except RefusedRequest as refusal:
            self.handlers.uploads.release_files(key)
            return _refusal_response(refusal)
        (lane,) = validate_trace(heard)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": lane.text, "refusal": None},
            "logprobs": _logprobs(lane.rounds, body),
            "finish_reason": _finish_reason(lane),
        }
        answer = {
            **_response_head(body["model"], "chat.completion"),
            "choices": [choice],
            "usage": _token_usage(lane),
            "specvl": _other_fields(lane),
        }
        return JSONResponse(answer)

    def _page_payload(self, body: JsonObject, caller: Caller) -> JsonObject:
        """Return a request as the page would send it, its files written, which are removed with
        the caller's connection; raises RefusedRequest if it needs something unsupported.
        """
        used = {*OWN, *SAMPLING, *PASSED, *IDLE}
        for name, value in body.items():
            if not (name in used or value is None or value in NEUTRAL.get(name, NOTHING)):
                if name not in NEUTRAL:
                    raise RefusedRequest(400, messages.UNKNOWN.format(name[:100]), name[:100])
                valid = (orjson.dumps(neutral).decode() for neutral in NEUTRAL[name])
                raise _unfit(name, " or ".join([*valid, messages.LEFT_OUT]), value)
        switch = bool, "true or false"
        kinds = (("stream", *switch), ("logprobs", *switch), ("stream_options", dict, "an object"))
        for name, kind, needed in kinds:
            if not isinstance(body.get(name), kind | None):
                raise _unfit(name, needed, body[name])
        model = body.get("model")
        if not isinstance(model, str):
            raise _unfit("model", messages.A_MODEL, model)
        pair, _, name = model.partition("/")
        method = name or TAKEN["method"][1]
        listed = any(entry["id"] == pair for entry in self.handlers.catalog["pairs"])
        if not listed or method not in base.METHODS:
            raise RefusedRequest(404, messages.NO_SUCH_MODEL.format(name=model[:100]), "model")
        payload: JsonObject = {"pair": pair, "methods": [method], "up_to": True}
        for name, option in SAMPLING.items():
            value = body.get(name)
            if value is None or option.name in payload or (option is TOP_K and value == -1):
                continue  # -1: all, as others spell it
            served = MAX_NEW_TOKENS_SERVED if option is NEW_TOKENS else None
            with _refusing(name):
                payload[option.name] = replace(option, title=f"`{name}`").check(value, served)
        for name in PASSED:
            payload[name] = body.get(name)
            with _refusing(name):
                question.read_sampling({name: payload[name]})
        if body.get("logprobs"):  # one alternative at least has the page note them
            payload[LOGPROBS.name] = payload.get(LOGPROBS.name) or 1
        elif payload.pop(LOGPROBS.name, 0):
            raise RefusedRequest(400, messages.NO_LOGPROBS, "top_logprobs")
        # As elsewhere, a program that asks again without a seed gets another sample.
        payload.setdefault(SEED.name, secrets.randbelow(SEED.high))
        conversation = self._read_conversation(body.get("messages"), caller)
        with _refusing("messages"):
            question.read(conversation, lambda item: MediaFile(item["path"]), visitor=True)
        return payload | conversation

    def _read_conversation(self, conversation: Any, caller: Caller) -> JsonObject:
        """Return system prompt, earlier turns and the question, in the page's form."""
        if not isinstance(conversation, list) or not conversation:
            raise _unfit("messages", messages.A_CONVERSATION, conversation)
        system = []
        # Turns of the same role in a row are one; an answer before any question has an empty one.
        turns: list[JsonObject] = []
        for at, message in enumerate(conversation, 1):
            place = f"messages[{at - 1}]"
            if not isinstance(message, Mapping):
                raise _unfit(place, messages.A_MESSAGE, message)
            role: Any = message.get("role")
            allowed: Sequence[str] = TALKING if turns else (*SYSTEM, *TALKING)
            if at == len(conversation):
                allowed = TALKING[:1]
            if role not in allowed:
                needed = messages.A_ROLE.format(allowed=" or ".join(allowed))
                raise _unfit(f"{place}.role", needed, role)
            content = message.get("content")
            text, files = self._read_content(content, caller, role, f"{place}.content")
            if role in SYSTEM:
                system.append(text)
                continue
            if not turns or (role == "user" and "answer" in turns[-1]):
                turns.append({"question": "", "media": []})
            kind = "question" if role == "user" else "answer"
            turns[-1][kind] = "\n".join(filter(None, (turns[-1].get(kind), text)))
            turns[-1]["media"] += files
        *history, open_turn = turns
        return {**open_turn, "system": "\n".join(system), "history": history}

    def _read_content(
        self, content: Any, caller: Caller, role: str, place: str
    ) -> tuple[str, list[dict]]:
        """Return the text of a message, and its files as the page names them. place: Of the content
        in the request.

        # choice: pictures before or after all of a message's texts come first, as in the examples
        # that the families were trained on. Where one stands between texts, PLACE marks them all.
        """
        if isinstance(content, str) or (content is None and role == "assistant"):
            return content or "", []
        if not isinstance(content, list):
            raise _unfit(place, messages.A_CONTENT, content)
        texts = []
        files = []
        for at, part in enumerate(content):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind not in ("text", "image_url", "video_url"):
                raise _unfit(f"{place}[{at}]", messages.A_PART, part)
            name, held = f"{place}[{at}].{kind}", part.get(kind)
            if kind != "text":
                if role != "user":
                    raise _unfit(name, messages.BY_USER, role)
                url = held.get("url") if isinstance(held, Mapping) else held
                texts.append(PLACE)
                files.append(catalog.file_reference(self._write_data_url(url, caller, name)))
            elif isinstance(held, str):
                texts.append(held.replace(PLACE, ""))
            else:
                raise _unfit(name, "text", held)
        marked = "".join(texts)
        if PLACE in marked.strip(PLACE):
            return marked, files
        return "\n".join(text for text in texts if text != PLACE), files

    def _write_data_url(self, url: Any, caller: Caller, name: str) -> Path:
        """Write a data URL to a file of this name in the folder of uploads; its content tells what
        it is.
        """
        head, _, data = url.partition(",") if isinstance(url, str) else ("", "", "")
        if not re.fullmatch("(?is)data:.*;base64", head):
            raise _unfit(name, messages.A_DATA_URL, url)
        data = "".join(unquote(data).split()).translate(str.maketrans("-_", "+/")).rstrip("=")
        try:
            content = base64.b64decode(data + "=" * (-len(data) % 4), validate=True)
        except ValueError:
            raise _unfit(name, messages.A_BASE64, data) from None
        try:
            return self.handlers.uploads.write_file(caller.visit, name, content)
        except ValueError as fault:
            raise RefusedRequest(507, str(fault), "messages") from None

    async def _stream_records(
        self, payload: JsonObject, caller: Caller, request: Request
    ) -> AsyncGenerator[Sequence[Record], None]:
        """Yield the records as they are made, at least an empty list per second; files are removed
        at the end.
        """
        try:
            running = self.handlers.stream_records(payload, False, caller)
            async with aclosing(running):
                async for some in running:
                    yield some
                    if await request.is_disconnected():
                        return
        except ValueError as fault:
            text = str(fault)
            # A file is named after its place, which is never cut short there.
            (place,) = re.findall(r"messages[\w.[\]]+\w", text)[:1] or ["messages"]
            # What only the loaded model could refuse.
            field = "messages" if "prompt" in text else "logit_bias" if "bias" in text else None
            about = {MediaError: place, messages.Refusal: field}.get(type(fault), "model")
            raise RefusedRequest(getattr(fault, "status", 400), text, about) from None
        finally:
            self.handlers.uploads.release_files(caller.visit)


def _unfit(place: str, needed: str, came: Any) -> RefusedRequest:
    """Return the refusal of what came in a place where something else is needed."""
    value = "null" if came is None else reprlib.repr(came)
    return RefusedRequest(400, f"`{place}` must be {needed}, not {value}.", place)


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Refuse this field, if it is not valid."""
    try:
        yield
    except ValueError as fault:
        raise RefusedRequest(400, str(fault), name) from None


def _other_fields(lane: LaneRecords) -> JsonObject:
    """Return the fields of `generate --json` for which OpenAI's form has no place."""
    row = tables.lane_row(lane)
    return {name: row[name] for name in row if name not in ("text", "logprobs")}


def _logprobs(rounds: Sequence[Round], body: JsonObject) -> JsonObject | None:
    """Return log-probabilities in OpenAI's form: `logprob` is the model's own; `logprob_drawn`,
    after penalties, temperature and cuts, is ours.
    """
    rows = [row for round_ in rounds for row in tables.log_probabilities(round_)]
    if not rows:
        return None

    def entry(row: JsonObject) -> JsonObject:
        numbers = {"logprob": row["before"], "logprob_drawn": row["after"]}
        return {"token": row["text"], "bytes": list(row["text"].encode()), **numbers}

    k = body.get("top_logprobs") or 0
    content = [entry(row) | {"top_logprobs": list(map(entry, row["top"][:k]))} for row in rows]
    return {"content": content, "refusal": None}


async def _stream_chunks(
    body: JsonObject,
    first: Sequence[Record],
    records: AsyncGenerator[Sequence[Record], None],
) -> AsyncGenerator[bytes, None]:
    """Yield an answer as server-sent events; a comment is sent while it waits."""
    base = _response_head(body["model"], "chat.completion.chunk")

    def chunk(
        delta: JsonObject, rounds: Sequence[Round] = (), end: str | None = None, **more: Any
    ) -> bytes:
        listed = _logprobs(rounds, body)
        choice = {"index": 0, "delta": delta, "logprobs": listed, "finish_reason": end}
        return _server_sent_event({**base, "choices": [choice], **more})

    heard: list[Record] = []
    async with aclosing(records):
        try:
            yield chunk({"role": "assistant", "content": ""})
            some: Sequence[Record] | None = first
            while some is not None:
                heard += some
                rounds = [round_ for round_ in some if isinstance(round_, Round)]
                text = "".join(token.text for round_ in rounds for token in round_.tokens)
                yield chunk({"content": text}, rounds) if rounds else b": waiting\n\n"
                some = await anext(records, None)
        except RefusedRequest as refusal:
            yield _server_sent_event(openai_error(*refusal.args))
            return
    (lane,) = validate_trace(heard)
    yield chunk({}, end=_finish_reason(lane), specvl=_other_fields(lane))
    if (body.get("stream_options") or {}).get("include_usage") is True:
        yield _server_sent_event({**base, "choices": [], "usage": _token_usage(lane)})
    yield b"data: [DONE]\n\n"


def _response_head(model: str, kind: str) -> JsonObject:
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": model}


def _finish_reason(lane: LaneRecords) -> str:
    """Return why an answer ended; the limit of time is a limit of length."""
    return "stop" if lane.end and lane.end.stop in ("eos", "stop") else "length"


def _model_entry(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "specvl"}


def _token_usage(lane: LaneRecords) -> JsonObject:
    totals = tables.measure_lanes(lane).totals
    return {
        "prompt_tokens": lane.begin.n_prompt,
        "completion_tokens": totals.n_tokens,
        "total_tokens": lane.begin.n_prompt + totals.n_tokens,
        "completion_tokens_details": {
            "accepted_prediction_tokens": totals.n_accepted,
            "rejected_prediction_tokens": totals.n_drafted - totals.n_accepted,
        },
    }


def _server_sent_event(data: JsonObject) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def _refusal_response(refusal: RefusedRequest) -> Response:
    later = {"retry-after": "60"} if refusal.args[0] == 503 else None
    return JSONResponse(openai_error(*refusal.args), refusal.args[0], later)
