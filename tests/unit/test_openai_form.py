"""What programs in OpenAI's form send and get: by the routes, the filter before them and the queue,
over an engine without a model (tests/page/fake_page.py)."""

import asyncio
import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from starlette.applications import Starlette

from specvl_demo.media import PLACE
from specvl_demo.options import Sampling
from specvl_demo.ui import messages
from specvl_demo.ui.page import app, chat
from specvl_demo.ui.page.handlers import PageHandlers
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.route_filter import RouteFilter
from specvl_demo.ui.serve.uploads import Uploads
from tests.page.fake_page import Event, ThreadWorker, compute
from tests.robustness.support import streamed

COMPLETIONS = "/v1/chat/completions"


class Api:
    """The routes behind the filter."""

    def __init__(self, folder: Path, limit_s: float = 60.0) -> None:
        self.jobs: list[Job] = []
        self.formats: list[str | None] = []
        uploads = Uploads(folder)
        queue = Queue(ThreadWorker(self._compute), limit_s=limit_s)
        methods = {"ar": True, "sage": True}
        pocket = {"id": "pocket", "available": True, "reason": "", "methods": methods}
        handlers = PageHandlers({"pairs": [pocket]}, queue, uploads, [folder])
        page = Starlette(routes=chat.routes(handlers))
        self._app = RouteFilter(page, uploads, [folder], 2**20)

    def _compute(self, job: Job, ended: Callable[[], bool], tell: object) -> Iterator[Event]:
        """Remembers jobs, and the formats of their files."""
        self.jobs.append(job)
        for path in job.question.paths:
            with Image.open(path) as picture:
                self.formats.append(picture.format)
        yield from compute(job, ended)
        if "broken" in job.question.words:
            reason = messages.RUN_FAILED.format(reason="after the answer")
            yield {"k": "error", "text": reason}

    def send(self, method: str, path: str, **what: Any) -> httpx.Response:
        async def sent() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                return await client.request(method, path, **what)

        return asyncio.run(sent())

    def complete(self, content: Any = "rounds=3", **more: Any) -> httpx.Response:
        sent = [{"role": "user", "content": content}]
        return self.send("POST", COMPLETIONS, json={"model": "pocket/ar", "messages": sent, **more})


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return Api(tmp_path / "uploads")


def test_values_that_change_nothing_are_taken(api: Api):
    nothing = {"parallel_tool_calls": True, "tool_choice": "auto", "repetition_penalty": 1.0}
    nothing |= {"top_k": -1, "min_p": 0, "reasoning_effort": "low"}
    assert api.complete(**nothing).status_code == 200


def test_settings_of_sampling_are_read_as_clients_spell_them(api: Api):
    sent = {"top_k": 5, "min_p": 0.1, "stop": "x", "logprobs": True, "top_logprobs": 3}
    sent |= {"frequency_penalty": 0.5, "presence_penalty": -1, "logit_bias": {"7": -100}}
    sent |= {"repetition_penalty": 1.2, "min_tokens": 2, "ignore_eos": True, "seed": 4}
    assert api.complete(**sent).status_code == 200
    named = {"top_k": 5, "min_p": 0.1, "frequency_penalty": 0.5, "presence_penalty": -1.0}
    named |= {"repetition_penalty": 1.2, "min_new_tokens": 2, "ignore_eos": True, "logprobs": 3}
    sampling = Sampling(**named, seed=4, stop=("x",), logit_bias={7: -100.0})
    assert api.jobs[0].question.sampling == sampling


def test_without_a_seed_each_request_draws_another(api: Api):
    for _ in range(3):
        api.complete(temperature=1)
    assert len({job.question.sampling.seed for job in api.jobs}) == 3


def encoded(kind: str, folder: Path) -> str:
    file = folder / f"a.{kind}"
    Image.effect_noise((24, 20), 90).convert("RGB").save(file)
    return base64.b64encode(file.read_bytes()).decode()


DATA_URLS = {
    "image/jpg": ("jpeg", "data:image/jpg;base64,{}"),
    "a type in capitals": ("png", "data:IMAGE/PNG;base64,{}"),
    "a charset": ("png", "data:image/png;charset=utf-8;base64,{}"),
    "no type": ("jpeg", "data:;base64,{}"),
    "another type": ("webp", "data:image/png;base64,{}"),
}


@pytest.mark.parametrize(("kind", "form"), DATA_URLS.values(), ids=DATA_URLS.keys())
def test_content_decides_what_a_data_url_is(api: Api, kind: str, form: str, tmp_path: Path):
    """Whatever type is named, and without a table of types, which slim images lack."""
    url = {"url": form.format(encoded(kind, tmp_path)), "detail": "high"}
    assert api.complete([{"type": "image_url", "image_url": url}]).status_code == 200
    assert api.formats == [kind.upper()]


def test_base64_in_other_spellings_is_read(api: Api, tmp_path: Path):
    data = encoded("png", tmp_path)
    lines = "\n".join(data[at : at + 76] for at in range(0, len(data), 76))
    safe = data.replace("+", "-").replace("/", "_")
    percent = data.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    assert safe != data != percent
    for spelt in (lines, safe, percent, data.rstrip("=")):
        part = {"type": "image_url", "image_url": f"data:image/png;base64,{spelt}"}
        assert api.complete([part]).status_code == 200
    assert api.formats == ["PNG"] * 4


def test_the_order_of_texts_and_pictures_is_kept(api: Api, tmp_path: Path):
    picture = {
        "type": "image_url",
        "image_url": f"data:image/png;base64,{encoded('png', tmp_path)}",
    }
    before, after = ({"type": "text", "text": word} for word in ("Before:", "After:"))
    for content in ([before, picture, after, picture], [picture, before, after], [before, picture]):
        assert api.complete(content).status_code == 200
    first, second, third = (job.question for job in api.jobs)
    assert first.words == f"Before:{PLACE}After:{PLACE}" and len(first.media) == 2
    assert second.words == "Before:\nAfter:" and third.words == "Before:"


def test_what_is_not_served_is_said_in_openais_form(api: Api):
    for path in ("/v1", "/chat/completions", "/api/tags", "/health"):
        answer = api.send("GET", path)
        assert answer.status_code == 404 and answer.json()["error"]["message"] == messages.NOT_FOUND
    assert api.send("GET", "http://here//v1/models").status_code == 200


def test_a_pasted_object_replacement_character_is_text(api: Api, tmp_path: Path):
    data = f"data:image/png;base64,{encoded('png', tmp_path)}"
    content = [{"type": "image_url", "image_url": data}, {"type": "text", "text": "a \ufffc b"}]
    assert api.complete(content).status_code == 200
    assert api.jobs[0].question.words == "a \ufffc b"


def test_turns_of_one_role_are_merged(api: Api):
    said = [
        ("developer", "Be brief."),
        ("assistant", "How can I help?"),
        ("user", "Hello."),
        ("user", "rounds=2"),
        ("assistant", None),
        ("user", "rounds=3"),
    ]
    messages_sent = [{"role": role, "content": text} for role, text in said]
    assert api.complete(messages=messages_sent).status_code == 200
    (job,) = api.jobs
    turns = [(turn.question, turn.answer) for turn in job.question.earlier]
    assert turns == [("", "How can I help?"), ("Hello.\nrounds=2", "")]
    assert job.question.system == "Be brief." and job.question.words == "rounds=3"


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_that_reaches_the_limit_of_time_returns_its_text(tmp_path: Path, stream: bool):
    api = Api(tmp_path, limit_s=0.4)
    answer = api.complete("who=slow rounds=100 each=0.05", stream=stream)
    assert answer.status_code == 200
    if stream:
        choices = [one["choices"][0] for one in streamed(answer)]
        text = "".join(one["delta"].get("content", "") for one in choices)
        finish = choices[-1]["finish_reason"]
    else:
        (choice,) = answer.json()["choices"]
        text, finish = choice["message"]["content"], choice["finish_reason"]
    assert text.startswith("slow slow") and finish == "length"


def test_a_whole_answer_is_not_lost_behind_a_later_failure(api: Api):
    answer = api.complete("who=whole rounds=2 broken=1")
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "whole whole "


@pytest.mark.parametrize(
    ("code", "status"), [("failed", 500), ("late", 500), ("busy", 503), (None, 400)]
)
def test_a_failure_of_the_page_is_not_the_programs_fault(
    tmp_path: Path, monkeypatch, code: Any, status: int
):
    event = messages.error_event("It ended.", code)
    monkeypatch.setattr(Api, "_compute", lambda *_: iter([event]))
    answer = Api(tmp_path).complete()
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, "It ended.")


def test_a_stream_is_not_held_back_by_a_proxy(api: Api):
    answer = api.complete(stream=True)
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-store"


def test_every_model_that_is_listed_is_found_by_its_name(api: Api):
    models = api.send("GET", "/v1/models").json()["data"]
    assert {model["id"] for model in models} == {"pocket", "pocket/ar", "pocket/sage"}
    assert api.send("GET", "/v1/models/pocket/sage").json()["id"] == "pocket/sage"


def test_the_page_is_never_rendered_by_a_node_server(tmp_path: Path, monkeypatch):
    """Spaces ask for one by this variable; it would stand before the routes and outlive them."""
    import gradio as gr

    monkeypatch.setenv("GRADIO_SSR_MODE", "True")
    with gr.Blocks() as page:
        handlers = PageHandlers(
            {"pairs": []}, Queue(ThreadWorker(compute)), Uploads(tmp_path), [tmp_path]
        )
    settings = app.launch_settings(page, handlers)
    assert page._resolve_ssr_mode(settings["ssr_mode"]) is False
