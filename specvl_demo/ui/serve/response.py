"""The response to one request: security headers, and this page's sentences in place of the messages
of the web server's libraries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.formparsers import MultiPartException

from specvl_demo.ui import messages

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

HUB = "https://huggingface.co https://*.huggingface.co https://*.hf.co"
"""What the bar above a Space's page is loaded from."""
POLICY = f"""
default-src 'self';
script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:;
style-src 'self' 'unsafe-inline';
img-src 'self' data: blob: {HUB};
media-src 'self' data: blob:;
font-src 'self' data:;
connect-src 'self' data: blob: {HUB};
worker-src 'self' blob:;
object-src 'none';
base-uri 'self';
form-action 'self';
frame-ancestors 'self'
"""
"""Gradio starts its page from inline scripts and compiles functions from the text of components. It
ends with who may show the page in a frame.
"""
UNBUFFERED = [(b"x-accel-buffering", b"no"), (b"cache-control", b"no-store")]
"""For a stream: a proxy such as nginx would hold it back until its end."""


def security_headers(frames: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Return the headers of every response; `frames` are the sites that may show the page in a
    frame, `*` for any.
    """
    policy = " ".join([*POLICY.split(), *frames])
    return [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),
    ]


class RefusedRequest(Exception):
    """(status, sentence) and, of a program in OpenAI's form, the field: the request is refused."""


@dataclass
class PageResponse:
    """One response, with this page's headers, and its sentences if the app refuses or fails.

    Attributes:
        deliver: Sends a message to the client.
        sentences: By status, in place of what the app says.
        keep: Whether `body` is kept.
        openai: Whether refusals have OpenAI's form instead of Gradio's.
    """

    deliver: Send
    sentences: Mapping[int, str]
    headers: Sequence[tuple[bytes, bytes]]
    keep: bool
    openai: bool
    status = 0
    body: bytearray = field(default_factory=bytearray)
    _started = False
    _replaced = False
    _excess: str | None = None

    async def send(self, message: Any) -> None:
        if self._replaced:
            return
        if message["type"] == "http.response.start":
            status = 413 if self._excess else message["status"]
            if sentence := self._excess or self.sentences.get(status):
                await self.send_sentence(status, sentence)
                return
            self._started = True
            self.status = message["status"]
            headers = [*message.get("headers", ()), *self.headers]
            if any(k == b"content-type" and v.startswith(b"text/event-stream") for k, v in headers):
                headers = [pair for pair in headers if pair[0] != b"cache-control"] + UNBUFFERED
            message = {**message, "headers": headers}
        elif self.keep:
            self.body += message.get("body", b"")
        await self.deliver(message)

    async def send_sentence(self, status: int, sentence: str) -> None:
        """Respond with a sentence, in the form in which the route's clients read a refusal."""
        self._started = self._replaced = True
        self.status = status
        refusal = openai_error(status, sentence) if self.openai else {"detail": sentence}
        body = orjson.dumps(refusal)
        length = (b"content-length", str(len(body)).encode())
        headers = [(b"content-type", b"application/json"), length, *self.headers]
        await self.deliver({"type": "http.response.start", "status": status, "headers": headers})
        await self.deliver({"type": "http.response.body", "body": body})

    async def report_failure(self) -> None:
        """Report that the app has raised, if nothing was sent yet; otherwise end the response."""
        if self._started:
            if not self._replaced:
                await self.deliver({"type": "http.response.body", "body": b""})
        elif self._excess:
            await self.send_sentence(413, self._excess)
        else:
            await self.send_sentence(500, messages.BY_STATUS[500])

    def limit_body(self, receive: Receive, max_bytes: int, sentence: str) -> Receive:
        """Receive a form's body until it exceeds the limit or the client has gone: its reader then
        removes the files that it has begun.
        """
        come = 0

        async def counted() -> Any:
            nonlocal come
            message = await receive()
            come += len(message.get("body", b""))
            if come > max_bytes:
                self._excess = sentence
            if self._excess or (message["type"] == "http.disconnect" and not self._started):
                raise MultiPartException("The form is incomplete.")
            return message

        return counted


def openai_error(status: int, sentence: str, name: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's form; `name` is the field that it is about."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = "model_not_found" if (status, name) == (404, "model") else None
    return {"error": {"message": sentence, "type": kind, "param": name, "code": code}}
