"""A visitor of a served page without a browser: sends requests like the page's scripts, or like a
program, by HTTP.

Given the address of a running page, yields the events of a run as they arrive. Knows the page's
protocol (a JSON string per batch, numbered), nothing of what is behind it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import httpx

from specvl_demo.records import Record, loads

Event = dict[str, Any]
PATIENCE_S = 600.0
"""Longer than the line and the longest run: a visitor who waits longer has been forgotten."""
KINDS = ("begin", "round", "end")


class Turned(Exception):
    """The server did not answer as expected; the message says how."""


class Visitor:
    """One visit. Use as `async with`; leaving it closes every connection, as closing a tab does.

    address: the client's, as a proxy on this machine tells it.
    """

    def __init__(
        self, url: str, login: tuple[str, str] | None = None, address: str | None = None
    ) -> None:
        self._login = login
        patience = httpx.Timeout(PATIENCE_S, connect=60.0)
        # Nothing on this machine has a certificate, and reading those that others have takes a
        # while.
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=patience,
            trust_env=False,
            verify=False,
            # A server may close what is idle while this machine is about to use it once more.
            limits=httpx.Limits(keepalive_expiry=2.0),
            headers={"x-forwarded-for": address} if address else None,
        )
        self.session = secrets.token_hex(6)
        self._run = -1
        self._board = -1

    async def __aenter__(self) -> Visitor:
        if self._login is not None:
            user, password = self._login
            await self._post("/login", data={"username": user, "password": password})
        config = _object(await self._http.get("/config"))
        self._run, self._board = next(
            (one["id"], one["targets"][0][0])
            for one in config["dependencies"]
            if one["api_name"] == "run_job"
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, asked: Any) -> AsyncIterator[Event]:
        """Yield the events of one race for a page's request; closing it leaves the run."""
        session = self.session = secrets.token_hex(6)
        body = {"data": [], "event_data": asked, "fn_index": self._run, "trigger_id": self._board}
        await self._post("/gradio_api/queue/join", json={**body, "session_hash": session})
        numbers = {}
        async with aclosing(
            self._listen(f"/gradio_api/queue/data?session_hash={session}")
        ) as lines:
            async for line in lines:
                message = json.loads(line)
                if message["msg"] == "close_stream":
                    return
                for batch in _batches(message):
                    due = numbers.get(batch["run"], 0)
                    if batch["seq"] < due:
                        continue  # the last one is sent again with the end of the stream
                    if batch["seq"] > due:
                        raise Turned(f"batch {due} of a run never came, {batch['seq']} did")
                    numbers[batch["run"]] = due + 1
                    for event in batch["events"]:
                        yield event

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return a named endpoint's result for a program. Turned, with the sentence, if refused."""
        started = await self._post(f"/gradio_api/call/v2/{name}", json=dict(arguments))
        kind = ""
        async with aclosing(
            self._listen(f"/gradio_api/call/{name}/{started['event_id']}", "")
        ) as lines:
            async for line in lines:
                word, _, rest = line.partition(": ")
                if word == "event":
                    kind = rest
                elif word == "data" and kind == "error":
                    said = json.loads(rest)
                    raise Turned(said.get("error") if isinstance(said, dict) else str(said))
                elif word == "data" and kind == "complete":
                    return json.loads(rest)[0]
        raise Turned("the endpoint ended without an answer")

    async def server(self, name: str, argument: Any) -> Any:
        """Return the result of one of the page's own functions."""
        body = {"data": argument, "component_id": self._board}
        body |= {"fn_name": name, "session_hash": self.session}
        return await self._post("/gradio_api/component_server", json=body)

    async def upload(self, name: str, content: bytes) -> dict[str, str]:
        """A file as a question may then use it."""
        paths = await self._post("/gradio_api/upload", files={"files": (name, content)})
        return {"path": paths[0], "name": name}

    async def leave(self) -> None:
        """End the visit of the last question as a page does: what it kept open is closed."""
        async with self._http.stream("GET", f"/gradio_api/heartbeat/{self.session}") as alive:
            await anext(alive.aiter_lines())

    async def _post(self, path: str, **what: Any) -> Any:
        return _object(await self._http.post(path, **what))

    async def _listen(self, path: str, prefix: str = "data: ") -> AsyncIterator[str]:
        async with self._http.stream("GET", path) as answer:
            if answer.status_code != 200:
                raise Turned(f"{path.split('?')[0]} answered {answer.status_code}")
            async for line in answer.aiter_lines():
                if line.startswith(prefix) and line.strip():
                    yield line.removeprefix(prefix)


def read(events: list[Event]) -> list[Record]:
    """The records among the events of a run, each one checked."""
    return [loads(json.dumps(e["record"])) for e in events if e["k"] in KINDS]


def sentence(events: list[Event]) -> str | None:
    """What a visitor was told went wrong."""
    return next((event["text"] for event in events if event["k"] == "error"), None)


def _object(answer: httpx.Response) -> Any:
    if answer.status_code != 200:
        raise Turned(answer.text[:300] or f"HTTP {answer.status_code}")
    return answer.json()


def _batches(message: dict[str, Any]) -> list[Event]:
    """The page's batches in a message of Gradio: whole the first time, then as a replacement."""
    if message["msg"] == "unexpected_error" or message.get("success") is False:
        raise Turned(str(message.get("message") or message.get("output")))
    if message["msg"] not in ("process_generating", "process_completed"):
        return []
    data = message["output"]["data"]
    value = data[0] if data else None
    if isinstance(value, list):
        value = value[-1][2] if value else None
    return [json.loads(value)] if value else []
