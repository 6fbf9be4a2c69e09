"""`python app.py` as people start it: what stands open to strangers, what programs in OpenAI's form
get (`/v1/chat/completions` and `/v1/models`), what many get, what is written where.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from specvl_demo.places import EXAMPLES, ROOT
from specvl_demo.ui import messages
from specvl_demo.ui.page import startup
from tests.robustness.support import answer, asks, fetch, streamed
from tests.shared.server import server
from tests.shared.visitor import Event, Turned, Visitor, sentence

SECRET = "correct-horse-battery"
PROMPT = "what-nobody-else-may-read"

SHUT = [
    "/monitoring",
    "/nowhere",
    "/gradio_api/deep_link",
    "/gradio_api/file=http://127.0.0.1:1/",
    "/gradio_api/file/etc/passwd",
    "/gradio_api/mcp/sse",
    "/gradio_api/proxy=https://example.org/",
    "/gradio_api/runs",
    "/gradio_api/stream/a/0/0/playlist.m3u8",
    "/gradio_api/vibe-code",
    "/gradio_api/custom_component/a/client/component/index.js",
    "/gradio_api/call/generate/../x",
]
NOT_TAKEN = {
    "/": "DELETE",
    "/gradio_api/process_recording": "POST",
    "/gradio_api/call/nope": "POST",
    "/gradio_api/run/generate": "POST",
    "/gradio_api/upload": "PUT",
}


def test_a_page_publishes_two_endpoints_and_nothing_more(served: tuple[str, int]):
    url, _ = served
    told = fetch(url, "/gradio_api/info").json()
    assert sorted(told["named_endpoints"]) == ["/generate", "/race"]
    assert not told["unnamed_endpoints"]
    for name, first in (("/generate", "method"), ("/race", "methods")):
        names = [one["parameter_name"] for one in told["named_endpoints"][name]["parameters"]]
        assert names[:3] == ["prompt", first, "pair"] and len(names) == 25
    assert all(fetch(url, path).status_code == 200 for path in ("/", "/theme.css", "/pwa_icon"))
    config = fetch(url, "/config").json()
    public = [d["api_name"] for d in config["dependencies"] if d["api_visibility"] == "public"]
    assert sorted(public) == ["generate", "race"]


@pytest.mark.parametrize(
    ("path", "method"), [*((path, "GET") for path in SHUT), *NOT_TAKEN.items()]
)
def test_what_it_does_not_need_is_shut(served: tuple[str, int], path: str, method: str):
    response = fetch(served[0], path, method)
    assert response.status_code == 404 and response.json() == {"detail": messages.NOT_FOUND}


OTHERS = [
    "/etc/passwd",
    "/proc/self/environ",
    f"{ROOT}/app.py",
    f"{ROOT}/assets/pocket/target/config.json",
]


def test_no_other_file_is_served_and_no_answer_says_where_it_lies(served: tuple[str, int]):
    url, _ = served

    async def known() -> str:
        async with Visitor(url) as visitor:
            return json.dumps(await visitor.server("read_catalog", None))

    shown = [fetch(url, path) for path in ("/", "/config", "/gradio_api/info")]
    assert shown[0].text.count("og:title") == 1  # ours alone; Gradio has two
    refused = [fetch(url, f"/gradio_api/file={path}") for path in OTHERS]
    assert all(response.status_code in (403, 404) for response in refused)
    told = [asyncio.run(known()), *(response.text for response in shown + refused)]
    for place in (str(ROOT), sys.prefix, os.environ.get("HOME", str(ROOT))):
        assert not any(place in text for text in told)
    assert fetch(url, "/gradio_api/file=examples/examples.json").status_code == 200


# ---------------------------------------------------------------- programs in OpenAI's form

SCENE = base64.b64encode((EXAMPLES / "scene.png").read_bytes()).decode()
SHOWN = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SCENE}"}}
ASKED = [{"role": "user", "content": [{"type": "text", "text": "Describe the picture."}, SHOWN]}]


def complete(url: str, **more: Any) -> httpx.Response:
    body = {"model": "pocket", "messages": ASKED, "max_tokens": 12, **more}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)


def test_an_answer_comes_whole_and_in_pieces_and_is_the_same(served: tuple[str, int]):
    whole = complete(served[0], model="pocket/sage").json()
    said = whole["choices"][0]
    assert said["message"]["role"] == "assistant" and said["finish_reason"] == "length"
    assert whole["specvl"]["method"] == "sage" and whole["usage"]["completion_tokens"] == 12
    usage = {"include_usage": True}
    chunks = streamed(complete(served[0], model="pocket/sage", stream=True, stream_options=usage))
    pieces = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    text = "".join(piece["delta"].get("content", "") for piece in pieces)
    assert text == said["message"]["content"] and pieces[-1]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == whole["usage"]
    assert "seed" in chunks[-2]["specvl"]


def test_a_prompt_that_is_too_long_is_told_with_the_tokens_that_were_asked(served: tuple[str, int]):
    error = complete(served[0], messages=[{"role": "user", "content": "a " * 9000}]).json()["error"]
    assert "answer may have 12;" in error["message"] and error["param"] == "messages"


# ---------------------------------------------------------------- many visitors


def test_visitors_of_the_shipped_pair_get_what_they_would_get_alone(served: tuple[str, int]):
    """Four at once on real models, one with a clip, each with a seed: answers of a quiet hour."""
    url, _ = served
    clip = {"path": str(EXAMPLES / "clip.webm"), "name": "clip.webm"}
    requests = [
        {
            "pair": "pocket",
            "methods": ["ngram" if seed % 2 else "chain"],
            "media": [clip] if seed > 2 else [],
            "question": f"What is this, {seed}?",
            "max_new_tokens": 6,
            "temperature": 1.3,
            "seed": seed,
        }
        for seed in range(4)
    ]

    async def together() -> list[list[Event]]:
        return await asyncio.gather(*(asks(url, one) for one in requests))

    alone = [asyncio.run(asks(url, request)) for request in requests]
    crowded = asyncio.run(together())
    answers = set()
    for one, quiet, loud in zip(requests, alone, crowded):
        assert sentence(quiet) is None and sentence(loud) is None
        begin = next(event["record"] for event in loud if event["k"] == "begin")
        assert begin["notes"]["question"] == one["question"]
        assert begin["sampling"]["seed"] == one["seed"]
        for lane in ("ar", *one["methods"]):
            assert answer(loud, lane) == answer(quiet, lane) == answer(quiet)
        answers.add(tuple(answer(loud)))
    assert len(answers) > 2  # the answers really differ, so that a mix-up would show


# ---------------------------------------------------------------- behind a login, with nothing to
# write to

READ_ONLY = """
mount --make-rprivate / && mount -o remount,bind,ro / \\
  && mount -t tmpfs -o size=64m tmpfs {tmp} || exit 97
if touch {root}/written 2>/dev/null; then exit 98; fi
exec {python} {script} "$@"
"""
WRAPPER = """
import os, sys
env = os.environ | dict(HOME="/nonexistent", HF_HOME="/nonexistent/hub")
env |= dict(TMPDIR={tmp!r}, GRADIO_TEMP_DIR={tmp!r} + "/gradio")
os.execvpe("unshare", ["unshare", "-m", "sh", "-c", {script!r}, "sh", *sys.argv[1:]], env)
"""
MOUNTS = (
    sys.platform == "linux" and not os.geteuid() and not os.system("unshare -m true 2>/dev/null")
)
"""Whether a file system can be mounted read-only here: for that it takes root."""


@dataclass(frozen=True)
class Closed:
    """A page behind a login. writable: the small folder where it may write, seen by it alone."""

    url: str
    pid: int
    log: Path
    writable: Path

    def mount(self, how: str) -> None:
        """Mount that folder again, "ro" or "rw"."""
        command = ["nsenter", "-t", str(self.pid), "-m", "mount", "-o", f"remount,bind,{how}"]
        subprocess.run([*command, str(self.writable)], check=True)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    """The page behind two logins. Where that can be had, all its file system is
    read-only but for one small folder for temporary files, and its home does not exist."""
    folder = tmp_path_factory.mktemp("closed")
    writable, script = folder / "writable", ROOT / "app.py"
    writable.mkdir()
    if MOUNTS:
        started = READ_ONLY.format(tmp=writable, root=ROOT, python=sys.executable, script=script)
        script = folder / "start.py"
        script.write_text(WRAPPER.format(tmp=str(writable), script=started))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(startup.LOGIN, f"ann:{SECRET}\n\nbob:{SECRET}:2\n")
        with server(script, folder) as (url, pid):
            patch.undo()  # other servers stay open
            yield Closed(url, pid, folder / "log.txt", writable)


@pytest.mark.slow
def test_neither_passwords_nor_prompts_are_in_the_log(closed: Closed):
    async def story() -> tuple[list[Event], str]:
        with pytest.raises(Turned, match="Incorrect credentials"):
            await Visitor(closed.url, ("ann", "wrong")).__aenter__()
        async with Visitor(closed.url, ("bob", f"{SECRET}:2")) as bob:
            asked = {"pair": "pocket", "question": PROMPT, "methods": [], "max_new_tokens": 2}
            events = [event async for event in bob.ask(asked)]
            with pytest.raises(Turned) as said:
                await bob.call("generate", {"prompt": PROMPT, "method": "nonsense"})
            return events, str(said.value)

    events, said = asyncio.run(story())
    assert sentence(events) is None and "no method 'nonsense'" in said
    text = closed.log.read_text()
    assert "Running on local URL" in text
    for secret in (SECRET, PROMPT, "wrong"):
        assert secret not in text


@pytest.mark.slow
@pytest.mark.skipif(not MOUNTS, reason="only root can mount a file system read-only")
def test_a_read_only_file_system_is_enough(closed: Closed):
    """Everything is read-only but one small folder, which is full later, then read-only too."""
    scene, clip = ((EXAMPLES / name).read_bytes() for name in ("scene.png", "clip.webm"))

    async def visit(refused: str | None) -> list[Event]:
        """The events of a question about a picture and a clip, or nothing if no file is kept."""
        asked = {"pair": "pocket", "question": "?", "methods": ["sage"], "max_new_tokens": 2}
        async with Visitor(closed.url, ("ann", SECRET)) as visitor:
            if refused is None:
                asked["media"] = [
                    await visitor.upload("scene.png", scene),
                    await visitor.upload("clip.webm", clip),
                ]
            else:
                with pytest.raises(Turned, match=refused):
                    await visitor.upload("clip.webm", clip)
            return [event async for event in visitor.ask(asked)]

    filler = Path(f"/proc/{closed.pid}/root{closed.writable}/filler")
    runs = [asyncio.run(visit(None))]
    try:
        filler.write_bytes(bytes(40 * 2**20))
        runs.append(asyncio.run(visit("machine's disk is full")))
        closed.mount("ro")
        runs.append(asyncio.run(visit("upload folder is not writable")))
    finally:
        closed.mount("rw")
        filler.unlink(missing_ok=True)
    for events in runs:
        assert sentence(events) is None and events[-1]["k"] == "done"
        assert len([event for event in events if event["k"] == "end"]) == 2
