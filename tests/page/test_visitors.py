"""Several visitors at once: the line, leaving, and what a program gets from the same page."""

from __future__ import annotations

import re
import time

import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from playwright.sync_api import expect

from tests.page.test_race import run_race

pytestmark = pytest.mark.ui
FIELDS = [
    *("text", "token_ids", "method", "pair", "lossless", "n_tokens", "n_rounds", "tau", "accepted_per_round"),
    *("relaxed_tokens", "prefill_s", "decode_s", "tokens_per_s", "stop", "seed"),
]
# Gradio's name for this visit, as the browser sends it with a question.
NOTE_VISIT = """
const send = window.fetch;
window.fetch = (where, how) => {
  if (String(where).includes('/queue/join')) window.visit = JSON.parse(how.body).session_hash;
  return send(where, how);
};
"""
RACE_FIELDS = ["speedup_decode", "speedup_total", "identical_to_ar", "first_difference"]


@pytest.fixture
def second(opened, url: str, browser):
    """Another visitor, in a browser session of their own."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(NOTE_VISIT)
    page.goto(url)
    page.wait_for_function("window.specvl?.ready", timeout=60_000)
    yield page
    context.close()


def begin_long_run(page) -> None:
    page.evaluate("specvl.ask.request.sampling.max_new_tokens = 600")
    page.locator("#vl-run").click()
    page.wait_for_function("specvl.race.meta.source === 'live' && specvl.race.list[0]?.tokens.length > 3")


def test_the_second_visitor_sees_the_place_in_line_and_is_served(opened, second):
    """While one computes the other is told to wait, and when; Stop of the first lets the second in."""
    begin_long_run(opened)
    second.locator("#vl-run").click()
    expect(second.locator("#vl-status")).to_have_text(re.compile(r"Waiting: you are next, about \d+ s\."))
    opened.locator("#vl-stop").click()
    second.wait_for_function(
        "!specvl.ask.running && specvl.race.meta.source === 'live' && specvl.race.finished", timeout=60_000
    )


def test_a_waiting_visitor_can_leave_the_line(opened, second):
    """Stop while waiting ends the waiting; the running one is not disturbed."""
    begin_long_run(opened)
    second.locator("#vl-run").click()
    expect(second.locator("#vl-status")).to_contain_text("Waiting")
    second.locator("#vl-stop").click()
    expect(second.locator("#vl-run")).to_be_enabled()
    assert opened.evaluate("specvl.ask.running")
    opened.locator("#vl-stop").click()
    opened.wait_for_function("!specvl.ask.running")


def test_closing_the_tab_has_the_conversation_dropped(second, tmp_path_factory: pytest.TempPathFactory):
    """Who leaves after a race leaves nothing behind: the worker is told whose conversation to drop."""

    def visits() -> list[str]:
        told = tmp_path_factory.getbasetemp().glob("page*/forgotten.txt")  # one folder a served page
        return [visit for file in told for visit in file.read_text().split()]

    run_race(second)
    visit = second.evaluate("window.visit")
    assert visit and visit not in visits()
    second.close()
    until = time.monotonic() + 120
    while visit not in visits() and time.monotonic() < until:
        time.sleep(0.1)
    assert visit in visits()


@pytest.fixture(scope="module")
def client(url: str) -> Client:
    return Client(url, verbose=False)


def test_programs_get_the_fields_of_the_command_line(client: Client, tmp_path_factory):
    """`generate` and `race` are named endpoints; a picture may be sent along."""
    told = client.predict(prompt="What is this?", method="tabed", api_name="/generate")
    assert sorted(told) == sorted(FIELDS)
    assert told["method"] == "tabed" and told["n_tokens"] == len(told["token_ids"])
    picture = next(tmp_path_factory.getbasetemp().glob("page*/scene.png"))
    told = client.predict(
        prompt="", methods="tabed,lvspec", image=[handle_file(str(picture))], api_name="/race"
    )
    assert [lane["method"] for lane in told["lanes"]] == ["ar", "tabed", "lvspec"]
    assert all(sorted(lane) == sorted([*FIELDS, *RACE_FIELDS]) for lane in told["lanes"])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"prompt": ""}, "Ask a question or add a picture first."),
        ({"prompt": "x", "method": "nonsense"}, "There is no method 'nonsense'"),
        ({"prompt": "x", "pair": "nowhere"}, "There is no pair 'nowhere'"),
        ({"prompt": "x", "max_new_tokens": 10**9}, "The token limit must be a number from 1 to"),
        ({"prompt": "x", "temperature": -1}, "The temperature must be a number"),
        ({"prompt": "x" * 30_000}, "The question is too long"),
        ({"prompt": "x", "image": [{"path": "/etc/passwd"}]}, "The file is no longer on the server"),
    ],
)
def test_programs_are_refused_in_a_sentence(client: Client, asked: dict, said: str):
    """Bad input ends in one sentence, and no file of the server is read."""
    with pytest.raises((AppError, ValueError), match=re.escape(said)):
        client.predict(**asked, api_name="/generate")
