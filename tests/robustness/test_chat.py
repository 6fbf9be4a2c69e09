"""`/v1/chat/completions` and `/v1/models`, as programs that speak OpenAI's form call them."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from specvl_demo.places import EXAMPLES

SCENE = base64.b64encode((EXAMPLES / "scene.png").read_bytes()).decode()
SHOWN = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SCENE}"}}
ELSEWHERE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
ASKED = [
    {"role": "user", "content": [{"type": "text", "text": "Describe the picture."}, SHOWN]},
]


def complete(url: str, **more: Any) -> httpx.Response:
    body = {"model": "pocket", "messages": ASKED, "max_tokens": 12, **more}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)


def test_an_answer_comes_whole_and_in_pieces_and_is_the_same(served: tuple[str, int]) -> None:
    whole = complete(served[0], model="pocket/sage").json()
    said = whole["choices"][0]
    assert said["message"]["role"] == "assistant" and said["finish_reason"] == "length"
    assert whole["specvl"]["method"] == "sage" and whole["usage"]["completion_tokens"] == 12
    streamed = complete(
        served[0], model="pocket/sage", stream=True, stream_options={"include_usage": True}
    )
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(one) for one in events[:-1]]
    pieces = [one["choices"][0] for one in chunks if one["choices"]]
    text = "".join(one["delta"].get("content", "") for one in pieces)
    assert text == said["message"]["content"] and pieces[-1]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == whole["usage"]


def test_every_model_that_is_listed_names_a_pair(served: tuple[str, int]) -> None:
    told = httpx.get(f"{served[0]}/v1/models", timeout=60).json()
    assert {"pocket", "pocket/ar", "pocket/sage"} <= {one["id"] for one in told["data"]}


REFUSED = [
    ({"stop": ["."]}, "`stop` is not supported"),
    ({"n": 2}, "`n` is not supported"),
    ({"tools": [{"type": "function"}]}, "`tools` is not supported"),
    ({"best_of": 3}, "`best_of` is not supported"),
    ({"model": "nope"}, "no pair 'nope'"),
    ({"model": "pocket/nope"}, "no method 'nope'"),
    ({"model": 7}, "/v1/models"),
    ({"temperature": 1000}, "Temperature"),
    ({"max_tokens": "x"}, "Max new tokens"),
    ({"messages": []}, "`messages` must be"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "`messages` must be"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "content must be"),
    ({"messages": [{"role": "user", "content": [ELSEWHERE]}]}, "addresses are not fetched"),
]


@pytest.mark.parametrize(("asked", "part"), REFUSED, ids=[part for _, part in REFUSED])
def test_what_is_not_served_is_refused_in_openais_form(
    asked: dict[str, Any], part: str, served: tuple[str, int]
) -> None:
    answer = complete(served[0], **asked)
    error = answer.json()["error"]
    assert answer.status_code == 400 and part in error["message"]
    assert error["type"] == "invalid_request_error" and error["message"].endswith(".")
